"""Pinned memory: what the script copies to the GPU goes through pinned memory, and the CPU does not wait for it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..applied_change import NO_GPU, AppliedChange

HOLDERS = ("to", "cuda")
"""Methods of tensors that copy to the GPU."""


class PinnedCopies(AppliedChange):
    reason = "the script copied nothing to the GPU"

    def apply(self) -> None:
        if self.is_on:
            self.switch(True)

    def switch(self, is_on: bool) -> None:
        super().switch(is_on)
        for name in HOLDERS:
            if is_on and name not in vars(Tensor):
                setattr(Tensor, name, make_copy(self, name))
            elif not is_on and name in vars(Tensor):
                delattr(Tensor, name)

    def explain_obstacle(self, models: Sequence[nn.Module]) -> str:
        return "" if torch.cuda.is_initialized() else NO_GPU


def make_copy(change: PinnedCopies, name: str) -> Any:
    """Return a method of tensors that copies as the one of this name does, through pinned memory."""
    called = getattr(torch._C.TensorBase, name)

    def copy(tensor: Tensor, *args: Any, **options: Any) -> Any:
        is_to_gpu = name == "cuda" or is_gpu(args[0] if args else options.get("device"))
        if torch.compiler.is_compiling() or not is_to_gpu or tensor.is_cuda or tensor.layout is not torch.strided:
            return called(tensor, *args, **options)
        change.reason = ""
        if name == "cuda" or not any(isinstance(value, bool) for value in args):
            options["non_blocking"] = True
        return called(tensor.pin_memory(), *args, **options)

    return copy


def is_gpu(device: Any) -> bool:
    """Return whether the first argument of `to` names a GPU."""
    if isinstance(device, int) and not isinstance(device, bool):
        return True
    return isinstance(device, str | torch.device) and str(device).startswith("cuda")


CHANGE = PinnedCopies
