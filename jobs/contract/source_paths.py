"""Paths of source files without the folders of a machine."""

import re

_LIBRARY = re.compile(
    r".*?/((?:site|dist)-packages/.*)|.*?/(python3\.\d+t?/.*)|.*?/(lib(?:64)?/python3[^/]*/.*)", re.DOTALL
)


def shorten_library(path: str) -> str | None:
    """Make the path of a file of Python's packages, or of Python itself, relative to these; None for others."""
    match = _LIBRARY.fullmatch(path)
    return next(filter(None, match.groups())) if match else None
