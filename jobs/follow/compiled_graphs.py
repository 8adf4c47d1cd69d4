"""Which module of a compiled model each of its launches is of, as Inductor knows it when it compiles.

A compiled model calls no modules, so ranges show nothing of what is inside. But each node of the graph that Inductor
compiles names the modules that it was made in, in the backward graph the modules of forward; and Inductor can note
which nodes each launch computes. Both are read when a graph is compiled. Once, in a followed step, they are written
into the capture as ranges (see `jobs.contract.ranges`), so that whoever reads it can give each kernel a module.

Inductor says it only while it compiles, so its caches of whole graphs are neither read nor written, whatever the script
sets; Triton's cache of kernels is. What is compiled is the same. All this is not part of PyTorch's interface: where
something is missing, a graph is left out, the script goes on, and what was missing is named.

Needs torch, and is imported inside the script (see `sitecustomize`).
"""

import inspect
import itertools
import math
import posixpath
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import CodeType
from typing import Any, NamedTuple

import torch

from .broken_graphs import LeftFrames, is_break, list_breaks
from .compiled_backward import CALL, CompiledBackward, find_paths, locate, read_id
from .graph_calls import GraphCalls
from .module_ranges import COMPILED, LOSS
from .recompilations import Recompilations, format_recompilation
from .script_places import shorten_path
from .wrapping import wrap

GRAPH = "modules:graph "
"""Prefix of the range of a graph: its number, its pass, and the path of the module that it was compiled for."""
BREAK = "modules:break "
"""Prefix of the range of a line at which graphs break: their numbers, the line, the function and the reason."""
LONGEST_REASON = 300
"""Characters of a reason in the name of a range."""
STATIC = " (static)"
"""Suffix of it if no size changes between the graph's calls: then each launch has one grid."""
GENERATED = ("triton_", "cpp_")
"""How the names of kernels begin that Inductor makes."""
NORMAL, BASIC = 1, 2
"""Levels at which Inductor notes which nodes each launch computes. At the first, nodes of a graph of compiled autograd
keep more of what they were made from, so that its kernels have other names."""
GRAPH_CACHES = {"fx_graph_cache": False, "fx_graph_remote_cache": False}
AUTOGRAD_CACHES = {"enable_autograd_cache": False, "enable_remote_autograd_cache": False}
"""Settings of Inductor and of AOTAutograd while a graph is compiled: no cache of graphs."""
SMALLEST_SHARE = 1
"""Percent of the bytes of a launch: modules with less are left out, so that no more than 100 are named."""

SUMMED, CAST, SCATTERED = "aten.sum", "aten.to", "aten.index_put_"
"""Calls of which Inductor notes nothing. They have the modules of the kernel before: it has left parts of a sum, or
zeros to add to."""

_HANDLES = re.compile(r"^\s*(?:#|//) \[Provenance debug handles\] (.+)$")
_PARTS = re.compile(r"^\s*\w+ = \w+\[.*\]\.view\(.*?\)\.\w+\(dim=0\)(.*)$")
_SCATTER = re.compile(r"^\s*aten\.index_put_\(")
_ROOT = re.compile(r"^[LG]\[[^\]]*\]")
_BOUND = re.compile(r"(?<![^.])\w+\.__self__\.")
"""A method that a module keeps: what it calls is a part of the module that the method belongs to."""


class Launch(NamedTuple):
    """kernel: name of the kernel that Inductor made, or of the function that is called. shares: bytes of the results of
    its operations, by their module: pairs of the id of a module and its path, from the outermost."""

    kernel: str
    shares: dict[tuple[tuple[int, str], ...], int]


class Graph(NamedTuple):
    """calls: of the nodes of autograd, if compiled autograd made the graph (see `compiled_backward`). is_static: no
    size changes between its calls."""

    is_backward: bool
    launches: list[Launch]
    calls: tuple[str, ...] = ()
    is_static: bool = False


