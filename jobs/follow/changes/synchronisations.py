"""Fewer synchronisations, as a bound: where the script itself reads a number from the GPU (`item`, `float`), it gets
the one that it read there before, and `torch.cuda.synchronize` does nothing. What it logs is stale; no script is to
keep that."""

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..applied_change import NO_GPU, AppliedChange
from ..script_frames import find_own_frame

READERS = ("item", "__float__")


class StaleReads(AppliedChange):
    reason = "the script itself reads no number from the GPU"

    def __init__(self) -> None:
        self.values: dict[tuple[str, int], Any] = {}  # by file and line
        self.synchronize: Any = None

    def apply(self) -> None:
        if self.is_on:
            self.switch(True)

    def switch(self, is_on: bool) -> None:
        super().switch(is_on)
        for name in READERS:
            if is_on and name not in vars(Tensor):
                setattr(Tensor, name, self.make_reader(name))
            elif not is_on and name in vars(Tensor):
                delattr(Tensor, name)
        if is_on:
            self.values.clear()
            self.synchronize = torch.cuda.synchronize
            torch.cuda.synchronize = self.wait_not
        elif self.synchronize is not None:
            torch.cuda.synchronize = self.synchronize

    def wait_not(self, *args: Any, **options: Any) -> None:
        frame = sys._getframe(1)
        if find_own_frame(frame) is frame:
            self.reason = ""
        else:
            self.synchronize(*args, **options)

    def make_reader(self, name: str) -> Any:
        called = getattr(torch._C.TensorBase, name)

        def read(tensor: Tensor) -> Any:
            frame = sys._getframe(1)
            if not tensor.is_cuda or not tensor.is_floating_point() or find_own_frame(frame) is not frame:
                return called(tensor)
            self.reason = ""
            place = (frame.f_code.co_filename, frame.f_lineno)
            if place not in self.values:
                self.values[place] = called(tensor)
            return self.values[place]

        return read

    def explain_obstacle(self, models: Sequence[nn.Module]) -> str:
        return "" if torch.cuda.is_initialized() else NO_GPU


CHANGE = StaleReads
