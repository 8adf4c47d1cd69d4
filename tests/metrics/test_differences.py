"""Noise bands, and the intervals of medians: on frames small enough to work out by hand."""

import numpy as np
import pandas as pd
import pytest

from profiler_job.analysis.metrics import differences
from tests import frozen


def test_a_band_needs_pairs():
    pairs = pd.DataFrame({"run_id": ["a"], "first_ns": [1], "second_ns": [1], "mean_ns": [1.0], "parts": [0]})
    with pytest.raises(ValueError, match="needs 20 pairs of times of the same runs, and there are 1"):
        differences.fit_band(pairs, "kernel")


def test_times_that_never_differ_make_a_band_without_width():
    pairs = pd.DataFrame(
        {"first_ns": [1000] * 30, "second_ns": [1000] * 30, "mean_ns": [1000.0] * 30, "parts": [1] * 30}
    )
    band = differences.fit_band(pairs.assign(run_id="a"), "kernel")
    assert not band.differ(pairs).any()
    assert band.differ(pairs.assign(second_ns=1010)).all()


def test_one_of_twenty_is_chance_and_four_are_not():
    assert not differences.is_beyond_chance(1, 20)
    assert not differences.is_beyond_chance(3, 20)
    assert differences.is_beyond_chance(4, 20)
    assert not differences.is_beyond_chance(0, 0)


def test_an_interval_is_of_processes_and_not_of_their_steps():
    steps = pd.DataFrame({"run_id": "a", "process": [0] * 50 + [1, 2], "ns": [1.0] * 50 + [3.0, 5.0]})
    table = differences.median_interval(steps, ["run_id"], "ns")
    row = table.iloc[0]
    assert (row["ns"], row["num_processes"], row["num_steps"]) == (3.0, 3, 52)
    assert (row["ns_low"], row["ns_high"]) == (1.0, 5.0)


def test_two_processes_have_no_interval():
    steps = pd.DataFrame({"run_id": "a", "process": [0, 1], "ns": [1.0, 2.0]})
    row = differences.median_interval(steps, ["run_id"], "ns").iloc[0]
    assert row["ns"] == 1.5 and np.isnan(row["ns_low"]) and row["num_processes"] == 2


def test_intervals_are_of_each_phase_of_the_timed_steps_alone():
    rows = [("a", phase, process, wall) for phase, wall in (("forward", 10), ("step", 20)) for process in range(3)]
    steps = pd.DataFrame(rows, columns=["run_id", "phase", "process", "wall_ns"])
    steps = steps.assign(rank=0, step=0, collector="timer", wall_ns=steps["wall_ns"] + steps["process"])
    steps = pd.concat([steps, steps.assign(collector="nsys", wall_ns=99)])
    found = differences.timed_steps(steps).set_index("phase")
    assert found["of_processes_ns"].to_dict() == {"forward": 11, "step": 21}
    assert found["of_processes_low_ns"].to_dict() == {"forward": 10, "step": 20}
    assert (found["num_processes"] == 3).all() and found["timer_mean_ns"].to_dict() == {"forward": 11, "step": 21}
    assert (found["timer_std_ns"] == 1).all()
    of_two = differences.timed_steps(steps[steps["process"] < 2])
    assert of_two["of_processes_ns"].isna().all() and of_two["timer_std_ns"].notna().all()
    of_one = differences.timed_steps(steps[steps["process"] == 0].drop(columns="process"))
    assert (of_one["num_processes"] == 1).all() and of_one["timer_std_ns"].isna().all()


def test_without_a_band_times_differ_where_their_ranges_do_not_overlap():
    rows = pd.DataFrame({"a_ns": [10, 10], "a_min_ns": [9, 9], "a_max_ns": [11, 11], "b_ns": [12, 14]})
    rows = rows.assign(b_min_ns=[11, 13], b_max_ns=[13, 15])
    assert differences.differ(rows, "a", "b", None).tolist() == [False, True]
    assert differences.half_band_ns(rows, "a", "b", None).isna().all()


def test_times_differ_where_they_are_further_apart_than_the_band():
    band = differences.Band(kind="kernel", relative=0.01, ratio=100.0, factor=2.0, num_pairs=20)
    rows = pd.DataFrame(
        {"a_ns": [990.0, 980.0], "b_ns": [1010.0, 1020.0], "a_parts": [1.0, 1.0], "b_parts": [5.0, 5.0]}
    )
    assert differences.half_band_ns(rows, "a", "b", band).tolist() == pytest.approx([0.02 * np.hypot(1000, 500)] * 2)
    assert differences.differ(rows, "a", "b", band).tolist() == [False, True]
    assert (band.time_half, band.parts_half) == (0.02, 2.0)


def test_recordings_that_share_too_few_runs_have_no_bands():
    first = frozen.load_study("")
    assert len(first.runs) < differences.LEAST_PAIRS
    assert differences.bands_of(first, frozen.measure_again(first)) is None
    assert differences.bands_of(first, first) is None, "a recording is not compared with itself"
