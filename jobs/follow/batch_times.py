"""How long a script waits for the batches of its DataLoaders, by line, and how long their workers take for one.

Both are measured in the timed steps, which no profiler makes slower. nsys does not sample workers. They add up their
times in memory that they share with the script since they were forked from it.

Imported inside the script (see `sitecustomize`). It needs torch and the other files of this folder.
"""

import mmap
import os
import sys
import threading
import weakref
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

from torch.utils.data import get_worker_info

from .script_frames import find_own_frame

SLOTS = 256
"""Workers have one each, by their process ids."""
MOST_LINES = 4
"""Lines of the script, innermost first, by which several DataLoaders are kept apart."""
Line = tuple[str, int, str]
"""File, line and function."""
NO_LINE: Line = ("", 0, "")


@dataclass
class LoaderTimes:
    """The batches that a line took of one DataLoader: their number and time. workers: process ids."""

    num: int = 0
    ns: int = 0
    num_workers: int = 0
    is_pinned: bool = False
    workers: set[int] = field(default_factory=set)

    def add(self, other: "LoaderTimes") -> None:
        self.num, self.ns = self.num + other.num, self.ns + other.ns
        self.num_workers, self.is_pinned = other.num_workers, other.is_pinned
        self.workers |= other.workers


class Batches:
    """How long the script waits for batches of its DataLoaders in the timed steps. What a thread of its own takes ahead
    of them makes no step wait."""

    def __init__(self) -> None:
        self.is_on = False
        self.threads = {threading.main_thread().ident}  # that may take the steps
        self.loaders: dict[tuple[int, tuple[Line, ...]], LoaderTimes] = {}  # by number of a loader, and lines
        self.samplers: list[Callable[[], Any]] = []  # of the loaders, in order; each returns None once it is gone
        self.open = threading.local()
        self.workers = WorkerTimes()

    def switch(self, is_on: bool) -> None:
        """Note batches from now on, or no more. Called in the thread that takes the steps."""
        self.is_on = is_on
        self.threads.add(threading.get_ident())
        self.workers.switch(is_on)

    def fetch(self, called: Callable[..., Any], iterator: Any, *args: Any, **options: Any) -> Any:
        if not self.is_on or threading.get_ident() not in self.threads or getattr(self.open, "is_inside", False):
            return called(iterator, *args, **options)  # a dataset may have a DataLoader of its own, too
        self.open.is_inside = True
        began, num = perf_counter_ns(), 0  # batches: at the end of an epoch there is none
        try:
            batch = called(iterator, *args, **options)
            num = 1
            return batch
        finally:
            self.open.is_inside = False
            with suppress(Exception):  # it may be an iterator of the script's own
                self.note(perf_counter_ns() - began, iterator, num)

    def note(self, ns: int, iterator: Any, num: int = 1) -> None:
        """Note a batch, or none, that took so long."""
        lines = list_lines(sys._getframe(1))
        loader = self._number_loader(getattr(iterator, "_index_sampler", iterator), lines)
        times = self.loaders.setdefault((loader, lines), LoaderTimes())
        times.num, times.ns = times.num + num, times.ns + ns
        times.num_workers = int(getattr(iterator, "_num_workers", 0))
        times.is_pinned = bool(getattr(iterator, "_pin_memory", False))
        times.workers.update(worker.pid for worker in getattr(iterator, "_workers", ()))

    def _number_loader(self, sampler: Any, lines: tuple[Line, ...]) -> int:
        """Return the number of a loader by its sampler: it has one, in each epoch. A loader that a script makes anew
        for each epoch has the number of the one before, which is gone by then."""
        for number, known in enumerate(self.samplers):
            if known() is sampler:
                return number
        try:
            added: Callable[[], Any] = weakref.ref(sampler)
        except TypeError:  # a list of batches
            added = lambda: sampler  # noqa: E731
        for number, known in enumerate(self.samplers):
            if known() is None and (number, lines) in self.loaders:
                self.samplers[number] = added
                return number
        self.samplers.append(added)
        return len(self.samplers) - 1

    def describe(self, num_steps: int) -> dict[str, Any] | None:
        """Return how many batches a step takes of all DataLoaders, and their time, and what `_describe_workers` has of
        the one with most time; None without a DataLoader."""
        if not self.loaders:
            return None
        loaders = self.loaders.values()
        per_step = {"num": sum(each.num for each in loaders), "ns": sum(each.ns for each in loaders)}
        largest = max(self._merge_lines().values(), key=lambda times: times.ns)
        return {name: value / num_steps for name, value in per_step.items()} | self._describe_workers(largest)

    def list_loaders(self, num_steps: int) -> list[dict[str, Any]]:
        """List the lines that take batches of a DataLoader, most time first: file (whole path), line,
        function, count and ns (per step), and what `_describe_workers` has."""
        rows = []
        for (_, line), times in self._merge_lines().items():
            if line == NO_LINE:
                continue
            place = dict(zip(("file", "line", "function"), line))
            per_step = {"count": times.num / num_steps, "ns": times.ns / num_steps}
            rows.append(place | per_step | {"workers": self._describe_workers(times)})
        return sorted(rows, key=lambda row: -row["ns"])

    def _merge_lines(self) -> dict[tuple[int, Line], LoaderTimes]:
        """Merge what a line takes of a loader, by both. It is the innermost line that takes batches of no other loader:
        a function that repeats a loader may be shared."""
        users: dict[Line, set[int]] = {}
        for loader, lines in self.loaders:
            for line in lines:
                users.setdefault(line, set()).add(loader)
        merged: dict[tuple[int, Line], LoaderTimes] = {}
        for (loader, lines), times in self.loaders.items():
            line = next((each for each in lines if len(users[each]) == 1), lines[0] if lines else NO_LINE)
            merged.setdefault((loader, line), LoaderTimes()).add(times)
        return merged

    def _describe_workers(self, times: LoaderTimes) -> dict[str, Any]:
        """Describe the workers of a DataLoader: num_workers, is_pinned, worker_ns for a batch, 0 if none was seen to
        make one, and `worker_NUMBER_ns` of each if it has several."""
        by_worker = self.workers.measure_batches(times.workers)
        each = {f"worker_{number}_ns": ns for number, ns in by_worker.items()} if len(by_worker) > 1 else {}
        worker_ns = self.workers.measure_batch(times.workers)
        return {"num_workers": times.num_workers, "is_pinned": times.is_pinned, "worker_ns": worker_ns} | each


