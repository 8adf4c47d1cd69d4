"""The forms in which a summary is printed: text for a terminal, Markdown, CSV."""

import csv
import io
from collections.abc import Iterator, Sequence

import pandas as pd

from profiler_job.analysis.insight.first_advice import format_first_advice
from profiler_job.analysis.insight.results import Summary
from profiler_job.analysis.insight.section_columns import ADVICE_TITLE, SECTIONS
from profiler_job.analysis.reference.columns import EMPTY, format_cell, format_heading
from profiler_job.analysis.render.escaped_text import escape_csv_cell, escape_markdown
from profiler_job.analysis.render.terminal_text import is_text, wrap_text
from profiler_job.analysis.show.facts import format_heads, format_note
from profiler_job.analysis.show.table_columns import NAMES, NO_GPU, fit_table
from profiler_job.jobs.contract.printable import make_printable

TITLES = {
    "waits": "Lines that the GPU waits for",
    "wait_parts": "What these lines are in",
    "sync_lines": "Calls that wait for the GPU, by line",
    "copy_lines": "Copies from and to the host, by line",
    "allocation_lines": "Allocations of GPU memory, by line",
    "phases": "Phases",
    "modules": "Modules: kernel time of one step",
    "families": "Kernel families",
    "kernels": "Kernels",
    "matmuls": "Matmuls by recorded sizes",
    "ranges": "NVTX ranges",
    "api": "CUDA API calls",
    "syncs": "Synchronisations",
    "memops": "Memory copies and fills",
    "gpus": "GPUs",
    "communication": "Communication by GPU",
    "collectives": "Collectives",
    "messages": "Collectives by size of the message",
    "late_kernels": "What GPUs that others waited for run longer than the others",
    "missing": "Missing, and what cannot be said without it",
}
"""In the order in which they are printed; a section without a title comes after them."""
ALWAYS_WHOLE = ("missing",)
"""Sections that keep all rows."""
_IN_SENTENCES = ("verdict", "verdict_phases", "findings", "advice", "problems", "wait_stacks")
"""Sections that are printed above or below the tables, as sentences, or drawn."""


def list_sections(summary: Summary) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """(name, title, frame) of each section that is shown and has rows, without columns that say nothing in any row."""
    for name in [*TITLES, *(name for name in SECTIONS if name not in TITLES)]:
        frame = summary.sections[name]
        if len(frame) and name in summary.shown and (name not in _IN_SENTENCES or len(summary.shown) < len(SECTIONS)):
            kept = [column for column in frame if column in NAMES or not _is_empty(column, frame[column])]
            yield name, TITLES.get(name, name.replace("_", " ").capitalize()), frame[kept]


def _is_empty(column: str, values: pd.Series) -> bool:
    """Whether a column names nothing in any row: no text, or no GPU."""
    return all(format_cell(column, value) in (EMPTY, NO_GPU) for value in values)


def _limit_sections(summary: Summary, top: int) -> Iterator[tuple[str, str, pd.DataFrame, int]]:
    """(name, title, frame, rows left out) of each section."""
    for name, title, frame in list_sections(summary):
        rows = frame if not top or name in ALWAYS_WHOLE else frame.head(top)
        yield name, title, rows, len(frame) - len(rows)


def as_text(summary: Summary, top: int, width: int) -> str:
    """Format a readable summary for a terminal of so many columns. With top 0 no column is left out for lack of
    room, and lines may be longer."""
    lines = wrap_text(make_printable(summary.capture["source"]), width)
    for number, group in enumerate(format_heads(summary)):
        lines += [""] * (number > 0) + [text for line in group for text in wrap_text(line, width, "  ")]
        if number == 0 and (first := format_first_advice(summary)):
            lines += ["", f"  {ADVICE_TITLE} (why, and how sure: at the end)"]
            lines += [text for line in first for text in wrap_text(line, width, "    ")]
    narrow = []
    for name, title, frame, left_out in _limit_sections(summary, top):
        rows, dropped = fit_table(name, frame, width, is_whole=not top)
        lines += ["", title, *rows]
        if left_out:
            lines.append(f"  ... and {left_out} more (show --top 0 shows all)")
        if note := format_note(summary, name):
            lines += wrap_text(note, width, "  ")
        if dropped:
            narrow.append(f"{title}: {', '.join(dropped)}")
    lines += [f"\nThe section {name} has no rows here" for name in summary.shown if not _has_rows(summary, name)]
    return "\n".join([*lines, *describe_left_out(narrow, width), *_format_advice(summary, width)])


