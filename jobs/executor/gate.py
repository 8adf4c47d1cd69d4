"""A gate for the processes of a batch: they compile side by side, and then each runs alone.

Nothing runs on the GPU, and nothing compiles, while one of them measures.
"""

import threading


class Gate:
    """The gate of a batch of processes. Make all `Passage` before the first process begins: one after the other goes
    through in that order, when all have come or are gone."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.passages: list[Passage] = []
        self.compiling: set[Passage] = set()
        self.waiting: set[Passage] = set()
        self.running: Passage | None = None

    def is_open_for(self, passage: "Passage") -> bool:
        """Return whether it is the turn of a process that waits."""
        first = next(other for other in self.passages if other in self.waiting)
        return not self.compiling and self.running is None and first is passage


class Passage:
    """The way of one process through a gate. Call it with the events of `Collector.measure`: at the first, `compiled`
    or `ready`, it waits until it is this process's turn. `leave` it in any case, also if the process failed: until then
    the others wait."""

    def __init__(self, gate: Gate):
        self.gate = gate
        gate.passages.append(self)
        gate.compiling.add(self)

    @property
    def is_shared(self) -> bool:
        """Whether other processes have the same gate."""
        return len(self.gate.passages) > 1

    def __call__(self, event: str) -> None:
        gate = self.gate
        with gate.changed:
            if gate.running is self:
                return
            gate.compiling.discard(self)
            gate.waiting.add(self)
            gate.changed.notify_all()
            gate.changed.wait_for(lambda: gate.is_open_for(self))
            gate.waiting.discard(self)
            gate.running = self

    def leave(self) -> None:
        gate = self.gate
        with gate.changed:
            gate.compiling.discard(self)
            if gate.running is self:
                gate.running = None
            gate.changed.notify_all()