def list_lines(frame: Any) -> tuple[Line, ...]:
    """List the lines of the script's own files that are open, innermost first, MOST_LINES at most."""
    lines: list[Line] = []
    while len(lines) < MOST_LINES and (frame := find_own_frame(frame)) is not None:
        lines.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(lines)


class WorkerTimes:
    """Number and time of the batches that workers made while `is_on`, and the number of the worker, in shared memory:
    whether it is on, then three for each slot."""

    def __init__(self) -> None:
        self.shared = memoryview(mmap.mmap(-1, 8 * (1 + 3 * SLOTS))).cast("q")

    def switch(self, is_on: bool) -> None:
        self.shared[0] = is_on

    def fetch(self, called: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if (info := get_worker_info()) is None or not self.shared[0]:
            return called(*args, **options)
        began = perf_counter_ns()
        try:
            return called(*args, **options)
        finally:
            slot = 1 + 3 * (os.getpid() % SLOTS)
            self.shared[slot] += 1
            self.shared[slot + 1] += perf_counter_ns() - began
            self.shared[slot + 2] = info.id

    def measure_batch(self, processes: Collection[int]) -> float:
        """Measure how long these workers take for a batch (ns); 0 if none made one."""
        slots = self._list(processes)
        num = sum(slot[0] for slot in slots)
        return sum(slot[1] for slot in slots) / num if num else 0.0

    def measure_batches(self, processes: Collection[int]) -> dict[int, float]:
        """Measure how long each of these workers takes for a batch (ns), by its number."""
        sums: dict[int, list[int]] = {}
        for num, ns, number in self._list(processes):
            mine = sums.setdefault(number, [0, 0])
            mine[:] = mine[0] + num, mine[1] + ns
        return {number: ns / num for number, (num, ns) in sorted(sums.items())}

    def _list(self, processes: Collection[int]) -> list[list[int]]:
        """List number and time of batches, and number of the worker, for each of these processes that made some."""
        starts = (1 + 3 * (process % SLOTS) for process in processes)
        return [slot for start in starts if (slot := self.shared[start : start + 3].tolist())[0]]
