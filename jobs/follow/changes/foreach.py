"""Optimizers in lists of tensors: `foreach=True` where a script asks torch's optimizers for a loop over tensors."""

from typing import Any

import torch

from ..applied_change import HAS_IT
from ..optimizer_forms import OptimizerForm


class ForeachOptimizers(OptimizerForm):
    reason = "no optimizer of torch that loops over tensors was made"
    form = "foreach"
    kinds = tuple(
        kind
        for kind in vars(torch.optim).values()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    )

    def explain_refusal(self, options: dict[str, Any]) -> str:
        if options.get("fused") or options.get("foreach", True) is not False:
            return HAS_IT
        return "a differentiable optimizer has no form in lists" if options.get("differentiable") else ""


CHANGE = ForeachOptimizers
