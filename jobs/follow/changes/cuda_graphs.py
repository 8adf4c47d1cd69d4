"""CUDA graphs: `model.compile(mode="reduce-overhead")` before the first call. A model that the script compiled itself,
without graphs, is compiled once more, with them. Gradients of several backward passes are added up outside the graphs.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..applied_change import HAS_IT, NO_GPU
from ..module_ranges import is_compiled
from ..wrapping import wrap
from .compile import BACKEND, Compiled, compile_in_place

WITH_GRAPHS = ("reduce-overhead", "max-autotune")
STEPS_UNTIL_KNOWN = 2
"""Steps after which it is known whether gradients are there when a backward pass begins."""


class CopiedGradients:
    """Copies of the first gradients that the script adds others to. PyTorch keeps a first gradient where the graph of
    the backward pass has written it. The next call of the model starts the graphs anew and frees that memory: adding to
    it raises an error, or is wrong. `torch.compiler.cudagraph_mark_step_begin()` would free it as well. A script that
    drops gradients after each backward pass needs no copies. `analysis.changes.cuda_graphs` writes the same hooks."""

    def __init__(self) -> None:
        self.hooks: dict[int, RemovableHandle] = {}  # by id of the weight
        self.num_steps = 0  # with hooks
        self.are_added = False

    def begin(self, model: nn.Module) -> None:
        """Copy gradients of a model from now on, unless none is needed."""
        if self.num_steps >= STEPS_UNTIL_KNOWN and not self.are_added:
            return
        for weight in model.parameters():
            if weight.requires_grad and id(weight) not in self.hooks:
                self.hooks[id(weight)] = weight.register_hook(partial(self.copy, weight))

    def copy(self, weight: Tensor, gradient: Tensor) -> Tensor | None:
        if weight.grad is None:
            return gradient.clone()
        self.are_added = True
        return None

    def note_step(self) -> None:
        self.num_steps += bool(self.hooks)
        if self.num_steps == STEPS_UNTIL_KNOWN and not self.are_added:
            self.end()

    def end(self) -> None:
        for hook in self.hooks.values():
            hook.remove()
        self.hooks.clear()


class CudaGraphs(Compiled):
    mode = "reduce-overhead"

    def __init__(self) -> None:
        super().__init__()
        self.has_graphs = False  # by the script
        self.swapped: list[tuple[nn.Module, str, Any, Any]] = []  # the script's compiled calls, and ours
        self.gradients = CopiedGradients()

    def apply(self) -> None:
        wrap(torch, "compile", self.note_compile)

    def note_compile(self, called: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if options.get("mode") in WITH_GRAPHS and not self.is_on:
            self.has_graphs = True
        return called(*args, **options)

    def before_call(self, model: nn.Module) -> None:
        theirs = [part for part in model.modules() if is_compiled(part) and part not in self.models]
        if not theirs:
            super().before_call(model)
            self.gradients.begin(model)
            return
        if self.has_graphs:
            self.reason = self.reason and HAS_IT
            return
        known = [swap[0] for swap in self.swapped]
        for part in theirs:
            if not any(part is swapped for swapped in known):
                self.swapped.append((part, *self.compile_again(part)))
        self.swap(True)
        self.gradients.begin(model)
        self.reason = ""

    def compile_again(self, part: nn.Module) -> tuple[str, Any, Any]:
        """Compile what the script compiled, with graphs. Return the name of the attribute that holds what runs, the
        script's, and ours."""
        inner = getattr(part, "_orig_mod", None)
        if inner is not None:
            compiled: Any = torch.compile(inner, backend=BACKEND, mode=self.mode)
            return "forward", part.forward, compiled.forward
        before = part._compiled_call_impl
        compile_in_place(part, backend=BACKEND, mode=self.mode)
        ours, part._compiled_call_impl = part._compiled_call_impl, before
        return "_compiled_call_impl", before, ours

    def swap(self, is_on: bool) -> None:
        for part, name, theirs, ours in self.swapped:
            setattr(part, name, ours if is_on else theirs)

    def switch(self, is_on: bool) -> None:
        super().switch(is_on)
        if not is_on:
            self.swap(False)
            self.gradients.end()

    def note_step(self, num_backwards: int) -> None:
        self.gradients.note_step()

    def explain_obstacle(self, models: Sequence[nn.Module]) -> str:
        if not torch.cuda.is_initialized():
            return NO_GPU
        return HAS_IT if self.has_graphs else ""


CHANGE = CudaGraphs
