"""Which modules the operations of a backward pass are of that compiled autograd compiles as one graph.

Compiled autograd writes the calls of autograd's nodes into a graph, with the operations of graphs that AOTAutograd made
of compiled parts. Each node of that graph is given the number of its call, and the modules inside the compiled part if
it is of one. Dynamo hands this on to the graph that it makes of the other. AOTAutograd does not: it runs the code of
Dynamo's graph. That code has one line for each node, so the line that runs while a node of the next graph is made says
which node it is made from. Nothing changes in what is compiled.

The module of a call is known in a followed step (see `module_ranges`), where calls have the same names in the same
order.

All this is not part of PyTorch's interface: where something is missing, kernels stay without a module. Needs torch.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import CodeType
from typing import Any

import torch

from .module_ranges import COMPILED, LOSS, REGION
from .wrapping import wrap

STACK = "nn_module_stack"
"""Where a node has its modules, outermost first: id -> path and class. PyTorch hands it on from node to node, and
computes nothing from it. Above them, a node here has the call of autograd's node, with the path `call GRAPH NUMBER`."""
CALL = "call "
BACKWARD_GRAPH = "CompiledAutograd"
"""How the class of a graph of compiled autograd is named, before its number."""

_ORIGIN = re.compile(r"(\S+) \(NodeCall (\d+)\)")
_ASSIGNMENT = re.compile(r"\s+(\w+)(?: *:.*?)? = ")
_PROLOGUE, _ACCUMULATION = "call_aot_bwd_prologue", "call_accumulate_grad"

Stack = Mapping[str, tuple[str, Any]]


class CompiledBackward:
    """The graphs of compiled autograd in this process. calls: of each the names of the nodes of autograd that it calls,
    in order; "" for one that left no operation. error: why modules are not known, as far as PyTorch says."""

    def __init__(self, before: Callable[[], None]) -> None:
        self.before = before  # a graph is compiled
        self.calls: list[tuple[str, ...]] = []
        self.error = ""

    def begin(self) -> None:
        """Note each graph that is compiled from now on."""
        with self._noting_errors():
            from torch._dynamo.compiled_autograd import AutogradCompilerInstance

            wrap(AutogradCompilerInstance, "__init__", self._give_compiler)
        with self._noting_errors():
            from torch._dynamo.utils import GmWrapper

            wrap(GmWrapper, "forward", self._trace)

    @contextmanager
    def _noting_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # none of this need be there
            self.error = self.error or f"{type(error).__name__}: {error}"

    def _give_compiler(
        self, called: Callable[..., Any], instance: Any, compiler: Callable[[Any], Any], *args: Any, **options: Any
    ) -> None:
        called(instance, partial(self.compile, compiler), *args, **options)

    def compile(self, compiler: Callable[[Any], Any], graph: Any) -> Any:
        """Return what `compiler` makes of a graph of compiled autograd, as it is: a wrapper around the calls of modules
        would be a part of what is compiled, and kernels would have other names."""
        plain = torch.nn.Module._wrapped_call_impl
        if isinstance(graph, torch.nn.Module) and vars(type(graph)).get("__call__") is not plain:
            type(graph).__call__ = plain  # type: ignore[method-assign]
            with self._noting_errors():
                self.before()
                self._note(graph)
        compiled = compiler(graph)
        return partial(plain, compiled) if isinstance(compiled, torch.nn.Module) else compiled

    def _note(self, graph: Any) -> None:
        self.calls.append(())  # of a graph that is not what it is thought to be, nothing is known
        self.calls[-1] = note_calls(graph.graph.nodes, len(self.calls) - 1)

    def _trace(self, called: Callable[..., Any], wrapper: Any, *args: Any) -> Any:
        """Have AOTAutograd run the code of Dynamo's graph, and give each node that it makes the modules of its line."""
        stacks: list[Stack | None] = []
        with self._noting_errors():
            known = {node.name: node.meta.get(STACK) for node in wrapper.gm.graph.nodes}
            stacks = [known.get(name) for name in list_lines(wrapper.gm)]
            code = type(wrapper.gm).forward.__code__
        if not any(stacks):
            return called(wrapper, *args)
        create: Any = torch.fx.Graph.create_node

        def create_node(graph: Any, *given: Any, **options: Any) -> Any:
            node = create(graph, *given, **options)
            line = find_line(code)
            if 0 < line <= len(stacks) and (stack := stacks[line - 1]):
                node.meta[STACK] = stack
            return node

        torch.fx.Graph.create_node = create_node  # type: ignore[method-assign, assignment]
        try:
            return called(wrapper, *args)
        finally:
            torch.fx.Graph.create_node = create  # type: ignore[method-assign]

    def find_calls(self, nodes: Iterable[Any]) -> tuple[str, ...]:
        """Find the calls of the graph of compiled autograd that nodes are made from; none if they are not."""
        for node in nodes:
            path, _ = (node.meta.get(STACK) or {}).get(CALL, ("", None))
            if path:
                return self.calls[int(path.split()[1])]
        return ()


