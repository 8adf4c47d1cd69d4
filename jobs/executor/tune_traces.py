"""Traces of the step of a script as it is and of its fastest variant, with phases and modules, for the page of the
result. They are made last in the process in which variants take turns: after a trace, launches are slow in it."""

from contextlib import suppress
from typing import Any, Protocol

from profiler_job.jobs.contract.changes import CHANGES
from profiler_job.jobs.executor.script import CannotStartError
from profiler_job.jobs.executor.tune_bounds import COMPILING
from profiler_job.jobs.executor.tuned_script import OverBudgetError, TunedSearch, VariantFailedError

NUM_STEPS, WRITES_S = 14, 5.0
"""Steps of the script that a trace takes, warm-up included, and the time in seconds to write it."""


class TracedSearch(TunedSearch, Protocol):
    """What is needed of the search. facts: of the script. shares: of its fastest variant, with its kernels."""

    facts: dict[str, Any]
    shares: dict[str, Any]

    @property
    def current(self) -> tuple[str, ...]: ...


def trace_ends(search: TracedSearch) -> None:
    """Trace a step without changes, and one of the fastest variant, each if there are kernels to show and more time is
    left than the search needs. If a trace fails, the search goes on."""
    if search.tuning.base is None or not search.shares.get("kernels"):
        return
    for changes in dict.fromkeys(((), search.current)):
        needed_s = WRITES_S + NUM_STEPS * search.tuning.base.step_ns / 1e9
        needed_s += 0.0 if search.engine.is_running else search.starts_s
        left_s = search.left_s - search.reserve_s
        if left_s < needed_s or any(CHANGES[name].needs_process for name in changes):
            continue
        is_compiled = search.facts.get("compiled", False) or any(name in COMPILING for name in changes)
        with suppress(VariantFailedError, OverBudgetError, CannotStartError):
            search.engine.trace(changes, left_s, by_module=not is_compiled)
