"""What the bench of a report's memory builds and counts."""

import subprocess
import sys

import pandas as pd
import pytest

from profiler_job.analysis.recording import store
from tests.bench.repeat_runs import repeat_runs
from tests.bench.report_memory import keep_first_step, make_target, measure_peak
from tests.frozen import ATTENTION


def test_runs_are_repeated_under_new_ids(tmp_path):
    small = store.load(ATTENTION)
    num_runs = len(small.runs) + 2
    large = store.load(repeat_runs(ATTENTION, tmp_path / "large", num_runs))
    assert large.runs["run_id"].nunique() == len(large.runs) == num_runs
    run = str(small.runs["run_id"].iloc[1])
    one, other = (
        rec.kernels[rec.kernels["run_id"].astype(str) == name].drop(columns="run_id").reset_index(drop=True)
        for rec, name in ((small, run), (large, f"{run}-copy1"))
    )
    pd.testing.assert_frame_equal(one.astype(object), other.astype(object))


def test_runs_keep_their_first_step(tmp_path):
    whole, first = store.load(ATTENTION), store.load(keep_first_step(ATTENTION, tmp_path / "first"))
    assert {*first.kernels["step"]} == {0} < {*whole.kernels["step"]}
    assert len(first.kernels) == (whole.kernels["step"] == 0).sum()
    timed = [of.steps["collector"].astype(str).eq("timer").sum() for of in (whole, first)]
    assert timed[0] == timed[1] > 0


def test_the_memory_of_children_counts():
    held = "held = bytearray(2**27); import time; time.sleep(1)"
    alone = measure_peak([sys.executable, "-c", held])
    nested = f"import subprocess, sys; held = bytearray(2**27); subprocess.run([sys.executable, '-c', {held!r}])"
    assert 2**27 < alone < 2**28 < measure_peak([sys.executable, "-c", nested])


def test_a_command_that_fails_is_not_measured():
    with pytest.raises(subprocess.CalledProcessError):
        measure_peak([sys.executable, "-c", "raise SystemExit(3)"])


@pytest.mark.parametrize(("second", "is_met"), [(1_100_000_000, False), (1_001_000_000, True)])
def test_the_promise_is_extrapolated(second, is_met):
    rows = [{"runs": 100, "peak_bytes": 1_000_000_000}, {"runs": 200, "peak_bytes": second}]
    target = make_target(rows)
    assert target["measured"] == second + 18 * (second - 1_000_000_000)
    assert target["met"] == is_met
