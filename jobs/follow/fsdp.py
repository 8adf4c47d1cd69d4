"""Work of FSDP outside the nodes of autograd's graph: before the backward pass of a unit of modules it gathers the
unit's parameters, and afterwards it reduces the gradients. Covers `fully_shard`, and `FullyShardedDataParallel`, which
stores the parameters of a unit as one flat parameter.

Needs torch and nothing else of this program, see `module_ranges`.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

MODULES = (
    "torch.distributed.fsdp._fully_shard._fsdp_param_group",
    "torch.distributed._composable.fsdp._fsdp_param_group",  # until torch 2.5
)
METHODS = ("unshard", "wait_for_unshard", "post_backward")
"""Methods of a unit: begin to gather its parameters; wait and split them into tensors; reduce the gradients."""
FLAT = "torch.distributed.fsdp._runtime_utils"
FUNCTIONS = ("_unshard", "_reduce_grad", "_reduce_grad_no_shard")
"""The same for a unit with one flat parameter, whose handle is one of the arguments."""


@contextmanager
def follow_units(around: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]) -> Iterator[None]:
    """Call `around(function, args, options)` in place of each of METHODS and FUNCTIONS while the context is open. Do
    nothing if the program has not loaded FSDP."""
    kinds = [kind for name in MODULES if (kind := getattr(sys.modules.get(name), "FSDPParamGroup", None))]
    places = [(kind, name) for kind in kinds for name in METHODS]
    places += [(sys.modules.get(FLAT), name) for name in FUNCTIONS]
    functions = {(place, name): vars(place)[name] for place, name in places if place and name in vars(place)}
    for (place, name), function in functions.items():
        setattr(place, name, call_within(around, function))
    try:
        yield
    finally:
        for (place, name), function in functions.items():
            setattr(place, name, function)


def call_within(
    around: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any], function: Callable[..., Any]
) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        return around(function, args, options)

    return call


def list_parameters(args: tuple[Any, ...]) -> list[tuple[Tensor, Tensor | None]]:
    """List the parameters of the unit that one of METHODS is called for: the shard that the optimizer updates, and the
    tensor that modules compute with (None before it is gathered). Empty if the unit has a flat parameter."""
    held = getattr(args[0], "fsdp_params", ()) if args else ()
    return [(parameter.sharded_param, getattr(parameter, "_unsharded_param", None)) for parameter in held]


def find_flat_unit(args: tuple[Any, ...]) -> tuple[nn.Module | None, list[tuple[Tensor, nn.Module]]]:
    """Find the module that one of FUNCTIONS is called for, and the original parameters in its flat one that the
    optimizer still has (`use_orig_params`), each with its module."""
    for handle in args:
        if type(handle).__name__ == "FlatParamHandle":
            flat = handle.flat_param
            parameters, infos = getattr(flat, "_params", None) or (), getattr(flat, "_param_infos", ())
            owners = [(parameter, info.module) for parameter, info in zip(parameters, infos)]
            return getattr(handle, "_fully_sharded_module", None), owners
    return None, []
