"""Times of CUDA API calls, and how long kernels wait in the launch queue."""

from typing import Any

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.blocks import count_by, split_into_blocks
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.capture.distinct_values import find_distinct
from profiler_job.analysis.insight.section_columns import make_frame


def summarise_api(capture: Capture, attribution: Attribution) -> pd.DataFrame:
    api, place = capture.api, attribution.kernels
    names = api["name"].cat.categories
    code = api["name"].cat.codes.to_numpy()
    launched = np.flatnonzero(place["api"].to_numpy() >= 0)
    row = place["api"].to_numpy()[launched]
    launches = np.bincount(code[row], minlength=len(names))
    # The first kernel of a graph launch is what the call led to; the later ones wait for it.
    called = np.zeros(len(api), bool)
    called[row] = True
    if called.sum() < len(row):
        row, first = np.unique(row, return_index=True)
        launched = launched[first]
    latency = capture.kernels["start_ns"].to_numpy()[launched] - place["launch_ns"].to_numpy()[launched]
    launcher = code[row]
    used = np.unique(launcher)
    median, longest = np.full(len(names), np.nan), np.full(len(names), -1)
    for function in used:
        mine = latency[launcher == function] if len(used) > 1 else latency
        median[function], longest[function] = np.median(mine), mine.max()
    columns = {
        "name": [str(name) for name in names],
        "calls": count_by(code, len(names)),
        "total_ns": _sum_durations(code, api, len(names)),
        "launches": launches,
        "latency_median_ns": median,
        "latency_max_ns": pd.Series(longest, dtype="Int64").mask(np.isnan(median)),
    }
    frame = make_frame("api", columns, "total_ns")
    return frame[frame["calls"] > 0].reset_index(drop=True)


def summarise_launches(
    attribution: Attribution, kernels: pd.DataFrame, gpu: np.ndarray, of_gpus: pd.DataFrame
) -> dict[str, Any]:
    """Launch latency and queue depth over all kernels: how many launched kernels of that GPU had not begun when one
    was launched. A mean says nothing of the time in which nothing is launched, which dry_ns is."""
    place = attribution.kernels
    known = place["api"].to_numpy() >= 0
    if not known.any():
        return {"kernels": 0} | dict.fromkeys(_LAUNCH_FIGURES)
    start, launch = kernels["start_ns"].to_numpy(), place["launch_ns"].to_numpy()
    latency = (start - launch)[known]
    depths = []
    for number in find_distinct(gpu[known]):
        rows = np.flatnonzero(known & (gpu == number))
        begun = np.searchsorted(start[rows], np.sort(launch[rows], kind="stable"), side="right")
        depths.append(np.maximum(np.arange(len(rows)) - begun, 0))
    depth = np.concatenate(depths)
    figures = (
        float(np.median(latency)),
        int(latency.max()),
        int(depth.sum()) / len(depth),
        float(np.median(depth)),
        int(depth.max()),
        int(of_gpus[["late_launch_ns", "sync_ns"]].to_numpy().sum()) if len(of_gpus) else None,
    )
    return {"kernels": len(depth)} | dict(zip(_LAUNCH_FIGURES, figures))


_LAUNCH_FIGURES = ("latency_median_ns", "latency_max_ns", "queue_mean", "queue_median", "queue_max", "dry_ns")


def _sum_durations(code: np.ndarray, frame: pd.DataFrame, num_groups: int) -> np.ndarray:
    """Sum of the durations of each group (int64), a block of rows at a time: there are more API calls than kernels."""
    start, end = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
    total = np.zeros(num_groups, np.int64)
    for rows in split_into_blocks(len(code)):
        total += np.bincount(code[rows], end[rows] - start[rows], num_groups).astype(np.int64)
    return total