class CompiledGraphs:
    """The graphs that Inductor has compiled in this process, in order."""

    def __init__(self, is_updating: Callable[[], bool] = bool) -> None:
        self.graphs: list[Graph] = []
        self.roots: dict[int, str] = {}
        """Classes of modules that compiled functions call (see `compiled_functions`), by the modules' ids."""
        self.paths: dict[int, str] = {}
        """Paths of modules inside a model whose code ran around a compiled part, by their ids."""
        self.backward = CompiledBackward(self.lower_level)
        self.calls = GraphCalls()
        self.reasons: dict[str, Any] = {}  # why Dynamo ended its last graph of a frame, by the frame's id
        self.left = LeftFrames(self.noting_errors)
        self.again = Recompilations(self.noting_errors, lambda: self.is_measured)
        self.ends: dict[int, Any] = {}  # why graphs ended, by their numbers, forward and backward
        self.has_own_level = False
        self.is_updating = is_updating  # whether an optimizer steps
        self.has_update = False  # whether a graph is of an optimizer
        self.num_late = 0
        self.errors: list[str] = []  # why launches of graphs have no modules, each once
        self.is_on = False
        self.is_measured = False  # whether the steps now are measured, in which nothing should be compiled

    def begin(self) -> None:
        """Note each graph from now on."""
        if self.is_on:
            return
        self.is_on = True
        with self.noting_errors("provenance_tracking_level"):  # none of this need be there
            from torch._inductor import config

            if not config.trace.provenance_tracking_level:
                config.trace.provenance_tracking_level, self.has_own_level = NORMAL, True
        with self.noting_errors("compile_to_module"):
            from torch._inductor.graph import GraphLowering

            wrap(GraphLowering, "compile_to_module", self.note)
        with self.noting_errors("TritonKernel.call_kernel"):
            from torch._inductor.codegen.triton import TritonKernel

            wrap(TritonKernel, "call_kernel", self.note_parts)
        with self.noting_errors("cache of AOTAutograd"):
            from torch._dynamo.output_graph import OutputGraph
            from torch._functorch import config as functorch

            wrap(OutputGraph, "call_user_compiler", self.note_end)
            wrap(OutputGraph, "call_user_compiler", partial(call_within, functorch, AUTOGRAD_CACHES))
        with self.noting_errors("cache of Inductor"):
            from torch._inductor import compile_fx, config

            wrap(compile_fx, "_compile_fx_inner", self.name_calls)
            wrap(compile_fx, "_compile_fx_inner", partial(call_within, config, GRAPH_CACHES))
        with self.noting_errors("functions left to Python"):
            self.left.begin()
        with self.noting_errors("recompilations"):
            self.again.begin()
        with self.noting_errors("calls of graphs"):
            self.calls.begin()
        with self.noting_errors("skip_code"):
            leave_alone()
        self.backward.begin()

    @contextmanager
    def noting_errors(self, what: str) -> Iterator[None]:
        """Note an error inside, with what it is about, in place of raising it."""
        try:
            yield
        except Exception as error:
            self.note_error(f"{what}: {type(error).__name__}: {error}")

    def note_error(self, error: str) -> None:
        if error not in self.errors:
            self.errors.append(error)

    def lower_level(self) -> None:
        """Have Inductor note less from now on: a graph of compiled autograd comes next."""
        if self.has_own_level:
            from torch._inductor import config

            config.trace.provenance_tracking_level = BASIC

    def note(self, called: Callable[..., Any], lowering: Any, *args: Any, **options: Any) -> Any:
        """Compile a graph, as `called` does, and note its launches."""
        module = called(lowering, *args, **options)
        self.num_late += self.is_measured
        self.has_update |= self.is_updating()
        with self.noting_errors("launches of a graph"):
            nodes = lowering.module.graph.nodes
            graph = read_graph(lowering, module, self.backward.find_calls(nodes))
            self.graphs.append(graph)
            self.ends[len(self.graphs) - 1] = self.reasons.get(read_frame())
            if not graph.launches and any(map(count_bytes, nodes)):
                self.note_error("Inductor's code of a graph names none of its launches")
            elif graph.launches and not any(launch.shares for launch in graph.launches):
                self.note_error("Inductor does not say what the launches of a graph compute")
        return module

    def name_calls(self, called: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Compile a graph, as `called` does, and name the calls of what was made of it."""
        num = len(self.graphs)
        compiled = called(*args, **options)
        if (number := len(self.graphs) - 1) >= num:
            self.calls.name(compiled, number, is_break(self.ends.get(number)))
        return compiled

    def note_end(self, called: Callable[..., Any], output: Any, *args: Any, **options: Any) -> Any:
        """Compile a graph of Dynamo, as `called` does, and note why it ends here."""
        with self.noting_errors("ends of graphs"):
            self.reasons[read_frame()] = output.compile_subgraph_reason
        return called(output, *args, **options)

    def note_parts(self, called: Callable[..., Any], kernel: Any, name: str, *args: Any, **options: Any) -> Any:
        """Have Inductor note the nodes of a kernel that reduces in two directions at once, which it does for all
        others."""
        if getattr(kernel, "mix_order_reduction", False):
            with self.noting_errors("a kernel that reduces in two directions"):
                from torch._inductor.debug import set_kernel_post_grad_provenance_tracing
                from torch._inductor.virtualized import V

                handle = set_kernel_post_grad_provenance_tracing(list(kernel.features.scheduler_nodes()), name)
                V.graph.wrapper_code.write_provenance_debug_handle(name, handle)
        return called(kernel, name, *args, **options)

    def forget(self) -> None:
        """Forget the graphs of one model: another is compiled next. Hooks that are missing stay so."""
        self.graphs.clear()
        self.ends.clear()
        self.reasons.clear()
        self.left.breaks.clear()
        self.left.errors.clear()
        self.again.known.clear()
        self.num_late, self.is_measured = 0, False

    def list_problems(self) -> list[str]:
        """List what a reader has to know of the graphs: those compiled in measured steps, why, and the errors."""
        late = [f"graphs that were compiled in measured steps: {self.num_late}"] * bool(self.num_late)
        return [*late, *map(format_recompilation, self.again.known), *self.errors]

    def list_facts(self) -> dict[str, Any]:
        """Return what is known: the number of graphs, why kernels have no modules, graphs compiled in measured steps
        and those taken from a cache, why kernels of compiled autograd have no modules, where graphs broke (see
        `list_breaks`), what was compiled again in measured steps (see `recompilations`), and how long all compiling
        took (s; None: not known)."""
        seconds, hits = None, 0
        if self.is_on:
            with self.noting_errors("counters of Dynamo"):
                from torch._dynamo.utils import calculate_time_spent, counters

                hits = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
                seconds = calculate_time_spent()["total_wall_time"]
        return {
            "graphs": len(self.graphs) if self.is_on else None,
            "graphs_errors": self.errors,
            "late_graphs": self.num_late,
            "cached_graphs": hits,
            "compiled_autograd": self.explain_backward(),
            "graph_breaks": self.list_breaks(),
            "recompilations": self.again.known,
            "compiling_s": seconds,
        }

    def list_breaks(self) -> list[dict[str, Any]]:
        """List where graphs broke (see `broken_graphs.list_breaks`)."""
        if self.is_on:
            with self.noting_errors("graph breaks"):
                from torch._dynamo.utils import counters, graph_break_reasons

                return list_breaks(graph_break_reasons, self.left, counters["graph_break"], self.ends)
        return []

    def explain_backward(self) -> str:
        """Explain why kernels of compiled autograd have no modules; "" if they have, or if there are none."""
        if not (self.backward.calls or has_compiled_autograd()):
            return ""
        is_known = any(graph.calls for graph in self.graphs)
        return self.backward.error or ("" if is_known else "PyTorch does not show what its graph is made from")

    def write(
        self,
        push: Callable[[str], Any],
        pop: Callable[[], Any],
        paths: Mapping[int, str],
        rename: Callable[[str], str] = str,
        passes: Mapping[tuple[str, ...], Sequence[str]] | None = None,
    ) -> None:
        """Write the graphs, and where they break, as ranges. paths: of modules, by id. rename: makes the path that is
        written of a module's path below the function that was compiled. passes: the backward passes that compiled
        autograd ran (see `compiled_backward.find_paths`)."""
        of_autograd = [graph.calls for graph in self.graphs if graph.calls]
        if of_autograd and not any(find_paths(calls, passes or {}) for calls in of_autograd):
            self.backward.error = "the followed steps have other backward passes"
        paths = {**self.paths, **paths}
        unknown = {key: name for key, name in self.roots.items() if key not in paths}
        for number, graph in enumerate(name_outermost(graph, unknown) for graph in self.graphs):
            above = find_paths(graph.calls, passes or {})
            root, graph = ("", graph) if above else find_root(graph, paths)
            push(f"{GRAPH}{number} {'backward' if graph.is_backward else 'forward'} {root}{STATIC * graph.is_static}")
            for launch in graph.launches:
                push("|".join([launch.kernel, *list_shares(launch.shares, rename, above)]))
                pop()
            pop()
        with self.noting_errors("ranges of graph breaks"):  # as where the script has removed its working directory
            for each in self.list_breaks():
                place = f"{shorten_path(each['file'])}:{each['line']}".replace("|", "/") if each["file"] else ""
                numbers = ",".join(map(str, each["graphs"]))
                push(f"{BREAK}{numbers}|{place}|{each['function']}|{each['reason'][:LONGEST_REASON]}")
                pop()


def has_compiled_autograd() -> bool:
    """Return whether compiled autograd has made a graph: a script may ask for it, and run backward outside of what is
    compiled."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters.get("compiled_autograd", {}).get("captures"))


def call_within(
    config: Any, settings: Mapping[str, Any], called: Callable[..., Any], *args: Any, **options: Any
) -> Any:
    """Call a function with other settings of a module of PyTorch's, of those that it has."""
    with config.patch({name: value for name, value in settings.items() if hasattr(config, name)}):
        return called(*args, **options)


def read_frame() -> str:
    """Read Dynamo's id of the frame that is compiled now, forward or backward, and of how often it was: `1/0`."""
    from torch._guards import CompileContext

    return str(CompileContext.current_compile_id())


def leave_alone() -> None:
    """Have Dynamo run the functions of this package as they are where Python calls them, as around a backward pass in a
    compiled function: it would compile them, and again when what they count has changed. What it compiles already goes
    through those that a module or a change calls: these ask whether it is compiling."""
    from torch._dynamo.eval_frame import skip_code

    for name, module in list(sys.modules.items()):
        if name.rpartition(".")[0] == __package__ and (path := getattr(module, "__file__", None)):
            for code in find_codes(module, path):
                skip_code(code)


def find_codes(module: Any, path: str) -> Iterator[CodeType]:
    """Yield the code of the functions of a module, of those inside them, and of the methods of its classes."""
    members = [getattr(value, "__dict__", {}).values() for value in vars(module).values() if isinstance(value, type)]
    values = [*vars(module).values(), *itertools.chain(*members)]
    codes = [value.__code__ for value in map(inspect.unwrap, filter(callable, values)) if inspect.isfunction(value)]
    while codes:
        code = codes.pop()
        if code.co_filename == path:
            yield code
            codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]


