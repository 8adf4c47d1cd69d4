"""The GPUs that this process may use, as CUDA counts them, and NVML's handles of them."""

import os
from contextlib import suppress
from itertools import takewhile
from typing import Any

import pynvml


def list_visible_names() -> list[str] | None:
    """List indices or UUIDs of the GPUs in CUDA_VISIBLE_DEVICES, up to the first that is neither, as CUDA reads it;
    None if it is not set: all GPUs."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return None
    names = (part.strip() for part in visible.split(","))
    return list(takewhile(lambda name: name.isdigit() or name.startswith(("GPU-", "MIG-")), names))


def find_visible_gpus() -> list[int]:
    """Find the indices of the GPUs this process may use, counted as CUDA counts them; [] without a driver."""
    if (names := list_visible_names()) is not None:
        return list(range(len(names)))
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        return list(range(pynvml.nvmlDeviceGetCount()))
    return []


def open_visible_handles(gpus: int = 0) -> list[Any]:
    """Open NVML's handles of these GPUs, or of the first `gpus`: NVML counts all GPUs of a machine, and ignores
    CUDA_VISIBLE_DEVICES. Raises NVMLError."""
    pynvml.nvmlInit()
    names = list_visible_names()
    if names is None:
        names = [str(index) for index in range(pynvml.nvmlDeviceGetCount())]
    return [
        pynvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else pynvml.nvmlDeviceGetHandleByUUID(name)
        for name in names[: gpus or None]
    ]
