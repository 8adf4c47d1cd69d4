"""Facts about a script that is followed: its model, what it calls it with, and the machine.

Imported inside the script (see `sitecustomize`). It needs torch and the other files of this folder.
"""

import os
import resource
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .matmul_precision import read_matmul_precision
from .module_ranges import is_compiled, list_module_parameters, list_sizes, list_tensors, name_class, read_own

CONTEXT_BYTES = 2**30
"""GPU memory of a process outside of PyTorch's allocator, about."""
FILLED = 0.9
"""Part of the free memory that processes may take."""
MOST_WORKERS = 4
WRAPPING = ("torch", "lightning", "lightning_fabric", "accelerate", "deepspeed")
"""Libraries whose modules may be wrappers of a script's model."""


def make_facts() -> dict[str, Any]:
    """Return what is known of a script before its first step."""
    facts: dict[str, Any] = {"stage": "skipped", "seen": 0, "forwards": 0, "autocast": ""}
    facts |= {name: [] for name in ("optimizers", "steps", "captured_ns", "followed_ns", "memory", "inputs")}
    facts |= {"model": "", "compiled": False, "num_parameters": 0, "parameter_dtypes": {}}
    facts |= {"training": False, "trained_models": 0, "loops": [], "num_backward": 0, "num_prefills": 0}
    facts |= {"sequences": 0, "tokens": 0, "num_batches": 0, "flops_per_token": 0.0}
    return facts | {"skipped_updates": 0, "evaluations": 0, "captured_kinds": []}


def describe_call(
    module: nn.Module, args: tuple[Any, ...], options: dict[str, Any], made_autocast: str
) -> dict[str, Any]:
    """Describe a model and what it is called with. made_autocast: type of the last autocast that the script made."""
    return describe_model(module, find_autocast_dtype(), made_autocast) | {"inputs": describe_inputs(args, options)}


def describe_inputs(args: tuple[Any, ...], options: dict[str, Any]) -> list[dict[str, Any]]:
    """Describe the tensors that a model is called with: alone, in lists, in dictionaries or in an object, such as a
    batch of a class of the script."""
    named = [*((str(i), value) for i, value in enumerate(args)), *options.items()]
    named = [
        (f"{name}.{part}" if part else name, inner)
        for name, value in named
        for part, inner in list_fields(value) or [("", value)]
    ]
    tensors = [(name, tensor) for name, value in named for tensor in list_tensors([value])]
    return [{"name": name, "shape": list_sizes(tensor), "dtype": str(tensor.dtype)} for name, tensor in tensors]


def list_fields(value: Any) -> list[tuple[str, Any]]:
    """List what a dictionary or an object holds, by name; nothing for tensors, modules and lists."""
    if isinstance(value, torch.Tensor | nn.Module | list | tuple | type):
        return []
    if isinstance(value, Mapping):
        return list(value.items())
    if is_dataclass(value):
        return [(field.name, getattr(value, field.name, None)) for field in fields(value)]
    with suppress(AttributeError):
        return list(object.__getattribute__(value, "__dict__").items())
    return []


def describe_model(module: nn.Module, autocast: str, made_autocast: str) -> dict[str, Any]:
    """Describe a model. autocast: its type in a call of the model. made_autocast: the type of the last autocast
    that the script made."""
    compiled = any(is_compiled(part) for part in module.modules())
    return {
        "model": name_class(unwrap(module)),
        "compiled": compiled,
        # What accelerate opens inside the model is compiled with it, and never seen to be on.
        "autocast": autocast or (made_autocast if compiled else ""),
        **describe_parameters(list_module_parameters(module)),
    }


def describe_parameters(parameters: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Count parameters, together and by type."""
    return {
        "num_parameters": sum(parameter.numel() for parameter in parameters),
        "parameter_dtypes": dict(Counter(str(parameter.dtype) for parameter in parameters)),
    }


def count_flops(model: nn.Module, inputs: list[dict[str, Any]]) -> float:
    """Count the FLOPs of forward and backward passes for one token, by the formula of PaLM: six for each weight of a
    linear layer, four for one that is not trained, and of attention 12 for each layer, dimension and token of context,
    if the model's `config` shows these. Of causal attention 6, unlike PaLM: the mask hides half of the scores. 0 if
    they are not known: weights are in parts, as FSDP's, or quantised."""
    weights: list[Any] = [
        part.weight
        for part in model.modules()
        if isinstance(part, nn.Linear) or type(part).__name__ == "Conv1D"  # the linear layer of GPT-2
    ]
    if any(weight.ndim != 2 or not weight.is_floating_point() for weight in weights):
        return 0.0
    of_weights: float = sum((6.0 if weight.requires_grad else 4.0) * weight.numel() for weight in weights)
    config = getattr(unwrap(model), "config", None)
    known = [getattr(config, name, 0) for name in ("num_hidden_layers", "hidden_size")]
    layers, width = (number if isinstance(number, int) else 0 for number in known)
    context = next((int(each["shape"][1]) for each in inputs if len(each["shape"]) == 2), 0)
    is_causal = any(getattr(part, "is_causal", False) is True for part in model.modules())
    return of_weights + (6.0 if is_causal else 12.0) * layers * width * context


def find_device_type() -> str:
    """Return the type of device that the script computes on, as `torch.autocast` takes it."""
    return "cuda" if torch.cuda.is_initialized() else "cpu"


def find_autocast_dtype() -> str:
    """The type that autocast computes in here; "" where it is off."""
    device = find_device_type()
    return str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else ""


def unwrap(module: nn.Module) -> nn.Module:
    """The script's own model: not what compiles it, has several ranks train it or moves its inputs, such as
    DataParallel, Fabric or DeepSpeed. Such a wrapper is a library's, and has one part."""
    while (inside := find_wrapped(module)) is not None:
        module = inside
    return module


def find_wrapped(module: nn.Module) -> nn.Module | None:
    """Return the module that a library wraps; None if this is the model."""
    if isinstance(inside := read_own(module, "_orig_mod"), nn.Module):
        return inside
    library, _, rest = type(module).__module__.partition(".")
    if library not in WRAPPING or rest.startswith("nn.modules"):
        return None
    # A wrapper may hold the same module twice, as Fabric does.
    parts = [*{id(part): part for part in module.children()}.values()]
    return parts[0] if len(parts) == 1 else None


def read_machine() -> dict[str, Any]:
    """Read what this process knows about the machine and PyTorch's settings."""
    cuda = torch.cuda.is_initialized()
    return {
        "gpu_name": torch.cuda.get_device_name() if cuda else "CPU (no GPU)",
        "gpu_memory_bytes": torch.cuda.get_device_properties().total_memory if cuda else 0,
        "cuda": torch.version.cuda or "",
        "torch": torch.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "has_gil": getattr(sys, "_is_gil_enabled", lambda: True)(),
        "autograd_multithreading": torch.autograd.is_multithreading_enabled(),
        "float32_matmul_precision": read_matmul_precision(),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated() if cuda else 0,
    }


def count_workers() -> int:
    """Count the workers that a DataLoader is given which has none."""
    return min(MOST_WORKERS, os.cpu_count() or 1)


def count_room() -> int:
    """Count how many processes like this one, itself included, the machine and its GPU have memory for."""
    used = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    room = 1 + FILLED * 1024 * int(memory["MemAvailable"].split()[0]) / used
    if torch.cuda.is_initialized():
        free = FILLED * torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() + CONTEXT_BYTES
        room = min(room, free / (torch.cuda.max_memory_reserved() + CONTEXT_BYTES))
    return int(room)
