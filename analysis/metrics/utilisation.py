"""How much of a GPU's peak a run reaches."""

import pandas as pd

from profiler_job.analysis.metrics.run_grid import has_known_shape, shape_of
from profiler_job.analysis.reference import flops, gpus


def mfu(run: pd.Series, wall_ns: float) -> float:
    """Model FLOPs utilisation: matmul FLOPs of the step over its wall time, over the GPU's dense peak for the
    run's precision. What backward computes again, as after checkpointing, is no work of the model.

    NaN where the GPU is not in analysis/reference/gpus.py, or the FLOPs of the workload are not known.
    """
    known = has_known_shape(run)
    work = flops.step_flops(shape_of(run), str(run["mode"])) if known else flops.llama_step_flops(run)
    if work is None:
        return float("nan")
    gpu = gpus.lookup(str(run["gpu_name"]))
    peak = gpu.peak_flops(str(run["precision"])) if gpu else None
    reached = flops.utilisation(work, wall_ns / 1e9, peak)
    return float("nan") if reached is None else reached
