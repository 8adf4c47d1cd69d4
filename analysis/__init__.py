"""Everything that needs no GPU and no torch: captures to tables, tables to answers, answers to pages.

`from profiler_job.analysis import load` reads a capture into tables of pandas; see `analysis.insight.loading`.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """`load`, whose imports take their time, when it is first asked for."""
    if name == "load":
        return import_module("profiler_job.analysis.insight.loading").load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if __name__ != "profiler_job.analysis":
    raise ImportError(
        "import profiler_job.analysis: the folder analysis/ of the checkout is not a package by itself, "
        "so that it never hides a folder of this name in somebody's repository"
    )
