"""What limits each training step of several recordings: launches, memory or compute, as far as it is known."""

from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import kernel_time, roofline, run_grid, waiting
from profiler_job.analysis.metrics.differences import Band
from profiler_job.analysis.metrics.roofline import LAUNCHES, MEMORY
from profiler_job.jobs.contract import modes, ranges
from profiler_job.jobs.contract.words import NOT_MEASURED

FEW_OPERATIONS = (*roofline.REST, "fill", "norm", "softmax", "optimizer")
"""Families whose kernels do a few operations for each element: memory limits them on any GPU."""
CASE = ["size", "context_length"]
EITHER = f"{LAUNCHES} or {MEMORY}"
"""Where the GPU waits for launches for longer than kernels run that compute could limit: which of the other two takes
longest depends on those kernels."""


def regimes_of(recordings: list[Any], peaks: dict[str, float], band: Band | None) -> pd.DataFrame:
    """Training steps by precision, the first recording of a case and precision alone: precision, attention, CASE,
    run_id, bound (None if unknown), busy_share and launch_wait.

    `roofline.judge_steps` names what bounds a run whose kernels have formulas. For another run it is known only if the
    GPU waits for launches for longer than it is busy, or where kernels of FEW_OPERATIONS take the largest part, and of
    some steps that it is one of the two (EITHER).
    """
    rows = pd.concat([_classify_recording(rec, peaks, band) for rec in recordings], ignore_index=True)
    return rows.drop_duplicates(["precision", *CASE]).reset_index(drop=True)


def _classify_recording(rec: Any, peaks: dict[str, float], band: Band | None) -> pd.DataFrame:
    grid = run_grid.sort_runs(rec.runs)
    grid = grid[grid["mode"].astype(str) == modes.MODES[-1]]
    named = grid[["precision", "attention", *CASE, "run_id"]]
    named[NOT_MEASURED] = [run_grid.explain_unmeasured(run) for _, run in grid.iterrows()]
    totals = kernel_time.kernel_totals(rec.kernels)
    costs = roofline.costs_of(run_grid.select_measured_runs(rec.runs), peaks)
    waits = waiting.launch_waits(rec.steps, rec.kernels, rec.memops, band)
    judged = roofline.judge_steps(rec.steps, waits, roofline.sum_by_range(totals), costs)
    judged = judged[judged["phase"] == ranges.STEP]
    few = totals["time_ns"].where(totals["family"].isin(FEW_OPERATIONS), 0.0).groupby(totals["run_id"]).sum()
    judged["few"] = (few / totals.groupby("run_id")["time_ns"].sum()).reindex(judged["run_id"]).to_numpy()
    judged["bound"] = [name_bound(row) for row in judged.to_dict("records")]
    return named.merge(judged[["run_id", "bound", "busy_share", "launch_wait"]], how="left", on="run_id")


def name_bound(row: dict[str, Any]) -> str | None:
    """What bounds a step (`roofline.bound_by`), or MEMORY where `few`, the share of FEW_OPERATIONS in its kernel time,
    is the largest part of it whatever the other kernels are, or EITHER; None if unknown."""
    if (bound := roofline.bound_by(row)) is not None:
        return bound
    surely = row["busy_share"] * row["few"]
    others = row["busy_share"] - surely
    if surely > max(row["launch_wait"], others):
        return MEMORY
    return EITHER if row["launch_wait"] > others else None
