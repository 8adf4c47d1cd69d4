"""Ranges for each module, in forward and backward, on whatever thread runs it.

Forward: `torch.nn.Module.__call__` is wrapped while modules are followed. Backward: PyTorch numbers the nodes of the
autograd graph in the order in which forward makes them, so the numbers at which a module call begins and ends identify
its nodes. Before backward each node gets two hooks, which open and close the range of its module.

Nothing here changes what is computed: hooks return None, and no tensor is kept. They cost CPU time (about 7 ms a step
for 1,300 nodes), so these steps show which module launches a kernel, and other steps are timed.

Needs torch, `fsdp.py` and nothing else of this program: it is loaded into other people's scripts.
"""

import sys
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._autograd import _get_sequence_nr
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from .fsdp import find_flat_unit, follow_units, list_parameters

PREFIX = "modules:"
"""Prefix of the outermost ranges of a step in which modules are followed. Do not use the times of such a step."""
BACKWARD = f"{PREFIX}backward/"
"""Prefix of ranges in backward, before the path of the module."""
OPTIMIZER = f"{PREFIX}optimizer/"
LOSS = "(loss)"
ACCUMULATION = "(gradient accumulation)"
RECOMPUTED = "(recomputed)"
REGION = "(compiled)"
"""Name of the range of a compiled function that calls modules."""
COMPILED = f" {REGION}"
FSDP = "(FSDP)"
ALL_PARAMETERS = "(all parameters)"
COMPILED_AUTOGRAD = "(compiled autograd)"


