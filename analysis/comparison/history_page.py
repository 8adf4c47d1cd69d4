"""A history as one HTML page that needs nothing else: tables, and a chart of each line.

What is inside recordings and captures is not trusted: every text is escaped, and the page runs nothing.
"""

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd
from markupsafe import Markup

from profiler_job.analysis.comparison.history import Group, History, HistoryEntry, HistoryLine, Point
from profiler_job.analysis.comparison.history_forms import (
    NEVER,
    UNKNOWN,
    compute_scale,
    format_cause,
    format_change,
    format_counts,
    format_date,
    format_history_value,
    format_title,
    is_drawn,
    list_left_out,
    list_notes,
)
from profiler_job.analysis.comparison.judge import find_kind
from profiler_job.analysis.render import chart_parts, charts
from profiler_job.analysis.render.document import render_document, render_list, render_table
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.quantities import Kind, choose_form

MOST_CHARTS = 100
"""Lines that are drawn."""
LEGEND = "Grey: the noise band around the entry that a point is compared with. A diamond is a change that exceeds it."


def render_history(history: History) -> str:
    title = f"{format_title(history, history.groups[0])}, by {history.by}"
    parts = [Markup("<h1>{}</h1>").format(make_printable(title))]
    for number, group in enumerate(history.groups):
        parts += _render_group(history, group, number)
    parts.append(render_list([*history.unreadable.values(), *list_left_out(history)], "facts"))
    return render_document(make_printable(title), parts, "history")


def _render_group(history: History, group: Group, number: int) -> Iterator[Markup]:
    if group.reason:
        said = (format_title(history, group), group.reason)
        yield Markup("<h2>{}: a new line</h2>\n<p>{}</p>").format(*map(make_printable, said))
    changes = [
        (format_change(history, line, point), format_cause(history, point))
        for line in group.lines
        for point in line.changes
    ]
    yield Markup('<p class="lead">{}</p>').format(format_counts(group))
    yield render_list([f"{said} ({cause})" if cause else said for said, cause in changes], "")
    for place, line in enumerate(group.lines[:MOST_CHARTS] if is_drawn(history, group) else []):
        chart = _render_chart(history, line, f"line-{number}-{place}")
        yield Markup('<h2>{}</h2>\n<div class="chart scroll">{}</div>').format(make_printable(line.label), chart)
        if len(group.lines) == 1:
            yield render_table(_make_rows(line, history))
    if is_drawn(history, group) and len(group.entries) > 1:
        yield Markup('<p class="faint">{}</p>').format(LEGEND)
    if len(group.lines) > MOST_CHARTS:
        yield Markup("<p>{} more lines: choose runs with --run</p>").format(len(group.lines) - MOST_CHARTS)
    if len(group.lines) != 1:
        yield Markup("<h2>Entries</h2>")
        yield render_table(pd.DataFrame([_describe_entry(entry) for entry in group.entries]))
    yield render_list(list(list_notes(history, group)), "facts")


def _describe_entry(entry: HistoryEntry) -> dict[str, Any]:
    return {"entry": f"#{entry.number}", "recorded": format_date(entry), "commit": entry.commit or NEVER} | {
        "name": entry.label
    }


def _make_rows(line: HistoryLine, history: History) -> pd.DataFrame:
    unit = {"memory": "_bytes", "energy": "", "throughput": ""}.get(history.metric, "_ns")

    def shown(value: float) -> float | str | None:
        if math.isinf(value):
            return UNKNOWN
        return value if unit else format_history_value(history, value)

    rows = []
    for point in line.points:
        judged = point.judged
        rows.append(
            _describe_entry(point.entry)
            | {f"value{unit}": shown(point.value), f"difference{unit}": shown(judged.difference) if judged else None}
            | {"difference_share": judged.share if judged else None}
            | {f"band{unit}": shown(judged.band) if judged else None}
            | {"verdict": judged.verdict if judged else "first"}
        )
    return pd.DataFrame(rows)


def _render_chart(history: History, line: HistoryLine, prefix: str) -> Markup:
    low, high = compute_scale(line)
    kind: Kind = "tokens/s" if history.metric == "throughput" else find_kind(history.metric)
    unit, size, _ = choose_form(kind, [high])
    rows = pd.DataFrame(
        {
            "x": f"#{point.entry.number}",
            "value": point.value / size,
            "low": _find_edge(point, -1) / size,
            "high": _find_edge(point, +1) / size,
            "changed": int(point.is_change),
            "title": make_printable(
                f"#{point.entry.number} {point.entry.label}, {format_date(point.entry)}:"
                f" {format_history_value(history, point.value)}{f', {point.judged.verdict}' if point.judged else ''}"
            ),
        }
        for point in line.points
    )
    bounds = [*rows["low"].dropna(), *rows["high"].dropna(), low / size, high / size]
    spare = 0.05 * (max(bounds) - min(bounds)) or 0.05 * max(bounds) or 1.0
    domain = max(0.0, min(bounds) - spare), max(bounds) + spare
    label = make_printable(f"{line.label}, by entry")
    return Markup(charts.render("history", rows, prefix, chart_parts.WIDE, label, domain=domain, unit=unit))


def _find_edge(point: Point, sign: int) -> float:
    """Return an end of the noise band around the reference; NaN if none is known."""
    if point.judged is None or math.isinf(point.judged.band):
        return math.nan
    return point.judged.first + sign * point.judged.band
