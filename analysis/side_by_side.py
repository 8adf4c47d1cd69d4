"""Independent parts of one piece of work, each in a process of its own."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar, cast

Result = TypeVar("Result")

_tasks: Sequence[Callable[[], object]] = ()
"""What the forks are to do: they know it from before they were forked, since a closure cannot be sent to them."""


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_all(tasks: Sequence[Callable[[], Result]], processes: int = 1) -> list[Result]:
    """What each task gives, in their order. With several processes they run in forks of this one, which read what it
    has loaded; what a task changes in memory is lost with its fork. Raises what the first task that fails raises."""
    global _tasks
    if processes < 2 or len(tasks) < 2 or "fork" not in multiprocessing.get_all_start_methods():
        return [task() for task in tasks]
    _tasks = tasks
    try:
        with ProcessPoolExecutor(min(processes, len(tasks)), multiprocessing.get_context("fork")) as forks:
            return [cast(Result, given) for given in forks.map(_run, range(len(tasks)))]
    finally:
        _tasks = ()


def _run(index: int) -> object:
    return _tasks[index]()
