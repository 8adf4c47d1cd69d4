"""What makes the CPU wait in a step: calls that wait for the GPU, by line, batches of a DataLoader, pauses of Python's
garbage collection, and other threads that run Python.

PyTorch warns of such calls if asked to (`torch.cuda.set_sync_debug_mode`), once each, right after they have waited. It
does not warn of `torch.cuda.synchronize` and `synchronize` of events, and does not name that of streams, so these are
wrapped. Other warnings are shown as ever. Each call leaves a mark in the capture, by which its time is found in steps
that nothing slows (see `jobs.contract.ranges`).

Imported inside the script (see `sitecustomize`). It needs torch and the other files of this folder.
"""

import ast
import dis
import gc
import linecache
import os
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from types import CodeType, FrameType
from typing import Any

import torch

from .batch_times import Batches
from .host_copies import CopyCalls
from .module_ranges import ModuleRanges
from .plan import Plan, Stage
from .script_frames import HERE, find_own_frame

READS = "reads a value or copies"
"""What PyTorch warns of; after it how the script does it, see `name_read`."""
READ_BY = {
    *("item", "tolist", "cpu", "numpy", "cuda", "to", "float", "int", "bool", "print"),
    *("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount", "repeat_interleave"),
}
"""Functions and methods that are named."""
WARNED = "called a synchronizing CUDA operation"
"""Beginning of PyTorch's warning."""
GARBAGE, SLEEP, SYNC = "modules:garbage collection", "modules:sleep", "modules:sync "
"""Beginning of the name of a range in which garbage is collected, name of one in which a script sleeps, and beginning
of the name of the empty range after a call that waits for the GPU."""


class HostWaits:
    """What is noted in the stages of a script that is followed. ranges: open and close ranges."""

    def __init__(self, plan: Plan, ranges: ModuleRanges):
        self.plan = plan
        self.has_marks = not (plan.events or plan.trace)
        self.syncs = SyncCalls(lambda number: ranges.mark(f"{SYNC}{number}")) if self.has_marks else SyncCalls()
        self.copies = CopyCalls(ranges.push, ranges.pop)
        self.garbage = GarbageRanges(ranges.push, ranges.pop) if not plan.events else GarbageRanges()
        self.sleeps = SleepRanges(ranges.push, ranges.pop)
        self.batches = Batches()
        self.threads = OtherThreads()

    def begin(self, stage: Stage) -> None:
        """Note what belongs to a stage, and no more what belonged to the one before."""
        self.syncs.end()
        self.copies.end()
        self.garbage.end()
        self.sleeps.end()
        self.batches.switch(stage is Stage.TIMED)
        self.threads.end()
        if stage is Stage.TIMED:
            self.threads.begin()
        if stage is Stage.CAPTURED:
            self.garbage.begin()
            if self.plan.samples:
                self.sleeps.begin()
        elif stage is Stage.FOLLOWED:
            self.syncs.begin()
            if self.has_marks:
                self.copies.begin()

    def list_facts(self) -> dict[str, Any]:
        """Return the calls that wait for the GPU, the lines that copy, what the DataLoader takes, collections of
        garbage, and the CPU time of other threads of Python, in a step."""
        num_steps = max(self.plan.steps, 1)
        batches = {"batches": self.batches.describe(num_steps), "batch_lines": self.batches.list_loaders(num_steps)}
        syncs = self.syncs.list_calls(max(self.plan.followed, 1))
        garbage = {"num": self.garbage.num / num_steps, "ns": self.garbage.ns / num_steps}
        noted = {"syncs": syncs, "copies": self.copies.list_lines(), "garbage": garbage}
        return {**noted, **batches, "other_threads_ns": self.threads.ns / num_steps}


class OtherThreads:
    """Time of the CPU between `begin` and `end` in threads of Python besides the one that takes the steps: ns. Such a
    thread can hold Python's lock while the steps wait for it."""

    def __init__(self) -> None:
        self.ns = 0
        self._before: dict[int, int] | None = None

    def begin(self) -> None:
        self._before = self._read()

    def end(self) -> None:
        if self._before is not None:
            self.ns = sum(ns - self._before.get(ident, 0) for ident, ns in self._read().items())
            self._before = None

    def _read(self) -> dict[int, int]:
        own, times = threading.get_ident(), {}
        for thread in threading.enumerate():
            if thread.ident is not None and thread.ident != own and thread.is_alive():
                with suppress(OSError, AttributeError):  # it has just ended, or the system has no such clocks
                    times[thread.ident] = time.clock_gettime_ns(time.pthread_getcpuclockid(thread.ident))
        return times


