"""How long GPUs run nothing while Python collects garbage, from the ranges around collections, without samples."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import intervals
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.capture.selection import find_gpus
from profiler_job.jobs.contract.ranges import GARBAGE_RANGE


class Collections(NamedTuple):
    """idle_ns: time in which a GPU, between its operations, runs nothing while a process that uses it collects, summed
    over GPUs. num: collections, cpu_ns: their time."""

    idle_ns: int
    num: int
    cpu_ns: int


def list_collections(ranges: pd.DataFrame) -> pd.DataFrame:
    """List the ranges in which garbage is collected."""
    is_collection = [str(name).startswith(GARBAGE_RANGE) for name in ranges["name"].cat.categories]
    return ranges[np.array(is_collection, bool)[ranges["name"].cat.codes]]


def measure_collections(capture: Capture) -> Collections:
    collections = list_collections(capture.ranges)
    if not len(collections):
        return Collections(0, 0, 0)
    frames = [capture.kernels, capture.graphs, capture.memops]
    columns = ["process", "start_ns", "end_ns"]
    operations = pd.concat([frame[columns].assign(gpu=find_gpus(capture, frame)) for frame in frames])
    idle_ns = 0
    for _, of_gpu in operations.groupby("gpu"):
        start, end = of_gpu["start_ns"].to_numpy(), of_gpu["end_ns"].to_numpy()
        mine = collections[collections["process"].isin(of_gpu["process"])]
        low, high = (mine[name].to_numpy().clip(start.min(), end.max()) for name in ("start_ns", "end_ns"))
        idle_ns += int((high - low - intervals.Union(start, end).measure_covered(low, high)).sum())
    return Collections(idle_ns, len(collections), int((collections["end_ns"] - collections["start_ns"]).sum()))
