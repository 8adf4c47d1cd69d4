"""BF16: autocast around forward pass and loss. It is on from the first call of a model, and off in the backward pass
and in steps of optimizers; its cache of cast weights is dropped as at the end of `with torch.autocast(...)`. If the
script itself opens autocast around its model, in another type or switched off, that context is on in BF16 instead."""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import optimizer as optimizers

from ..applied_change import HAS_IT, AppliedChange
from ..script_facts import find_device_type
from ..wrapping import replace_closure, wrap

OVERRIDDEN = "_is_of_profiler_job"
"""Mark of a context of the script that is on in BF16: what the script gave it, whether it is on and its type."""

NO_FP32 = "the model has no parameters in FP32"


def is_in_module() -> bool:
    """Return whether a module is being called: a part of a model may need FP32."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is nn.Module._call_impl.__code__:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


class Autocast(AppliedChange):
    """Autocast in BF16, on the thread that calls the model first, which must be the main thread."""

    needs_calls = True

    def __init__(self) -> None:
        self.device = ""  # once it is on
        self.has_gradients = True  # in the last call of a model
        self.in_backward = 0
        self.overrides = False  # contexts of the script, which decide where autocast is on
        self.steps: list[AbstractContextManager[None]] = []

    def apply(self) -> None:
        wrap(torch.autocast, "__enter__", self.entered_by_script)
        wrap(torch.autograd, "backward", self.backward)
        optimizers.register_optimizer_step_pre_hook(self.before_step)
        optimizers.register_optimizer_step_post_hook(self.after_step)

    def entered_by_script(self, called: Callable[..., Any], context: Any) -> Any:
        # In backward it is activation checkpointing that enters what was on in forward.
        if self.in_backward or torch.compiler.is_compiling():
            return called(context)
        if hasattr(context, OVERRIDDEN):
            if not self.is_on:
                context._enabled, context.fast_dtype = getattr(context, OVERRIDDEN)
                delattr(context, OVERRIDDEN)
            return called(context)
        if context._enabled and context.fast_dtype == torch.bfloat16:
            self.reason = HAS_IT
        elif not self.is_on:
            pass
        elif self.reason != HAS_IT and (context._enabled or not is_in_module()):
            setattr(context, OVERRIDDEN, (context._enabled, context.fast_dtype))
            context._enabled, context.fast_dtype = True, torch.bfloat16
            self.overrides, self.reason = True, ""
            if self.device:  # the calls before had no context of the script
                torch.set_autocast_enabled(self.device, False)
                self.device = ""
        return called(context)

    def before_call(self, model: nn.Module) -> None:
        if threading.current_thread() is not threading.main_thread() or self.reason == HAS_IT:
            return
        if torch.is_grad_enabled() != self.has_gradients:
            self.has_gradients = not self.has_gradients
            torch.clear_autocast_cache()  # in older versions it keeps casts without gradients
        if self.device or self.overrides or not self.is_on:
            return
        if all(parameter.dtype != torch.float32 for parameter in model.parameters()):
            self.reason = NO_FP32
            return
        self.device, self.reason = find_device_type(), ""
        torch.set_autocast_dtype(self.device, torch.bfloat16)
        torch.set_autocast_enabled(self.device, True)

    def switch(self, is_on: bool) -> None:
        super().switch(is_on)
        if is_on:
            self.has_gradients = True
        elif self.device:
            torch.set_autocast_enabled(self.device, False)
            torch.clear_autocast_cache()
        if not is_on:
            self.device, self.overrides = "", False

    def explain_obstacle(self, models: Sequence[nn.Module]) -> str:
        if self.reason == HAS_IT:
            return HAS_IT
        parameters = [parameter for model in models for parameter in model.parameters()]
        return "" if any(parameter.dtype == torch.float32 for parameter in parameters) else NO_FP32

    @contextmanager
    def switched(self, is_on: bool) -> Iterator[None]:
        """Autocast on or off within this, where it is on by this change."""
        if not self.device:
            yield
            return
        before = torch.is_autocast_enabled(self.device)
        torch.set_autocast_enabled(self.device, is_on)
        try:
            yield
        finally:
            torch.set_autocast_enabled(self.device, before)

    def backward(self, called: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self.device:
            torch.clear_autocast_cache()
            self.check_on()
        self.in_backward += 1
        try:
            with self.switched(False):
                return called(*args, **options)
        finally:
            self.in_backward -= 1

    def check_on(self) -> None:
        """A script's own `with autocast(enabled=False)` around the model leaves it off behind itself."""
        is_ours = not self.in_backward and threading.current_thread() is threading.main_thread()
        if is_ours and not torch.is_autocast_enabled(self.device):
            self.reason = "the script turns autocast off itself"

    def before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[Any, ...] | None:
        self.steps.append(self.switched(False))
        self.steps[-1].__enter__()
        return replace_closure(args, options, self.with_autocast)

    def with_autocast(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        """A closure computes the loss, inside an optimizer's step."""

        def compute() -> Any:
            with self.switched(True):
                return closure()

        return compute

    def after_step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.steps.pop().__exit__(None, None, None)
        if self.device:
            torch.clear_autocast_cache()  # its casts are of the weights before


CHANGE = Autocast
