"""A search for the fastest convolutions: `torch.backends.cudnn.benchmark = True`."""

from collections.abc import Sequence

import torch
from torch import nn

from ..applied_change import HAS_IT, NO_GPU, AppliedChange


class ConvolutionSearch(AppliedChange):
    needs_calls = True
    reason = "no model with convolutions was called"

    def apply(self) -> None:
        if self.is_on:
            torch.backends.cudnn.benchmark = True

    def before_call(self, model: nn.Module) -> None:
        if has_convolutions(model):
            self.reason = ""

    def switch(self, is_on: bool) -> None:
        super().switch(is_on)
        torch.backends.cudnn.benchmark = is_on

    def explain_obstacle(self, models: Sequence[nn.Module]) -> str:
        if not torch.cuda.is_initialized():
            return NO_GPU
        if torch.backends.cudnn.benchmark:
            return HAS_IT
        return "" if any(map(has_convolutions, models)) else self.reason

    def outcome(self) -> str:
        return self.reason or ("" if torch.backends.cudnn.benchmark else "the script undid it")


def has_convolutions(model: nn.Module) -> bool:
    return any(isinstance(part, nn.modules.conv._ConvNd) for part in model.modules())


CHANGE = ConvolutionSearch
