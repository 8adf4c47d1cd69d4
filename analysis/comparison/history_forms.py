"""The forms in which a history is printed: text for a terminal, Markdown, CSV, JSON.

What is inside recordings and captures is not trusted: names are made harmless in text, Markdown and CSV.
"""

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from rich.cells import cell_len

from profiler_job.analysis.comparison.align import NO_SHAPES
from profiler_job.analysis.comparison.history import Group, History, HistoryEntry, HistoryLine, Point
from profiler_job.analysis.comparison.judge import METRICS, find_kind
from profiler_job.analysis.comparison.noise import ENERGY
from profiler_job.analysis.metrics.differences import is_beyond_chance
from profiler_job.analysis.render.escaped_text import escape_csv_cell, escape_markdown
from profiler_job.analysis.render.terminal_text import shorten_text, wrap_text
from profiler_job.jobs.contract.axes import find_label
from profiler_job.jobs.contract.json_format import FORMAT_VERSION
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.quantities import (
    MILLISECONDS,
    format_quantities,
    format_quantity,
    format_relative_change,
    format_share,
)
from profiler_job.jobs.contract.words import format_count

WIDTH = 80
CHART, LEAST_CHART = 14, 6
"""Columns of a chart in a terminal, and the least number if names need the room."""
LEVELS = "▁▂▃▄▅▆▇█"
SAME, CHANGED = "●", "◆"
NEVER, UNKNOWN = "not recorded", "not known"
COLUMNS = ("group", "run", "entry", "name", "recorded", "commit", "value", "against", "difference", "band", "verdict")
"""Columns of CSV: a row for each entry on each line. entry, against: numbers of entries. band: half its width."""


# ---------------------------------------------------------------------------------------------------------------- words


def format_title(history: History, group: Group) -> str:
    """Name the values of a group."""
    what = METRICS[history.metric]
    what = what[0].upper() + what[1:] + (f" ({history.part})" if history.part else "")
    if history.metric == "memory":
        return what
    is_timed = history.metric in ("step", "throughput", "idle", "energy") and group.clock == "timer"
    of = f"{'an unprofiled' if is_timed else 'a profiled'} step"
    return of.capitalize() if history.metric == "step" else f"{what} of {of}"


def format_history_value(history: History, value: float) -> str:
    return format_quantity(find_kind(history.metric), value)


def format_difference(history: History, point: Point) -> str:
    """Format a difference as a share of its reference, or as it is if the reference is 0."""
    if point.judged is None:
        return ""
    if point.judged.share is None:
        return format_quantity(point.judged.kind, point.judged.difference, is_signed=True)
    return format_relative_change(point.judged.share)


def format_band(history: History, point: Point) -> str:
    if point.judged is None:
        return ""
    if math.isinf(point.judged.band):
        return UNKNOWN
    if not point.judged.first:
        return f"±{format_history_value(history, point.judged.band)}"
    return f"±{format_share(point.judged.band / point.judged.first)}"


def format_date(entry: HistoryEntry) -> str:
    return NEVER if entry.recorded_at is None else f"{entry.recorded_at:%Y-%m-%d %H:%M}"


def format_change(history: History, line: HistoryLine, point: Point) -> str:
    """Format a change as a sentence."""
    assert point.judged and point.against
    before, after = format_quantities(point.judged.kind, point.judged.first, point.judged.second)
    band = format_history_value(history, point.judged.band)
    said = (
        f"{line.label}: {before} -> {after}, {format_difference(history, point)}, band ±{band}: {point.judged.verdict}"
    )
    return f"#{point.entry.number} {point.entry.label} against #{point.against.number}, {said}"


def format_cause(history: History, point: Point) -> str:
    """Format the part that made a change; "" for metrics without parts."""
    if point.cause:
        return f"{format_quantity('time', point.cause_ns, MILLISECONDS, is_signed=True)}  {point.cause}"
    return "" if history.metric in ("memory", "energy") else "no part of the profiled step explains it"


