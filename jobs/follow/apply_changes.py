"""Apply changes to a script from outside, by wrapping functions of PyTorch; the file stays unchanged. Each change, a
module of `changes`, reports at the end whether it was applied, and if not, why.

Loaded into other people's scripts, as `follow` is.
"""

from collections.abc import Callable, Collection, Iterable
from importlib import import_module
from typing import Any

import torch
from torch import nn

from .applied_change import AppliedChange
from .module_ranges import list_module_parameters
from .script_facts import describe_inputs
from .wrapping import wrap

PACKAGE = __package__ or ""


def load_change(name: str) -> type[AppliedChange]:
    """Return the class that applies a change."""
    loaded: type[AppliedChange] = import_module(f"{PACKAGE}.changes.{name}").CHANGE
    return loaded


class FirstCalls:
    """Observer of the script's calls of models until the first backward pass begins; later calls cost nothing extra.
    During a call `nn.Module.__call__` is PyTorch's original, so that torch.compile compiles with it, and does not
    compile again when the observer is gone. tell: receives the module and its arguments."""

    def __init__(self, tell: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]):
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
            if not is_loss and list_module_parameters(module):  # no transform of data
                self.tell(module, args, options)
            return self.called(module, *args, **options)
        finally:
            if nn.Module.__call__ is self.called:
                nn.Module.__call__ = patched  # type: ignore[method-assign]

    def end(self) -> None:
        """Leave `nn.Module.__call__` as it was, unless somebody else has changed it since: then a later call does."""
        self.is_over = True
        if nn.Module.__call__ is self.watching:
            nn.Module.__call__ = self.called  # type: ignore[method-assign]


class Changes:
    """The changes of a script, by name. Apply them before the script goes on, and before anything else is wrapped.
    are_on: whether the script has them from the start; if not, `switch` gives them to it between two steps."""

    def __init__(self, names: Iterable[str], are_on: bool = True):
        self.changes: dict[str, AppliedChange] = {name: load_change(name)() for name in names}
        self.first_calls: FirstCalls | None = None
        self.models: list[nn.Module] = []  # that the script called, each once
        self.see: Callable[..., None] | None = None  # receives these calls, too
        for change in self.changes.values():
            change.is_on = are_on

    def apply(self) -> None:
        for change in self.changes.values():
            change.apply()
        if self.see is not None or any(change.needs_calls for change in self.changes.values()):
            self.first_calls = FirstCalls(self.note_call)
            wrap(torch.autograd, "backward", self.before_backward)

    def note_call(self, model: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.before_call(model)
        if torch.is_grad_enabled():
            inputs = describe_inputs(args, options)
            for change in self.changes.values():
                change.note_inputs(inputs)
        if self.see is not None:
            self.see(model, args, options)

    def before_call(self, model: nn.Module) -> None:
        if not any(model is known for known in self.models):
            self.models.append(model)
        for change in self.changes.values():
            if change.is_on:
                change.before_call(model)

    def before_backward(self, called: Callable[..., Any], *args: Any, **options: Any) -> Any:
        self.settle()
        return called(*args, **options)

    def note_step(self, num_backwards: int) -> None:
        for change in self.changes.values():
            change.note_step(num_backwards)

    def settle(self) -> None:
        """End the observation of calls: models have been called by now."""
        if self.first_calls is not None:
            self.first_calls.end()

    def switch(self, names: Collection[str]) -> None:
        """Give the script these changes and take all others back, between two steps."""
        for name, change in self.changes.items():
            if change.is_on and name not in names:
                change.switch(False)
        for name, change in self.changes.items():
            if not change.is_on and name in names:
                change.switch(True)
                for model in self.models:
                    change.before_call(model)

    def explain_obstacles(self) -> dict[str, str]:
        """Return the changes that cannot be switched on, with the reasons."""
        obstacles = {name: change.explain_obstacle(self.models) for name, change in self.changes.items()}
        return {name: reason for name, reason in obstacles.items() if reason}

    def describe_optimizer(self) -> dict[str, Any] | None:
        """Describe the optimizer that can be given a fused form: its `kind`, and its `parameters`; None if there is
        not exactly one."""
        made = [each for change in self.changes.values() for each in getattr(change, "made", ())]
        unique = list({id(optimizer): optimizer for optimizer in made}.values())
        if len(unique) != 1:
            return None
        parameters = [parameter for group in unique[0].param_groups for parameter in group["params"]]
        described = [
            {"shape": list(each.shape), "stride": list(each.stride()), "dtype": str(each.dtype).removeprefix("torch.")}
            for each in parameters
        ]
        return {"kind": type(unique[0]).__name__, "parameters": described}

    def facts(self) -> dict[str, Any]:
        """Return `applied`, a list of names, and `not_applied`, the reasons by name."""
        outcomes = {name: change.outcome() for name, change in self.changes.items()}
        return {
            "applied": [name for name, reason in outcomes.items() if not reason],
            "not_applied": {name: reason for name, reason in outcomes.items() if reason},
        }
