"""Padded dimensions: linear layers whose outputs are not a multiple of 8, such as those for a vocabulary of 50257, are
computed for a multiple of 64, and the rest is cut off: what they return stays the same."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from ..applied_change import HAS_IT, AppliedChange

FEWEST, ALIGNED, MULTIPLE = 1024, 8, 64


class PaddedOutputs(AppliedChange):
    needs_calls = True

    def __init__(self) -> None:
        self.padded: list[nn.Linear] = []

    def before_call(self, model: nn.Module) -> None:
        for part in find_unaligned(model):
            if "forward" not in vars(part):
                part.forward = partial(compute_padded, part)  # type: ignore[method-assign]
                self.padded.append(part)
            self.reason = ""
        self.reason = self.reason and HAS_IT

    def switch(self, is_on: bool) -> None:
        super().switch(is_on)
        if not is_on:
            while self.padded:
                del self.padded.pop().forward

    def explain_obstacle(self, models: Sequence[nn.Module]) -> str:
        return "" if any(map(find_unaligned, models)) else HAS_IT


def find_unaligned(model: nn.Module) -> list[nn.Linear]:
    """Find the linear layers of a model whose outputs are to be padded."""
    return [
        part
        for part in model.modules()
        if type(part) is nn.Linear and part.out_features >= FEWEST and part.out_features % ALIGNED
    ]


def compute_padded(layer: nn.Linear, inputs: Tensor) -> Tensor:
    """Compute a linear layer with rows of zeros below its weight."""
    missing = -layer.out_features % MULTIPLE
    weight = functional.pad(layer.weight, (0, 0, 0, missing))
    bias = None if layer.bias is None else functional.pad(layer.bias, (0, missing))
    return functional.linear(inputs, weight, bias)[..., : layer.out_features]


CHANGE = PaddedOutputs
