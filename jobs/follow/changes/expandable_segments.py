"""Expandable segments of the caching allocator: `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`. Only from the
start."""

import os
from collections.abc import Sequence

import torch
from torch import nn

from ..applied_change import HAS_IT, NO_GPU, AppliedChange

SETTING = "expandable_segments:True"
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


class ExpandableSegments(AppliedChange):
    reason = ""

    def apply(self) -> None:
        if any(SETTING in os.environ.get(name, "") for name in VARIABLES):
            self.reason = HAS_IT
        elif self.is_on and torch.cuda.is_available():
            torch.cuda.memory._set_allocator_settings(SETTING)
        elif self.is_on:
            self.reason = NO_GPU

    def explain_obstacle(self, models: Sequence[nn.Module]) -> str:
        return self.reason if torch.cuda.is_initialized() else NO_GPU


CHANGE = ExpandableSegments
