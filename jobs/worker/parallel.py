"""Several GPUs that step together: torch's own DistributedDataParallel and fully_shard."""

from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor, distributed, nn


class Place(NamedTuple):
    """Rank of this process among several, and the file of torch.distributed's store by which they meet."""

    rank: int = 0
    num_ranks: int = 1
    meeting: str = ""


def join(place: Place, device: torch.device) -> None:
    """Meet the other ranks, once for all runs of this process. Raises what torch raises."""
    if place.num_ranks == 1 or distributed.is_initialized():
        return
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{place.meeting}",
        rank=place.rank,
        world_size=place.num_ranks,
        device_id=device if device.type == "cuda" else None,
    )


def parallelise(model: nn.Module, how: str, device: torch.device) -> nn.Module:
    """The model as its ranks run it together: with DDP each has all of it, with FSDP a part of each parameter."""
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    if how == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for layer in find_layers(model):
            fully_shard(layer)
        fully_shard(model)
    return model


def find_layers(model: nn.Module) -> Iterator[nn.Module]:
    """Find the units that FSDP gathers: the layers of each outermost list of modules of one class."""
    inside: set[nn.Module] = set()
    for module in model.modules():
        if module in inside or not isinstance(module, nn.ModuleList) or len({type(part) for part in module}) != 1:
            continue
        for layer in module:
            inside.update(layer.modules())
            yield layer


def take_local_part(tensor: Tensor) -> Tensor:
    """Return the part of a sharded tensor that this rank holds; any other tensor itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def agree_on_steps(at_least_s: float, step_ns: float, device: torch.device) -> int:
    """Return the number of steps that take at least so long, equal on all ranks: each waits for the others in a
    step."""
    return -find_least(-max(1, ceil(at_least_s * 1e9 / step_ns)), device)


def find_least(value: int, device: torch.device) -> int:
    """The least of what the ranks say; every rank must ask."""
    values = torch.tensor([value], device=device)
    if distributed.is_initialized():
        distributed.all_reduce(values, distributed.ReduceOp.MIN)
    return int(values.item())


def synchronize(device: torch.device) -> None:
    """Wait until a device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
