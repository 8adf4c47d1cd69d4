"""Forms of torch's optimizers: a loop over tensors, lists of tensors (foreach), or fused kernels. All compute the same
update. Loaded into other people's scripts, as `follow` is."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .applied_change import AppliedChange
from .wrapping import wrap

FORMS = ("fused", "foreach")
SCALING = "_step_supports_amp_scaling"
"""Attribute by which a gradient scaler knows a fused optimizer."""


class OptimizerForm(AppliedChange):
    """A form that is given to optimizers when they are made, or later. form: option of torch that asks for it."""

    form = ""
    kinds: tuple[type, ...] = ()

    def __init__(self) -> None:
        self.made: WeakKeyDictionary[torch.optim.Optimizer, list[dict[str, Any]]] = WeakKeyDictionary()
        """Those that can be given the form, with what each of their groups had before."""

    def apply(self) -> None:
        for kind in self.kinds:
            if self.form in inspect.signature(kind).parameters:
                wrap(kind, "__init__", partial(self.make, kind))

    def explain_refusal(self, options: dict[str, Any]) -> str:
        """Return why an optimizer that the script makes with these options is not given the form; "" if it is."""
        raise NotImplementedError

    def make(
        self, kind: type, called: Callable[..., Any], made: torch.optim.Optimizer, *args: Any, **options: Any
    ) -> None:
        if type(made) is not kind:  # AdamW is an Adam, and calls it
            called(made, *args, **options)
            return
        refusal = self.explain_refusal(options)
        if refusal:
            self.reason = self.reason and refusal
        elif self.is_on:
            options |= {name: None for name in FORMS if name in options} | {self.form: True}
            self.reason = ""
        called(made, *args, **options)
        if not refusal:
            self.made[made] = []
            self.reason = ""

    def switch(self, is_on: bool) -> None:
        super().switch(is_on)
        for optimizer in list(self.made):
            groups = optimizer.param_groups
            if is_on:
                self.made[optimizer] = [{name: group[name] for name in FORMS if name in group} for group in groups]
            for group, before in zip(groups, self.made[optimizer]):
                group |= {name: name == self.form for name in before} if is_on else before
            move_steps(optimizer)

    def explain_obstacle(self, models: Sequence[nn.Module]) -> str:
        return "" if self.made else self.reason


def move_steps(optimizer: torch.optim.Optimizer) -> None:
    """Move the counters of steps to where the form of an optimizer has them: with the parameters if it is fused, and
    else on the CPU."""
    is_fused = any(group.get("fused") for group in optimizer.param_groups)
    for group in optimizer.param_groups:
        is_with_parameters = bool(group.get("fused") or group.get("capturable"))
        for parameter in group["params"]:
            step = optimizer.state.get(parameter, {}).get("step")
            if isinstance(step, Tensor):
                optimizer.state[parameter]["step"] = step.to(parameter.device if is_with_parameters else "cpu")
    if is_fused:
        setattr(optimizer, SCALING, True)
    else:
        optimizer.__dict__.pop(SCALING, None)
