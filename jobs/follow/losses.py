"""The losses of a script: the tensors from which its backward passes start. Nothing waits until `values` is called, and
unless losses are copied no kernel is launched. Loaded into other people's scripts, as `follow` is."""

import math
from typing import Any

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

    def note(self, roots: Any) -> None:
        """Note that a backward pass starts from `roots`, as `torch.autograd.backward` takes them."""
        if isinstance(roots, tuple | list) and len(roots) == 1:
            roots = roots[0]
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
