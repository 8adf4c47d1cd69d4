"""Text that is not trusted, as one line that is safe to print."""

import re


def make_printable(text: str) -> str:
    """Return `text` on one line, without the control characters that could drive a terminal."""
    flat = re.sub(r"[\r\n\t]+", " ", str(text))
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in flat)


def make_lines_printable(text: str) -> str:
    """Return `text` with each of its lines as `make_printable` has it."""
    return "\n".join(map(make_printable, str(text).split("\n")))