class ModuleRanges:
    """Ranges of modules. `push(name)` opens a range and `pop()` closes it, as `range_push` of `torch.cuda.nvtx`
    does."""

    def __init__(self, push: Callable[[str], Any], pop: Callable[[], Any]):
        self.push, self.pop = push, pop
        self.paths: dict[int, str] = {}  # of parameters, by id: the module that used it in the last forward pass
        self.passes: dict[tuple[str, ...], list[str]] = {}
        """Backward passes that compiled autograd ran: paths of the calls of nodes, by their names."""
        self.operations: dict[int, str] = {}  # names of the nodes of autograd, by their numbers
        self._local = threading.local()
        self._names: dict[int, str] = {}  # of modules, by id: their path
        self._in_backward = 0
        self._call: Callable[..., Any] | None = None

    # ------------------------------------------------------------------------------------------------- forward

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Open the range `name` inside the open ranges of this thread."""
        above = self.path
        self._enter(name, f"{above}/{name}" if above else name)
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def outermost(self, name: str, path: str | None = None) -> Iterator[None]:
        """Open the range of a step or a phase. Nodes made in it outside any module belong to `path`; None: to the
        loss."""
        self._enter(f"{PREFIX}{name}", path)
        try:
            yield
        finally:
            self._leave()

    def follow_calls(self) -> None:
        """Open a range for each module call from now on."""
        if self._call is not None:
            return
        called = self._call = nn.Module.__call__
        follow = self.call

        def call(module: nn.Module, *args: Any, **options: Any) -> Any:
            if torch.compiler.is_compiling():
                return called(module, *args, **options)
            return follow(called, module, args, options)

        nn.Module.__call__ = call  # type: ignore[method-assign]

    def unfollow_calls(self) -> None:
        if self._call is not None:
            nn.Module.__call__ = self._call  # type: ignore[method-assign]
            self._call = None

    def call(
        self, called: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """Return `called(module, *args, **options)`, called in the range of the module."""
        path = self._path_of(module)
        above = self.path
        if path == above:  # what torch.compile wraps, called by its wrapper
            return called(module, *args, **options)
        self._enter(path.removeprefix(f"{above}/") if above else path, path)
        try:
            return called(module, *args, **options)
        finally:
            self._leave()

    def _path_of(self, module: nn.Module) -> str:
        """Return the path of a module: class of the outermost called module, then the names of `named_modules`."""
        if id(module) not in self._names:
            # What its caller does not hold as a part, such as the model itself, is named by its class.
            above, name = self.path, name_class(read_own(module, "_orig_mod", module))
            self._name_parts(module, f"{above}/{name}" if above else name)
        return self._names[id(module)]

    def paths_of(self, module: nn.Module) -> dict[int, str]:
        """Return the paths of calls of the module and its parts, by id."""
        self._path_of(module)
        return self._names

    @property
    def known_paths(self) -> dict[int, str]:
        """Paths of the modules that this step has called, and of their parts, by id."""
        return self._names

    def _name_parts(self, module: nn.Module, path: str) -> None:
        paths, parts = {"": path}, dict(module.named_modules())
        for name, part in parts.items():
            outer, _, last = name.rpartition(".")
            if name and last == "_orig_mod":  # what torch.compile wraps has the name of its wrapper
                paths[name] = paths[outer]
            elif name:
                # A list of modules is never called, so its numbers stay with its name: layers.0
                paths[name] = f"{paths[outer]}{'.' if is_uncalled_list(parts[outer]) else '/'}{last}"
            if is_compiled(part) and not paths[name].endswith(COMPILED):
                paths[name] += COMPILED
            self._names.setdefault(id(part), paths[name])

    def _enter(self, name: str, path: str | None) -> None:
        stack = self._stack()
        if self._in_backward and not name.startswith(PREFIX):
            # A part of forward that is computed again, on a thread which has no range around it.
            name = f"{BACKWARD}{RECOMPUTED}/{path}"
        self.push(name)
        stack.append(path)
        self._mark(path)

    def _leave(self) -> None:
        stack = self._stack()
        stack.pop()
        self._mark(self.path)
        self.pop()

    def _stack(self) -> list[str | None]:
        if not hasattr(self._local, "stack"):
            self._local.stack, self._local.numbers, self._local.marks = [], [], []
        stack: list[str | None] = self._local.stack
        return stack

    @property
    def path(self) -> str | None:
        """The path of the innermost range on this thread: "" at the top of a phase, None outside."""
        stack = self._stack()
        return stack[-1] if stack else None

    def _mark(self, path: str | None) -> None:
        """Note that nodes made on this thread from now on belong to `path`. Each thread numbers its nodes
        separately."""
        self._local.numbers.append(_get_sequence_nr())
        self._local.marks.append(path)

    def forget(self) -> None:
        """Forget what this thread noted of the last step."""
        self._stack()
        self._local.numbers.clear()
        self._local.marks.clear()
        self.operations.clear()
        self._names.clear()  # a module that is gone may have left its id to another

    # ------------------------------------------------------------------------------------------------ backward

    @contextmanager
    def labelling(self, roots: Iterable[Any]) -> Iterator[AbstractContextManager[Any]]:
        """Have the backward pass from `roots` (tensors) open the range of each node's module, while the context is
        open. It gives the context of the pass, which has one range if it is compiled as a whole."""
        handles = []
        is_whole = is_compiling_backward()
        if is_whole:  # it would make hooks a part of the graph, and compile again in each step
            self._note_pass(list(roots))
        for node, label in () if is_whole else self._labelled(roots):
            handles.append(node.register_prehook(partial(self._open_node, label)))
            handles.append(node.register_hook(self._close_node))
        self._in_backward += 1
        try:
            with follow_units(self._call_of_unit):
                yield self._opened_if(is_whole, f"{BACKWARD}{COMPILED_AUTOGRAD}")
        finally:
            self._in_backward -= 1
            for handle in handles:
                handle.remove()

    def _note_pass(self, roots: list[Any]) -> None:
        """Note the paths of the calls of a backward pass that is compiled as a whole. Of passes whose calls have the
        same names and other paths, none is known."""
        labels = {node: label.removeprefix(BACKWARD) for node, label in self._labelled(roots)}
        calls = order_calls(roots)
        paths = [self.paths.get(id(node.variable), "") if is_leaf(node) else labels[node] for node in calls]
        names = tuple(node.name() for node in calls)
        self.passes[names] = paths if self.passes.get(names, paths) == paths else [""] * len(paths)

    def _labelled(self, roots: Iterable[Any]) -> Iterator[tuple[Any, str]]:
        """Yield the nodes of the graph, each with the name of its range."""
        self._stack()
        numbers, marks = self._local.numbers, self._local.marks
        waiting: list[Any] = [root.grad_fn for root in roots if isinstance(root, Tensor) and root.grad_fn is not None]
        seen = set(waiting)
        while waiting:
            node = waiting.pop()
            below = [next_node for next_node, _ in node.next_functions if next_node is not None]
            if is_leaf(node):
                yield node, f"{BACKWARD}{ACCUMULATION}"
                continue
            number = node._sequence_nr()
            self.operations[number] = node.name()
            position = bisect_right(numbers, number) - 1
            marked = marks[position] if position >= 0 else None
            path = LOSS if marked is None else marked
            for next_node in below:
                if is_leaf(next_node):
                    self.paths[id(next_node.variable)] = path
                if next_node not in seen:
                    seen.add(next_node)
                    waiting.append(next_node)
            yield node, f"{BACKWARD}{path}"

    def _open_node(self, label: str, gradients: Any) -> None:
        self.push(label)

    def _close_node(self, inputs: Any, outputs: Any) -> None:
        self.pop()

    def _call_of_unit(self, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Return `function(*args, **options)`, called in a range of FSDP below the module that has all parameters of
        the unit."""
        known = []
        for sharded, unsharded in list_parameters(args):
            if (path := self.paths.get(id(unsharded))) is not None:
                known.append(path)
                self.paths[id(sharded)] = path
        above = find_common_path(known)
        module, owners = find_flat_unit(args)
        if module is not None:
            above = self._names.get(id(module), "")
            self.paths |= {id(parameter): self._names.get(id(owner), above) for parameter, owner in owners}
        self.push(f"{BACKWARD}{above}/{FSDP}" if above else f"{BACKWARD}{FSDP}")
        try:
            return function(*args, **options)
        finally:
            self.pop()

    # ----------------------------------------------------------------------------------------------- optimizer

    def label_optimizer(
        self, groups: Iterable[Iterable[Tensor]], is_compiled: bool = False
    ) -> AbstractContextManager[Any]:
        """Return a context in which the work of an optimizer on one parameter has the range of the module that used it.
        `groups`: for each parameter, itself and then the tensors that belong to it alone. is_compiled: the optimizer
        calls what torch.compile made, which would not run in a dispatch mode: all has the range ALL_PARAMETERS."""
        return self.opened(f"{OPTIMIZER}{ALL_PARAMETERS}") if is_compiled else ParameterRanges(self, groups)

    def _opened_if(self, is_open: bool, name: str) -> AbstractContextManager[Any]:
        return self.opened(name) if is_open else nullcontext()

    @contextmanager
    def opened(self, name: str) -> Iterator[None]:
        self.push(name)
        try:
            yield
        finally:
            self.pop()

    def mark(self, name: str) -> None:
        """Leave an empty range."""
        self.push(name)
        self.pop()