def format_counts(group: Group) -> str:
    """Count the changes, and note whether so many may be chance."""
    changed = [point.judged for line in group.lines for point in line.changes if point.judged]
    changes = len(changed)
    num_judged = sum(len(line.points) - 1 for line in group.lines)
    if not num_judged:
        return f"{format_count(len(group.lines), 'run')} in one entry: nothing to compare it with yet"
    if not changes:
        return f"No measurable change in {format_count(num_judged, 'point')}"
    is_clear = is_beyond_chance(changes, num_judged) or any(judged.is_clear for judged in changed)
    chance = "" if is_clear else " (so many may differ by chance)"
    return f"{format_count(changes, 'measurable change')} in {format_count(num_judged, 'point')}{chance}:"


def list_notes(history: History, group: Group) -> Iterator[str]:
    """List notes about a group: other changes than the metric, what is not shown, and the sources of the noise
    bands."""
    for number, settings in group.settings.items():
        for name, (before, after) in settings.items():
            yield f"#{number}: {find_label(name)} was {before or 'none'}, is {after or 'none'}"
    for entry in group.entries:
        alone = group.not_in_all.get(entry.number, [])
        if alone:
            yield f"#{entry.number}: {format_count(len(alone), 'run')} not shown, which other entries lack"
        yield from (f"#{entry.number}: {note}" for note in entry.side.notes)
        for run, why in entry.side.unfinished.items():
            yield f"#{entry.number}: {run} has no numbers ({why})"
    missing = [f"#{entry.number}" for entry in group.entries if entry.recorded_at is None]
    if missing:
        yield f"when it was measured is not recorded: {', '.join(missing)}"
    if history.by == "commit" and (without := [f"#{entry.number}" for entry in group.entries if not entry.commit]):
        yield f"the commit is not recorded: {', '.join(without)}"
    if not group.lines:
        yield f"{METRICS[history.metric]} is not recorded in all of these entries"
    if len(group.entries) > 1 and group.entries[0].side.is_capture:
        yield NO_SHAPES
    if history.metric == "energy" and len(group.entries) > 1:
        known = f"the spread of the processes of an entry, at least the noise bands of {ENERGY.source}"
        yield f"noise band: {known}; not known if both entries have one process"
    else:
        yield from (f"noise band: {source}" for source in group.noise)


def is_drawn(history: History, group: Group) -> bool:
    """Whether the lines of a group are shown: single points are of use only if there is nothing else."""
    return bool(group.lines) and (len(group.entries) > 1 or len(history.groups) == 1)


def list_left_out(history: History) -> Iterator[str]:
    """Entries that have no line, each with why."""
    yield from (f"not shown: {why}" for why in history.left_out.values())


# ----------------------------------------------------------------------------------------------------------------- text


def as_text(history: History) -> str:
    """For a terminal of 80 columns."""
    lines: list[str] = []
    for number, group in enumerate(history.groups):
        lines += [""] * bool(number)
        lines += _wrap(f"{format_title(history, group)}: {format_count(len(group.entries), 'entry')} by {history.by}")
        if group.reason:
            lines += _wrap(f"A new line: {group.reason}")
        lines.append("")
        if len(group.lines) == 1:
            lines += _format_points(history, group, group.lines[0])
        else:
            lines += _format_entries(group.entries)
            lines += ["", *_format_sparklines(history, group)] if is_drawn(history, group) else []
        lines += ["", *_wrap(format_counts(group))]
        for line in group.lines:
            for point in line.changes:
                lines += _wrap(format_change(history, line, point), "  ")
                lines += _wrap(why, "    ") if (why := format_cause(history, point)) else []
        for note in list_notes(history, group):
            lines += _wrap(note)
    for line_out in list_left_out(history):
        lines += _wrap(line_out)
    return "\n".join(line.rstrip() for line in lines)


def _wrap(text: str, indent: str = "") -> list[str]:
    return wrap_text(make_printable(text), WIDTH, indent)


def _format_points(history: History, group: Group, line: HistoryLine) -> list[str]:
    """Format a row for each entry, with its place between the least and the greatest value."""
    rows = [["#", "recorded", "commit", "entry", "value", "change", "band", ""]]
    for point in line.points:
        cells = [str(point.entry.number), format_date(point.entry), point.entry.commit[:7], point.entry.label]
        cells += [
            format_history_value(history, point.value),
            format_difference(history, point),
            format_band(history, point),
        ]
        rows.append(cells)
    spare = WIDTH - max(map(cell_len, _format_table(rows, "rllLrrr", cut=False)))
    columns = min(CHART, max(LEAST_CHART, spare - 2))
    for cells, point, place in zip(rows[1:], line.points, place_values(line, columns)):
        cells.append("·" * place + (CHANGED if point.is_change else SAME) + "·" * (columns - place - 1))
    note = [f"{CHANGED} a change that exceeds the noise band"] if line.changes else []
    return [*_format_table(rows, "rllLrrrl"), *note]


