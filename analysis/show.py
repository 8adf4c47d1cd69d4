"""Any nsys profile, summarised in a terminal or for a machine.

The JSON form (`--format json`) is a stable interface: one object for one PROFILE, an array of them for several. Its
keys:

- `capture`: facts of the capture (source, nsys_version, schema_version, duration_ns (how long nsys collected; events_ns
  where the export does not say), events_ns (from the start of the first GPU operation, API call, range or
  synchronisation to the end of the last), processes, num_gpus, num_kernels, num_graph_executions, num_api_calls,
  num_ranges, num_open_ranges, kernel_ns, graph_ns (whole graph executions, whose kernels are not visible), kernel_share
  (kernel_ns of kernel_ns and graph_ns together; null where both are 0), unclassified_share)
- `coverage`: {exact, phase, none}, shares of kernel time by how its phase is known; null where there are no kernels. It
  speaks of kernel_share of the GPU time, not of what graph executions hide
- `launches`: launch latency (API start to kernel start) and queue depth over all kernels
- `kernels`, `families`, `ranges`, `phases`, `api`, `syncs`, `memops`, `gpus`, `problems`, `missing`: arrays of objects,
  whose keys are the columns of `analysis.capture.summary.SECTIONS`, largest first

Times are integer nanoseconds, sizes bytes, shares 0 to 1, and null means not known. Keys may be added, never renamed.
The CSV form is long: profile, section, row, column, value. Names in the text and Markdown forms are made harmless:
what is inside a profile is not trusted.
"""

import csv
import io
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.capture import nsys_reports
from analysis.capture.nsys_export import ExportError, read
from analysis.capture.summary import Summary, summarise
from analysis.reference import kernel_families
from jobs.contract.words import counted

Format = Literal["text", "json", "csv", "md"]
FORMATS: tuple[Format, ...] = get_args(Format)

TITLES = {
    "gpus": "GPUs",
    "phases": "Phases",
    "families": "Kernel families",
    "kernels": "Kernels",
    "ranges": "NVTX ranges",
    "api": "CUDA API calls",
    "syncs": "Synchronisations",
    "memops": "Memory copies and sets",
    "missing": "Missing, and what cannot be said without it",
}
_HEADINGS = {
    "total_ns": "total",
    "kernel_ns": "kernel time",
    "busy_ns": "busy time",
    "projected_ns": "projected",
    "host_ns": "host time",
    "span_ns": "span",
    "latency_median_ns": "median latency",
    "latency_max_ns": "max latency",
    "memory_bytes": "memory",
    "clock_hz": "clock",
    "sm_count": "SMs",
    "exact_share": "exact",
    "idle_share": "idle",
    "kernel_calls": "kernels",
}
_NOTHING = "n/a"

LONG_COLLECTION = 2
"""A collection is named beside its events where it lasts more than this many times as long."""


def show(
    profiles: Sequence[Path],
    form: str,
    top: int,
    out: Callable[[str], None],
    err: Callable[[str], None],
    rules: Path | None = None,
) -> int:
    """Give a summary of each profile to `out`, and one line to `err` for each that cannot be read; the others go on.

    form: one of FORMATS. top: rows of a section in text and md, 0 for all. rules: TOML file of further kernel
    families' rules. Returns the exit code: 0, or 2 where a profile or the rules could not be read.
    """
    try:
        taxonomy = kernel_families.with_user_rules(rules) if rules else kernel_families.BUILT_IN
    except ValueError as error:
        err(printable(f"error: {error}"))
        return 2
    summaries: list[Summary] = []
    for profile in profiles:
        try:
            summary = summarise(read(profile, details=False), taxonomy=taxonomy)
            text = {"text": as_text, "md": as_markdown}[form](summary, top) if form in ("text", "md") else None
        except ExportError as error:
            err(printable(f"error: {error}"))
            continue
        except Exception as error:  # a batch goes on, and a user sees no traceback, whatever a profile holds
            what = f"could not be summarised ({type(error).__name__}: {error})"
            err(printable(f"error: {profile}: {what}; please report it, with the profile if you can"))
            continue
        summaries.append(summary)
        if text is not None:
            out(text)
    if form == "json" and len(profiles) > 1:
        out(json.dumps([summary.as_json() for summary in summaries], indent=2))
    elif form == "json" and summaries:
        out(json.dumps(summaries[0].as_json(), indent=2))
    elif form == "csv" and summaries:
        out(as_csv(summaries))
    return 0 if len(summaries) == len(profiles) else 2


