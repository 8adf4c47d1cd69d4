"""A result of `tune` as text for a terminal, Markdown, JSON, CSV and a page.

The JSON form is a stable interface: `format_version`, `name`, `command`, `gpu_name`, `torch`, `is_complete`, `price`
(usd_per_hour, vendor, source, read; null if none is known), `sentences` (headline, facts, losses, check, apply: the
command that writes the patch, code, notes), `steps`
and `tried` (rows, whose keys are `STEP_COLUMNS` and `TRIED_COLUMNS` of `analysis.insight.tuned_ladder`) and `patch`
(diff, to_write, present, written; null if none was made). Times are nanoseconds, sizes bytes, shares 0 to 1, prices US
dollars, and null means not known.
"""

import json
from collections.abc import Iterator
from typing import Any

import pandas as pd

from profiler_job.analysis.insight.tuned_ladder import TunedLadder, has_several_peaks, list_diff_lines, name_tuned
from profiler_job.analysis.render.escaped_text import escape_csv_cell, escape_markdown
from profiler_job.analysis.render.terminal_text import wrap_text
from profiler_job.analysis.show.show_formats import describe_left_out, format_table
from profiler_job.analysis.show.table_columns import fit_table
from profiler_job.jobs.contract.json_format import add_format_version
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.quantities import format_share

FORMS = ("text", "json", "csv", "md")
SENTENCES = ("headline", "facts", "losses", "check", "apply", "code", "notes")
TITLES = {
    "steps": "The ladder",
    "other_code": "What other code could give",
    "not_helping": "What did not help",
    "not_reached": "What was not reached",
}
SHOWN = {
    "steps": (
        *("label", "step_ns", "times_as_fast", "over_before", "tokens_per_s", "mfu_share", "mfu", "peak_bytes"),
        *("usd_per_million", "losses"),
    ),
    "other_code": ("label", "expected_ratio", "on_top_of", "why", "what_to_write"),
    "not_helping": ("label", "verdict", "with_it", "could_save_share", "peak_bytes", "on_top_of", "why"),
    "not_reached": ("label", "could_save_share", "why"),
}
"""Columns of the tables that people read. mfu: in place of mfu_share if its peak is of more than one precision.
over_before, with_it: how many times as fast as the step before in the
ladder, or as the variant without the candidate, with the 95% interval. expected_ratio: the same, from parts of a
step."""


def format_tuned(ladder: TunedLadder, form: str, width: int, is_whole: bool = False) -> str:
    """Format a result in one of FORMS."""
    if form == "json":
        return json.dumps(describe_tuned(ladder), indent=2)
    if form == "csv":
        rows = ladder.steps.drop(columns="label").map(escape_csv_cell)
        return str(rows.to_csv(index=False, lineterminator="\n")).rstrip("\n")
    return format_tuned_markdown(ladder) if form == "md" else format_tuned_text(ladder, width, is_whole)


def describe_tuned(ladder: TunedLadder) -> dict[str, Any]:
    """Return a result as JSON."""
    tuning, price = ladder.tuning, ladder.price
    return add_format_version(
        {
            **{name: getattr(tuning, name) for name in ("name", "command", "gpu_name", "torch", "is_complete")},
            "price": price and {**price._asdict(), "read": price.read and str(price.read)},
            "sentences": {name: getattr(ladder, name) for name in SENTENCES},
            "steps": _list_rows(ladder.steps),
            "tried": _list_rows(ladder.tried),
            "patch": tuning.patch and tuning.patch.model_dump(),
        }
    )


def _list_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.astype(object).where(table.notna(), None).to_dict("records")
    return rows


def list_tables(ladder: TunedLadder) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield key, title and rows of each table that has rows, without empty columns."""
    for name, title in TITLES.items():
        rows: pd.DataFrame = getattr(ladder, name)
        if not len(rows):
            continue
        records = rows.to_dict("records")
        over_before = [_format_ratio(row, "before_") if name == "steps" else None for row in records]
        known = {"with_it": "", "expected_ratio": "expected_"}
        more = {column: [_format_ratio(row, prefix) for row in records] for column, prefix in known.items()}
        rows = rows.assign(over_before=over_before, **more)
        if name == "steps" and has_several_peaks(rows):
            shown = [None if pd.isna(row["mfu_share"]) else _format_mfu(row) for row in records]
            rows = rows.assign(mfu=shown, mfu_share=None)
        else:
            rows = rows.assign(mfu=None)
        rows = rows.astype(object).where(rows.notna() & (rows != ""), None)
        yield name, title, rows[[column for column in SHOWN[name] if rows[column].notna().any()]].infer_objects()


def _format_mfu(row: dict[str, Any]) -> str:
    return f"{format_share(row['mfu_share'])} of {row['precision'].upper()}"


def _format_ratio(row: dict[str, Any], prefix: str) -> str | None:
    names = [f"{prefix}{part}times_as_fast" for part in ("", "low_", "high_")]
    times, low, high = (row[name] for name in names)
    if pd.isna(times):
        return None
    return f"{times:.2f}" if pd.isna(low) or pd.isna(high) else f"{times:.2f} ({low:.2f}-{high:.2f})"


def format_tuned_text(ladder: TunedLadder, width: int, is_whole: bool = False) -> str:
    """Format a result for a terminal of so many columns: what it means first, then the tables, the patch last.
    is_whole: with all columns, whatever their width."""
    lines = wrap_text(name_tuned(ladder), width)
    for line in (ladder.headline, ladder.check, ladder.losses, *ladder.facts, *ladder.notes):
        lines += wrap_text(make_printable(line), width, "  ") if line else []
    if ladder.code:
        lines += ["", "What to write"]
        lines += [text for line in ladder.code for text in wrap_text(make_printable(line), width, "  ")]
        lines += ["  The command that writes the patch:", f"    {make_printable(ladder.apply)}"] if ladder.apply else []
    narrow = []
    for name, title, rows in list_tables(ladder):
        fitted, dropped = fit_table(f"tuned_{name}", rows, width, is_whole)
        lines += ["", title, *fitted]
        narrow += [f"{title}: {', '.join(dropped)}"] if dropped else []
    lines += describe_left_out(narrow, width)
    if diff := list_diff_lines(ladder):
        lines += ["", "The patch", *diff]
    return "\n".join(lines)


def format_tuned_markdown(ladder: TunedLadder) -> str:
    lines = [f"# {escape_markdown(name_tuned(ladder))}", "", f"**{escape_markdown(make_printable(ladder.headline))}.**"]
    facts = [line for line in (ladder.check, ladder.losses, *ladder.facts, *ladder.notes) if line]
    lines += ["", *(f"- {escape_markdown(make_printable(line))}" for line in facts)]
    if ladder.code:
        lines += ["", "## What to write", "", *(f"- {escape_markdown(make_printable(line))}" for line in ladder.code)]
        lines += (
            ["", "The command that writes the patch:", "", *_fence([make_printable(ladder.apply)], "bash")]
            if ladder.apply
            else []
        )
    for _, title, rows in list_tables(ladder):
        lines += ["", f"## {title}", "", *format_table(rows)]
    if diff := list_diff_lines(ladder):
        lines += ["", "## The patch", "", *_fence(diff, "diff")]
    return "\n".join(lines) + "\n"


def _fence(code: list[str], language: str) -> list[str]:
    """Put lines of code between fences that are longer than any in them."""
    fence = "```"
    while any(fence in line for line in code):
        fence += "`"
    return [f"{fence}{language}", *code, fence]
