"""Identical runs are rarely called different, and what differs is seen: on the two shipped recordings of the same runs,
and on frames small enough to work out by hand."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from profiler_job.analysis.metrics import differences
from profiler_job.analysis.recording import store
from tests.shipped.recordings import locate

RUN, FAMILY = ["run_id"], ["run_id", "family"]


@pytest.fixture(scope="module")
def recordings():
    return [store.load(locate(name)) for name in ("h200-fp32", "again")]


@pytest.fixture(scope="module")
def kernel_pairs(recordings):
    """Kernel time of each run and of each of its families, in both recordings."""

    def pairs(by):
        return differences.pair_times(*(differences.times_of_kernels(rec.kernels, by) for rec in recordings), by)

    return pd.concat([pairs(RUN), pairs(FAMILY)], ignore_index=True)


@pytest.fixture(scope="module")
def wall_pairs(recordings):
    return differences.pair_times(
        *(differences.times_of_steps(rec.steps, rec.kernels, rec.memops) for rec in recordings), RUN
    )


def judge_held_out(pairs, kind, folds=5, planted=1.0):
    """Whether each pair is called different by the band of the other runs: no run judges itself. planted: what the
    second time of the judged pairs is multiplied by."""
    fold = pairs["run_id"].map({run: i % folds for i, run in enumerate(sorted(pairs["run_id"].unique()))})
    second = pairs["second_ns"] * planted
    judged = pairs.assign(second_ns=second, mean_ns=(pairs["first_ns"] + second) / 2)
    parts = [
        differences.fit_band(pairs[fold != number], kind).differ(judged[fold == number]) for number in range(folds)
    ]
    return pd.concat(parts).reindex(pairs.index)


def test_at_most_one_in_twenty_identical_kernel_times_is_called_different(kernel_pairs):
    different = judge_held_out(kernel_pairs, "kernel")
    assert len(kernel_pairs) == 450
    assert different.mean() <= 0.05
    assert different[kernel_pairs["family"].isna()].mean() <= 0.05, "of whole steps alone"
    assert different[kernel_pairs["family"].notna()].mean() <= 0.05, "of families alone"


def test_at_most_one_in_twenty_identical_step_times_is_called_different(wall_pairs):
    different = judge_held_out(wall_pairs, "wall")
    assert len(wall_pairs) == 60
    assert different.mean() <= 0.05


def test_a_planted_change_of_3_percent_of_kernel_time_is_seen(kernel_pairs):
    for change in (0.97, 1.03):
        found = judge_held_out(kernel_pairs, "kernel", planted=change)
        assert found[kernel_pairs["family"].isna()].mean() >= 0.95, "of whole steps"


def test_a_sum_of_many_kernels_has_a_narrower_band_than_one_kernel(kernel_pairs):
    band = differences.fit_band(kernel_pairs, "kernel")
    time = pd.Series([5_000.0, 5_000_000.0])
    share = band.width_ns(time, np.sqrt(pd.Series([1, 1000]))) / time
    assert share[0] > 5 * share[1]


def test_a_step_that_waits_for_the_host_has_a_wider_band(wall_pairs):
    band = differences.fit_band(wall_pairs, "wall")
    time = pd.Series([1e8, 1e8])
    never, mostly = band.width_ns(time, pd.Series([0.0, 8e7])) / time
    assert mostly > 5 * never


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


def test_recordings_that_share_too_few_runs_have_no_bands(recordings):
    first, second = recordings
    few = dataclasses.replace(second, runs=second.runs.head(differences.LEAST_PAIRS - 1))
    assert differences.bands_of(first, few) is None
    assert differences.bands_of(first, first) is None, "a recording is not held against itself"
