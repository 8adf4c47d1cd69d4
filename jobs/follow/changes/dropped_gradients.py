"""Gradients that are dropped: `zero_grad(set_to_none=True)` where the script asks for zeros."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ..applied_change import HAS_IT, AppliedChange
from ..wrapping import wrap


class DroppedGradients(AppliedChange):
    reason = "the script never calls zero_grad"

    def apply(self) -> None:
        wrap(torch.optim.Optimizer, "zero_grad", self.zero)
        wrap(nn.Module, "zero_grad", self.zero)

    def zero(self, called: Callable[..., Any], holder: Any, set_to_none: bool = True) -> Any:
        if set_to_none:
            self.reason = self.reason and HAS_IT
        else:
            self.reason = ""
        return called(holder, set_to_none or self.is_on)

    def explain_obstacle(self, models: Sequence[nn.Module]) -> str:
        return self.reason


CHANGE = DroppedGradients
