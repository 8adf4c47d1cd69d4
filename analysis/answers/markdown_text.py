"""Markdown that reads well on a code host: names that are not trusted, and tables with pipes."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from profiler_job.analysis.reference import kernel_families
from profiler_job.analysis.reference.columns import FORMATS
from profiler_job.analysis.render.answer import Column
from profiler_job.analysis.render.tables import (
    NUMERIC,
    YES_NO,
    choose_column_decimals,
    explain_absent,
    format_number_cell,
    format_spread,
    is_missing,
    module_names,
)
from profiler_job.analysis.render.text import plain, short_name
from profiler_job.jobs.contract.axes import find_label, find_value_label
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.words import NOT_MEASURED, format_count

MOST_ROWS = 60
"""Rows of a table on a page; its CSV has all."""
_SPECIAL = re.compile(r"[\\`*\[\]|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^[#+=-]|^\d+(?=[.)](?:\s|$))")
_NOTHING = "–"
UNKNOWN = "unknown"
"""Value of an axis that neither a capture nor a fact gives."""
_MOST_MODULES = 2
OUTSIDE = "outside modules"
_BARE = ("off", "none")
"""Values that say nothing without their axis, as a number does."""


def escape(text: object) -> str:
    """Return text that is not trusted as one line that Markdown and HTML read as it is."""
    flat = make_printable(str(text)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(lambda match: match[0] + "\\" if match[0].isdigit() else f"\\{match[0]}", flat)


def code(text: object) -> str:
    """Return text that is not trusted as code, in a table, too."""
    flat = make_printable(str(text)).replace("`", "'").replace("|", "¦").strip()
    return f"`{flat or ' '}`"


def kernel(name: object) -> str:
    """Return a kernel's short name as code."""
    return code(short_name(str(name)))


def family(key: object) -> str:
    """Return the label of a kernel family."""
    known = kernel_families.FAMILIES.get(str(key))
    return escape(known.label if known else key)


def modules(paths: object) -> str:
    """Return the innermost names of the first modules of a list of paths."""
    names = [*dict.fromkeys(name.rpartition("/")[2] for name in module_names(str(paths)))]
    shown = ", ".join(map(code, names[:_MOST_MODULES]))
    return shown + (f" +{len(names) - _MOST_MODULES} more" if len(names) > _MOST_MODULES else "") or OUTSIDE


def case(row: Mapping[str, Any], by: Sequence[str]) -> str:
    """Return a case in a sentence: small, 128 tokens."""
    known = [name for name in by if name in row and not is_missing(row[name]) and row[name] != UNKNOWN]
    return ", ".join(_case_word(name, row[name]) for name in known)


def value(name: str, value: Any) -> str:
    """Return a value of an axis as plain text: 1,024."""
    return f"{value:,}" if isinstance(value, int) else str(find_value_label(name, value))


def _case_word(name: str, value: Any) -> str:
    if name == "context_length":
        return f"{int(value):,} tokens"
    if name == "gpus":
        return format_count(int(value), "GPU")
    if name == "batch_size":
        return f"batch {int(value)}"
    label = escape(find_value_label(name, value))
    return f"{find_label(name)} {label}" if label.isdigit() or label in _BARE else label


def table(rows: pd.DataFrame, columns: Sequence[Column]) -> list[str]:
    """Return the lines of a table with pipes, with at most MOST_ROWS rows. Numbers have the digits that the site's
    tables have. A row that was not measured says why in its first empty cell."""
    decimals = {column.key: choose_column_decimals(column, rows) for column in columns}
    lines = [
        f"| {' | '.join(_heading(column) for column in columns)} |",
        f"| {' | '.join('---:' if column.kind in NUMERIC else '---' for column in columns)} |",
    ]
    for row in rows.head(MOST_ROWS).to_dict("records"):
        cells: list[str] = []
        why = escape(row.get(NOT_MEASURED) or "")
        for column in columns:
            cell = _cell(column, row, decimals[column.key])
            if cell == _NOTHING and why:
                cell, why = why, ""
            cells.append(cell)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _heading(column: Column) -> str:
    unit = FORMATS[column.kind].unit if column.kind in FORMATS else ""
    return escape(column.label) + (f" ({unit})" if unit else "")


def _cell(column: Column, row: Mapping[str, Any], decimals: int) -> str:
    value = row[column.key]
    if is_missing(value):
        return escape(explain_absent(column, dict(row))) or _NOTHING
    if column.kind in NUMERIC:
        shown = plain(format_number_cell(column, row, decimals))  # type: ignore[arg-type]
        ends = format_spread(column, row, decimals)
        return f"{shown} ({ends[0]}–{ends[1]})" if ends and ends[0] != ends[1] else shown
    if column.kind in YES_NO:
        return YES_NO[column.kind][bool(value)]
    special = {"kernel": kernel, "family": family, "modules": modules, "code": code}
    if column.kind in special:
        return special[column.kind](value)
    return escape(find_value_label(column.key, value))


def list_some(words: Sequence[str], most: int = 6) -> str:
    """Return the first of some words, and how many more there are."""
    shown = "; ".join(words[:most])
    return f"{shown} and {len(words) - most} more" if len(words) > most else shown
