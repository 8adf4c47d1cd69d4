"""Ranges that are timed by CUDA events, for scripts that are followed without nsys.

An event is recorded on the current stream where a range opens and where it closes, so a range lasts from the end of the
work launched before it to the end of the work launched in it, on the GPU's clock. Without a GPU the CPU's clock is
read. Nothing waits for the GPU until the steps are over.

Needs torch and `module_ranges.py`: it is loaded into other people's scripts.
"""

import threading
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import torch

from .module_ranges import PREFIX


@dataclass
class Moment:
    """host_ns: on the clock of time.perf_counter_ns. event: a recorded CUDA event, None without a GPU."""

    host_ns: int
    event: Any = None

    @classmethod
    def now(cls) -> "Moment":
        event = None
        if torch.cuda.is_initialized():
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        return cls(perf_counter_ns(), event)

    def measure_ns_since(self, before: "Moment") -> int:
        """Return the nanoseconds from `before` to this moment, on the GPU's clock if both have one. Both are over."""
        if self.event is None or before.event is None:
            return self.host_ns - before.host_ns
        elapsed_ms: float = before.event.elapsed_time(self.event)
        return round(elapsed_ms * 1e6)


@dataclass
class Timed:
    """A range of a step, with the ranges that were opened inside it on the same thread."""

    name: str
    step: int
    opened: Moment
    closed: Moment | None = None
    inside: list["Timed"] = field(default_factory=list)

    def measure_ns(self) -> int:
        assert self.closed is not None
        return self.closed.measure_ns_since(self.opened)


class EventRanges:
    """Ranges of steps. `push(name)` opens a range and `pop()` closes it, as `range_push` of `torch.cuda.nvtx` does."""

    def __init__(self) -> None:
        self.outermost: list[Timed] = []
        self.start: Moment | None = None
        self.thread = threading.get_ident()  # the script's own, which opens phases
        self.phase: Timed | None = None  # that this thread has open
        self.steps: dict[int, list[Moment]] = {}  # by number: when each began and ended
        self.step = -1  # number of the open step; -1 between steps
        self._local = threading.local()

    def begin(self) -> None:
        """Begin to record, while the GPU has nothing to do: from here on both clocks run."""
        self.start = Moment.now()

    def open_step(self, number: int) -> None:
        self.step = number
        self.steps[number] = [Moment.now()]

    def close_step(self) -> None:
        self.steps[self.step].append(Moment.now())
        self.step = -1

    def push(self, name: str) -> None:
        stack = self._stack()
        if self.step < 0:
            stack.append(None)
            return
        opened = Timed(name, self.step, Moment.now())
        is_own = threading.get_ident() == self.thread
        above = stack[-1] if stack else None if is_own else self.phase
        (above.inside if above else self.outermost).append(opened)
        stack.append(opened)
        if is_own and above is None:
            self.phase = opened

    def pop(self) -> None:
        if closed := self._stack().pop():
            closed.closed = Moment.now()
            if closed is self.phase:
                self.phase = None

    def list_steps(self, steps: range) -> list[int]:
        """List how long steps took, in ns. Call it when the GPU has done them."""
        return [self.steps[step][1].measure_ns_since(self.steps[step][0]) for step in steps]

    def list_phases(self, steps: range) -> list[dict[str, Any]]:
        """List the outermost ranges of some steps: name, time on the GPU's clock, time until the CPU had launched all
        of it, and how far the GPU was then behind the CPU, in ns. Call it when the GPU has done them."""
        assert self.start is not None
        rows = []
        for phase in self.outermost:
            if phase.step in steps and phase.closed is not None:
                host_ns = phase.closed.host_ns - phase.opened.host_ns
                lag_ns = phase.closed.measure_ns_since(self.start) - (phase.closed.host_ns - self.start.host_ns)
                row = {"step": phase.step - steps.start, "phase": phase.name, "wall_ns": phase.measure_ns()}
                rows.append(row | {"issue_ns": host_ns, "lag_ns": max(0, lag_ns)})
        return rows

    def list_facts(self, steps: int, followed: int) -> dict[str, Any]:
        """List the times of phases and of steps, and the modules of the last of the followed steps after them."""
        captured = range(steps)
        return {
            "phases": self.list_phases(captured),
            "profiled_ns": self.list_steps(captured),
            "modules": self.list_modules(steps + followed - 1),
        }

    def list_modules(self, step: int) -> list[dict[str, Any]]:
        """List the modules of a step in each phase: the time that no module inside has, in ns, and the number of
        ranges. The module is "" for what a phase does outside any. Call it when the GPU has done the step."""
        totals: dict[tuple[str, str], list[int]] = {}

        def add(timed: Timed, phase: str, path: str) -> int:
            if timed.closed is None:
                return 0
            took = timed.measure_ns()
            alone = took - sum(add(inner, phase, join_path(phase, path, inner.name)) for inner in timed.inside)
            count = totals.setdefault((phase, path), [0, 0])
            count[0] += max(0, alone)
            count[1] += 1
            return took

        for timed in self.outermost:
            if timed.step == step:
                add(timed, timed.name.removeprefix(PREFIX), "")
        return [
            {"phase": phase, "module": module, "alone_ns": alone, "calls": calls}
            for (phase, module), (alone, calls) in totals.items()
        ]

    def _stack(self) -> list[Timed | None]:
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        stack: list[Timed | None] = self._local.stack
        return stack


def join_path(phase: str, above: str, name: str) -> str:
    """Return the path of the module of a range called `name` inside the range of `above`. A backward pass and an
    optimizer name the whole path."""
    full = name.removeprefix(f"{PREFIX}{phase}/")
    return full if full != name or not above else f"{above}/{name}"