def place_values(line: HistoryLine, num: int) -> list[int]:
    """Compute the place of each value, from 0 to num - 1. The scale is at least as wide as a noise band, so that noise
    looks small."""
    values = [point.value for point in line.points]
    low, high = compute_scale(line)
    return [round((num - 1) * (value - low) / (high - low)) if high > low else (num - 1) // 2 for value in values]


def compute_scale(line: HistoryLine) -> tuple[float, float]:
    """Least and greatest value of a chart's scale."""
    values = [point.value for point in line.points]
    bands = [point.judged.band for point in line.points if point.judged]
    band = max(filter(math.isfinite, bands), default=0.0)
    spare = max(0.0, 2 * band - (max(values) - min(values))) / 2
    return min(values) - spare, max(values) + spare


def _format_entries(entries: Sequence[HistoryEntry]) -> list[str]:
    rows = [["#", "recorded", "commit", "entry"]]
    rows += [[str(entry.number), format_date(entry), entry.commit[:7], entry.label] for entry in entries]
    return _format_table(rows, "rllL")


def _format_sparklines(history: History, group: Group) -> list[str]:
    """Format a row for each line, with its first and last values and a small chart of up to CHART entries, the last
    ones."""
    rows = [["run", "first", "last", "", "marks", "chart"]]
    for line in group.lines:
        first, last = line.points[0].value, line.points[-1].value
        off = format_relative_change(last / first - 1) if first else ""
        rows.append([line.label, format_history_value(history, first), format_history_value(history, last), off])
        rows[-1] += [str(len(line.changes) or ""), draw_sparkline(line)]
    return _format_table(rows, "Lrrrrl")


def draw_sparkline(line: HistoryLine) -> str:
    return "".join(LEVELS[place] for place in place_values(line, len(LEVELS))[-CHART:])


def _format_table(rows: Sequence[Sequence[str]], align: str, *, cut: bool = True) -> list[str]:
    """Format rows of cells, without columns that are empty. align: l, r or L for each; L is cut if the line has no
    room, or put on a line above if names would then be the same."""
    kept = [i for i in range(len(align)) if any(row[i] for row in rows[1:])]
    cells = [[make_printable(row[i]) for i in kept] for row in rows]
    how = [align[i] for i in kept]
    widths = [max(cell_len(row[i]) for row in cells) for i in range(len(kept))]
    if cut and "L" in how:
        place = how.index("L")
        widths[place] = max(5, min(widths[place], WIDTH - sum(widths) + widths[place] - 2 * (len(kept) - 1)))
        names = [shorten_text(row[place], widths[place]) for row in cells]
        if len(set(names)) == len({row[place] for row in cells}):
            for row, name in zip(cells, names):
                row[place] = name
    lines: list[str] = []
    for row in cells:
        for i, cell in enumerate(row):
            if cell_len(cell) > widths[i]:
                lines.append(shorten_text(cell, WIDTH))
                row[i] = ""
        lines.append("  ".join(_pad(cell, width, a) for cell, width, a in zip(row, widths, how)).rstrip())
    return lines


def _pad(text: str, width: int, how: str) -> str:
    spaces = " " * (width - cell_len(text))
    return spaces + text if how == "r" else text + spaces


# ------------------------------------------------------------------------------------------------------------- Markdown


def as_markdown(history: History) -> str:
    """Tables for a pull request or a page."""
    lines: list[str] = []
    for group in history.groups:
        lines += [f"### {escape_markdown(make_printable(format_title(history, group)))}, by {history.by}", ""]
        if group.reason:
            lines += [f"A new line: {escape_markdown(make_printable(group.reason))}", ""]
        if len(group.lines) == 1:
            head = ["#", "recorded", "commit", "entry", "value", "change", "noise band", "verdict"]
            rows = [
                [
                    *(str(point.entry.number), format_date(point.entry), point.entry.commit, point.entry.label),
                    *(
                        format_history_value(history, point.value),
                        format_difference(history, point),
                        format_band(history, point),
                    ),
                    point.judged.verdict if point.judged else "",
                ]
                for point in group.lines[0].points
            ]
            lines += _format_markdown(head, rows)
        else:
            rows = [[str(e.number), format_date(e), e.commit, e.label] for e in group.entries]
            lines += _format_markdown(["#", "recorded", "commit", "entry"], rows)
            rows = [
                [
                    line.label,
                    *(format_history_value(history, point.value) for point in (line.points[0], line.points[-1])),
                    ", ".join(f"#{point.entry.number}" for point in line.changes),
                    draw_sparkline(line),
                ]
                for line in group.lines
            ]
            if is_drawn(history, group):
                lines += ["", *_format_markdown(["run", "first", "last", "changes", "chart"], rows)]
        lines += ["", escape_markdown(format_counts(group)), ""]
        for line in group.lines:
            for point in line.changes:
                why = format_cause(history, point)
                cause = f" ({why})" if why else ""
                lines.append(f"- {escape_markdown(make_printable(format_change(history, line, point) + cause))}")
        lines += [f"- {escape_markdown(make_printable(note))}" for note in list_notes(history, group)]
        lines.append("")
    lines += [f"- {escape_markdown(make_printable(text))}" for text in list_left_out(history)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _format_markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    right = ("#", "value", "change", "noise band", "first", "last")
    lines = ["| " + " | ".join(map(escape_markdown, head)) + " |"]
    lines.append("| " + " | ".join("--:" if name in right else ":--" for name in head) + " |")
    return lines + ["| " + " | ".join(escape_markdown(make_printable(cell)) for cell in row) + " |" for row in rows]


# --------------------------------------------------------------------------------------------------------- CSV and JSON


def as_csv(history: History) -> str:
    """COLUMNS; times are nanoseconds, sizes bytes."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for number, group in enumerate(history.groups):
        for line in group.lines:
            for point in line.points:
                row = _describe_point(point) | {"group": number, "run": line.label} | _describe_entry(point.entry)
                writer.writerow([escape_csv_cell(row[name]) for name in COLUMNS])
    return stream.getvalue().rstrip("\n")


def as_json(history: History, code: int) -> str:
    """Return JSON with the keys of the page of outputs. Times are nanoseconds, sizes bytes, energy J."""
    groups = [
        {
            "reason": group.reason,
            "clock": group.clock,
            "noise": group.noise,
            "entries": [entry.number for entry in group.entries],
            "settings": {str(number): settings for number, settings in group.settings.items()},
            "not_in_all": {str(number): runs for number, runs in group.not_in_all.items()},
            "lines": [
                {"run": line.label, "points": [_describe_point(point) for point in line.points]} for line in group.lines
            ],
        }
        for group in history.groups
    ]
    part = {name: value for name, value in vars(history.part).items() if value}
    return json.dumps(
        {
            "format_version": FORMAT_VERSION,
            "metric": history.metric,
            "part": part,
            "by": history.by,
            "entries": [_describe_entry(entry) | {"notes": entry.side.notes} for entry in history.entries],
            "groups": groups,
            "unreadable": history.unreadable,
            "left_out": history.left_out,
            "exit_code": code,
        },
        indent=2,
    )


def _describe_entry(entry: HistoryEntry) -> dict[str, Any]:
    at: pd.Timestamp | None = entry.recorded_at
    recorded = None if at is None else at.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"entry": entry.number, "name": entry.label, "recorded": recorded, "commit": entry.commit or None}


def _describe_point(point: Point) -> dict[str, Any]:
    judged = point.judged
    return {
        "entry": point.entry.number,
        "value": point.value,
        "against": point.against.number if point.against else None,
        "difference": judged.difference if judged else None,
        "share": judged.share if judged else None,
        "band": judged.band if judged and math.isfinite(judged.band) else None,
        "verdict": judged.verdict if judged else None,
        "cause": {"text": point.cause, "difference_ns": point.cause_ns} if point.cause else None,
    }