class ParameterRanges(TorchDispatchMode):
    """Ranges for the operations of an optimizer. An operation on tensors of one parameter has the range of its module,
    an operation on tensors of several parameters has ALL_PARAMETERS, and an operation on intermediate results alone has
    the range of the operation before."""

    def __init__(self, ranges: ModuleRanges, groups: Iterable[Iterable[Tensor]]):
        super().__init__()  # type: ignore[no-untyped-call]
        self.ranges = ranges
        self.owner: dict[int, int] = {}
        self.path: dict[int, str] = {}
        for number, tensors in enumerate(groups):
            first = None
            for tensor in tensors:
                first = tensor if first is None else first
                self.owner[id(tensor)] = number
            self.path[number] = ranges.paths.get(id(first), ALL_PARAMETERS) if first is not None else ALL_PARAMETERS
        self.last = ALL_PARAMETERS

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [id(tensor) for tensor in list_tensors(args)]
        if not tensors:
            return func(*args, **(kwargs or {}))
        if owners := {self.owner[tensor] for tensor in tensors if tensor in self.owner}:
            self.last = self.path[owners.pop()] if len(owners) == 1 else ALL_PARAMETERS
        self.ranges.push(f"{OPTIMIZER}{self.last}")
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.ranges.pop()


def list_tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among arguments, and in lists of arguments."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from (entry for entry in value if isinstance(entry, Tensor))


