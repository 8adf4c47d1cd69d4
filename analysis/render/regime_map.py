"""What limits each case as a map: one panel a precision, sizes across contexts."""

from typing import Any

import pandas as pd
from markupsafe import Markup

from profiler_job.analysis.metrics.step_limits import PARTS
from profiler_job.analysis.render import pipe_tables, tables, text
from profiler_job.analysis.render.answer import Table
from profiler_job.jobs.contract.axes import find_value_label
from profiler_job.jobs.contract.words import NOT_MEASURED

UNKNOWN, NO_RUN = "not known", "not measured"


def to_html(table: Table, csv_link: str, root: str) -> Markup:
    """The map of `limit` by precision, attention, size and context_length; a cell leads to the page of its run
    (`leads_to`), where it has one."""
    panels = Markup("\n").join(
        _panel(_caption(*of), rows, root) for of, rows in table.rows.groupby(["precision", "attention"], sort=False)
    )
    return Markup(
        '<figure class="chart regimes" id="chart-{}" data-search-exclude>\n'
        '<figcaption><span class="title">{}</span>{}</figcaption>\n'
        '<div class="panels">{}</div>\n</figure>'
    ).format(table.key, text.escape(table.title), tables.to_take_along(f"chart-{table.key}", csv_link, root), panels)


def to_markdown(table: Table, csv_link: str, root: str) -> Markup:
    """The map as pipe tables, one per panel."""
    panels = []
    for of, rows in table.rows.groupby(["precision", "attention"], sort=False):
        contexts = sorted(set(rows["context_length"]))
        cells = {(row["size"], row["context_length"]): row for row in rows.to_dict("records")}
        lines = [
            [str(text.inline(size)), *(_word(cells.get((size, context)), root) for context in contexts)]
            for size in dict.fromkeys(rows["size"])
        ]
        headings = [str(text.inline(_caption(*of))), *(str(text.count(context)) for context in contexts)]
        panels.append(pipe_tables.write_pipes(headings, lines, [False] * len(headings)))
    return pipe_tables.write_caption(table.title, csv_link) + Markup("\n\n").join(panels)


def _word(row: dict[str, Any] | None, root: str) -> str:
    limit = row["limit"] if row else None
    if row is None or not isinstance(limit, str) or not limit:
        return str(text.inline(_explain_unknown(row)))
    word = str(text.inline(limit))
    return f"[{word}]({tables.address(row['leads_to'], root, '.md')})" if row["leads_to"] else word


def _explain_unknown(row: dict[str, Any] | None) -> str:
    return NO_RUN if row is None else row.get(NOT_MEASURED) or UNKNOWN


def _caption(precision: str, attention: str) -> str:
    label = str(find_value_label("attention", attention))
    return f"{precision.upper()}, {'fused' if label == 'sdpa' else label} attention"


def _panel(caption: str, rows: pd.DataFrame, root: str) -> Markup:
    cells = {(row["size"], row["context_length"]): row for row in rows.to_dict("records")}
    contexts = sorted(set(rows["context_length"]))
    head = Markup("").join(Markup('<th scope="col">{}</th>').format(text.count(context)) for context in contexts)
    body = Markup("").join(
        Markup('<tr><th scope="row">{}</th>{}</tr>\n').format(
            text.escape(size), Markup("").join(_cell(cells.get((size, context)), root) for context in contexts)
        )
        for size in dict.fromkeys(rows["size"])
    )
    return Markup(
        '<table class="regimes"><caption>{}</caption><thead><tr><td>context</td>{}</tr></thead>'
        "<tbody>{}</tbody></table>"
    ).format(text.escape(caption), head, body)


def _cell(row: dict[str, Any] | None, root: str) -> Markup:
    limit = row["limit"] if row else None
    if row is None or not isinstance(limit, str) or not limit:
        return Markup('<td class="why">{}</td>').format(text.escape(_explain_unknown(row)))
    is_either = limit.startswith("either ")
    words = text.escape("either" if is_either else limit)  # as narrow as the others
    parts = ", ".join(f"{name} {row[column] / row['timer_ns']:.0%}" for name, column in PARTS.items() if row[column])
    title = f"{row['size']} · {row['context_length']}: {f'{limit}: ' * is_either}{parts} of the step"
    if row["leads_to"]:
        words = Markup('<a href="{}">{}</a>').format(tables.address(row["leads_to"], root), words)
    kind = "either" if is_either else limit.lower()
    return Markup('<td class="{}" title="{}">{}</td>').format(kind, text.escape(title), words)