def read_id(key: Any) -> int:
    """Read the id of a module from its key in a stack: `id`, or `id@2` where it is called once more. 0: no id."""
    number = str(key).partition("@")[0]
    return int(number) if number.isdigit() else 0


def is_backward_graph(compiled: Any) -> bool:
    """Return whether compiled autograd made what is given to torch.compile."""
    return isinstance(compiled, torch.fx.GraphModule) and type(compiled).__name__.startswith(BACKWARD_GRAPH)


def list_lines(graph: Any) -> list[str]:
    """List for each line of a graph's code the node that it computes; "" for none."""
    matches = map(_ASSIGNMENT.match, str(graph.code).splitlines())
    return [match[1] if match else "" for match in matches]


def find_line(code: CodeType) -> int:
    """Find the line that runs in `code`, if it has called; 0 if not."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code is code:
            return frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return 0


def note_calls(nodes: Iterable[Any], number: int) -> tuple[str, ...]:
    """Give the nodes of compiled autograd's graph `number` their modules, below their call. What adds to a gradient has
    the modules of the node that computed it. Returns the names of the calls."""
    names: dict[int, str] = {}
    stacks: dict[Any, Stack] = {}
    compiled = 0  # the call whose graph AOTAutograd made
    for node in nodes:
        kind = getattr(node.target, "__name__", "")
        read = [stacks[other] for other in node.all_input_nodes if other in stacks]
        own: Stack = {}
        if origin := _ORIGIN.search(node.meta.get("stack_trace") or ""):
            call = int(origin[2])
            names[call] = origin[1]
            compiled = call if kind == _PROLOGUE else compiled
        elif node.op == "call_function" and compiled:
            call, own = (
                compiled,
                node.meta.get(STACK) or node.meta.get(f"fwd_{STACK}") or max(read, key=len, default={}),
            )
        else:
            continue
        is_sum = kind == _ACCUMULATION and read
        stacks[node] = read[-1] if is_sum else {CALL: (f"{CALL}{number} {call}", torch.nn.Module), **own}
        node.meta[STACK] = stacks[node]
    return tuple(names.get(call, "") for call in range(max(names, default=-1) + 1))


def locate(levels: Sequence[tuple[int, str]], below: str, paths: Sequence[str]) -> str:
    """Return the path of an operation. levels: its modules, the call above them. below: its path below the function
    that was compiled. paths: of the calls."""
    is_of_call = bool(levels and paths and levels[0][1].startswith(CALL))
    above = paths[int(levels[0][1].split()[2])].replace(COMPILED, "") if is_of_call else ""
    above = LOSS if above == REGION else above.removesuffix(f"/{REGION}")
    is_inside = below and above and above != LOSS
    return f"{above}/{below}" if is_inside else below or above


def find_paths(calls: Sequence[str], known: Mapping[tuple[str, ...], Sequence[str]]) -> Sequence[str]:
    """Find the module of each call of a graph, of those that a backward pass of a followed step had. calls: as
    `note_calls` returns them, the first of them the root. known: paths by the names of calls. None if no pass has the
    same calls."""
    for names, paths in known.items():
        pairs = zip(names, calls[1:])
        if len(names) == len(calls) - 1 and all(call.startswith(name) or not call for name, call in pairs):
            return ["", *paths]
    return []
