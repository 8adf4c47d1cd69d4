"""Many captures side by side: a row each."""

from collections.abc import Iterable
from typing import Any

import pandas as pd

from profiler_job.analysis.insight.limit_lines import name_limit
from profiler_job.analysis.insight.results import Summary
from profiler_job.analysis.reference.columns import format_cell
from profiler_job.analysis.reference.kernel_families import FAMILIES
from profiler_job.analysis.show.show_formats import describe_left_out, format_table
from profiler_job.analysis.show.table_columns import fit_table

COLUMNS = {
    "source": "name of the file",
    "events_ns": "from the start of the first event to the end of the last",
    "num_gpus": "GPUs used",
    "num_kernels": "kernels",
    "kernel_ns": "sum of their durations",
    "busy_share": "GPU busy, of the elapsed time of all GPUs used",
    "limited_by": "what takes most of the time from first to last operation, of all GPUs together, and its share",
    "top_family": "kernel family with most kernel time, and its share",
    "attributed_share": "part of kernel time placed by ranges: in a phase, or in any range where nothing tells a phase",
    "inferred_share": "part whose phase is inferred without a range",
}


def tabulate_captures(summaries: Iterable[Summary]) -> pd.DataFrame:
    """A row of COLUMNS for each."""
    return pd.DataFrame([_make_row(summary) for summary in summaries], columns=list(COLUMNS))


def _make_row(summary: Summary) -> dict[str, Any]:
    facts, coverage = summary.capture, summary.coverage
    elapsed = facts["events_ns"] * facts["num_gpus"]
    families = summary.sections["families"]
    return {name: facts[name] for name in ("source", "events_ns", "num_gpus", "num_kernels", "kernel_ns")} | {
        "busy_share": int(summary.sections["gpus"]["busy_ns"].sum()) / elapsed if elapsed else None,
        "limited_by": name_limit(summary),
        "top_family": _format_top(families.iloc[0]) if len(families) else "",
        "attributed_share": _sum_known([coverage[name] for name in ("exact", "early", "linked", "phase")]),
        "inferred_share": coverage["inferred"],
    }


def _sum_known(shares: list[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return sum(known) if known else None


def _format_top(family: pd.Series) -> str:
    return f"{FAMILIES[family['family']].label} {format_cell('share', family['share'])}"


def as_text(summaries: Iterable[Summary], width: int) -> str:
    lines, dropped = fit_table("captures", tabulate_captures(summaries), width)
    return "\n".join([*lines, *describe_left_out([", ".join(dropped)] if dropped else [], width)])


def as_markdown(summaries: Iterable[Summary]) -> str:
    return "\n".join(format_table(tabulate_captures(summaries)))
