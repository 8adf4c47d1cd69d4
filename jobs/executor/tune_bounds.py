"""What a change could save of a step at most, from what the GPU does in steps of the variant that would get it. These
are for the order of a search, and for its end; what is kept is measured."""

from collections.abc import Mapping
from typing import Any

from profiler_job.jobs.contract.changes import (
    BF16,
    COMPILE,
    COMPILE_BLOCKS,
    COPIES,
    CUDA_GRAPHS,
    CUDNN_ATTENTION,
    CUDNN_BENCHMARK,
    DROPPED_GRADIENTS,
    EXPANDABLE_SEGMENTS,
    FEWER_ACCUMULATIONS,
    FOREACH,
    FUSED_ADAMW,
    FUSED_ATTENTION,
    KEEP_ACTIVATIONS,
    LOADER_WORKERS,
    PADDING,
    SYNCHRONISATIONS,
    TF32,
)
from profiler_job.jobs.contract.precisions import BASE_PRECISION
from profiler_job.jobs.contract.ranges import DATA, OPTIMIZER, ZERO_GRAD

LEAST_SAVING = 0.01
"""Part of a step that a candidate must be able to save."""
COMPILING = (COMPILE, COMPILE_BLOCKS, CUDA_GRAPHS)
"""Changes that compile the model."""
GRAPHS_COST = 0.03
"""CUDA graphs are tried before torch.compile alone only if the GPU idles for more: they need more memory."""


def find_precision(
    shares: Mapping[str, Any], changes: tuple[str, ...], autocast: str, dtypes: Mapping[str, int]
) -> str:
    """Return the precision in which most matmuls of a variant run. autocast: type of the script's own; dtypes: how many
    parameters have which type."""
    most = max(dtypes, key=lambda name: dtypes[name], default="")
    if BF16 in changes or "bfloat16" in autocast or "bfloat16" in most:
        return "bf16"
    if "float16" in (autocast or most):
        return "fp16"
    return "tf32" if TF32 in changes or shares.get("float32_matmul_precision", "highest") != "highest" else "fp32"


def bound_saving(
    name: str, shares: Mapping[str, Any], changes: tuple[str, ...], precision: str, is_compiled: bool = False
) -> float:
    """Return the part of a step (0 to 1) that a change could save. shares: of a variant with `changes`, as
    `jobs.follow.turns` measures them. is_compiled: whether the script compiles its model itself, or a change does."""
    is_compiled |= any(change in COMPILING for change in changes)
    step = max(float(shares["step_ns"]), 1.0)
    phases = {phase: time_ns / step for phase, time_ns in shares["phases"].items()}
    model = 1.0 - sum(phases.get(phase, 0.0) for phase in (OPTIMIZER, ZERO_GRAD, DATA))
    by_phase = {
        FUSED_ADAMW: 0.9 * phases.get(OPTIMIZER, 0.0),
        FOREACH: 0.9 * phases.get(OPTIMIZER, 0.0),
        DROPPED_GRADIENTS: phases.get(ZERO_GRAD, 0.0),
        LOADER_WORKERS: phases.get(DATA, 0.0),
        FEWER_ACCUMULATIONS: 0.9 * model,
        EXPANDABLE_SEGMENTS: 0.05 if shares["num_alloc_retries"] else 0.0,
    }
    if name in by_phase:
        saving = by_phase[name]
    elif shares["kernels"] is None:
        saving = bound_by_phases(name, model)
    else:
        kernels = {kind: time_ns / step for kind, time_ns in shares["kernels"].items()}
        saving = bound_by_kernels(name, kernels, precision, is_compiled, has_syncs=bool(shares["num_syncs"]))
    if (name in (COMPILE, COMPILE_BLOCKS) and is_compiled) or name in changes:
        return 0.0
    return float(min(max(saving, 0.0), 0.99))


def bound_by_phases(name: str, rest: float) -> float:
    """Return what a change could save of the model's own part of a step, `rest`, of whose kernels nothing is known."""
    parts = {BF16: 0.9, TF32: 0.8, COMPILE: 0.6, COMPILE_BLOCKS: 0.59, CUDA_GRAPHS: 0.58, FUSED_ATTENTION: 0.5}
    return parts.get(name, 0.3) * rest


def bound_by_kernels(
    name: str, kernels: Mapping[str, float], precision: str, is_compiled: bool, has_syncs: bool
) -> float:
    """Return what a change could save by the parts of a step in which the GPU does what it makes faster. A shorter
    kernel saves nothing while the GPU waits for the CPU."""
    idle = max(0.0, 1.0 - kernels["busy"])
    limited = 1.0 - idle
    matmuls = kernels["matmul"] + kernels["convolution"]
    fusible = 0.0 if is_compiled else 0.7 * kernels["other"] * limited
    faster = {"fp32": (0.93, 0.9), "tf32": (0.5, 0.9)}.get(precision, (0.0, 0.0))  # matmuls, and attention
    casts = faster[0] * matmuls + faster[1] * kernels["attention"] + (0.3 * kernels["other"] if faster[0] else 0.0)
    in_tf32 = matmuls if precision == BASE_PRECISION else kernels["matmul_fp32"]
    savings = {
        TF32: 0.87 * in_tf32 * limited,
        BF16: casts * limited,
        FUSED_ATTENTION: (0.8 * kernels["other"] + 0.3 * matmuls) * limited + 0.3 * idle,
        CUDNN_ATTENTION: 0.0 if is_compiled else 0.5 * kernels["attention"] * limited,  # compiled, it is fixed
        COMPILE: fusible + 0.8 * idle,
        COMPILE_BLOCKS: 0.98 * (fusible + 0.8 * idle),
        CUDA_GRAPHS: fusible + idle - GRAPHS_COST,
        PADDING: 0.6 * kernels["unaligned"] * limited,
        CUDNN_BENCHMARK: 0.3 * kernels["convolution"] * limited,
        COPIES: kernels["pageable"] + (0.3 * idle if kernels["pageable"] else 0.0),
        SYNCHRONISATIONS: idle if has_syncs else 0.0,
        KEEP_ACTIVATIONS: 0.3,
    }
    return savings.get(name, 0.0)
