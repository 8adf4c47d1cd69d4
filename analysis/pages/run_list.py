"""All runs, finished or not, in one table."""

import pandas as pd

from profiler_job.analysis.metrics import gpu_samples as machine
from profiler_job.analysis.metrics import run_grid, timing, utilisation
from profiler_job.analysis.pages.case_columns import case_headings
from profiler_job.analysis.pages.telemetry import Price, cost_columns, rounded
from profiler_job.analysis.render.answer import Answer, Column, Table, assemble
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.words import NOT_MEASURED

SLUG = "runs"
TITLE = "Runs"


def answer(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    kernels: pd.DataFrame,
    memops: pd.DataFrame,
    processes: pd.DataFrame,
    telemetry: pd.DataFrame,
    price: Price | None = None,
) -> Answer:
    """Every run in model order: status, unprofiled time of the step, tokens a second, their energy and, where a `price`
    is given, their price, GPU busy time, kernels launched in a step, peak allocated."""
    columns = (
        *case_headings(run_grid.case_columns(runs)),
        Column("mode", "mode"),
        Column("status", "status", "status"),
        Column("timer_ns", "step, Python timer", "ms", lower="timer_min_ns", upper="timer_max_ns"),
        Column("tokens_per_s", "tokens/s", "count", absent="n/a"),
        Column("joules_per_1k", "J per 1,000 tokens", "amount", absent="n/a"),
        *cost_columns(price),
        Column("busy_ns", "GPU busy", "ms"),
        Column("busy_ratio", "busy ÷ timer", "share", bar=True),
        Column("mfu", "MFU of data-sheet peak", "share", absent="n/a"),
        Column("launches", "kernels a step", "count"),
        Column("peak_memory_bytes", "peak allocated", "bytes"),
    )
    rows = _frame(runs, steps, kernels, memops)
    costs = machine.summarise_runs(runs, steps, processes, telemetry, price.per_hour if price else None)
    joined = ["run_id", "joules_per_1k", *(column.key for column in cost_columns(price))]
    rows = rows.merge(costs[joined], how="left", on="run_id")
    return assemble(
        {"num_runs": len(runs), "price": price}, [], [Table("runs", "All runs", columns, rounded(rows))], []
    )


def _frame(runs: pd.DataFrame, steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    ordered = run_grid.sort_runs(runs).astype({"run_id": str})
    shown = [
        "run_id",
        "size",
        "context_length",
        "mode",
        *[axis for axis in run_grid.VARIANT_AXES if axis in ordered],
        "status",
        "peak_memory_bytes",
        "num_parameters",
    ]
    table = ordered[shown].assign(**{NOT_MEASURED: [run_grid.explain_unmeasured(row) for _, row in ordered.iterrows()]})
    gpu = timing.gpu_times(kernels, memops)
    parts = [
        timing.host_times(steps, "timer", "timer"),
        timing.spread(gpu, ["run_id", "phase"], "busy_ns", "busy"),
        gpu.groupby(["run_id", "phase"], sort=False)["launches"].mean().reset_index(),
    ]
    for part in parts:
        of_step = part[part["phase"] == ranges.STEP].drop(columns="phase")
        table = table.merge(of_step, how="left", on="run_id")
    table["busy_ratio"] = timing.busy_share(table, kernels)
    table["mfu"] = [
        utilisation.mfu(run, wall) for (_, run), wall in zip(ordered.iterrows(), table["timer_ns"], strict=True)
    ]
    table["tokens_per_s"] = run_grid.tokens_per_s(ordered.set_index(table.index), table["timer_ns"])
    unfinished = table[NOT_MEASURED] != ""
    numbers = [
        column
        for column in table
        if column.endswith("_ns") or column in ("busy_ratio", "launches", "mfu", "tokens_per_s")
    ]
    table.loc[unfinished, [*numbers, "peak_memory_bytes"]] = float("nan")
    return table
