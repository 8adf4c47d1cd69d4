"""No activation checkpointing: what `torch.utils.checkpoint.checkpoint` wraps is called as it is."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.utils import checkpoint as checkpoints

from ..applied_change import AppliedChange
from ..wrapping import wrap

OPTIONS = ("use_reentrant", "context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state")
"""Options of `checkpoint` that are not of the function."""


class KeptActivations(AppliedChange):
    reason = "the script checkpoints no activations"

    def apply(self) -> None:
        wrap(checkpoints, "checkpoint", self.checkpoint)

    def checkpoint(self, called: Callable[..., Any], function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.reason = ""
        if not self.is_on:
            return called(function, *args, **options)
        return function(*args, **{name: value for name, value in options.items() if name not in OPTIONS})

    def explain_obstacle(self, models: Sequence[nn.Module]) -> str:
        return self.reason


CHANGE = KeptActivations
