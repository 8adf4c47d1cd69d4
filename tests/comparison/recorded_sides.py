"""Recordings as sides of a comparison, each loaded once."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pandas as pd

from profiler_job.analysis.comparison import align, judge, sides
from profiler_job.analysis.comparison.load_sides import load_side
from profiler_job.analysis.comparison.totals import MeasuredCase
from tests.frozen import ONE_GPU


@cache
def load_recorded_side(folder: Path = ONE_GPU) -> sides.Side:
    return load_side(folder)


@cache
def _measure_runs(folder: Path) -> dict[str, MeasuredCase]:
    runs = load_recorded_side(folder).runs["run_id"]
    return dict(zip(runs, judge.measure(load_recorded_side(folder), [(run,) for run in runs]), strict=True))


def measure(run_id: str, folder: Path = ONE_GPU) -> MeasuredCase:
    """Return a run alone. All runs of a recording are measured at once, since each alone looks through its tables."""
    return _measure_runs(folder)[run_id]


def select(*only: str, folder: Path = ONE_GPU) -> sides.Side:
    return sides.select_runs(replace(load_recorded_side(folder)), only, folder)


def repeat_run(side: sides.Side, num: int) -> sides.Side:
    """Return a side as if `num` processes had measured each of its runs. Kernels vary by 0.1%, steps by 1%."""
    random = np.random.default_rng(0)
    copies: dict[str, list[pd.DataFrame]] = {name: [] for name in ("runs", "steps", "kernels", "memops")}
    for run_id, repeat in product(side.runs["run_id"], range(num)):
        rows = {name: frame[frame["run_id"] == run_id] for name in copies for frame in [getattr(side, name)]}
        lengths = rows["kernels"]["end_ns"] - rows["kernels"]["start_ns"]
        lengths = (lengths * (1 + random.normal(0, 0.001, len(lengths)))).astype("int64")
        walls = (rows["steps"]["wall_ns"] * (1 + random.normal(0, 0.01))).astype("int64")
        rows["runs"] = rows["runs"].assign(repeat=repeat)
        rows["kernels"] = rows["kernels"].assign(end_ns=rows["kernels"]["start_ns"] + lengths)
        rows["steps"] = rows["steps"].assign(wall_ns=walls)
        for name, frame in rows.items():
            copies[name].append(frame.assign(run_id=f"{run_id}-repeat{repeat}"))
    return replace(side, **{name: pd.concat(frames, ignore_index=True) for name, frames in copies.items()})


def pairs_along(axis: str, folder: Path = ONE_GPU) -> Iterator[tuple[Path, str, str]]:
    """Yield the recording and the run_ids of each two runs that differ in nothing but `axis`."""
    runs = load_recorded_side(folder).runs
    others = [name for name in (*align.FIXED, *align.VARIANTS) if name in runs and name != axis]
    for _, group in runs.groupby(others, sort=False):
        yield from ((folder, a, b) for a, b in combinations(group["run_id"], 2))
