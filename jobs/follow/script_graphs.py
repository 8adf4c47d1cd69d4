"""CUDA graphs that a script captures itself: which module each of their operations is of, and which replays are steps.

A replay calls no module and no optimizer. So phases and modules are noted while the graph is captured: they open the
same ranges as in a followed step, and the graph's nodes are counted where a range opens and closes. In the last
followed step the ranges are written into the capture with the nodes inside, in order, so that whoever reads it can
give each operation of a replay a phase and a module (see `jobs.contract.ranges`).

Nothing is added to the graph. Graphs that PyTorch captures, as torch.compile does, are left alone.

Needs torch, and is loaded into other people's scripts.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch

from .graph_nodes import KERNEL, MEMCPY, MEMSET, DriverError, GraphNodes, Node
from .plan import Stage
from .script_ranks import FollowError
from .step_clock import StepClock

CAPTURED = "modules:captured "
"""Prefix of the range that holds what was noted of a graph: its number."""
NODE = "modules:node "
"""Prefix of the range of one of its nodes: its kind, and of a kernel grid and name."""
KINDS = {KERNEL: "kernel", MEMCPY: "memcpy", MEMSET: "memset"}
LONGEST_NAME = 200
OF_TORCH = f"{Path(torch.__file__).parent}{os.sep}"

Events = list[tuple[int, str | None]]
"""How many nodes there were where a range opened (its name) or closed (None)."""


class GraphNotes:
    """Ranges that open and close while a graph is captured. nodes: of that graph; None if the driver does not show
    them."""

    def __init__(self, nodes: GraphNodes | None) -> None:
        self.nodes, self.events = nodes, Events()
        self.has_step = False  # whether something that ends a step is captured
        self.error = ""

    def push(self, name: str) -> None:
        self.events.append((self._count(), name))

    def pop(self) -> None:
        self.events.append((self._count(), None))

    def _count(self) -> int:
        try:
            return self.nodes.count() if self.nodes is not None else 0
        except DriverError as error:
            self.error, self.nodes = str(error), None
            return 0

    def list_ranges(self) -> list[str | None]:
        """List the names of ranges to open, with the nodes as ranges inside, and None where one closes."""
        try:
            nodes = self.nodes.list_nodes() if self.nodes is not None else []
        except DriverError as error:
            self.error, nodes = str(error), []
        return list(arrange_nodes(self.events, nodes)) if nodes else []


def arrange_nodes(events: Sequence[tuple[int, str | None]], nodes: Sequence[Node]) -> list[str | None]:
    """Put nodes into the ranges in which they were made, without the ranges that have none."""
    written: list[str | None] = []
    at = 0
    for num, name in [*events, (len(nodes), "")]:
        for node in nodes[at:num]:
            if node.kind in KINDS:
                written += [describe_node(node), None]
        at = max(at, num)
        if name:
            written.append(name)
        elif name is None and written and written[-1] is not None:
            written.pop()
        elif name is None:
            written.append(None)
    return written


def describe_node(node: Node) -> str:
    grid = f" {'x'.join(map(str, node.grid))} {demangle(node.name)[:LONGEST_NAME]}" if node.kind == KERNEL else ""
    return f"{NODE}{KINDS[node.kind]}{grid}"


def demangle(name: str) -> str:
    function: Callable[[str], str] | None = getattr(torch._C, "_demangle", None)
    return function(name) if function is not None else name


class ScriptGraphs:
    """The graphs that the script of a follower captures."""

    def __init__(self, follower: Any) -> None:
        self.follower = follower
        self.notes: GraphNotes | None = None  # of the graph that is being captured
        self.noted: WeakKeyDictionary[Any, list[str | None]] = WeakKeyDictionary()
        self.counts: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # of replays, since another end of a step
        self.step_graph: Any = None  # the one whose replay ends a step
        self.error = ""

    @property
    def is_capturing(self) -> bool:
        return self.notes is not None

    def begin(self, called: Callable[..., Any], graph: Any, *args: Any, **options: Any) -> Any:
        """Begin to capture a graph, and note what is captured."""
        returned = called(graph, *args, **options)
        follower = self.follower
        is_own = follower.process == os.getpid() and not follower.depth and not follower.in_backward
        if not is_own or self.notes is not None or is_of_torch():
            return returned
        try:
            nodes = None if follower.events else GraphNodes(torch.cuda.current_stream().cuda_stream)
        except DriverError as error:
            nodes, self.error = None, str(error)
        self.notes = GraphNotes(nodes)
        ranges = follower.ranges
        self.restored = (ranges.push, ranges.pop, follower.watch.is_watching)
        ranges.push, ranges.pop = self.notes.push, self.notes.pop
        ranges.forget()
        follower.calls.forget()
        follower.watch.begin()
        follower.functions.use_ranges(True)
        return returned

    def end(self, called: Callable[..., Any], graph: Any, *args: Any, **options: Any) -> Any:
        """Stop to capture a graph. What was a step before it does not go on if a step was captured."""
        notes, self.notes = self.notes, None
        if notes is None:
            return called(graph, *args, **options)
        follower = self.follower
        follower.ranges.push, follower.ranges.pop, is_watching = self.restored
        follower.ranges.forget()
        follower.functions.use_ranges(follower.stage.is_captured)
        if not is_watching:
            follower.watch.end()
        self.noted[graph] = notes.list_ranges()
        self.error = self.error or notes.error
        returned = called(graph, *args, **options)
        if notes.has_step:
            self.begin_again()
        return returned

    def begin_again(self) -> None:
        """Skip steps again: the script has captured its step, and replays it from now on."""
        follower = self.follower
        follower.ending.chosen = None
        if follower.stage is Stage.TIMED:
            follower.waiting, follower.clock = None, StepClock(has_begun=False)
            follower.begin(Stage.SKIPPED)
        elif follower.stage.is_captured:
            seen = follower.facts["seen"]
            follower.refuse(
                FollowError(f"it captures its step in a CUDA graph after {seen} steps: give --skip {seen + 1}")
            )

    def note_end(self) -> bool:
        """What ends a step has run: an optimizer, a backward pass or a call. Return whether it was only captured."""
        if self.notes is None:
            self.counts.clear()
            return False
        self.notes.has_step = True
        return True

    def replay(self, called: Callable[..., Any], graph: Any, *args: Any, **options: Any) -> Any:
        """Replay a graph, which may be a step of the script."""
        returned = called(graph, *args, **options)
        follower = self.follower
        is_outermost = not (follower.depth or follower.in_backward or follower.phases or follower.plan.step != "auto")
        if is_outermost and graph in self.noted and follower.process == os.getpid():
            self.note_replay(graph)
        return returned

    def note_replay(self, graph: Any) -> None:
        """Of several graphs the one that is replayed least often ends a step, the last of them where they are replayed
        equally often; none does while calls, backward passes or optimizers run between replays."""
        follower = self.follower
        if self.step_graph is None and follower.stage is Stage.SKIPPED:
            self.counts[graph] = self.counts.get(graph, 0) + 1
            least = min(self.counts.values())
            if least < follower.plan.skip or self.counts[graph] > least:
                follower.facts["seen"] = max(follower.facts["seen"], least)
                return
            self.step_graph = graph
            follower.kind, follower.is_counting = "replay", False
            follower.num_steps = follower.facts["seen"] = follower.plan.skip - 1
        if self.step_graph is graph:
            follower.end_step()

    def write(self, push: Callable[[str], Any], pop: Callable[[], Any]) -> None:
        """Write what was noted as ranges."""
        for number, names in enumerate(self.noted.values()):
            if names:
                push(f"{CAPTURED}{number}")
                for name in names:
                    pop() if name is None else push(name)
                pop()

    def list_facts(self) -> dict[str, Any]:
        """Return what is known: for each graph how many operations were noted, and why none were."""
        sizes = [sum((name or "").startswith(NODE) for name in names) for names in self.noted.values()]
        return {"captured_graphs": sizes, "captured_graphs_error": self.error}


def is_of_torch() -> bool:
    """Return whether PyTorch captures a graph itself: it is not the script that opened `torch.cuda.graph`."""
    return next(list_callers(), "").startswith(OF_TORCH)


def list_callers() -> Iterator[str]:
    """Yield the files of the functions that called, from the inside out, without those around `capture_begin`."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        is_around = code.co_filename.startswith(str(Path(__file__).parent)) or code.co_name == "__enter__"
        if not is_around:
            yield code.co_filename
        frame = frame.f_back  # type: ignore[assignment]
