"""Workers of the DataLoader: `num_workers=N, pin_memory=True` where the script has none. Only from the start."""

from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from ..applied_change import HAS_IT, AppliedChange
from ..script_facts import count_workers


class LoaderWorkers(AppliedChange):
    reason = "no DataLoader was made"

    def apply(self) -> None:
        made: Callable[..., Any] = DataLoader.__init__
        parameters = signature(made)

        @wraps(made)
        def make(*args: Any, **options: Any) -> None:
            bound = parameters.bind(*args, **options)
            if bound.arguments.get("num_workers"):
                self.reason = self.reason and HAS_IT
            elif self.is_on:
                bound.arguments |= {"num_workers": count_workers()}
                bound.arguments.setdefault("pin_memory", torch.cuda.is_available())
                self.reason = ""
            else:
                self.reason = ""
            made(*bound.args, **bound.kwargs)

        DataLoader.__init__ = make  # type: ignore[method-assign]

    def explain_obstacle(self, models: Sequence[nn.Module]) -> str:
        return self.reason


CHANGE = LoaderWorkers
