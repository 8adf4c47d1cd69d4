"""Fused optimizers: `fused=True` for torch's Adam, AdamW and SGD."""

from typing import Any

import torch

from ..applied_change import HAS_IT
from ..optimizer_forms import OptimizerForm


class FusedOptimizers(OptimizerForm):
    reason = "no optimizer of torch that has a fused form was made"
    form = "fused"
    kinds = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)

    def explain_refusal(self, options: dict[str, Any]) -> str:
        if options.get("fused") is not None:
            return HAS_IT if options["fused"] else "the script asks for a form that is not fused"
        return "a differentiable optimizer has no fused form" if options.get("differentiable") else ""


CHANGE = FusedOptimizers
