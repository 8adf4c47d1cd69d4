"""torch.compile: `model.compile()` before the first call."""

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from ..applied_change import HAS_IT, AppliedChange
from ..module_ranges import is_compiled

BACKEND = "inductor"
"""Backend of torch.compile."""


class Compiled(AppliedChange):
    needs_calls = True
    mode = "default"

    def __init__(self) -> None:
        self.models: WeakSet[nn.Module] = WeakSet()

    @staticmethod
    def explain_presence(facts: Mapping[str, Any]) -> str:
        return HAS_IT if facts.get("compiled") else ""

    def before_call(self, model: nn.Module) -> None:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        if compiled := [part for part in model.modules() if is_compiled(part)]:
            if not self.models.intersection(compiled):
                self.reason = self.reason and HAS_IT
            return
        self.models.add(model)
        self.reason = ""
        compile_in_place(model, backend=BACKEND, mode=self.mode)


def compile_in_place(model: nn.Module, **options: Any) -> None:
    """Compile a model as `model.compile(...)` does. PyTorch compiles no function of PyTorch, such as `forward` of
    `nn.Sequential`, unless another function calls it."""
    if not type(model).forward.__module__.startswith("torch."):
        model.compile(**options)
        return
    called: Callable[..., Any] = model._call_impl

    def call(*args: Any, **named: Any) -> Any:
        return called(*args, **named)

    model._compiled_call_impl = torch.compile(call, **options)


CHANGE = Compiled