def read_graph(lowering: Any, module: Any, of_autograd: tuple[str, ...] = ()) -> Graph:
    """Read the launches of a graph that was just compiled, in order, from the code that Inductor wrote for it."""
    from torch._inductor import debug

    nodes = {node.name: node for node in lowering.module.graph.nodes}
    made_from = debug._inductor_triton_kernel_to_post_grad_node_info
    with open(module.__file__, encoding="utf-8") as file:
        calls = list(find_calls(file.read().splitlines()))
    launches: list[Launch] = []
    for handle in calls:
        if handle in (SUMMED, CAST, SCATTERED):
            launches += [Launch(handle, launches[-1].shares)] if launches else []
            continue
        shares: dict[tuple[tuple[int, str], ...], int] = {}
        kernel = handle.rpartition(":")[0]
        own = [nodes[name] for name in made_from.get(handle, ()) if name in nodes]
        if not kernel.startswith(GENERATED):
            own = own[:1]  # the call itself; the others are views of its inputs
        sizes = [count_bytes(node) for node in own]
        for node, size in zip(own, sizes if any(sizes) else [1] * len(own)):
            path = read_modules(node)
            shares[path] = shares.get(path, 0) + size
        launches.append(Launch(kernel, shares))
    return Graph(bool(lowering.is_backward or of_autograd), launches, of_autograd, has_fixed_sizes(nodes.values()))


