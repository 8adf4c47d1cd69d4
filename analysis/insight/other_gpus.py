"""What a step would take on another GPU, from data sheets: matmuls and attention at the ratio of the peak rates, all
else between no difference and the ratio of the memory bandwidths, since some of it is bound by the L2 cache."""

from collections.abc import Mapping

from profiler_job.analysis.reference.gpus import GPUS, PRECISIONS, Gpu

TESTED = ("H100 SXM5", "H200 SXM5")
"""GPUs between which it was compared with recordings."""
COMPUTED = ("matmul", "convolution", "attention")
LEAST_BUSY = 0.85
"""Part of a step in which the GPU works, below which the CPU sets the pace, on any GPU."""


def estimate_on(
    other: Gpu, gpu: Gpu, kernels: Mapping[str, float], step_ns: float, precision: str
) -> tuple[float, float] | None:
    """Estimate the least and the most that a step takes on another GPU, in ns; None if it is not known. kernels: what
    `gpu` does in the step, by kind, and `busy`. precision: of most matmuls."""
    if {gpu.key, other.key} != {*TESTED} or precision not in PRECISIONS or kernels["busy"] < LEAST_BUSY * step_ns:
        return None
    here, there = gpu.peak_flops(precision), other.peak_flops(precision)
    if not here or not there:
        return None
    computed = sum(kernels.get(kind, 0.0) for kind in COMPUTED)
    moved, idle = max(kernels["busy"] - computed, 0.0), max(step_ns - kernels["busy"], 0.0)
    bandwidths = gpu.memory_gbps / other.memory_gbps
    low, high = (idle + computed * here / there + moved * factor for factor in sorted((1.0, bandwidths)))
    return low, high


def list_others(gpu: Gpu | None) -> list[Gpu]:
    """List the GPUs for which a step on `gpu` can be estimated."""
    if gpu is None or gpu.key not in TESTED:
        return []
    return [other for other in GPUS if other.key in TESTED and other.key != gpu.key]
