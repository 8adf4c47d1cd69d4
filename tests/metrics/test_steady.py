"""Which ratios of steps may be quoted: of runs whose processes agree, and which differ."""

import math

import pandas as pd
import pytest

from profiler_job.analysis.metrics.steady import (
    MOST_APART,
    find_steady_runs,
    mark_quotable,
    measure_apart,
    prefer_turns,
    prefer_turns_band,
)
from tests.synthetic import recording, time_twice

RUN = "large-ctx512-fp32-naive-train_step"


@pytest.fixture(scope="module")
def steps():
    return recording(("large",), (512,), ("train_step",), num_profiled=1, num_timed=3).steps


@pytest.mark.parametrize(
    ("times", "steady"), [(1.0, True), (1 + MOST_APART - 0.01, True), (1 + MOST_APART + 0.01, False)]
)
def test_a_run_is_steady_if_its_processes_agree(steps, times, steady):
    twice = time_twice(steps, times)
    assert measure_apart(twice)[RUN] == pytest.approx(times - 1, abs=1e-4)
    assert (RUN in find_steady_runs(twice)) == steady


def test_of_one_process_nothing_is_known(steps):
    for table in (steps, steps.drop(columns="process")):
        assert measure_apart(table)[RUN] == math.inf and not find_steady_runs(table)


def test_a_ratio_is_quoted_if_both_runs_are_steady_and_differ():
    differs, sides = pd.Series([True, True, True, False]), ([True, True, None, True], [True, False, True, True])
    assert mark_quotable(differs, *(pd.Series(side, dtype=object) for side in sides)).tolist() == [
        True,
        False,
        False,
        False,
    ]


def test_a_ratio_by_turns_is_quoted_though_processes_differ():
    turns = pd.DataFrame({"times_as_fast": [2.0, math.nan, 1.0]})
    differs, unsteady = pd.Series([True, True, False]), pd.Series(False, range(3))
    assert mark_quotable(differs, unsteady, turns=turns).tolist() == [True, False, False]
    times, bases = pd.Series([10, 20, 30]), pd.Series([50.0, 60.0, 70.0])
    assert prefer_turns(turns, times, bases).tolist() == [20.0, 60.0, 30.0]


def test_a_band_by_turns_is_exceeded_if_the_interval_excludes_one():
    ratios = {"times_as_fast": [2.0, 0.5, 1.2, 0.8, math.nan], "low": [1.5, 0.4, 0.9, 0.5, math.nan]}
    turns = pd.DataFrame(ratios | {"high": [3.0, 0.75, 1.3, 1.25, math.nan]})
    times, bases = pd.Series([100.0] * 5), pd.Series([150.0] * 5)
    band = prefer_turns_band(turns, times, pd.Series([7.0] * 5))
    assert band.tolist() == pytest.approx([50, 25, 30, 45, 7])
    differences = (prefer_turns(turns, times, bases) - times).abs()
    assert (differences > band).tolist() == [True, True, False, False, True]
