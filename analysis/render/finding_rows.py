"""The evidence of a finding: of its claim's rows and columns those that its sentence speaks of."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from profiler_job.analysis.render.answer import Claim, Column, Table
from profiler_job.analysis.render.text import remove_links

NUM_ROWS = 5
"""Rows on the page; the CSV has all."""
TITLE = 60
"""Characters of a sentence that its table is called by."""
Read = dict[str, list[Any]]
"""What a sentence read of its facts, and of the rows among them: values by name."""


def noted(fact: Any, read: Read) -> Any:
    """`fact`, where it is a row or holds rows, as something that notes in `read` what is asked for."""
    if isinstance(fact, pd.Series):
        fact = fact.to_dict()
    if isinstance(fact, list):
        return [noted(item, read) for item in fact]
    return _Noted(fact, read) if isinstance(fact, Mapping) else fact


class _Noted(Mapping[str, Any]):
    def __init__(self, facts: Mapping[str, Any], read: Read) -> None:
        self._facts, self._read = facts, read

    def __getitem__(self, name: str) -> Any:
        value = noted(self._facts[name], self._read)
        self._read.setdefault(name, []).append(value)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)


def table(claim: Claim, tables: Iterable[Table], read: Read, words: str = "") -> Table:
    """The first rows of the claim, those that the sentence names before all others, in the columns of the table of the
    page that has most of what the sentence reads. What other tables have of it follows. words: the sentence, by which
    the table is called."""
    known = set(claim.rows)
    shown = [
        [column for column in table.columns if {column.key, column.lower or column.key} <= known] for table in tables
    ]
    nearest = max(shown, key=lambda columns: (sum(column.key in read for column in columns), len(columns)), default=[])
    near = {column.key: column for column in nearest}
    others = {column.key: column for columns in shown for column in columns if column.key in read}
    columns = tuple((near | others | near).values()) or tuple(Column(name, name) for name in claim.rows)
    rows = claim.rows
    if "run_id" in rows:
        rows = rows.iloc[(~rows["run_id"].isin(read.get("run_id", []))).argsort(kind="stable")]
    title = f"Rows of: {textwrap.shorten(plain(words), TITLE, placeholder=' …')}"
    return Table(f"rows-{claim.key}", title, columns, rows.head(NUM_ROWS))


def plain(words: str) -> str:
    """A sentence of Markdown and HTML as text."""
    return re.sub(r"\*\*|`", "", Markup(remove_links(str(words))).striptags())
