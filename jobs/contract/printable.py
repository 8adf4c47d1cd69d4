"""Text as lines that are safe to print, even if somebody else wrote it, and that fit a terminal."""

import re
import shutil
import sys
import textwrap
from typing import IO


def make_printable(text: str) -> str:
    """Return `text` on one line, without the control characters that could drive a terminal."""
    flat = re.sub(r"[\r\n\t]+", " ", str(text))
    if flat.isprintable():
        return flat
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in flat)


def make_lines_printable(text: str) -> str:
    """Return `text` with each of its lines as `make_printable` has it."""
    return "\n".join(map(make_printable, str(text).split("\n")))


def fit_terminal(text: str, stream: IO[str] | None, indent: int = 2) -> str:
    """Return `text` as it is printed on `stream`. On a terminal, lines are broken between words and indented after the
    break; a word that is longer than a line, such as a path, stays whole. Elsewhere, text stays as it is."""
    if stream is None or not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(
        textwrap.fill(
            line,
            width,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        )
        for line in text.split("\n")
    )


def print_line(line: str) -> None:
    """Report to the terminal, aside from what a command prints."""
    print(fit_terminal(make_lines_printable(line), sys.stderr), file=sys.stderr)
