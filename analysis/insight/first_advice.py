"""Format what to change first as a line for each of a few changes, for the first screen."""

from collections.abc import Mapping
from typing import Any

from profiler_job.analysis.insight.section_columns import SECTIONS, SummaryTables
from profiler_job.jobs.contract.changes import LABELS
from profiler_job.jobs.contract.quantities import format_time

FIRST = 3
"""Advices on the first screen of a capture."""
NOTHING = "Nothing that is known here: the capture has no evidence for it"


def format_first_advice(summary: SummaryTables) -> list[str]:
    """Format a line for each of the first FIRST changes, for the first screen; no lines as in `format_advice`."""
    table = summary.sections["advice"]
    if len(summary.shown) < len(SECTIONS) or not len(table):
        return []
    lines = []
    for place, (_, row) in enumerate(table[table["reason"] == ""].head(FIRST).iterrows(), start=1):
        saves = f"could save up to {format_time(row['ceiling_ns'])}"
        lines.append(f"{place}. {name_advice(row)}, {saves}: {row['do']}")
    return lines or [NOTHING]


def name_advice(row: Mapping[str, Any]) -> str:
    """Name a change, with the line that it is about, as `line of the script (train.py:8 tokenize)`."""
    return f"{LABELS[row['change']]} ({row['where']})" if row.get("where") else LABELS[row["change"]]
