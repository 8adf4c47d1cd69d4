"""What the GPU does in steps of a script: the time of its kernels by kind, and how long it idles. Loaded into other
people's scripts, as `follow` is."""

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
from torch.autograd.profiler import profile

KINDS = (
    ("attention", re.compile(r"flash|fmha|sdpa|attention", re.IGNORECASE)),
    ("convolution", re.compile(r"conv|implicit_gemm|wgrad|dgrad|fprop", re.IGNORECASE)),
    ("matmul", re.compile(r"gemm|nvjet|cutlass|cublas|splitk|_mm_|_bmm_|gemv", re.IGNORECASE)),
    ("fill", re.compile(r"FillFunctor|Memset", re.IGNORECASE)),
    ("pageable", re.compile(r"Memcpy HtoD \(Pageable", re.IGNORECASE)),
    ("copy", re.compile(r"Memcpy", re.IGNORECASE)),
)
"""Kinds of kernels and copies by name, the first that fits; others are `other`."""
NO_WORK = ("gpu_user_annotation", "overhead", "cuda_sync")
"""What a trace holds that is not work of the GPU."""
UNALIGNED = re.compile(r"align[12](?!\d)")
FP32_MATMUL = re.compile(r"sgemm|ffma|f32f32_f32f32|simt", re.IGNORECASE)


class KernelTrace:
    """A trace of the GPU's kernels between `begin` and `end`, by the profiler that PyTorch has; empty without a GPU, or
    where the script runs a profiler itself."""

    def __init__(self) -> None:
        self.profiler: Any = None

    def begin(self) -> None:
        if not torch.cuda.is_initialized() or torch.autograd._profiler_enabled():
            return
        with suppress(Exception):  # of other people's drivers: no reason for their script to end
            profiler = profile(use_cpu=False, use_kineto=True, use_device="cuda")
            profiler.__enter__()
            self.profiler = profiler

    def end(self) -> list[tuple[str, int, int]]:
        """Return name, start and end (ns) of what the GPU did."""
        profiler, self.profiler = self.profiler, None
        if profiler is None:
            return []
        with suppress(Exception):
            profiler.__exit__(None, None, None)
            return [
                (event.name(), event.start_ns(), event.start_ns() + event.duration_ns())
                for event in profiler.kineto_results.events()
                if event.device_type() == torch.autograd.DeviceType.CUDA and event.duration_ns() > 0
                if getattr(event, "activity_type", str)() not in NO_WORK
            ]
        return []


def add_up_kernels(operations: Iterable[tuple[str, int, int]], num_steps: int) -> dict[str, float]:
    """Add up the operations of steps: for each kind its time (ns in a step), `busy` for their union, and the
    time of matmuls in FP32 (`matmul_fp32`) and of matmuls that load few numbers at once (`unaligned`)."""
    kinds = [kind for kind, _ in KINDS]
    sums = dict.fromkeys([*kinds, "other", "matmul_fp32", "unaligned", "busy"], 0.0)
    reached = 0
    for name, start, end in sorted(operations, key=lambda operation: operation[1]):
        kind = next((kind for kind, pattern in KINDS if pattern.search(name)), "other")
        sums[kind] += end - start
        if kind == "matmul":
            sums["matmul_fp32"] += (end - start) * bool(FP32_MATMUL.search(name))
            sums["unaligned"] += (end - start) * bool(UNALIGNED.search(name))
        sums["busy"] += max(0, end - max(start, reached))
        reached = max(reached, end)
    return {name: value / num_steps for name, value in sums.items()}
