"""What a question hands to the report: facts, claims, tables and charts, all of them data and none of them words."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import pandas as pd

ANCHOR = "anchor"
"""Column that names a row, for links to it."""


@dataclass(frozen=True)
class Column:
    """One column of a rendered table.

    `kind` chooses unit and format: ms | us (from ns), seconds, share (from a fraction), points, ratio, count, billions,
    number (four decimals), amount (three digits), bytes, mib, gflop, tflops, gbps, byte_rate (GB/s, from bytes/s),
    intensity, quantity or change (the row's column `unit` says about what; a change has a sign), text, words (of any
    length), prose, code, run, page (the row's column {key}_leads_to has its path below docs without suffix, or ""),
    kernel, family, modules, status, yes_no or check. `lower` and `upper` name the columns of its spread; `bar` draws
    the value as a bar behind the number; `absent` is shown in an empty cell in a measured row, or what the row's column
    `why` says.
    """

    key: str
    label: str
    kind: str = "text"
    _: KW_ONLY
    lower: str = ""
    upper: str = ""
    bar: bool = False
    absent: str = ""
    why: str = ""


@dataclass(frozen=True)
class Table:
    """Rows in reading order. All columns of `rows` go to the CSV; `columns` are those that a page shows."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: pd.DataFrame


@dataclass(frozen=True)
class Claim:
    """A sentence's right to be printed: it holds if there are rows and `predicate(rows)` is true of them.

    The sentence itself is in the question's template under the same key. Its numbers are `values`, nothing else.
    """

    key: str
    rows: pd.DataFrame
    predicate: Callable[[pd.DataFrame], bool] = lambda rows: True
    _: KW_ONLY
    facts: Callable[[pd.DataFrame], Mapping[str, Any]] = lambda rows: {}

    @property
    def holds(self) -> bool:
        return len(self.rows) > 0 and bool(self.predicate(self.rows))

    @property
    def values(self) -> Mapping[str, Any]:
        """`facts(rows)` and their number, num_rows. Only for a claim that holds."""
        return {"num_rows": len(self.rows), **self.facts(self.rows)}


@dataclass(frozen=True)
class Chart:
    """A drawing of `rows` as they are: `kind` names a function of render/charts.py, `options` its arguments. state:
    whose steps these are, if there is a chart for each of several."""

    key: str
    kind: str
    title: str
    rows: pd.DataFrame
    _: KW_ONLY
    options: Mapping[str, Any] = field(default_factory=dict)
    state: str = ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    facts: Mapping[str, Any]
    claims: Mapping[str, Claim]
    tables: Mapping[str, Table]
    charts: Mapping[str, Chart]


def assemble(
    facts: Mapping[str, Any],
    claims: list[Claim],
    tables: list[Table],
    charts: list[Chart],
) -> Answer:
    """Answer with its parts indexed by their keys."""
    return Answer(
        facts=facts,
        claims={claim.key: claim for claim in claims},
        tables={table.key: table for table in tables},
        charts={chart.key: chart for chart in charts},
    )
