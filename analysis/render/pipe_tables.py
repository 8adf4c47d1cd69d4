"""Tables as Markdown, for a reader of the source: what the HTML of a page shows, and of a long table the first rows."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from profiler_job.analysis.reference.columns import FORMATS
from profiler_job.analysis.render import tables, text
from profiler_job.analysis.render.answer import Column, Table
from profiler_job.jobs.contract.words import NOT_MEASURED

MOST_ROWS = 24
"""Of a table in Markdown; the CSV has all."""
WIDEST = 28
"""Characters to which cells are filled up, so that columns are straight in the source, too."""


def write_caption(title: str, csv_link: str) -> Markup:
    """Return the line above a table or a figure: its title, and a link to all rows."""
    return Markup("**{}** · [CSV]({})\n\n").format(text.inline(title), Markup(csv_link))


def to_markdown(table: Table, csv_link: str, root: str, families: Mapping[str, str]) -> Markup:
    """Return the caption and the pipe table of the first MOST_ROWS rows."""
    if not len(table.rows):
        return write_caption(table.title, csv_link) + Markup("Nothing was measured.")
    decimals = {column.key: tables.choose_column_decimals(column, table.rows) for column in table.columns}
    shown = table.rows.head(MOST_ROWS).to_dict("records")
    rows = [_row(row, table.columns, decimals, root, families) for row in shown]
    is_right = [column.kind in tables.NUMERIC for column in table.columns]
    pipes = write_pipes([_heading(column) for column in table.columns], rows, is_right)
    return write_caption(table.title, csv_link) + pipes + _note_more(len(table.rows) - len(shown))


def write_pipes(headings: Sequence[str], rows: Sequence[Sequence[str]], is_right: Sequence[bool]) -> Markup:
    """Return a pipe table of cells that are Markdown already; is_right: by column, whether it is aligned right."""
    widths = [min(WIDEST, max(3, *(len(row[at]) for row in (headings, *rows)))) for at in range(len(headings))]
    rule = [f"{'-' * (width - 1)}:" if right else "-" * width for width, right in zip(widths, is_right)]
    lines = [
        " | ".join(
            cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(row, widths, is_right)
        )
        for row in (headings, rule, *rows)
    ]
    return Markup("\n".join(f"| {line} |" for line in lines))


def heat_to_markdown(table: Table, csv_link: str, links: Mapping[str, str], root: str) -> Markup:
    """Return the caption and the map of a table, as `tables.heat_html` has it, one pipe table per variant."""
    row_key, column_key, *variants = (column.key for column in table.columns[:-1])
    value = table.columns[-1]
    columns = list(dict.fromkeys(table.rows[column_key]))
    parts = []
    for variant, group in table.rows.groupby(variants, sort=False) if variants else [((), table.rows)]:
        decimals = tables.choose_column_decimals(value, group)
        cells: dict[Any, dict[Any, str]] = {}
        for row in group.to_dict("records"):
            words = _cell(value, row, decimals, root, {}, _why(row))
            page = links.get(str(row["run_id"]))
            words = f"[{words}]({tables.address(page, root, '.md')})" if page else words
            cells.setdefault(row[row_key], {})[row[column_key]] = words
        name = " · ".join(map(str, variant)) or "context"
        headings = [str(text.inline(name)), *(str(text.count(column)) for column in columns)]
        rows = [[str(text.inline(name)), *(of.get(c, "not measured") for c in columns)] for name, of in cells.items()]
        parts.append(write_pipes(headings, rows, [False, *[True] * len(columns)]))
    unit = FORMATS[value.kind].unit if value.kind in FORMATS else ""
    title = f"{table.title} ({unit})" if unit else table.title
    return write_caption(title, csv_link) + Markup("\n\n").join(parts)


def _note_more(num_more: int) -> Markup:
    if num_more <= 0:
        return Markup("")
    return Markup("\n\n*The CSV has {} more.*").format(text.counted(num_more, "row"))


def _heading(column: Column) -> str:
    unit = FORMATS[column.kind].unit if column.kind in FORMATS else ""
    return str(text.inline(f"{column.label} ({unit})" if unit else column.label))


def _why(row: Mapping[str, Any]) -> str:
    return str(row.get(NOT_MEASURED) or "not measured")


def _row(
    row: dict[str, Any],
    columns: tuple[Column, ...],
    decimals: Mapping[str, int],
    root: str,
    families: Mapping[str, str],
) -> list[str]:
    why = _why(row)
    cells = [_cell(column, row, decimals[column.key], root, families, why) for column in columns]
    reason = str(text.inline(why))
    first = cells.index(reason) if reason in cells else len(cells)
    return [*cells[: first + 1], *("…" if cell == reason else cell for cell in cells[first + 1 :])]


def _cell(column: Column, row: dict[str, Any], decimals: int, root: str, families: Mapping[str, str], why: str) -> str:
    value = row[column.key]
    if tables.is_missing(value):
        said = why if row.get(NOT_MEASURED) else tables.explain_absent(column, row) or why
        return str(text.inline(said))
    if column.kind in tables.NUMERIC:
        shown = tables.format_number_cell(column, row, decimals)
        ends = tables.format_spread(column, row, decimals)
        return f"{shown} ({ends[0]}\u2013{ends[1]})" if ends else str(shown)
    if column.kind in ("kernel", "kernel_entry", "code"):
        return str(text.code(text.short_name(value) if column.kind != "code" else value))
    if column.kind == "family":
        return str(text.inline(families.get(value, value)))
    if column.kind == "modules":
        return ", ".join(str(text.inline(name)) for name in tables.module_names(value)) or "outside modules"
    if column.kind in tables.YES_NO:
        return tables.YES_NO[column.kind][bool(value)]
    if column.kind == "prose":
        return str(text.prose_in_markdown(value))
    label = str(text.inline(tables.label_value(column.key, row)))
    page = row.get(tables.RUN_LEADS_TO if column.kind == "run" else f"{column.key}_leads_to")
    if column.kind in ("run", "page") and page:
        return f"[{label}]({tables.address(page, root, '.md')})"
    return label
