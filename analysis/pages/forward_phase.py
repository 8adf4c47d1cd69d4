"""The forward phase of training steps: it answers questions on forward passes in a state of which few were measured."""

import pandas as pd

from profiler_job.analysis.metrics import kernel_time, run_grid, timing
from profiler_job.analysis.pages.case_columns import case_headings
from profiler_job.analysis.pages.extreme_rows import extremes
from profiler_job.analysis.recording.store import Recording
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.jobs.contract.modes import MODES
from profiler_job.jobs.contract.ranges import FORWARD

LETTERS = ("a", "b", "c", "e")
"""The questions that `forward_phase.md` has words for."""


def answer(rec: Recording, letter: str) -> Answer:
    """Return what the forward phase of the training steps of `rec` shows for one of LETTERS.

    is_compiled: whether these steps are. forward_ns: the phase without a profiler, the median of steps, and
    forward_share of the step; alone_ns: the same of a forward pass alone, if it was measured. kernel_ns: its kernel
    time, mean of the profiled steps; kernel_name, family, modules, share: its top kernel, what launches it, and its
    part of kernel_ns; rest_share: the part of all kernels but matmuls; fused_share: the part of fused attention.
    """
    rows, families = _measure_forward(rec)
    claims = [
        Claim("range", rows.dropna(subset="forward_ns"), facts=extremes("forward_ns")),
        Claim("alone", rows.dropna(subset=["forward_ns", "alone_ns"]), facts=extremes("alone_ns")),
        Claim("top", rows.dropna(subset="share"), facts=extremes("share")),
        Claim("rest", rows.dropna(subset="rest_share"), facts=extremes("rest_share")),
        Claim("fused", rows[rows["fused_share"] > 0], facts=extremes("fused_share")),
    ]
    facts = {"letter": letter, "is_compiled": bool((rec.runs["compile"].astype(str) != "off").all())}
    by = run_grid.case_columns(rec.runs)
    chart = _draw_top(rows, by) if letter == "b" else _draw_families(families, by, letter)
    return assemble(facts, claims, [_make_table(rows, by)], [chart])


def _measure_forward(rec: Recording) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Each training step with the columns of `answer`, and the kernel time of its forward phase by family."""
    times = timing.host_times(rec.steps, "timer", "timer")
    of_phase = times.pivot(index="run_id", columns="phase", values="timer_ns").reindex(columns=[FORWARD, "step"])
    of_phase = of_phase.set_axis(["forward_ns", "step_ns"], axis=1).reset_index()
    totals = kernel_time.kernel_totals(rec.kernels)
    totals = totals[totals["phase"] == FORWARD]
    fused, gemm = (totals[totals["family"] == of].groupby("run_id")["time_ns"].sum() for of in ("attention", "gemm"))
    top = kernel_time.sum_by_kernel(totals, ["run_id"]).drop_duplicates("run_id")
    by = run_grid.case_columns(rec.runs)
    alone = run_grid.cases(rec.runs, FORWARD)[[*by, "run_id"]].rename(columns={"run_id": "alone"})
    cases = run_grid.cases(rec.runs, MODES[-1]).merge(alone, on=by)
    cases = cases[cases["run_id"] != ""].reset_index(drop=True)
    rows = cases.merge(of_phase, how="left", on="run_id")
    rows["alone_ns"] = rows["alone"].map(of_phase.set_index("run_id")["forward_ns"])
    rows = rows.merge(top[["run_id", "kernel_name", "family", "modules", "time_ns", "share"]], how="left", on="run_id")
    rows["kernel_ns"] = rows["time_ns"] / rows["share"]
    rows["forward_share"] = rows["forward_ns"] / rows["step_ns"]
    rows["rest_share"] = 1 - rows["run_id"].map(gemm) / rows["kernel_ns"]
    rows["fused_share"] = rows["run_id"].map(fused) / rows["kernel_ns"]
    return rows, cases.merge(kernel_time.sum_by_family(totals, ["run_id"]), on="run_id")


def _make_table(rows: pd.DataFrame, by: list[str]) -> Table:
    alone = [Column("alone_ns", "forward pass alone", "ms", absent="n/a")] if rows["alone_ns"].notna().any() else []
    return Table(
        "forward",
        "The forward phase of training steps",
        (
            *case_headings(by),
            Column("forward_ns", "forward", "ms"),
            Column("forward_share", "of the step", "share"),
            *alone,
            Column("kernel_ns", "kernel time", "ms"),
            Column("kernel_name", "top kernel", "kernel"),
            Column("share", "of kernel time", "share", bar=True),
            Column("rest_share", "other than matmuls", "share"),
            Column("fused_share", "fused attention", "share"),
        ),
        rows,
    )


def _draw_families(families: pd.DataFrame, by: list[str], letter: str) -> Chart:
    """Draw kernel time by family: times for the question on time, shares for the others."""
    order = families.groupby("family")["time_ns"].sum().sort_values(ascending=False).index.tolist()
    kind = "stacked_times" if letter == "a" else "stacked_shares"
    title = "Kernel time of the forward phase of a training step"
    return Chart("forward", kind, title, families, options={"by": by, "order": order})


def _draw_top(rows: pd.DataFrame, by: list[str]) -> Chart:
    """Draw the share of each top kernel."""
    shares = rows.dropna(subset="share").assign(scope=FORWARD)
    title = "Share of the top kernel in the kernel time of the forward phase"
    return Chart("forward", "grouped_bars", title, shares, options={"by": by, "order": [FORWARD]})
