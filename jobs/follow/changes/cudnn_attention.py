"""Fused attention by cuDNN: the first choice of `scaled_dot_product_attention` while the script runs."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import attention

from ..applied_change import HAS_IT, NO_GPU, AppliedChange

BACKENDS = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
OLD = "this version of PyTorch has no order of attention backends"


class CudnnAttention(AppliedChange):
    reason = ""

    def __init__(self) -> None:
        self.before: list[int] = []

    def apply(self) -> None:
        if self.is_on:
            self.switch(True)

    def switch(self, is_on: bool) -> None:
        super().switch(is_on)
        if not can_order():
            self.reason = OLD
            return
        if is_on:
            self.before = list(torch._C._get_sdp_priority_order())
            wanted = [find_number(name) for name in BACKENDS]
            torch._C._set_sdp_priority_order([*wanted, *(number for number in self.before if number not in wanted)])
        elif self.before:
            torch._C._set_sdp_priority_order(self.before)

    def explain_obstacle(self, models: Sequence[nn.Module]) -> str:
        if not torch.cuda.is_initialized():
            return NO_GPU
        if not can_order():
            return OLD
        first = list(torch._C._get_sdp_priority_order())[:1]
        return HAS_IT if first == [find_number(BACKENDS[0])] else ""


def find_number(name: str) -> int:
    """Return the number of a backend in PyTorch's order."""
    backend: Any = getattr(attention.SDPBackend, name)
    return int(backend)


def can_order() -> bool:
    return hasattr(torch._C, "_get_sdp_priority_order") and hasattr(attention.SDPBackend, BACKENDS[0])


CHANGE = CudnnAttention
