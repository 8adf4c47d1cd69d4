"""Which graph of torch.compile each call runs.

All that Inductor makes of graphs is called in one way, forward and backward, in CUDA graphs, too. While calls are
named, that opens a range around each of them with the number of its graph (see `jobs.contract.ranges`); at other times
PyTorch's own function is there.

This is not part of PyTorch's interface: where it is missing, it is not known which of equal graphs ran. Needs torch,
and is imported inside the script (see `sitecustomize`).
"""

from collections.abc import Callable
from typing import Any

from .module_ranges import ModuleRanges

CALL, BROKEN = "modules:call ", " broken"
"""Prefix of the range around a call: the number of its graph. And its ending if the graph ends at a graph break."""
NAME = "profiler_job_name"
"""Attribute of what Inductor made of a graph: the name of the range around a call."""


class GraphCalls:
    """The calls of the graphs in this process."""

    def __init__(self) -> None:
        self.kind: Any = None  # the class of what Inductor makes of a graph; None: not known
        self.plain: Callable[..., Any] | None = None  # how PyTorch calls it

    def begin(self) -> None:
        """Find how graphs are called."""
        from torch._inductor.output_code import CompiledFxGraph

        self.kind, self.plain = CompiledFxGraph, CompiledFxGraph.__call__

    def name(self, compiled: Any, number: int, ends_at_break: bool) -> None:
        """Name the calls of what Inductor made of a graph."""
        if self.kind is not None and isinstance(compiled, self.kind):
            setattr(compiled, NAME, f"{CALL}{number}{BROKEN * ends_at_break}")

    def use(self, ranges: ModuleRanges | None) -> None:
        """Open a range around each call from now on; None: no more."""
        plain = self.plain
        if self.kind is None or plain is None:
            return

        def call(compiled: Any, *args: Any, **options: Any) -> Any:
            name = getattr(compiled, NAME, "")
            if ranges is None or not name:
                return plain(compiled, *args, **options)
            with ranges.opened(name):
                return plain(compiled, *args, **options)

        self.kind.__call__ = plain if ranges is None else call