def show_report(profiles: Sequence[Path], report: str, out: Callable[[str], None], err: Callable[[str], None]) -> int:
    """Give a table of `nsys stats` to `out` for each profile, as CSV with nsys's columns; names and numbers as of
    `analysis.capture.nsys_reports`. Of several profiles, a line before each table says what it is, and an empty line
    comes between two. Errors and exit code as of `show`."""
    num_read = 0
    for profile in profiles:
        try:
            table = nsys_reports.REPORTS[report](read(profile))
        except ExportError as error:
            err(printable(f"error: {error}"))
            continue
        if len(profiles) > 1:
            out("\n" * (num_read > 0) + printable(f"# {report} of {profile}"))
        out(table.to_csv(index=False, float_format="%.1f").rstrip("\n"))
        num_read += 1
    return 0 if num_read == len(profiles) else 2


def printable(text: str) -> str:
    """`text` on one line, without the control characters that could drive a terminal."""
    flat = re.sub(r"[\r\n\t]+", " ", str(text))
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in flat)


# ----------------------------------------------------------------------------------------------------------- the values


def _time(ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= size:
            return f"{ns / size:.2f} {unit}"
    return f"{ns:.0f} ns"


def _size(size: float) -> str:
    for unit, step in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= step:
            return f"{size / step:.1f} {unit}"
    return f"{size:.0f} B"


def _shown(column: str, value) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and pd.isna(value)):
        return _NOTHING
    if column.endswith("_ns"):
        return _time(float(value))
    if column.endswith("bytes"):
        return _size(float(value))
    if column.endswith("share"):
        return f"{100 * float(value):.1f}%"
    if column == "clock_hz":
        return f"{float(value) / 1e6:.0f} MHz"
    if isinstance(value, str):
        return printable(value) or "(none)"
    return str(value)


def _facts(summary: Summary) -> list[str]:
    facts, coverage, launches = summary.capture, summary.coverage, summary.launches
    version, schema = (printable(facts[name]) or "unknown" for name in ("nsys_version", "schema_version"))
    lines = [
        f"{_span(facts)}; {counted(len(facts['processes']), 'process')}; "
        f"{counted(facts['num_gpus'], 'GPU')} used; nsys {version}, schema {schema}",
        f"{counted(facts['num_kernels'], 'kernel')} ({_time(facts['kernel_ns'])}), "
        f"{counted(facts['num_graph_executions'], 'graph execution')} ({_time(facts['graph_ns'])}), "
        f"{counted(facts['num_api_calls'], 'API call')}, "
        f"{counted(facts['num_ranges'], 'range')} ({facts['num_open_ranges']} left open)",
        coverage_line(coverage, facts),
    ]
    if facts["unclassified_share"] is not None:
        lines.append(f"Kernel families: {_shown('share', facts['unclassified_share'])} of kernel time in no family")
    if launches["kernels"]:
        lines.append(
            f"Launches: {_time(launches['latency_median_ns'])} median, {_time(launches['latency_max_ns'])} longest "
            f"from call to kernel; queue {launches['queue_mean']:.1f} kernels on average, "
            f"{launches['queue_max']} at most"
        )
    problems = summary.sections["problems"].itertuples(index=False)
    lines += [f"Wrong: {what}; {consequence}" for what, consequence in problems]
    return lines


def _span(facts: dict) -> str:
    """How long the events last, and how long nsys collected where that says something else: nsys may have waited long
    for them, or gone on after them."""
    events, collection = facts["events_ns"], facts["duration_ns"]
    if collection <= LONG_COLLECTION * events:
        return f"{_time(events)} of events"
    return f"{_time(events)} of events in a collection of {_time(collection)}"


