"""Format the advice on what to change first: the time that each change concerns and what it could save at most. For a
recorded run, and for a capture that the GPU limits, predictions, too."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from profiler_job.analysis.insight.first_advice import NOTHING
from profiler_job.analysis.insight.section_columns import SECTIONS, SummaryTables
from profiler_job.analysis.reference import track_record
from profiler_job.analysis.reference.columns import format_cell
from profiler_job.jobs.contract.changes import LABELS
from profiler_job.jobs.contract.layout import SCRIPT
from profiler_job.jobs.contract.quantities import format_quantity, format_share, format_time

NOTE = (
    "Times of this capture, not predictions: a change concerns the time that it removes or makes faster, and could "
    "save no more than shown; gains do not add up"
)
NOTE_OF_GAINS = (
    "Predicted gains are of the time from first to last operation of this capture, which the GPU limits. Their models "
    "were tested on recordings of scripts, and on few captures. The time that a change concerns is a time of this "
    "capture, not a prediction; gains do not add up"
)
MOST = 4
"""Advices on the page of a run."""


def format_advice(summary: SummaryTables) -> list[list[str]]:
    """Format the lines of each advice, the first with the times; then a line for each reason not to advise. No lines if
    some sections are chosen, or no GPU worked."""
    table = summary.sections["advice"]
    if len(summary.shown) < len(SECTIONS) or not len(table):
        return []
    advised = table[table["reason"] == ""]
    entries = [_format_entry(place, row, summary) for place, (_, row) in enumerate(advised.iterrows(), start=1)]
    why = summary.capture["no_gain_because"]
    if entries and why:
        entries.append([f"No gain is predicted: {why}"])
    return [*(entries or [[NOTHING]]), *([line] for line in _format_withheld(table))]


def choose_advice_note(summary: SummaryTables) -> str:
    """Return the note about what all advice refers to."""
    return NOTE if summary.sections["advice"]["gain_ns"].isna().all() else NOTE_OF_GAINS


def _format_entry(place: int, row: pd.Series, summary: SummaryTables) -> list[str]:
    facts = summary.capture
    ceiling = format_time(row["ceiling_ns"])
    if pd.isna(row["gain_ns"]):
        share = format_cell("share", row["share"])
        times = f"concerns {format_time(row['time_ns'])} ({share}), could save up to {ceiling}"
    else:
        gain, least, most = (format_time(row[name]) for name in ("gain_ns", "gain_least_ns", "gain_most_ns"))
        captured = format_time(facts["work_end_ns"] - facts["work_start_ns"])
        times = f"predicted to save {gain} ({least} to {most}) of these {captured}, never more than {ceiling}"
    lines = [f"{place}. {LABELS[row['change']]}: {times}", f"do: {row['do']}", f"evidence: {row['evidence']}"]
    if row["no_gain_because"] and not facts["no_gain_because"]:
        lines.append(f"no gain is predicted: {row['no_gain_because']}")
    record = track_record.describe_record([row["change"]], SCRIPT)
    return [*lines, f"how sure: {row['sure']}; track record: {record}"]


def _format_withheld(table: pd.DataFrame) -> Iterator[str]:
    rows = table[table["reason"] != ""]
    return _format_reasons(zip(rows["change"], rows["reason"]))


def _format_reasons(reasons: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Format a line for each reason, with all changes that have it."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons:
        by_reason.setdefault(reason, []).append(LABELS[name])
    for reason, labels in by_reason.items():
        yield f"Not advised, {', '.join(labels)}: {reason}"


def format_run_advice(entries: Sequence[Mapping[str, Any]], run: Mapping[str, Any]) -> list[str]:
    """A line for each of the first MOST advices of a recorded run, and one for each reason not to advise. entries: as
    of `run_page`."""
    advised = [entry for entry in entries if not entry["reason"]]
    withheld = ((entry["changes"][0], entry["reason"]) for entry in entries if entry["reason"])
    return [*(_format_line(entry, run) for entry in advised[:MOST]), *_format_reasons(withheld)]


def _describe_apart(apart: float) -> str:
    return "" if math.isinf(apart) else f": the processes differ by {format_share(apart)}, as the CPU's speed does"


def _format_line(entry: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    labels = ", ".join(LABELS[name] for name in entry["changes"])
    if len(entry["changes"]) > 1:
        labels += ", together"
    if "measured_in" in entry:
        now, then = entry["step_ns"], entry["step_ns"] - entry["gain_ns"]
        times = f"{format_time(then)} instead of {format_time(now)}, {format_quantity('ratio', now / then)} as fast"
        return f"{labels}: measured, {times}; do: {entry['do']}"
    of = track_record.choose_kind(run, entry["changes"])
    record = f"track record: {track_record.describe_record(entry['changes'], of)}"
    if "apart" in entry:
        record += f"; no ratio was measured by turns{_describe_apart(entry['apart'])}"
    ceiling = format_time(entry["ceiling_ns"])
    if entry["gain_ns"] is None:
        most = f"could save up to {ceiling} of {format_time(entry['time_ns'])}"
        return f"{labels}: {most}; do: {entry['do']}; how sure: {entry['sure']}; {record}"
    gain, least, most = (format_time(entry[f"{name}_ns"]) for name in ("gain", "least", "most"))
    step = format_time(entry["step_ns"])
    expected = f"predicted to save {gain} ({least} to {most}) of {step}, never more than {ceiling}"
    return f"{labels}: {expected}; do: {entry['do']}; {record}"
