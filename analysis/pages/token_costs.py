"""What tokens take in the runs of a question: time, energy, and money where a price is given."""

from dataclasses import replace

import pandas as pd

from profiler_job.analysis.metrics import gpu_samples as machine
from profiler_job.analysis.metrics import run_grid
from profiler_job.analysis.pages.case_columns import case_headings
from profiler_job.analysis.pages.telemetry import Price, cost_columns, rounded
from profiler_job.analysis.render.answer import Answer, Column, Table

STUDIES = ("accumulation", "attention", "gpus", "host", "optimizer", "precision", "trained")
"""Studies that compare steps with steps. The ladder has such columns of its own; runs of the main recording have theirs
on the page of all runs."""


def with_costs(
    answer: Answer,
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    processes: pd.DataFrame,
    telemetry: pd.DataFrame,
    price: Price | None = None,
) -> Answer:
    """`answer` with a table `costs` of each finished run: its unprofiled step, tokens a second, J for 1,000 tokens, and
    with a `price` of its GPUs for an hour the price of a million tokens. As in `gpu_samples.summarise_runs`."""
    rows = machine.summarise_runs(runs, steps, processes, telemetry, price.per_hour if price else None)
    columns = (
        *case_headings(run_grid.case_columns(runs)),
        Column("mode", "mode"),
        Column("step_ns", "step", "ms"),
        Column("tokens_per_s", "tokens/s", "count", absent="n/a"),
        Column("joules_per_1k", "J per 1,000 tokens", "amount", absent="not read"),
        *cost_columns(price),
    )
    kept = rounded(rows[["run_id", *(column.key for column in columns)]])
    return replace(answer, tables={**answer.tables, "costs": Table("costs", "Tokens of the same runs", columns, kept)})
