"""Ranges around what torch.compile makes of a function that calls modules, such as a step of the script.

What is compiled calls no module, so nothing shows where forward runs. Dynamo hands each graph to a compiler; what this
returns is put into a function that opens the phase, and in a followed step the range `(compiled)`. Of a compiled model
its own range is open already, and nothing is opened. A graph without modules, as of an optimizer, is left as it is.

What is compiled is the same. This is not part of PyTorch's interface: where it is missing, the kernels of forward stay
without a phase. Loaded into other people's scripts, as `follow` is.
"""

import functools
import inspect
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

from torch import nn

from .compiled_backward import CALL, STACK, read_id
from .entries import list_methods
from .module_ranges import REGION, ModuleRanges
from .wrapping import wrap


class CompiledFunctions:
    """What torch.compile makes of the functions of a follower's script."""

    def __init__(self, follower: Any) -> None:
        self.follower = follower
        self.is_on = False

    def begin(self) -> None:
        """See each graph that is compiled from now on."""
        if self.is_on:
            return
        self.is_on = True
        if self.follower.events is None:
            self.follower.graphs.begin()
        with self.follower.graphs.noting_errors():  # it need not be there
            from torch._dynamo.output_graph import OutputGraph

            wrap(OutputGraph, "call_user_compiler", self.compile)

    def compile(self, called: Callable[..., Any], output: Any, graph: Any, *args: Any, **options: Any) -> Any:
        """Compile a graph of Dynamo, as `called` does. Returns what is to be called in its place."""
        classes: dict[int, type[nn.Module]] = {}
        with self.follower.graphs.noting_errors():
            classes = find_outermost(graph.graph.nodes)
            self.name_parts(classes)
        compiled = called(output, graph, *args, **options)
        if not classes or not inspect.isfunction(compiled):
            return compiled

        @functools.wraps(compiled)
        def call(*args: Any, **options: Any) -> Any:
            if not (self.follower.stage.is_captured or self.follower.captures.is_capturing):
                return compiled(*args, **options)
            with ExitStack() as opened:
                self.open(opened, classes, args)
                return compiled(*args, **options)

        return call

    def name_parts(self, outermost: Iterable[int]) -> None:
        """Name the modules (by id) that a graph names outermost if the script runs the code of a model around them: it
        does where graphs break inside, and calls parts by themselves."""
        *_, (model, _) = [(None, ""), *list_methods()]
        if model is not None and any(id(part) in outermost for part in model.modules()):
            ranges = self.follower.ranges
            self.follower.graphs.paths |= ModuleRanges(ranges.push, ranges.pop).paths_of(model)

    def open(self, opened: ExitStack, classes: dict[int, type[nn.Module]], inputs: Iterable[Any]) -> None:
        """Open the ranges of a call. classes: of the outermost modules, by their ids. inputs: parameters, too."""
        follower = self.follower
        if follower.process != os.getpid() or follower.in_backward:
            return
        is_loss = all(issubclass(kind, nn.modules.loss._Loss) for kind in classes.values())
        if not follower.depth:
            follower.facts["compiled"] = True
        if not follower.phases:
            opened.enter_context(follower.phase("loss" if is_loss else follower.name_call(inputs)))
        if follower.follows_modules and REGION not in (follower.ranges.path or ""):
            follower.graphs.roots |= {key: kind.__name__ for key, kind in classes.items()}
            opened.enter_context(follower.ranges.range(REGION))


def find_outermost(nodes: Iterable[Any]) -> dict[int, type[nn.Module]]:
    """Find the outermost modules that the nodes of a graph were made in: their classes by their ids."""
    classes = {}
    for node in nodes:
        for key, (path, kind) in (node.meta.get(STACK) or {}).items():
            if isinstance(kind, type) and not path.startswith(CALL):
                classes[read_id(key)] = kind
                break
    return classes
