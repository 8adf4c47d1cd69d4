"""Format the advice on what to change first: the time that each change concerns and what it could save at most. For a
recorded run, what it was measured to save, too."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from profiler_job.analysis.insight.first_advice import NOTHING, name_advice
from profiler_job.analysis.insight.run_advice import select_first
from profiler_job.analysis.insight.section_columns import SECTIONS, SummaryTables
from profiler_job.analysis.reference.columns import format_cell
from profiler_job.jobs.contract.changes import CHANGES, LABELS, LARGER_BATCH
from profiler_job.jobs.contract.quantities import (
    format_quantity,
    format_rounded,
    format_share,
    format_thousands,
    format_time,
)

NOTE = (
    "Times of this capture, not predictions: a change concerns the time that it removes or makes faster, and could "
    "save no more than shown; these times do not add up"
)
MOST_BOUND = 5
"""A larger bound, as a ratio, says nothing: no recorded change but of the precision alone was so many times as fast."""
NOT_ADVISED = "Not advised"
MOST = 4
"""Advices on the page of a run."""
ON_SLOW_CPU = " on a slow CPU"
"""What a ratio says that is another one on a fast CPU."""
MOST_OF = "could save most of"
OR_NOTHING = "or nothing: not measured"
"""What is known of a change that was not measured, and whose bound `says_nothing`, before the time of the step and
after it."""
NOT_HERE = "not measured in this step"
IN_ONE_PROCESS = ", both in one process"
"""What a ratio says that was measured by turns, and is not that of the two times."""


def format_advice(summary: SummaryTables) -> list[list[str]]:
    """Format the lines of each advice, the first with the times; then a line for each reason not to advise. No lines if
    some sections are chosen, or no GPU worked."""
    table = summary.sections["advice"]
    if len(summary.shown) < len(SECTIONS) or not len(table):
        return []
    advised = table[table["reason"] == ""]
    entries = [_format_entry(place, row) for place, row in enumerate(advised.to_dict("records"), start=1)]
    return [*(entries or [[NOTHING]]), *([line] for line in _format_withheld(table))]


def _format_entry(place: int, row: Mapping[str, Any]) -> list[str]:
    time, ceiling = (format_time(row[name]) for name in ("time_ns", "ceiling_ns"))
    share = format_cell("share", row["share"])
    return [
        f"{place}. {name_advice(row)}: concerns {time} ({share}), could save up to {ceiling}",
        f"do: {row['do']}",
        f"evidence: {row['evidence']}",
        f"how sure: {row['sure']}",
    ]


def _format_withheld(table: pd.DataFrame) -> Iterator[str]:
    rows = table[table["reason"] != ""]
    return _format_reasons(zip(rows["change"], rows["reason"]))


def _format_reasons(reasons: Iterable[tuple[str, str]], start: str = NOT_ADVISED) -> Iterator[str]:
    """Format a line for each reason, with all changes that have it."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons:
        by_reason.setdefault(reason, []).append(LABELS[name])
    for reason, labels in by_reason.items():
        yield f"{start}, {', '.join(labels)}: {reason}"


def says_nothing(names: Sequence[str], ceiling_ns: float, step_ns: float | None) -> bool:
    """Return whether a bound of changes is so near to the whole step that it is no number to show: more than all but
    one part in MOST_BOUND. The peak rates bound what a precision gives."""
    is_precision = len(names) == 1 and CHANGES[names[0]].axis == "precision"
    return step_ns is not None and not is_precision and ceiling_ns > step_ns * (1 - 1 / MOST_BOUND)


def format_run_advice(
    entries: Sequence[Mapping[str, Any]], step_ns: float | None = None, tokens: float | None = None
) -> list[str]:
    """Format a line for each of the first MOST advices of a recorded run, in the order of its cards, and one for each
    reason not to advise. entries: as `run_advice.rank_changes` gives them; step_ns, tokens: of a step of the run, if
    they are known."""
    chosen = select_first(entries, step_ns)[:MOST]
    together = {name for entry in chosen if len(entry["changes"]) > 1 for name in entry["changes"]}
    withheld = [(entry["changes"][0], entry["reason"]) for entry in entries if entry["reason"]]
    lines = (_format_line(entry, step_ns, tokens) for entry in chosen)
    others = ((name, reason) for name, reason in withheld if name not in together)
    alone = ((name, reason) for name, reason in withheld if name in together)
    return [*lines, *_format_reasons(others), *_format_reasons(alone, f"{NOT_ADVISED} alone")]


