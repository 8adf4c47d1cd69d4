"""What FSDP (`torch.distributed.fsdp.fully_shard`) does for a unit of modules beside the nodes of autograd's graph: it
gathers the unit's parameters before its backward, and sends its gradients off after it.

Needs torch and nothing else of this program, see `module_ranges`.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

MODULES = (
    "torch.distributed.fsdp._fully_shard._fsdp_param_group",
    "torch.distributed._composable.fsdp._fsdp_param_group",  # until torch 2.5
)
METHODS = ("unshard", "wait_for_unshard", "post_backward")
"""Of the parameters of a unit: begin to gather them and copy them together; take them apart; reduce the gradients."""


@contextmanager
def around_units(around: Callable[[Callable, Any, tuple, dict], Any]) -> Iterator[None]:
    """Within this, `around(method, unit, args, options)` is called in place of each of METHODS. Nothing where the
    program has not loaded FSDP."""
    kinds = [kind for name in MODULES if (kind := getattr(sys.modules.get(name), "FSDPParamGroup", None))]
    methods = {(kind, name): kind.__dict__[name] for kind in kinds for name in METHODS if name in kind.__dict__}
    for (kind, name), method in methods.items():
        setattr(kind, name, called_within(around, method))
    try:
        yield
    finally:
        for (kind, name), method in methods.items():
            setattr(kind, name, method)


def called_within(around: Callable[[Callable, Any, tuple, dict], Any], method: Callable) -> Callable:
    def call(unit: Any, *args: Any, **options: Any) -> Any:
        return around(method, unit, args, options)

    return call


def parameters_of(unit: Any) -> list[tuple[Tensor, Tensor | None]]:
    """Of each parameter of a unit what the optimizer updates, and what modules compute with: None before that."""
    return [(held.sharded_param, getattr(held, "_unsharded_param", None)) for held in unit.fsdp_params]
