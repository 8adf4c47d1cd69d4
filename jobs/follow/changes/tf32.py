"""TF32: `torch.set_float32_matmul_precision("high")`, before the script's first line after `import torch`."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ..applied_change import HAS_IT, NO_GPU, AppliedChange
from ..matmul_precision import read_matmul_precision
from ..wrapping import wrap


class TF32(AppliedChange):
    reason = ""

    def __init__(self) -> None:
        self.before = ("highest", False)  # of the script: for matmuls, and for convolutions

    def apply(self) -> None:
        self.set_precision: Callable[[str], None] = torch.set_float32_matmul_precision
        wrap(torch, "set_float32_matmul_precision", self.set_by_script)
        if self.is_on:
            self.switch(True)

    def switch(self, is_on: bool) -> None:
        super().switch(is_on)
        if is_on:
            self.before = (read_matmul_precision(), torch.backends.cudnn.allow_tf32)
        precision, for_convolutions = ("high", True) if is_on else self.before
        self.set_precision(precision)
        torch.backends.cudnn.allow_tf32 = for_convolutions

    def set_by_script(self, called: Callable[..., Any], precision: str) -> None:
        if precision != "highest" and self.is_on:
            self.reason = HAS_IT
        called(precision)

    def explain_obstacle(self, models: Sequence[nn.Module]) -> str:
        if not torch.cuda.is_initialized():
            return NO_GPU
        return HAS_IT if read_matmul_precision() != "highest" else ""

    def outcome(self) -> str:
        return self.reason or ("the script undid it" if read_matmul_precision() == "highest" else "")


CHANGE = TF32
