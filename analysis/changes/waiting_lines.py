"""The lines of a script that the GPU waits for, each with the changes that do what its advice says."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pandas as pd

from profiler_job.analysis.reference.python_libraries import CHANGES_BY_DO
from profiler_job.jobs.contract.changes import SYNCHRONISATIONS
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.quantities import format_time

MOST_LINES, LEAST_SHARE = 3, 0.05
"""Number of lines of a script that are named at most, and the least share of the waiting that each needs."""
HELD = 0.4
"""Share of the waiting from which on a line holds it: its advice comes first."""


_PART = re.compile(r"(.+?) \((\d+)% of it\)(?:; |$)")
"""An advice that is for a part of the waiting of its line, as `waits` writes it."""


class ScriptLine(NamedTuple):
    """A line (file, number and function) with an advice, which may be for a part of what the GPU waits for the line:
    how long that is and what it could save at most (ns), the share of the whole line of all waiting and of that in
    synchronisations, what to do, the changes that do it, the best first (() if none does), and the evidence."""

    where: str
    wait_ns: float
    ceiling_ns: float
    share: float
    sync_share: float
    do: str
    changes: tuple[str, ...]
    evidence: str

    @property
    def is_synchronisation(self) -> bool:
        return SYNCHRONISATIONS in self.changes


def find_lines(rows: pd.DataFrame) -> list[ScriptLine]:
    """Find the lines with an advice, most waiting first; a line with several has one entry for each. rows: of
    `bound_savings`, with wait_ns."""
    rows = rows.assign(sync_share=rows["sync_ns"].astype(float) / max(float(rows["sync_ns"].sum()), 1.0))
    rows = rows[rows["share"].astype(float) >= LEAST_SHARE].sort_values("share", ascending=False, kind="stable")
    advised = [row for row in rows.head(MOST_LINES).to_dict("records") if row["do"] and row["ceiling_ns"] > 0]
    return [line for row in advised for line in _split_line(row)]


def _split_line(row: Mapping[str, Any]) -> Iterator[ScriptLine]:
    """Split a line by what its advice is for: the changes that do it."""
    text, where = make_printable(str(row["do"])), make_printable(f"{row['where']} {row['function']}")
    evidence = f"the GPU waits {format_time(row['wait_ns'])} for {where} ({make_printable(str(row['below']))})"
    groups: dict[tuple[str, ...], list[tuple[str, float]]] = {}
    for do, percent in _PART.findall(text) or [(text, 100)]:
        known = max((known for known in CHANGES_BY_DO if do.startswith(known)), key=len, default="")
        groups.setdefault(CHANGES_BY_DO.get(known, ()), []).append((do, int(percent) / 100))
    for changes, parts in groups.items():
        part = (
            sum(share for _, share in parts) if len(groups) > 1 else 1.0
        )  # what no advice is for goes with the others
        yield ScriptLine(
            where=where,
            wait_ns=float(row["wait_ns"]) * part,
            ceiling_ns=float(row["ceiling_ns"]) * part,
            share=float(row["share"]),
            sync_share=float(row["sync_share"]) * part,
            do=text if len(groups) == 1 else "; ".join(do for do, _ in parts),
            changes=changes,
            evidence=evidence,
        )
