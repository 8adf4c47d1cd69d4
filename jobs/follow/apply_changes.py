"""Changes to a script that are applied from outside, by wrapping functions of PyTorch; the file stays unchanged. Each
change reports at the end whether it was applied, and if not, why.

- `tf32`: `torch.set_float32_matmul_precision("high")`, before the script's first line after `import torch`
- `bf16`: autocast around forward pass and loss. It is on from the first call of a model, and off in the backward pass
  and in steps of optimizers; its cache of cast weights is dropped as at the end of `with torch.autocast(...)`
- `fused_adamw`: `fused=True` for torch's Adam, AdamW and SGD
- `compile`, `cuda_graphs`: `model.compile()`, with mode="reduce-overhead" of the latter, before the first call

Loaded into other people's scripts, as `follow` is.
"""

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.optim import optimizer as optimizers

from .module_ranges import is_compiled
from .wrapping import replace_closure, wrap

HAS_IT = "the script has it already"
BACKEND = "inductor"
"""Backend of torch.compile."""


class Change:
    """A change to a script. reason: why it is not applied; "" once it is."""

    needs_calls = False
    """Whether `before_call` is needed."""
    reason = "no model was called"

    def apply(self) -> None:
        """Have PyTorch do it, as soon as it is imported."""

    def before_call(self, model: nn.Module) -> None:
        """Act before the script calls a model, for the first time or again."""

    def outcome(self) -> str:
        """Return `reason` as it is when the script ends."""
        return self.reason


class TF32(Change):
    reason = ""

    def apply(self) -> None:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        wrap(torch, "set_float32_matmul_precision", self.set_by_script)

    def set_by_script(self, called: Callable[..., Any], precision: str) -> None:
        if precision != "highest":
            self.reason = HAS_IT
        called(precision)

    def outcome(self) -> str:
        return self.reason or ("the script undid it" if read_matmul_precision() == "highest" else "")


def read_matmul_precision() -> str:
    """Return `torch.get_float32_matmul_precision()`, which raises if TF32 is on through
    `torch.backends.fp32_precision`, as the Trainer of Transformers sets it; then "high"."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "high" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "highest"


class Autocast(Change):
    """Autocast in BF16, on the thread that calls the model first, which must be the main thread."""

    needs_calls = True

    def __init__(self) -> None:
        self.device = ""  # once it is on
        self.has_gradients = True  # in the last call of a model
        self.in_backward = 0
        self.steps: list[AbstractContextManager[None]] = []

    def apply(self) -> None:
        wrap(torch.autocast, "__enter__", self.entered_by_script)
        wrap(torch.autograd, "backward", self.backward)
        optimizers.register_optimizer_step_pre_hook(self.before_step)
        optimizers.register_optimizer_step_post_hook(self.after_step)

    def entered_by_script(self, called: Callable[..., Any], context: Any) -> Any:
        # In backward it is activation checkpointing that enters what was on in forward.
        if context._enabled and not self.in_backward and not torch.compiler.is_compiling():
            self.reason = HAS_IT
        return called(context)

    def before_call(self, model: nn.Module) -> None:
        if threading.current_thread() is not threading.main_thread() or self.reason == HAS_IT:
            return
        if torch.is_grad_enabled() != self.has_gradients:
            self.has_gradients = not self.has_gradients
            torch.clear_autocast_cache()  # in older versions it keeps casts without gradients
        if self.device:
            return
        if all(parameter.dtype != torch.float32 for parameter in model.parameters()):
            self.reason = "the model has no parameters in FP32"
            return
        self.device, self.reason = "cuda" if torch.cuda.is_initialized() else "cpu", ""
        torch.set_autocast_dtype(self.device, torch.bfloat16)
        torch.set_autocast_enabled(self.device, True)

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


class FusedOptimizers(Change):
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


class Compiled(Change):
    needs_calls = True

    def __init__(self, mode: str = "default") -> None:
        self.mode = mode
        self.models: WeakSet[nn.Module] = WeakSet()

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


class FirstCalls:
    """Observer of the script's calls of models until the first backward pass begins; later calls cost nothing extra.
    During a call `nn.Module.__call__` is PyTorch's original, so that torch.compile compiles with it, and does not
    compile again when the observer is gone."""

    def __init__(self, tell: Callable[[nn.Module], None]):
        self.tell = tell
        self.called = nn.Module.__call__
        self.is_over = False

        def call(module: nn.Module, *args: Any, **options: Any) -> Any:
            if torch.compiler.is_compiling() or self.is_over:
                return self.called(module, *args, **options)
            return self.call(module, args, options)

        self.watching = call
        nn.Module.__call__ = call  # type: ignore[method-assign]

    def call(self, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        patched = nn.Module.__call__
        nn.Module.__call__ = self.called  # type: ignore[method-assign]
        try:
            is_loss = isinstance(module, nn.modules.loss._Loss)
            if not is_loss and next(module.parameters(), None) is not None:  # no transform of data
                self.tell(module)
            return self.called(module, *args, **options)
        finally:
            if nn.Module.__call__ is self.called:
                nn.Module.__call__ = patched  # type: ignore[method-assign]

    def end(self) -> None:
        """Leave `nn.Module.__call__` as it was, unless somebody else has changed it since: then a later call does."""
        self.is_over = True
        if nn.Module.__call__ is self.watching:
            nn.Module.__call__ = self.called  # type: ignore[method-assign]


KINDS: dict[str, Callable[[], Change]] = {
    "tf32": TF32,
    "bf16": Autocast,
    "fused_adamw": FusedOptimizers,
    "compile": Compiled,
    "cuda_graphs": partial(Compiled, "reduce-overhead"),
}


class Changes:
    """The changes of a script, by name. Apply them before the script goes on, and before anything else is wrapped."""

    def __init__(self, names: Iterable[str]):
        self.changes = {name: KINDS[name]() for name in names}
        self.first_calls: FirstCalls | None = None

    def apply(self) -> None:
        for change in self.changes.values():
            change.apply()
        if any(change.needs_calls for change in self.changes.values()):
            self.first_calls = FirstCalls(self.before_call)
            wrap(torch.autograd, "backward", self.before_backward)

    def before_call(self, model: nn.Module) -> None:
        for change in self.changes.values():
            change.before_call(model)

    def before_backward(self, called: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.settle()
        return called(*args, **options)

    def settle(self) -> None:
        """End the observation of calls: models have been called by now."""
        if self.first_calls is not None:
            self.first_calls.end()

    def facts(self) -> dict[str, Any]:
        """Return `applied`, a list of names, and `not_applied`, the reasons by name."""
        outcomes = {name: change.outcome() for name, change in self.changes.items()}
        return {
            "applied": [name for name, reason in outcomes.items() if not reason],
            "not_applied": {name: reason for name, reason in outcomes.items() if reason},
        }
