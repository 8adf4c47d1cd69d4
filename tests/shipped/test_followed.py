"""A followed run with autograd's own threads against the shipped recording of the same run."""

import pandas as pd
import pytest

from profiler_job.jobs.contract import ranges
from tests.recording.test_followed_sweep import record
from tests.shipped.recordings import locate

SHIPPED = locate("trained_6")


def test_with_autograds_own_threads_each_kernel_has_the_same_module(tmp_path):
    """Against the shipped recording of the same run, whose backward is on the thread of forward."""
    recording = record("h200_threads", tmp_path)
    assert recording.runs["autograd_multithreading"].tolist() == [True]
    (run_id,) = recording.runs["run_id"]
    own = recording.kernels
    backward = own[own["phase"] == ranges.BACKWARD]
    assert (backward["attribution"] == "phase").mean() > 0.99, "launched where no range of the step is open"
    assert set(backward["module_by"]) == {"linked"}

    columns = ["step", "phase", "module", "kernel_name", "duration_ns"]
    own = own.assign(duration_ns=own["end_ns"] - own["start_ns"])
    shipped = pd.read_parquet(SHIPPED / "kernels.parquet", columns=columns, filters=[("run_id", "==", run_id)])
    tables = []
    for kernels in (own, shipped[shipped["step"] >= 0]):
        rows = kernels[columns].astype({"phase": str, "module": str, "kernel_name": str})
        by = rows.groupby(["phase", "module", "kernel_name"])["duration_ns"].agg(["size", "sum"])
        tables.append(by / rows["step"].nunique())
    threads, one_thread = tables
    assert len(threads) == 643 and threads["size"].to_dict() == one_thread["size"].to_dict()
    assert threads["sum"].sum() == pytest.approx(one_thread["sum"].sum(), rel=0.01)
