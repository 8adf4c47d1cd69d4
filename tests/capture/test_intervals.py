"""A GPU is busy while anything runs on it, by one definition for captures and for recordings."""

import random

import numpy as np
import pandas as pd
import pytest

from profiler_job.analysis.capture import intervals
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight.summary import summarise
from profiler_job.analysis.metrics import timing
from tests.capture.nsys_files import Export


def counted(rows, num_groups):
    """Busy time of each group, one nanosecond at a time."""
    covered = [set() for _ in range(num_groups)]
    for group, device, start, end in rows:
        covered[group].update((device, at) for at in range(start, end))
    return [len(one) for one in covered]


@pytest.mark.parametrize("unit", [1, 2**52])
@pytest.mark.parametrize("seed", range(5))
def test_busy_time_equals_a_plain_count(seed, unit):
    """`unit`: of time, also so long that groups cannot be lifted above one another."""
    rng = random.Random(seed)
    rows = [(rng.randrange(3), rng.choice([0, 5]), start := rng.randrange(300), start + rng.randrange(40))
            for _ in range(60)]  # fmt: skip
    group, device, start, end = np.array(rows, np.int64).T
    found = intervals.measure_busy(group, device, start * unit, end * unit, 4)
    assert found.tolist() == [busy * unit for busy in counted(rows, 4)]


def test_nothing_is_busy_for_no_time():
    nothing = np.empty(0, np.int64)
    assert intervals.measure_busy(nothing, nothing, nothing, nothing, 2).tolist() == [0, 0]


def test_two_gpus_of_100_ns_are_busy_for_as_long_in_a_capture_as_in_a_recording(tmp_path):
    export = Export()
    export.push("forward", 0, 100)
    for device in (0, 1):
        export.launch(10 + device, start=20, end=120, device=device)
    summary = summarise(read(export.sqlite(tmp_path / "x.sqlite")))
    kernels = pd.DataFrame({"run_id": "r", "rank": 0, "step": 0, "phase": "forward", "device": [0, 1]})
    kernels = kernels.assign(start_ns=20, end_ns=120)
    recorded = timing.gpu_times(kernels, kernels.head(0))
    assert summary.sections["gpus"]["busy_ns"].tolist() == [100, 100]
    assert summary.sections["phases"]["busy_ns"].tolist() == [200]
    assert recorded["busy_ns"].tolist() == [200, 200]


@pytest.mark.parametrize("seed", range(5))
def test_parts_of_a_union_equal_a_plain_count(seed):
    rng = random.Random(seed)
    rows = [(start := rng.randrange(300), start + rng.randrange(20)) for _ in range(rng.choice([0, 1, 30]))]
    start, end = np.array(rows, np.int64).reshape(-1, 2).T
    covered = {at for low, high in rows for at in range(low, high)}
    low = np.array([rng.randrange(-20, 340) for _ in range(50)])
    high = low + np.array([rng.randrange(60) for _ in range(50)])
    plain = [len(covered & set(range(*part))) for part in zip(low, high)]
    assert intervals.Union(start, end).measure_covered(low, high).tolist() == plain
