"""The forward phase of compiled training steps: it answers questions on forward passes if none was captured."""

import pandas as pd

from profiler_job.analysis.metrics import kernel_time, run_grid, timing
from profiler_job.analysis.pages.case_columns import case_headings
from profiler_job.analysis.pages.extreme_rows import extremes
from profiler_job.analysis.recording.store import Recording
from profiler_job.analysis.render.answer import Answer, Claim, Column, Table, assemble
from profiler_job.jobs.contract.modes import MODES
from profiler_job.jobs.contract.ranges import FORWARD

LETTERS = ("a", "b", "c", "e")
"""The questions that `compiled_forward.md` has words for."""


def answer(rec: Recording, letter: str) -> Answer:
    """Return what the forward phase of the training steps of `rec` shows for one of LETTERS.

    forward_ns: the phase without a profiler, the median of steps, and forward_share of the step. kernel_ns: its kernel
    time, mean of the profiled steps; kernel_name, family, modules, share: its top kernel, what launches it, and its
    part of kernel_ns; rest_share: the part of all kernels but matmuls; fused_share: the part of fused attention.
    """
    rows = _measure_forward(rec)
    claims = [
        Claim("range", rows.dropna(subset="forward_ns"), facts=extremes("forward_ns")),
        Claim("top", rows.dropna(subset="share"), facts=extremes("share")),
        Claim("rest", rows.dropna(subset="rest_share"), facts=extremes("rest_share")),
        Claim("fused", rows[rows["fused_share"] > 0], facts=extremes("fused_share")),
    ]
    return assemble({"letter": letter}, claims, [_make_table(rows, run_grid.case_columns(rec.runs))], [])


def _measure_forward(rec: Recording) -> pd.DataFrame:
    times = timing.host_times(rec.steps, "timer", "timer")
    of_phase = times.pivot(index="run_id", columns="phase", values="timer_ns").reindex(columns=[FORWARD, "step"])
    of_phase = of_phase.set_axis(["forward_ns", "step_ns"], axis=1).reset_index()
    totals = kernel_time.kernel_totals(rec.kernels)
    totals = totals[totals["phase"] == FORWARD]
    fused, gemm = (totals[totals["family"] == of].groupby("run_id")["time_ns"].sum() for of in ("attention", "gemm"))
    top = kernel_time.sum_by_kernel(totals, ["run_id"]).drop_duplicates("run_id")
    rows = run_grid.cases(rec.runs, MODES[-1]).merge(of_phase, how="left", on="run_id")
    rows = rows.merge(top[["run_id", "kernel_name", "family", "modules", "time_ns", "share"]], how="left", on="run_id")
    rows["kernel_ns"] = rows["time_ns"] / rows["share"]
    rows["forward_share"] = rows["forward_ns"] / rows["step_ns"]
    rows["rest_share"] = 1 - rows["run_id"].map(gemm) / rows["kernel_ns"]
    rows["fused_share"] = rows["run_id"].map(fused) / rows["kernel_ns"]
    return rows[rows["run_id"] != ""].reset_index(drop=True)


def _make_table(rows: pd.DataFrame, by: list[str]) -> Table:
    return Table(
        "forward",
        "The forward phase of compiled training steps",
        (
            *case_headings(by),
            Column("forward_ns", "forward", "ms"),
            Column("forward_share", "of the step", "share"),
            Column("kernel_ns", "kernel time", "ms"),
            Column("kernel_name", "top kernel", "kernel"),
            Column("share", "of kernel time", "share", bar=True),
            Column("rest_share", "other than matmuls", "share"),
            Column("fused_share", "fused attention", "share"),
        ),
        rows,
    )
