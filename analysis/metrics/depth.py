"""Depth against width: models with more layers and fewer parameters next to those with fewer layers and more.

A layer launches the same number of kernels whatever its width, so that a deeper model launches more of them. Where the
host is the limit, that is what its step takes.
"""

from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import differences, run_grid, timing, waiting
from profiler_job.analysis.metrics.differences import Band
from profiler_job.jobs.contract import ranges

CASE = ("context_length", "mode", *run_grid.VARIANT_AXES)
MODEL = ("size", "num_layers", "d_model", "num_parameters")


def list_steps_by_depth(rec: Any, band: Band | None = None) -> pd.DataFrame:
    """The unprofiled step of each finished run of a recording whose number of layers is known: run_id, MODEL, CASE (as
    far as it has them), timer_ns with its spread, of_processes_ns with its interval, busy_ns, launches (kernels of a
    step), timer_parts (how long the GPU waits), launch_wait (part of the step)."""
    runs = run_grid.select_measured_runs(rec.runs)
    names = ["run_id", *MODEL, *(name for name in CASE if name in runs)]
    texts = {name: str for name in names if runs[name].dtype == "category"} | {"run_id": str}
    runs = runs[runs["num_layers"] > 0][names].astype(texts)
    gpu = timing.gpu_times(rec.kernels, rec.memops)
    gpu = gpu[gpu["phase"] == ranges.STEP].groupby("run_id")[["launches", "busy_ns"]].median().reset_index()
    waits = waiting.launch_waits(rec.steps, rec.kernels, rec.memops, band)
    timer = timing.host_times(rec.steps, "timer", "timer")
    table = runs
    intervals = differences.process_intervals(rec.steps)
    for part in (timer, waits[["run_id", "phase", "launch_wait"]], intervals):
        table = table.merge(part[part["phase"] == ranges.STEP].drop(columns="phase"), on="run_id")
    table = table.merge(gpu, on="run_id")
    return table.assign(timer_parts=(table["timer_ns"] - table["busy_ns"]).clip(lower=0))


def pairs(rows: pd.DataFrame, band: Band | None = None) -> pd.DataFrame:
    """Every two of `list_steps_by_depth` of one case if one has more layers and fewer parameters: CASE, the other
    columns as deep_* and wide_*, slower (the deeper takes longer, though its GPU is busy for less), apart (and the
    intervals of their processes do not overlap), differs (and by more than the noise band)."""
    case = [name for name in CASE if name in rows]
    sides = [
        rows.rename(columns={name: f"{side}_{name}" for name in rows if name not in case}) for side in ("deep", "wide")
    ]
    both = sides[0].merge(sides[1], on=case)
    deeper = both["deep_num_layers"] > both["wide_num_layers"]
    both = both[deeper & (both["deep_num_parameters"] < both["wide_num_parameters"])].reset_index(drop=True)
    times = both.rename(columns=lambda name: name.replace("_timer_", "_"))
    slower = (both["deep_timer_ns"] > both["wide_timer_ns"]) & (both["deep_busy_ns"] < both["wide_busy_ns"])
    return both.assign(
        slower=slower,
        apart=slower & (both["deep_of_processes_low_ns"] > both["wide_of_processes_high_ns"]),
        differs=slower & differences.differ(times, "deep", "wide", band),
    )
