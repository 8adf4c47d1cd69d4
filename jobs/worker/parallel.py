"""Several GPUs that step together: PyTorch's DistributedDataParallel, fully_shard and tensor parallelism."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import ceil
from typing import Any, NamedTuple

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


BUCKET_MB = {"default": 25, "half": 25, "buckets": 100}
"""Size of DDP's buckets of gradients, by `exchange`. 25 MB are PyTorch's default."""
NUM_AHEAD = 2
"""Blocks that `exchange: prefetch` gathers ahead; FSDP by itself gathers one."""


def parallelise(model: nn.Module, run: Mapping[str, Any], device: torch.device) -> nn.Module:
    """The model as its ranks run it together: with DDP each has all of it, with FSDP a part of each parameter, and with
    tensor parallelism a part of the matrices of each block."""
    if run["parallel"] == "ddp":
        return replicate(model, run["exchange"], device)
    if run["parallel"] == "fsdp":
        return shard(model, run["exchange"])
    if run["parallel"] == "tp":
        from profiler_job.jobs.workloads.transformer.tensor_parallel import divide_blocks

        divide_blocks(model, distributed.init_device_mesh(device.type, (distributed.get_world_size(),)))
    return model


def replicate(model: nn.Module, exchange: str, device: torch.device) -> nn.Module:
    """The model in DistributedDataParallel."""
    ids = [device.index] if device.type == "cuda" else None
    replica = nn.parallel.DistributedDataParallel(model, device_ids=ids, bucket_cap_mb=BUCKET_MB[exchange])
    if exchange == "half":
        replica.register_comm_hook(distributed.group.WORLD, reduce_in_bf16)
    return replica


def reduce_in_bf16(group: distributed.ProcessGroup, bucket: distributed.GradBucket) -> torch.futures.Future[Tensor]:
    """PyTorch's hook of the same purpose, which refuses to run on the CPU by its name alone."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    reduced: torch.futures.Future[Tensor] = bf16_compress_hook(group, bucket)
    return reduced


def shard(model: nn.Module, exchange: str) -> nn.Module:
    """The model with the parameters of each layer, and of the rest, in parts."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    options: dict[str, Any] = {}
    if exchange == "keep":
        options["reshard_after_forward"] = False
    if exchange == "half":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    layers: list[Any] = list(find_layers(model))
    for layer in layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    if exchange == "prefetch":
        for place, layer in enumerate(layers):
            layer.set_modules_to_forward_prefetch(layers[place + 1 : place + 1 + NUM_AHEAD])
            layer.set_modules_to_backward_prefetch(layers[max(0, place - NUM_AHEAD) : place][::-1])
    return model


@contextmanager
def silence(model: nn.Module) -> Iterator[None]:
    """Let the ranks of DDP or FSDP compute without exchanging anything while the context is open; with FSDP from the
    second backward pass on, as each rank then has all parameters. To be used last: FSDP does not divide them again."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        with model.no_sync():
            yield
        return
    sharded: Any = model
    sharded.set_requires_gradient_sync(False)
    sharded.set_reshard_after_forward(False)
    sharded.set_reshard_after_backward(False)
    yield


def group_parameters(model: nn.Module) -> list[dict[str, Any]]:
    """Group the parameters for an optimizer: PyTorch's fused AdamW takes no list of whole and divided tensors."""
    from torch.distributed.tensor import DTensor

    groups: dict[bool, list[Tensor]] = {}
    for parameter in model.parameters():
        groups.setdefault(isinstance(parameter, DTensor), []).append(parameter)
    return [{"params": parameters} for parameters in groups.values()]


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
