"""What limits each training step of several recordings."""

from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import roofline, run_grid, step_limits
from profiler_job.analysis.metrics.differences import Band
from profiler_job.jobs.contract import modes, ranges
from profiler_job.jobs.contract.words import NOT_MEASURED

CASE = ["size", "context_length"]


def regimes_of(recordings: list[Any], peaks: dict[str, float], band: Band | None) -> pd.DataFrame:
    """Training steps by precision, with the attention that is recorded first in it, and of a case the first recording
    alone: precision, attention, CASE, run_id, limit (of `step_limits.measure_limits`; missing if unknown), timer_ns and
    the parts of the step."""
    rows = pd.concat([_classify_recording(rec, peaks, band) for rec in recordings], ignore_index=True)
    rows = rows.astype({"precision": str, "attention": str})
    rows = rows[rows["attention"] == rows.groupby("precision")["attention"].transform("first")]
    return rows.drop_duplicates(["precision", *CASE]).reset_index(drop=True)


def _classify_recording(rec: Any, peaks: dict[str, float], band: Band | None) -> pd.DataFrame:
    grid = run_grid.sort_runs(rec.runs)
    grid = grid[grid["mode"].astype(str) == modes.MODES[-1]]
    named = grid[["precision", "attention", *CASE, "run_id"]]
    named[NOT_MEASURED] = [run_grid.explain_unmeasured(run) for _, run in grid.iterrows()]
    costs = roofline.costs_of(run_grid.select_measured_runs(rec.runs), peaks)
    limits = step_limits.measure_limits(rec.steps, rec.kernels, rec.memops, costs, band)
    limits = limits[limits["phase"] == ranges.STEP]
    columns = ["run_id", "limit", "timer_ns", *step_limits.PARTS.values()]
    return named.merge(limits[columns], how="left", on="run_id")
