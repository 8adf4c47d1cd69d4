"""The losses of a script: the tensors from which its backward passes start. Nothing waits until `values` is called, and
unless losses are copied no kernel is launched. Loaded into other people's scripts, as `follow` is."""

import math
from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
from torch import Tensor

MOST = 4096
"""Losses that are kept: each holds one number of GPU memory until the script ends."""


class Losses:
    """The losses of backward passes that start from one number, in order. copies: whether to copy each, so that a CUDA
    graph that runs again does not overwrite it."""

    def __init__(self, copies: bool = False) -> None:
        self.copies = copies
        self.kept: list[Tensor] = []
        self.known: list[float | str | None] = []
        self.scaled: tuple[Callable[[], Any], Any] = (lambda: None), None

    def scale(self, called: Callable[..., Any], scaler: Any, outputs: Any) -> Any:
        """Scale a loss, as a gradient scaler does, and keep what it was: a scale changes from step to step."""
        returned = called(scaler, outputs)
        if isinstance(outputs, Tensor) and not torch.compiler.is_compiling():
            self.scaled = ref(returned), outputs.detach()
        return returned

    def note(self, roots: Any) -> None:
        """Note that a backward pass starts from `roots`, as `torch.autograd.backward` takes them. A pass inside another
        one, as of reentrant checkpointing, starts from no loss."""
        if torch._C._current_graph_task_id() >= 0:
            return
        if isinstance(roots, tuple | list) and len(roots) == 1:
            roots = roots[0]
        (find_scaled, loss), self.scaled = self.scaled, ((lambda: None), None)
        roots = loss if loss is not None and find_scaled() is roots else roots
        if isinstance(roots, Tensor) and roots.numel() == 1 and len(self.kept) < MOST:
            self.kept.append(roots.detach().clone() if self.copies else roots.detach())

    def values(self) -> list[float | str | None]:
        """Wait for the values and return them: a value that is not finite as a string that `float` reads, None for a
        tensor that the script has overwritten, as a CUDA graph does with its outputs."""
        kept, self.kept = self.kept, []
        last: dict[int, int] = {}  # number of the last loss at an address
        for number, loss in enumerate(kept):
            last[find_address(loss)] = number
        self.known += [
            read_value(loss) if last[find_address(loss)] == number else None for number, loss in enumerate(kept)
        ]
        return self.known


def find_address(loss: Tensor) -> int:
    """Return the address of a loss; 0 if it is not known any more."""
    try:
        return loss.data_ptr()
    except RuntimeError:
        return 0


def read_value(loss: Tensor) -> float | str | None:
    try:
        value = float(loss.item())
    except (RuntimeError, TypeError):  # its memory has been given to others, or the GPU has failed
        return None
    return value if math.isfinite(value) else str(value)
