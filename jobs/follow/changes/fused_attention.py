"""Fused attention: `model.set_attn_implementation("sdpa")` for a model of Transformers that runs eager attention. One
that is written in the script needs other code."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from ..applied_change import HAS_IT, AppliedChange

EAGER, FUSED = "eager", "sdpa"
NAME = "_attn_implementation"


class FusedAttention(AppliedChange):
    needs_calls = True
    reason = "no model of Transformers with eager attention was called: other attention needs other code"

    def __init__(self) -> None:
        self.configs: list[Any] = []  # that had eager attention

    def before_call(self, model: nn.Module) -> None:
        for config in find_configs(model):
            implementation = getattr(config, NAME, "")
            if implementation == EAGER:
                self.configs.append(config)
                setattr(config, NAME, FUSED)
                self.reason = ""
            elif implementation and not self.configs:
                self.reason = HAS_IT

    def switch(self, is_on: bool) -> None:
        super().switch(is_on)
        if not is_on:
            while self.configs:
                setattr(self.configs.pop(), NAME, EAGER)

    def explain_obstacle(self, models: Sequence[nn.Module]) -> str:
        named = {getattr(config, NAME, "") for model in models for config in find_configs(model)}
        if EAGER in named:
            return ""
        return HAS_IT if any(named) else self.reason


def find_configs(model: nn.Module) -> list[Any]:
    """Find the configurations of the parts of a model that can run fused attention, each once."""
    configs: list[Any] = []
    for part in model.modules():
        config = getattr(part, "config", None)
        if getattr(part, "_supports_sdpa", False) and all(config is not known for known in configs):
            configs.append(config)
    return configs


CHANGE = FusedAttention