def find_calls(lines: Iterable[str]) -> Iterator[str]:
    """Yield what generated code launches, in order: Inductor's handles, `kernel:number`, and calls without one."""
    for line in lines:
        if handles := _HANDLES.match(line):
            yield from (handle.strip() for handle in handles[1].split(","))
        elif parts := _PARTS.match(line):
            yield SUMMED
            if ".to(" in parts[1]:
                yield CAST
        elif _SCATTER.match(line):
            yield SCATTERED


def read_modules(node: Any) -> tuple[tuple[int, str], ...]:
    """Read the modules that a node was made in, outermost first: id and path. A node that a pass of Inductor made, as
    for a padded matmul, has the innermost modules of what it reads."""
    stack = max(find_stacks(node), key=len, default={})
    return tuple((read_id(key), clean(entry[0])) for key, entry in stack.items())


def find_stacks(node: Any, most_steps: int = 3) -> Iterator[Mapping[str, Any]]:
    """Yield the stack of modules of a node; if it has none, those of the nodes that it reads."""
    if stack := node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack"):
        yield stack
    elif most_steps and node.op == "call_function":
        for read in node.all_input_nodes:
            yield from find_stacks(read, most_steps - 1)


def clean(path: str) -> str:
    """The path of a module as `named_modules` has it, below the function that was compiled."""
    path = _ROOT.sub("", path).replace("._modules", "").replace("['", ".").replace("']", "").lstrip(".")
    return _BOUND.sub("", path)