def _format_advice(summary: Summary, width: int) -> list[str]:
    lines = [
        text
        for entry in summary.insight.sentences.advice
        for number, line in enumerate(entry)
        for text in wrap_text(line, width, "  " if number == 0 else "     ")
    ]
    return ["", ADVICE_TITLE, *lines, *wrap_text(summary.insight.sentences.advice_note, width, "  ")] if lines else []


def _has_rows(summary: Summary, name: str) -> bool:
    """Whether a section is shown: it has rows, or the user asked for it."""
    return len(summary.shown) == len(SECTIONS) or len(summary.sections[name]) > 0


def describe_left_out(narrow: Sequence[str], width: int) -> list[str]:
    """Describe the columns that have no room; `narrow`: their names, for each table."""
    if not narrow:
        return []
    return ["", *wrap_text(f"Not in {width} columns (show --top 0 shows all): {'; '.join(narrow)}", width)]


def as_markdown(summary: Summary, top: int) -> str:
    """Format the same as Markdown tables, with the columns that have no room there, and whole names."""
    lines = [f"# {escape_markdown(make_printable(summary.capture['source']))}", ""]
    lines += [f"- {escape_markdown(line)}" for group in format_heads(summary) for line in group]
    for name, title, frame, left_out in _limit_sections(summary, top):
        lines += ["", f"## {title}", "", *format_table(frame)]
        if note := format_note(summary, name):
            lines += ["", f"{escape_markdown(note)}."]
        if left_out:
            lines += ["", f"... and {left_out} more."]
    if entries := summary.insight.sentences.advice:
        lines += ["", f"## {ADVICE_TITLE}", "", *(f"- {escape_markdown('; '.join(entry))}" for entry in entries)]
        lines += ["", f"{escape_markdown(summary.insight.sentences.advice_note)}."]
    return "\n".join(lines) + "\n"


def format_table(frame: pd.DataFrame) -> list[str]:
    lines = ["| " + " | ".join(format_heading(column) for column in frame.columns) + " |"]
    lines.append("|" + "|".join(":--" if is_text(frame, column) else "--:" for column in frame.columns) + "|")
    for row in frame.itertuples(index=False):
        lines.append("| " + " | ".join(escape_markdown(format_cell(c, v)) for c, v in zip(frame.columns, row)) + " |")
    return lines


def as_csv(summaries: Sequence[Summary]) -> str:
    """One long table of all sections: profile, section, row, column, value; without the sentences."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["profile", "section", "row", "column", "value"])
    for summary in summaries:
        source = escape_csv_cell(summary.capture["source"])
        for section, content in summary.as_json().items():
            if section == "sentences":
                continue
            rows = content if isinstance(content, list) else [content]
            for number, row in enumerate(rows):
                for column, value in row.items():
                    writer.writerow([source, section, number, column, escape_csv_cell(value)])
    return stream.getvalue().rstrip("\n")


def section_as_csv(summaries: Sequence[Summary], section: str, names_profiles: bool) -> str:
    """One section of each in its own columns; `names_profiles`: with a first column that says which profile's it is."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["profile"] * names_profiles + list(SECTIONS[section]))
    for summary in summaries:
        source = [escape_csv_cell(summary.capture["source"])] * names_profiles
        for row in summary.as_json()[section]:
            writer.writerow(source + [escape_csv_cell(value) for value in row.values()])
    return stream.getvalue().rstrip("\n")
