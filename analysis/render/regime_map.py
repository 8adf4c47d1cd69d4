"""What limits each case as a map: one panel a state, sizes across contexts."""

from typing import Any

import pandas as pd
from markupsafe import Markup

from profiler_job.analysis.metrics.step_limits import PARTS
from profiler_job.analysis.render import pipe_tables, tables, text
from profiler_job.analysis.render.answer import Table
from profiler_job.analysis.render.state_switch import draw_switch
from profiler_job.jobs.contract.axes import find_default, find_value_label
from profiler_job.jobs.contract.quantities import format_share
from profiler_job.jobs.contract.words import NOT_MEASURED

PANEL = ["precision", "compile", "attention"]
NO_PROFILE = "not profiled"


def to_html(table: Table, csv_link: str, root: str, shown: str = "") -> Markup:
    """The map of `limit` by PANEL, size and context_length; a cell leads to the page of its run (`leads_to`), where it
    has one. shown: the state that is chosen first."""
    panels = {
        _name_state(*of[:2]): Markup(
            '<div class="panels" tabindex="0" role="region" aria-label="{}: {}">{}</div>'
        ).format(text.escape(table.title), text.escape(_caption(*of)), _panel(_caption(*of), rows, root))
        for of, rows in table.rows.groupby(PANEL, sort=False)
    }
    return Markup(
        '<figure class="chart regimes by-state" id="chart-{}" data-search-exclude>\n'
        '<figcaption><span class="title">{}</span>{}</figcaption>\n{}\n</figure>'
    ).format(
        table.key,
        text.escape(table.title),
        tables.to_take_along(f"chart-{table.key}", csv_link, root),
        draw_switch(table.key, panels, shown) if len(panels) > 1 else Markup("").join(panels.values()),
    )


def to_markdown(table: Table, csv_link: str, root: str) -> Markup:
    """The map as pipe tables, one per panel."""
    panels = []
    for of, rows in table.rows.groupby(PANEL, sort=False):
        contexts = sorted(set(rows["context_length"]))
        cells = {(row["size"], row["context_length"]): row for row in rows.to_dict("records")}
        lines = [
            [str(text.inline(name)), *(_word(cells.get((size, context)), root) for context in contexts)]
            for size, name in _name_models(rows).items()
        ]
        headings = [str(text.inline(_caption(*of))), *(str(text.count(context)) for context in contexts)]
        panels.append(pipe_tables.write_pipes(headings, lines, [False] * len(headings)))
    return pipe_tables.write_caption(table.title, csv_link) + Markup("\n\n").join(panels)


def _name_models(rows: pd.DataFrame) -> dict[str, str]:
    """Name the models of a panel, by size, in its order."""
    return {run["size"]: text.name_model_of(run) for run in rows.to_dict("records")}


def _word(row: dict[str, Any] | None, root: str) -> str:
    limit = row["limit"] if row else None
    if row is None or not isinstance(limit, str) or not limit:
        return str(text.inline(_explain_unknown(row)))
    word = str(text.inline(limit))
    return f"[{word}]({tables.address(row['leads_to'], root, '.md')})" if row["leads_to"] else word


def _explain_unknown(row: dict[str, Any] | None) -> str:
    return (row or {}).get(NOT_MEASURED) or NO_PROFILE


def _name_state(precision: str, compiled: str) -> str:
    return f"{precision.upper()}{'' if compiled == find_default('compile') else ' compiled'}"


def _caption(precision: str, compiled: str, attention: str) -> str:
    return f"{_name_state(precision, compiled)}, {name_attention(attention)}"


def name_attention(attention: str) -> str:
    """Name the attention of a panel: fused attention, whichever of PyTorch's kernels ran."""
    label = str(find_value_label("attention", attention))
    return f"{'fused' if label == 'sdpa' else label} attention"


def _panel(caption: str, rows: pd.DataFrame, root: str) -> Markup:
    cells = {(row["size"], row["context_length"]): row for row in rows.to_dict("records")}
    contexts = sorted(set(rows["context_length"]))
    head = Markup("").join(Markup('<th scope="col">{}</th>').format(text.count(context)) for context in contexts)
    body = Markup("").join(
        Markup('<tr><th scope="row">{}</th>{}</tr>\n').format(
            text.escape(name), Markup("").join(_cell(cells.get((size, context)), root) for context in contexts)
        )
        for size, name in _name_models(rows).items()
    )
    return Markup(
        '<table class="regimes"><caption>{}</caption><thead><tr><td>context</td>{}</tr></thead>'
        "<tbody>{}</tbody></table>"
    ).format(text.escape(caption), head, body)


def _cell(row: dict[str, Any] | None, root: str) -> Markup:
    limit = row["limit"] if row else None
    if row is None or not isinstance(limit, str) or not limit:
        kind = "why none" if row is None else "why"
        return Markup('<td class="{}">{}</td>').format(kind, text.escape(_explain_unknown(row)))
    is_either = limit.startswith("either ")
    words = text.escape("either" if is_either else limit)  # as narrow as the others
    shares = [format_share(row[column] / row["timer_ns"], 0) for column in PARTS.values()]
    parts = ", ".join(f"{name} {share}" for name, share in zip(PARTS, shares) if share != "0%")
    title = f"{text.name_model_of(row)} · {row['context_length']:,}: {f'{limit}: ' * is_either}{parts} of the step"
    if row["leads_to"]:
        words = Markup('<a href="{}">{}</a>').format(tables.address(row["leads_to"], root), words)
    kind = "either" if is_either else limit.lower()
    return Markup('<td class="{}" title="{}">{}</td>').format(kind, text.escape(title), words)
