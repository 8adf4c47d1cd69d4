"""Ranges around what torch.compile makes of a function that calls modules, such as a step of the script.

What is compiled calls no module, so nothing shows where forward runs. Dynamo puts what it makes of a graph into a
global variable, from which the code of the function calls it. While steps are captured, that variable holds a function
that opens the phase, and in a followed step the range `(compiled)`; at other times it holds what Dynamo made. Of a
compiled model its own range is open already, and nothing is opened. A graph without modules, as of an optimizer, is
left as it is.

What is compiled is the same. This is not part of PyTorch's interface: where it is missing, the kernels of forward stay
without a phase. Loaded into other people's scripts, as `follow` is.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import nn

from .compiled_backward import CALL, STACK, read_id
from .entries import list_methods
from .module_ranges import REGION, ModuleRanges
from .wrapping import wrap

GLOBAL = "__compiled_fn"
"""How the names of the variables begin that hold what Dynamo made of a graph."""
OWN = "L['self']"
"""How Dynamo names the module whose method is compiled."""


class Compiled(NamedTuple):
    """What Dynamo made of a graph: the variable that holds it, and it without and with ranges around."""

    scope: dict[str, Any]
    name: str
    plain: Callable[..., Any]
    with_ranges: Callable[..., Any]

    def use(self, ranges: bool) -> None:
        """Put one in the place of the other, if that is there."""
        new, old = (self.with_ranges, self.plain) if ranges else (self.plain, self.with_ranges)
        if self.scope.get(self.name) is old:
            self.scope[self.name] = new


class CompiledFunctions:
    """What torch.compile makes of the functions of a follower's script."""

    def __init__(self, follower: Any) -> None:
        self.follower = follower
        self.is_on = self.has_ranges = False
        self.classes: dict[int, type[nn.Module]] = {}  # of the outermost modules of the last graph, by their ids
        self.made: list[Compiled] = []

    def begin(self) -> None:
        """See each graph that is compiled from now on."""
        if self.is_on:
            return
        self.is_on = True
        if self.follower.events is None:
            self.follower.graphs.begin()
        with self.follower.graphs.noting_errors("OutputGraph"):  # it need not be there
            from torch._dynamo.output_graph import OutputGraph

            wrap(OutputGraph, "call_user_compiler", self.compile)
            wrap(OutputGraph, "install_global_unsafe", self.install)

    def compile(self, called: Callable[..., Any], output: Any, graph: Any, *args: Any, **options: Any) -> Any:
        """Compile a graph of Dynamo, as `called` does."""
        self.classes = {}
        with self.follower.graphs.noting_errors("modules of a graph"):
            self.classes = find_outermost(graph.graph.nodes)
            self.name_parts(self.classes or note_owner(output, graph.graph.nodes))
        return called(output, graph, *args, **options)

    def install(self, called: Callable[..., Any], output: Any, name: str, value: Any) -> None:
        """Put a value into a global variable, as `called` does: what was made of the last graph, among others."""
        called(output, name, value)
        if name.startswith(GLOBAL) and self.classes:
            with self.follower.graphs.noting_errors("ranges around a graph"):
                self.made.append(Compiled(output.global_scope, name, value, self.put_ranges(value, self.classes)))
                self.use_ranges(self.has_ranges)
            self.classes = {}

    def put_ranges(self, compiled: Callable[..., Any], classes: dict[int, type[nn.Module]]) -> Callable[..., Any]:
        """Return a function that calls `compiled` within ranges. Dynamo would compile it if it were not told."""

        def call(*args: Any, **options: Any) -> Any:
            with ExitStack() as opened:
                self.open(opened, classes, args)
                return compiled(*args, **options)

        disabled: Callable[..., Any] = torch.compiler.disable(call)
        return disabled

    def use_ranges(self, ranges: bool) -> None:
        """Open ranges from now on, or none. What Dynamo has deleted is let go."""
        self.has_ranges = ranges
        self.made = [made for made in self.made if made.name in made.scope]
        for made in self.made:
            made.use(ranges)

    def forget(self) -> None:
        """Let go what was compiled: no more steps are captured."""
        self.use_ranges(False)
        self.made.clear()

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


def note_owner(output: Any, nodes: Iterable[Any]) -> list[int]:
    """Give the nodes of a graph without modules the one whose method or call is compiled, if it is of one: Dynamo names
    only modules that are called inside, and a leaf calls none. Returns its id."""
    function = getattr(output, "root_tx", None)
    if function is None or any(node.meta.get(STACK) for node in nodes):
        return []
    values = [function.f_locals.get(name) for name in ("self", *function.f_code.co_varnames[:1])]
    for owner in values:
        if isinstance(owner, nn.Module):
            for node in nodes:
                node.meta[STACK] = {str(id(owner)): (OWN, type(owner))}
            return [id(owner)]
    return []