def _format_line(entry: Mapping[str, Any], step_ns: float | None, tokens: float | None) -> str:
    labels = ", ".join(LABELS[name] for name in entry["changes"])
    labels += f" ({entry['where']})" if entry.get("where") else ""
    if len(entry["changes"]) > 1:
        labels += ", together"
    if "measured_in" in entry:
        now, then = entry["step_ns"], entry["step_ns"] - entry["gain_ns"]
        is_rate = LARGER_BATCH in entry["changes"]  # makes its own steps longer
        faster = f"{format_quantity('ratio', entry['times_as_fast'])} {'the tokens/s' if is_rate else 'as fast'}"
        faster += ON_SLOW_CPU if entry["on_slow_host"] else ""
        ratio = faster if entry["apart"] is None else _explain_apart(entry)
        times = f"{format_time(then)} instead of {format_time(now)}, "
        if is_rate:
            times = f"{_format_rates(tokens, now, then)}, " if tokens and entry["apart"] is not None else ""
        if not is_rate and entry["apart"] is None and not entry["low"] <= now / then <= entry["high"]:
            # times are of the fastest process of each, and give another ratio
            times, ratio = "", f"{ratio}{IN_ONE_PROCESS}"
        return f"{labels}: measured, {times}{ratio}; do: {entry['do']}"
    words = _format_bound(entry, step_ns)
    if elsewhere := entry.get("elsewhere"):
        words = ", ".join(format_elsewhere(entry["changes"], elsewhere))
    return f"{labels}: {words}; do: {entry['do']}; how sure: {entry['sure']}"


def _format_bound(entry: Mapping[str, Any], step_ns: float | None) -> str:
    ceiling_ns = entry["ceiling_ns"]
    if LARGER_BATCH in entry["changes"] and step_ns is not None and ceiling_ns < step_ns:
        return f"could give up to {format_rounded('ratio', step_ns / (step_ns - ceiling_ns))} the tokens/s"
    if step_ns is not None and says_nothing(entry["changes"], ceiling_ns, step_ns):
        return f"{MOST_OF} {format_time(step_ns)}, {OR_NOTHING}"
    return f"could save up to {format_time(ceiling_ns)}"


def format_elsewhere(names: Sequence[str], gain: Mapping[str, Any]) -> tuple[str, str]:
    """Format what changes gave on another GPU or with other settings, and what else to know of it: `2.5× as fast on an
    H200`, `with fused AdamW`. Where processes are too far apart for a ratio, it is two times, or two rates with a
    larger batch. gain: as `measured_elsewhere.find_elsewhere` gives it."""
    where = gain["gpu"] or gain["settings"]
    words = [gain["settings"]] if gain["gpu"] and gain["settings"] else []
    if gain["apart"] is None:
        of = "the tokens/s" if LARGER_BATCH in names else "as fast"
        words += [ON_SLOW_CPU.strip()] * bool(gain["on_slow_host"])
        given = f"{format_rounded('ratio', gain['times_as_fast'])} {of}"
    else:
        words.append(explain_apart(gain["apart"]))
        times = (gain["before_ns"], gain["after_ns"])
        given = _format_rates(gain["tokens"], *times) if gain["tokens"] else _format_times(*times)
    return f"{given} {where}", ", ".join(words) or NOT_HERE


def explain_apart(apart: float) -> str:
    """Explain on a card why there is no ratio. apart: of processes, infinite if there is one of each."""
    return "measured once" if math.isinf(apart) else f"processes differ by {format_share(apart, 0)}"


def _format_times(before_ns: float, after_ns: float) -> str:
    """`101 → 41 ms`."""
    before, after = (format_rounded("time", ns) for ns in (before_ns, after_ns))
    number, _, unit = before.partition(" ")
    return f"{number if after.endswith(f' {unit}') else before} → {after}"


def _format_rates(tokens: float, before_ns: float, after_ns: float) -> str:
    """`34.7k → 37.2k tokens/s`. tokens: of the step of `before_ns`, and of its part of a larger one."""
    before, after = (format_thousands(tokens / ns * 1e9) for ns in (before_ns, after_ns))
    return f"{before} → {after} tokens/s"


def _explain_apart(entry: Mapping[str, Any]) -> str:
    """Explain why an advice of `run_advice.rank_changes` that was measured has no ratio."""
    is_single = math.isinf(entry["apart"])
    return "in one process each" if is_single else f"in processes that differ by {format_share(entry['apart'])}"
