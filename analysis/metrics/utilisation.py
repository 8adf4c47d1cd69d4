"""How much of a GPU's peak a run reaches."""

import pandas as pd

from profiler_job.analysis.metrics.run_grid import has_known_shape, shape_of
from profiler_job.analysis.reference import flops, gpus


def mfu(run: pd.Series, wall_ns: float) -> float:
    """Model FLOPs utilisation: matmul FLOPs that the model needs for a step over its wall time, over the GPU's dense
    peak for the run's precision. Work that backward repeats, as after checkpointing, does not count, nor do
    scores that the causal mask hides, whether attention computes them or not.

    NaN where the GPU is not in analysis/reference/gpus.py, or the FLOPs of the workload are not known.
    """
    return _use_peak(run, wall_ns, skip_masked=True)


def measure_mfu(num_flops: float, wall_ns: float, gpu_name: str, precision: str) -> float | None:
    """MFU of a step of so many FLOPs, such as a script's (`follow.script_facts.count_flops`); None if the peak of the
    GPU in this precision is not known."""
    gpu = gpus.lookup(gpu_name)
    peak = gpu.peak_flops(precision) if gpu and precision in gpus.PRECISIONS else None
    return flops.utilisation(num_flops, wall_ns / 1e9, peak)


def measure_eager_matmuls(run: pd.Series, gemm_ns: float) -> float:
    """What the matmuls of a step with eager attention, which computes all scores, reach of that peak in `gemm_ns`."""
    return _use_peak(run, gemm_ns, skip_masked=False)


def _use_peak(run: pd.Series, time_ns: float, skip_masked: bool) -> float:
    if has_known_shape(run):
        work: int | None = flops.step_flops(shape_of(run), str(run["mode"]), skip_masked)
    else:
        work = flops.llama_step_flops(run, skip_masked)
    if work is None:
        return float("nan")
    gpu = gpus.lookup(str(run["gpu_name"]))
    peak = gpu.peak_flops(str(run["precision"])) if gpu else None
    reached = flops.utilisation(work, time_ns / 1e9, peak)
    return float("nan") if reached is None else reached