def has_fixed_sizes(nodes: Iterable[Any]) -> bool:
    """Return whether no size in a graph changes between its calls."""
    values = itertools.chain(*map(list_values, nodes))
    sizes = (value.shape if isinstance(value, torch.Tensor) else [value] for value in values)
    return not any(isinstance(size, torch.SymInt) for size in itertools.chain(*sizes))


def list_values(node: Any) -> Sequence[Any]:
    """List what a node computes."""
    values = node.meta.get("val")
    return values if isinstance(values, tuple | list) else [values]


def count_bytes(node: Any) -> int:
    """Count the bytes that an operation writes; 0 for one that only looks at its input in another way."""
    returns = getattr(getattr(node.target, "_schema", None), "returns", ())
    if not returns or any(value.alias_info is not None for value in returns):
        return 0
    return sum(
        math.prod(size if isinstance(size, int) else size.node.hint or 1 for size in value.shape) * value.itemsize
        for value in list_values(node)
        if isinstance(value, torch.Tensor)
    )


def join_levels(levels: Sequence[tuple[int, str]]) -> str:
    """The path below the function that was compiled, as ranges of modules have it: layers.0/attention/qkv"""
    names, above = [], ""
    for _, path in levels:
        name = path.removeprefix(f"{above}.") if above else path
        if name and not path.startswith(CALL):
            names.append(name)
        above = path
    return "/".join(names)


def name_outermost(graph: Graph, names: Mapping[int, str]) -> Graph:
    """Return a graph of a function with `names` (by id) of the modules that the function calls in place of the
    function's own. What the function computes outside of them is the loss."""

    def rename(levels: tuple[tuple[int, str], ...]) -> tuple[tuple[int, str], ...]:
        num_calls = bool(levels) and levels[0][1].startswith(CALL)
        if len(levels) == num_calls:
            return (*levels, (0, LOSS))
        outermost, below = levels[num_calls]
        if outermost not in names:
            return levels
        inside = [(key, path.removeprefix(below).lstrip(".")) for key, path in levels[num_calls:]]
        return (*levels[:num_calls], *((key, f"{names[outermost]}.{path}".rstrip(".")) for key, path in inside))

    if not any(key in names for launch in graph.launches for levels in launch.shares for key, _ in levels):
        return graph
    launches = [
        Launch(kernel, {rename(levels): size for levels, size in shares.items()}) for kernel, shares in graph.launches
    ]
    return graph._replace(launches=launches)


def find_root(graph: Graph, paths: Mapping[int, str]) -> tuple[str, Graph]:
    """Find the path of the module whose function was compiled, from the path of a module inside it; "" if unknown.
    After a break a function may call modules that were read before it, which are no longer named below its own: then
    the path is of what has all of them inside, and the graph that is returned names them below that."""
    own = {levels: find_own_root(levels, paths) for launch in graph.launches for levels in launch.shares}
    roots = list(dict.fromkeys(filter(None, own.values())))
    if len(roots) < 2 or graph.calls:
        return next(iter(roots), ""), graph
    root = posixpath.commonpath(roots)

    def rename(levels: tuple[tuple[int, str], ...]) -> tuple[tuple[int, str], ...]:
        above = own[levels].removeprefix(root).lstrip("/")
        return ((0, above), *((key, f"{above}.{path}") for key, path in levels if path)) if above else levels

    launches = [
        Launch(kernel, {rename(levels): size for levels, size in shares.items()}) for kernel, shares in graph.launches
    ]
    return root, graph._replace(launches=launches)


def find_own_root(levels: Sequence[tuple[int, str]], paths: Mapping[int, str]) -> str:
    """Find the path of the module below which the modules of an operation are named; "" if unknown."""
    for end in range(1, len(levels) + 1):
        known = paths.get(levels[end - 1][0], "").replace(COMPILED, "")
        below = join_levels(levels[:end])
        if known and not below:
            return known
        if known.endswith(f"/{below}"):
            return known.removesuffix(f"/{below}")
    return ""


def list_shares(
    shares: Mapping[tuple[tuple[int, str], ...], int],
    rename: Callable[[str], str] = str,
    above: Sequence[str] = (),
) -> Iterator[str]:
    """Yield `path=percent` of the modules of a launch, the largest first. above: the paths of autograd's calls."""
    total = sum(shares.values())
    merged: dict[str, int] = {}
    for levels, size in shares.items():
        path = locate(levels, rename(join_levels(levels)), above)
        merged[path] = merged.get(path, 0) + size
    for path, size in sorted(merged.items(), key=lambda item: -item[1]):
        if total and 100 * size >= SMALLEST_SHARE * total:
            yield f"{path}={round(100 * size / total)}"
