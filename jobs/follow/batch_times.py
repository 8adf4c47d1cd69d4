"""How long a script waits for the batches of its DataLoaders, by line, and how long their workers take for one.

Both are measured in the timed steps, which no profiler makes slower. nsys does not sample workers. They add up their
times in memory that they share with the script since they were forked from it.

Imported inside the script (see `sitecustomize`). It needs torch and the other files of this folder.
"""

import mmap
import os
import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from torch.utils.data import get_worker_info

from .script_frames import find_own_frame

SLOTS = 256
"""Workers have one each, by their process ids."""


class Batches:
    """How long the script waits for batches of a DataLoader in the timed steps."""

    def __init__(self) -> None:
        self.is_on = False
        self.num, self.ns, self.num_workers, self.is_pinned = 0, 0, 0, False
        self.lines: dict[tuple[str, int, str], list[int]] = {}
        self.workers = WorkerTimes()

    def fetch(self, called: Callable[..., Any], iterator: Any, *args: Any, **options: Any) -> Any:
        if not self.is_on:
            return called(iterator, *args, **options)
        began = perf_counter_ns()
        try:
            return called(iterator, *args, **options)
        finally:
            self.note(perf_counter_ns() - began)
            self.num_workers = int(getattr(iterator, "_num_workers", 0))
            self.is_pinned = bool(getattr(iterator, "_pin_memory", False))

    def note(self, ns: int) -> None:
        """Note a batch that took so long."""
        self.num, self.ns = self.num + 1, self.ns + ns
        if (frame := find_own_frame(sys._getframe(1))) is not None:
            line = self.lines.setdefault((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name), [0, 0])
            line[:] = line[0] + 1, line[1] + ns

    def describe(self, num_steps: int) -> dict[str, Any] | None:
        """Return how many batches a step takes, and their time, and the time of a worker for one, 0 if none was seen,
        and of several that of each, `worker_NUMBER_ns`; None without a DataLoader."""
        if not self.num:
            return None
        by_worker = self.workers.measure_batches()
        per_step = {"num": self.num / num_steps, "ns": self.ns / num_steps, "worker_ns": self.workers.measure_batch()}
        each = {f"worker_{number}_ns": ns for number, ns in by_worker.items()} if len(by_worker) > 1 else {}
        return per_step | {"num_workers": self.num_workers, "is_pinned": self.is_pinned} | each

    def list_lines(self, num_steps: int) -> list[dict[str, Any]]:
        """List the lines that take batches: file (whole path), line, function, count and ns (per step)."""
        return [
            {"file": file, "line": line, "function": function, "count": num / num_steps, "ns": ns / num_steps}
            for (file, line, function), (num, ns) in self.lines.items()
        ]


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

    def measure_batch(self) -> float:
        """Measure how long a worker takes for a batch (ns); 0 if none made one."""
        num, ns = (sum(self.shared[first::3]) for first in (1, 2))
        return ns / num if num else 0.0

    def measure_batches(self) -> dict[int, float]:
        """Measure how long each worker takes for a batch (ns), by its number."""
        sums: dict[int, list[int]] = {}
        for num, ns, number in zip(*(self.shared[first::3].tolist() for first in (1, 2, 3))):
            if num:
                mine = sums.setdefault(number, [0, 0])
                mine[:] = mine[0] + num, mine[1] + ns
        return {number: ns / num for number, (num, ns) in sorted(sums.items())}
