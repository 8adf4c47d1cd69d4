"""Everything that needs no GPU and no torch: captures to tables, tables to answers, answers to pages.

`from analysis import load` reads a capture into tables of pandas; see `analysis.loading`.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """`load`, whose imports take their time, when it is first asked for."""
    if name == "load":
        return import_module("analysis.loading").load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
