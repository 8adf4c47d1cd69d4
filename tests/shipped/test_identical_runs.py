"""Identical runs are rarely called different, and what differs is seen: on the two shipped recordings of the same runs.

No run judges itself: the noise band comes from the other runs.
"""

import numpy as np
import pandas as pd
import pytest

from profiler_job.analysis.metrics import differences
from profiler_job.analysis.recording import store
from tests.shipped.recordings import locate

pytestmark = pytest.mark.long

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