def coverage_line(coverage: dict, facts: dict) -> str:
    """The sentence that says how much of the kernel time is attributed, and how; and of how much GPU time that speaks
    where graph executions hide their kernels."""
    if any(value is None for value in coverage.values()):
        line = "Coverage: no kernels to attribute"
    else:
        exact, phase, none = (_shown("share", coverage[name]) for name in ("exact", "phase", "none"))
        line = f"Coverage: {exact} of kernel time attributed exactly, {phase} to a phase by time, {none} not attributed"
    if facts["graph_ns"]:
        line += f" (kernel time is {_shown('share', facts['kernel_share'])} of GPU time; graphs hide the rest)"
    return line


def _sections(summary: Summary, top: int):
    """(title, frame, rows left out) of each section that has rows."""
    for name, title in TITLES.items():
        frame = summary.sections[name]
        if len(frame):
            shown = frame if not top or name == "missing" else frame.head(top)
            yield title, name, shown, len(frame) - len(shown)


def _heading(column: str) -> str:
    return _HEADINGS.get(column, column.replace("_", " "))


def _is_text(frame: pd.DataFrame, column: str) -> bool:
    return not pd.api.types.is_numeric_dtype(frame[column]) and any(isinstance(v, str) for v in frame[column])


# ------------------------------------------------------------------------------------------------------------ the forms


def as_text(summary: Summary, top: int = 20) -> str:
    """A readable summary for a terminal."""
    stream = io.StringIO()
    width = max(shutil.get_terminal_size((160, 24)).columns, 100)
    console = Console(file=stream, width=width, highlight=False, markup=False, emoji=False)
    console.print(Text(printable(summary.capture["source"]), style="bold"))
    for line in _facts(summary):
        console.print(Text(f"  {line}"))
    for title, _, frame, left_out in _sections(summary, top):
        table = Table(
            title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
        )
        columns = sorted(frame.columns, key=lambda column: column == "name")  # long, so that it comes last
        cells = [[_shown(column, value) for value in frame[column]] for column in columns]
        used = sum(max(map(len, [_heading(c), *texts])) + 2 for c, texts in zip(columns, cells) if c != "name")
        for column, texts in zip(columns, cells):
            long = column == "consequence"
            table.add_column(
                _heading(column),
                justify="left" if _is_text(frame, column) else "right",
                overflow="fold" if long else "ellipsis",
                no_wrap=not long,
            )
            if column == "name":
                texts[:] = [_shortened(text, max(width - used, 40)) for text in texts]
        for row in zip(*cells):
            table.add_row(*map(Text, row))
        console.print()
        console.print(table)
        if left_out:
            console.print(Text(f"  ... and {left_out} more (--top 0 shows all)"))
    return stream.getvalue().rstrip("\n")


def _shortened(text: str, width: int) -> str:
    """`text` in `width` characters: kernel names that begin alike often end differently, so the middle goes."""
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    return f"{text[:head]}\N{HORIZONTAL ELLIPSIS}{text[head + 1 - width :]}"


def _escaped(text: str) -> str:
    """Markdown and HTML that would change what is seen, made plain."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]()#+!|~$-])", r"\\\1", text)


def as_markdown(summary: Summary, top: int = 20) -> str:
    """The same as Markdown tables."""
    lines = [f"# {_escaped(printable(summary.capture['source']))}", ""]
    lines += [f"- {_escaped(line)}" for line in _facts(summary)]
    for title, _, frame, left_out in _sections(summary, top):
        lines += ["", f"## {title}", "", "| " + " | ".join(_heading(column) for column in frame.columns) + " |"]
        lines.append("|" + "|".join(":--" if _is_text(frame, column) else "--:" for column in frame.columns) + "|")
        for row in frame.itertuples(index=False):
            lines.append("| " + " | ".join(_escaped(_shown(c, v)) for c, v in zip(frame.columns, row)) + " |")
        if left_out:
            lines += ["", f"... and {left_out} more."]
    return "\n".join(lines) + "\n"


def as_csv(summaries: Sequence[Summary]) -> str:
    """One long table of all sections: profile, section, row, column, value."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["profile", "section", "row", "column", "value"])
    for summary in summaries:
        data = summary.as_json()
        source = summary.capture["source"]
        for section, content in data.items():
            rows = content if isinstance(content, list) else [content]
            for number, row in enumerate(rows):
                for column, value in row.items():
                    value = " ".join(map(str, value)) if isinstance(value, list) else value
                    writer.writerow([source, section, number, column, "" if value is None else value])
    return stream.getvalue().rstrip("\n")
