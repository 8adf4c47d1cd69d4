"""Fused optimizers: `fused=True` for torch's Adam, AdamW and SGD."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ..applied_change import HAS_IT, AppliedChange
from ..wrapping import wrap


class FusedOptimizers(AppliedChange):
    reason = "no optimizer of torch that has a fused form was made"

    def apply(self) -> None:
        for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
            if "fused" in inspect.signature(kind).parameters:
                wrap(kind, "__init__", partial(self.make, kind))

    def make(
        self, kind: type, called: Callable[..., Any], made: torch.optim.Optimizer, *args: Any, **options: Any
    ) -> None:
        if type(made) is kind:  # AdamW is an Adam, and calls it
            if options.get("fused") is not None:
                other = HAS_IT if options["fused"] else "the script asks for a form that is not fused"
                self.reason = self.reason and other
            elif options.get("differentiable"):
                self.reason = self.reason and "a differentiable optimizer has no fused form"
            elif options.get("foreach") is not None:
                self.reason = self.reason and f"the script asks for foreach={options['foreach']}"
            else:
                options |= {"fused": True}
                self.reason = ""
        called(made, *args, **options)


CHANGE = FusedOptimizers
