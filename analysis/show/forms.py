"""The forms in which a summary is printed: text for a terminal, Markdown, CSV."""

import csv
import io
import re
import shutil
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.capture.summary import Summary
from analysis.show.facts import facts_of
from analysis.show.values import heading, is_text, printable, shown

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


def _sections(summary: Summary, top: int):
    """(title, frame, rows left out) of each section that has rows."""
    for name, title in TITLES.items():
        frame = summary.sections[name]
        if len(frame):
            rows = frame if not top or name == "missing" else frame.head(top)
            yield title, name, rows, len(frame) - len(rows)


def as_text(summary: Summary, top: int = 20) -> str:
    """A readable summary for a terminal."""
    stream = io.StringIO()
    width = max(shutil.get_terminal_size((160, 24)).columns, 100)
    console = Console(file=stream, width=width, highlight=False, markup=False, emoji=False)
    console.print(Text(printable(summary.capture["source"]), style="bold"))
    for line in facts_of(summary):
        console.print(Text(f"  {line}"))
    for title, _, frame, left_out in _sections(summary, top):
        table = Table(
            title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
        )
        columns = sorted(frame.columns, key=lambda column: column == "name")  # long, so that it comes last
        cells = [[shown(column, value) for value in frame[column]] for column in columns]
        used = sum(max(map(len, [heading(c), *texts])) + 2 for c, texts in zip(columns, cells) if c != "name")
        for column, texts in zip(columns, cells):
            long = column == "consequence"
            table.add_column(
                heading(column),
                justify="left" if is_text(frame, column) else "right",
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


def escaped(text: str) -> str:
    """Markdown and HTML that would change what is seen, made plain."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]()#+!|~$-])", r"\\\1", text)


def as_markdown(summary: Summary, top: int = 20) -> str:
    """The same as Markdown tables."""
    lines = [f"# {escaped(printable(summary.capture['source']))}", ""]
    lines += [f"- {escaped(line)}" for line in facts_of(summary)]
    for title, _, frame, left_out in _sections(summary, top):
        lines += ["", f"## {title}", "", "| " + " | ".join(heading(column) for column in frame.columns) + " |"]
        lines.append("|" + "|".join(":--" if is_text(frame, column) else "--:" for column in frame.columns) + "|")
        for row in frame.itertuples(index=False):
            lines.append("| " + " | ".join(escaped(shown(c, v)) for c, v in zip(frame.columns, row)) + " |")
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