def read_own(module: nn.Module, name: str, otherwise: Any = None) -> Any:
    """Read an attribute or a part of a module that it has itself. The `__getattr__` of its class is not asked, which
    may raise anything, or have everything."""
    attributes = vars(module)
    holders = (attributes, attributes.get("_modules", {}))
    return next((holder[name] for holder in holders if name in holder), otherwise)


def list_module_parameters(module: nn.Module) -> list[Tensor]:
    """List the parameters of a module, whatever its class returns as `parameters()`, but for those without a size."""
    return [parameter for parameter in nn.Module.parameters(module) if not is_lazy(parameter)]


def is_uncalled_list(module: nn.Module) -> bool:
    """Return whether a module only holds others. A list of parametrizations, as of `weight_norm`, is called."""
    return isinstance(module, nn.ModuleList | nn.ModuleDict) and type(module).forward is nn.Module.forward


def takes_hooks(module: nn.Module) -> bool:
    """Return whether a module takes hooks as it is. torch.compile would compile those of a model that it compiled in
    place, which calls no modules inside; TorchScript refuses them."""
    return not (isinstance(module, torch.jit.ScriptModule) or read_own(module, "_compiled_call_impl"))


def name_class(module: nn.Module) -> str:
    """Return the name of a module's class, as the script has it: TorchScript makes a class of its own."""
    scripted = module.original_name if isinstance(module, torch.jit.ScriptModule) else ""
    return str(scripted) or type(module).__name__


def list_sizes(tensor: Tensor) -> list[int]:
    """List the sizes of a tensor; 0 where those of its parts differ, as in a nested tensor. What `torch.func.vmap`
    calls a function of once for many counts as the first size."""
    num = count_mapped(tensor)
    if num > 1:
        return [num * size if place == 0 else size for place, size in enumerate(tensor.shape)]
    if tensor.is_nested:
        return [int(tensor.size(0)), *[0] * (tensor.dim() - 1)]
    return [size if isinstance(size, int) else 0 for size in tensor.shape]


def count_mapped(tensor: Tensor) -> int:
    """Count the tensors that `torch.func.vmap` computes as one, which is not part of PyTorch's interface."""
    num = 1
    with suppress(AttributeError):
        while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            inside = torch._C._functorch.get_unwrapped(tensor)
            if torch._C._functorch.is_batchedtensor(tensor):
                num *= inside.shape[torch._C._functorch.maybe_get_bdim(tensor)]
            tensor = inside
    return num


def order_calls(roots: Iterable[Any]) -> list[Any]:
    """Return the nodes of autograd below `roots` (tensors) in the order in which compiled autograd calls them: each
    after all that it takes gradients from, of several the one that was reached last."""
    edges = [root.grad_fn for root in roots if isinstance(root, Tensor) and root.grad_fn is not None]
    num_waiting = Counter(edges)
    seen, waiting = set(edges), list(dict.fromkeys(edges))
    while waiting:
        below = list_below(waiting.pop())
        num_waiting.update(below)
        waiting += [node for node in dict.fromkeys(below) if node not in seen]
        seen.update(below)
    ordered: list[Any] = []
    ready: list[Any] = []
    while True:
        for node in edges:
            num_waiting[node] -= 1
            if not num_waiting[node]:
                ready.append(node)
        if not ready:
            return ordered
        ordered.append(ready.pop())
        edges = list_below(ordered[-1])


def list_below(node: Any) -> list[Any]:
    return [below for below, _ in node.next_functions if below is not None]


def find_common_path(paths: Iterable[str]) -> str:
    """Return the path of the module that all of these are parts of: "" at the top."""
    shared = []
    for names in zip(*(path.split("/") for path in paths)):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return "/".join(shared)


def is_leaf(node: Any) -> bool:
    """Return whether a node of the graph adds to the gradient of a parameter, its `variable`."""
    return type(node).__name__ == "AccumulateGrad"


def is_compiling_backward() -> bool:
    """Return whether compiled autograd runs a backward pass now as one graph."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(module, "compiled_autograd_enabled", False))


def is_compiled(module: nn.Module) -> bool:
    """Return whether torch.compile runs a module as a whole: no module inside is called then."""
    return any(read_own(module, name) is not None for name in ("_orig_mod", "_compiled_call_impl"))
