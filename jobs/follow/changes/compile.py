"""torch.compile: `model.compile()` before the first call."""

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn

from ..applied_change import HAS_IT, AppliedChange
from ..module_ranges import is_compiled

BACKEND = "inductor"
"""Backend of torch.compile."""
MOST_VARIANTS = 64
"""How often PyTorch compiles a function again for other settings, as variants that take turns have."""


class Compiled(AppliedChange):
    needs_calls = True
    mode = "default"

    def __init__(self) -> None:
        self.models: WeakSet[nn.Module] = WeakSet()
        self.calls: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()  # compiled, while it is switched off

    def before_call(self, model: nn.Module) -> None:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        if compiled := [part for part in model.modules() if is_compiled(part)]:
            if not self.models.intersection(compiled):
                self.reason = self.reason and HAS_IT
            return
        self.compile(model)
        self.reason = ""

    def compile(self, model: nn.Module) -> None:
        """Have a model run compiled, from its next call on."""
        self.models.add(model)
        if model in self.calls:
            model._compiled_call_impl = self.calls.pop(model)
        else:
            compile_in_place(model, backend=BACKEND, mode=self.mode)

    def switch(self, is_on: bool) -> None:
        super().switch(is_on)
        if is_on:
            allow_variants()
            return
        for model in list(self.models):
            self.calls[model] = model._compiled_call_impl
            model._compiled_call_impl = None
            self.models.discard(model)

    def explain_obstacle(self, models: Sequence[nn.Module]) -> str:
        if not models:
            return self.reason
        return HAS_IT if any(is_compiled(part) for model in models for part in model.modules()) else ""


def allow_variants() -> None:
    """Have PyTorch keep what it compiled for each variant: by default it gives up after some."""
    import torch._dynamo.config as config

    for name in ("recompile_limit", "cache_size_limit"):  # the second is the name in older versions
        if hasattr(config, name):
            setattr(config, name, max(getattr(config, name), MOST_VARIANTS))


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