class SyncCalls:
    """The calls that wait for the GPU between `begin` and `end`: how many, by file, line, function and kind. mark:
    called after each with the number of what it is counted as."""

    def __init__(self, mark: Callable[[int], Any] = lambda number: None) -> None:
        self.mark = mark
        self.counts: Counter[tuple[str, int, str, str]] = Counter()
        self.numbers: dict[tuple[str, int, str, str], int] = {}
        self.is_named = False  # in a call that is counted under another name than PyTorch's warning
        self.names: dict[tuple[CodeType, int], str] = {}
        self.undo: list[Callable[[], Any]] = []

    def begin(self) -> None:
        """Note calls from now on, unless the script itself has them noted."""
        if self.undo or not torch.cuda.is_initialized() or torch.cuda.get_sync_debug_mode():
            return
        shown = warnings.showwarning

        def show(message: Warning | str, *args: Any, **options: Any) -> Any:
            if str(message).startswith(WARNED):
                return None if self.is_named else self.note(READS)
            return shown(message, *args, **options)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is a prototype, which it says
            torch.cuda.set_sync_debug_mode("warn")
        warnings.filterwarnings("always", message=WARNED)
        added = warnings.filters[0]
        warnings.showwarning = show
        self.undo.append(lambda: torch.cuda.set_sync_debug_mode("default"))
        self.undo.append(lambda: restore_warnings(added, show, shown))
        for holder in (torch.cuda, torch.cuda.Stream, torch.cuda.Event):
            self.wrap_synchronize(holder)

    def wrap_synchronize(self, holder: Any) -> None:
        called = holder.synchronize

        def synchronize(*args: Any, **options: Any) -> Any:
            if self.is_named or sys._getframe(1).f_code.co_filename.startswith(HERE):
                return called(*args, **options)
            self.is_named = True
            try:
                returned = called(*args, **options)
            finally:
                self.is_named = False
            self.note("synchronize")
            return returned

        holder.synchronize = synchronize
        self.undo.append(lambda: setattr(holder, "synchronize", called))

    def note(self, kind: str) -> None:
        frame = find_own_frame(sys._getframe(1))
        if frame is not None:
            kind = self.name_read(frame) if kind == READS else kind
            call = frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, kind
            self.counts[call] += 1
            self.mark(self.numbers.setdefault(call, len(self.numbers)))

    def name_read(self, frame: FrameType) -> str:
        key = frame.f_code, frame.f_lasti
        if key not in self.names:
            self.names[key] = name_read(*key)
        return self.names[key]

    def end(self) -> None:
        """Take everything back."""
        while self.undo:
            self.undo.pop()()

    def list_calls(self, num_steps: int) -> list[dict[str, Any]]:
        """List the calls, most first: file (whole path), line, function, call, number, count (per step)."""
        names = ("file", "line", "function", "call")
        return [
            {**dict(zip(names, call)), "number": self.numbers[call], "count": count / num_steps}
            for call, count in self.counts.most_common()
        ]


def restore_warnings(added: Any, show: Callable[..., Any], shown: Callable[..., Any]) -> None:
    """Take our filter away, and our function, unless the script has replaced them since."""
    if warnings.showwarning is show:
        warnings.showwarning = shown
    if added in warnings.filters:
        warnings.filters.remove(added)  # type: ignore[attr-defined]
    getattr(warnings, "_filters_mutated", lambda: None)()


def name_read(code: CodeType, offset: int) -> str:
    """Name what the instruction at `offset` (bytes) reads a value with: READS, and `item`, `cpu` and the like, or
    `indexing`, where the source shows it."""
    opcodes = code.co_code
    while offset and dis.opname[opcodes[offset]] == "CACHE":
        offset -= 2
    instruction = dis.opname[opcodes[offset]]
    line, last, column, last_column = next(islice(code.co_positions(), offset // 2, None))
    if line is None or last is None or column is None or last_column is None:
        return READS
    lines = [linecache.getline(code.co_filename, number).encode() for number in range(line, last + 1)]
    lines[-1] = lines[-1][:last_column]
    lines[0] = lines[0][column:]
    try:
        expression = ast.parse(b"(" + b"".join(lines) + b")", mode="eval").body
    except (SyntaxError, ValueError):
        return READS
    if "CALL" in instruction and isinstance(expression, ast.Call):
        function = expression.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        return f"{READS} with {name}" if name in READ_BY else READS
    is_index = isinstance(expression, ast.Subscript) and instruction.startswith(("BINARY_", "STORE_SUBSCR"))
    return f"{READS} with indexing" if is_index else READS


class GarbageRanges:
    """A range around each collection of garbage between `begin` and `end`, how many there are, and their time (ns).
    push, pop: open and close a range."""

    def __init__(self, push: Callable[[str], Any] = lambda name: None, pop: Callable[[], Any] = lambda: None):
        self.push, self.pop = push, pop
        self.num = self.ns = self.began = 0
        self.is_open = False
        self.process = os.getpid()

    def begin(self) -> None:
        gc.callbacks.append(self.note)

    def end(self) -> None:
        if self.note in gc.callbacks:
            gc.callbacks.remove(self.note)

    def note(self, phase: str, facts: dict[str, int]) -> None:
        if self.process != os.getpid():
            return
        if phase == "start":
            self.push(f"{GARBAGE} {facts['generation']}")
            self.is_open, self.began = True, time.perf_counter_ns()
        elif self.is_open:
            self.num, self.ns = self.num + 1, self.ns + time.perf_counter_ns() - self.began
            self.is_open = False
            self.pop()


class SleepRanges:
    """A range around each `time.sleep` between `begin` and `end`. push, pop: open and close a range."""

    def __init__(self, push: Callable[[str], Any], pop: Callable[[], Any]):
        self.push, self.pop = push, pop
        self.undo: Callable[[], Any] | None = None
        self.process = os.getpid()

    def begin(self) -> None:
        called = time.sleep

        def sleep(seconds: Any) -> None:
            if self.process != os.getpid():
                return called(seconds)
            self.push(SLEEP)
            try:
                return called(seconds)
            finally:
                self.pop()

        time.sleep = sleep
        self.undo = lambda: setattr(time, "sleep", called)

    def end(self) -> None:
        if self.undo is not None:
            self.undo()
            self.undo = None
