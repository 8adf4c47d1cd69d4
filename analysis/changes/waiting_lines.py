"""The lines of a script that the GPU waits for, each with the changes that do what its advice says."""

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from profiler_job.analysis.reference.python_libraries import CHANGES_BY_DO
from profiler_job.jobs.contract.changes import SYNCHRONISATIONS
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.quantities import format_time

MOST_LINES, LEAST_SHARE = 3, 0.05
"""Number of lines of a script that are named at most, and the least share of the waiting that each needs."""
HELD = 0.5
"""Share of the waiting from which on a line holds it: its advice comes first."""


class ScriptLine(NamedTuple):
    """A line (file, number and function), how long the GPU waits for it and what it could save at most (ns), its share
    of all waiting and of that in synchronisations, what it is in, what to do, and the changes that do it, the best
    first; () if none does."""

    where: str
    wait_ns: float
    ceiling_ns: float
    share: float
    sync_share: float
    below: str
    do: str
    changes: tuple[str, ...]

    @property
    def is_synchronisation(self) -> bool:
        return SYNCHRONISATIONS in self.changes

    @property
    def evidence(self) -> str:
        return f"the GPU waits {format_time(self.wait_ns)} for {self.where} ({self.below})"


def find_lines(rows: pd.DataFrame) -> list[ScriptLine]:
    """Find the lines with an advice, most waiting first. rows: of `bound_savings`, with wait_ns."""
    rows = rows.assign(sync_share=rows["sync_ns"].astype(float) / max(float(rows["sync_ns"].sum()), 1.0))
    rows = rows[rows["share"].astype(float) >= LEAST_SHARE].sort_values("share", ascending=False, kind="stable")
    return [_make_line(row) for row in rows.head(MOST_LINES).to_dict("records") if row["do"] and row["ceiling_ns"] > 0]


def _make_line(row: Mapping[str, object]) -> ScriptLine:
    do = str(row["do"])
    known = max((known for known in CHANGES_BY_DO if do.startswith(known)), key=len, default="")
    numbers = {name: float(str(row[name])) for name in ("wait_ns", "ceiling_ns", "share", "sync_share")}
    return ScriptLine(
        where=make_printable(f"{row['where']} {row['function']}"),
        below=make_printable(str(row["below"])),
        do=make_printable(do),
        changes=CHANGES_BY_DO.get(known, ()),
        **numbers,
    )
