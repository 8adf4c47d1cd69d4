"""Messages of the measured process about a run, what it measured or how it failed; and how a run ends."""

import gc
import os
import sys
from multiprocessing.connection import Connection
from typing import Any

import torch

from profiler_job.jobs.contract.messages import Answer, Failed, Measured, MemoryOf, Seconds, Settings
from profiler_job.jobs.worker.stepper import HostTime, Stepper, count_parameters


def release(device: torch.device, was_compiled: bool) -> None:
    """Give back what a run leaves behind, so that the next one begins as the first did."""
    if was_compiled:  # compiled code keeps its CUDA graphs, and compiles again for other shapes
        torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def read_memory_state(device: torch.device) -> MemoryOf:
    """Allocated, reserved, free and total device memory in bytes ({} without CUDA)."""
    if device.type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    return {
        "allocated_bytes": torch.cuda.memory_allocated(device),
        "reserved_bytes": torch.cuda.memory_reserved(device),
        "free_bytes": free,
        "total_bytes": total,
    }


def read_settings() -> Settings:
    """Read PyTorch's global settings in force that change what is launched."""
    return {
        "autograd_multithreading": torch.autograd.is_multithreading_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }


def build_measured(
    stepper: Stepper,
    times: list[dict[str, HostTime]],
    probed: dict[str, list[dict[str, Any]]],
    seconds: Seconds,
) -> Measured:
    """Build the message about a measured run. times: for each step, by phase. probed: rows by table."""
    return {
        "event": "measured",
        "steps": [
            {"step": step, "phase": phase, "wall_ns": host.wall, "issue_ns": host.issue}
            for step, by_phase in enumerate(times)
            for phase, host in by_phase.items()
        ],
        "memory": probed["memory"],
        "figures": probed["figures"],
        "module_memory": probed.get("module_memory", []),
        "settings": {**read_settings(), "num_parameters": count_parameters(stepper.model)},
        "seconds": seconds,
    }


def build_failed(error: Exception, stepper: Stepper | None, device: torch.device, before: MemoryOf) -> Failed:
    """Build the message about a failed run; with bytes of memory if it ran out. stepper: None if it failed while the
    run was built."""
    is_oom = isinstance(error, torch.OutOfMemoryError)
    is_oom = is_oom or any(sign in str(error) for sign in ("out of memory", "ALLOC_FAILED"))
    memory: MemoryOf = {**read_memory_state(device), **before} if is_oom else {}
    return {
        **memory,
        "event": "oom" if is_oom else "failed",
        "phase": stepper.where if stepper else "build",
        "step": stepper.num_steps if stepper else 0,
        "message": str(error).split("\n")[0] if is_oom else f"{type(error).__name__}: {error}",
        "settings": read_settings(),
    }


def answer(connection: Connection, message: Answer) -> None:
    connection.send(message)


def write_output_to(log: str) -> None:
    """Append what this process prints to a file."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(file, sys.stdout.fileno())
    os.dup2(file, sys.stderr.fileno())
    os.close(file)
