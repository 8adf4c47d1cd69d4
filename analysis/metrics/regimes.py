"""What limits each training step of several recordings."""

from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import roofline, run_grid, step_limits
from profiler_job.analysis.metrics.differences import Band
from profiler_job.analysis.metrics.ordering import rank_first_seen, sort_stably
from profiler_job.jobs.contract import modes, ranges
from profiler_job.jobs.contract.axes import find_default
from profiler_job.jobs.contract.words import NOT_MEASURED

CASE = ["size", "context_length"]
STATE = ["precision", "compile"]


def regimes_of(recordings: list[Any], peaks: dict[str, float], band: Band | None) -> pd.DataFrame:
    """Training steps by STATE, with the attention that is recorded first in it, and of a case the first recording
    alone, by state and then by parameters: STATE, attention, CASE, run_id, num_parameters, limit (of
    `step_limits.measure_limits`; missing if unknown), timer_ns and the parts of the step."""
    rows = pd.concat([_classify_recording(rec, peaks, band) for rec in recordings], ignore_index=True)
    rows = rows.astype({"precision": str, "compile": str, "attention": str})
    rows = rows[rows["attention"] == rows.groupby(STATE)["attention"].transform("first")]
    rows = rows.drop_duplicates([*STATE, *CASE])
    return sort_stably(rows, rank_first_seen(rows, STATE), rows["num_parameters"])


def _classify_recording(rec: Any, peaks: dict[str, float], band: Band | None) -> pd.DataFrame:
    grid = run_grid.sort_runs(rec.runs)
    grid = grid[grid["mode"].astype(str) == modes.MODES[-1]]
    grid = grid if "compile" in grid else grid.assign(compile=find_default("compile"))
    named = grid[[*STATE, "attention", *CASE, "run_id", "num_parameters"]]
    named[NOT_MEASURED] = [run_grid.explain_unmeasured(run) for _, run in grid.iterrows()]
    costs = roofline.costs_of(run_grid.select_measured_runs(rec.runs), peaks)
    limits = step_limits.measure_limits(rec.steps, rec.kernels, rec.memops, costs, band)
    limits = limits[limits["phase"] == ranges.STEP]
    columns = ["run_id", "limit", "timer_ns", *step_limits.PARTS.values()]
    return named.merge(limits[columns], how="left", on="run_id")
