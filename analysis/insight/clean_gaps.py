"""How long a GPU waits at each place of a step, from captured steps in which Python was not sampled.

Samples make the CPU slower, and not every line by as much: where the CPU was ahead of the GPU, a slower one makes the
GPU wait. So samples only show which line it is. How long counts from the clean steps: the idle time before the n-th
operation of a step counts as long as that before the n-th operation of the clean steps, in the median. What is more in
some of the steps, such as a collection of garbage, has no place: it is scaled as a whole. If steps have different
numbers of operations, each phase is scaled as a whole.

nsys itself makes each CUDA call slower. The clean steps are longer than steps without a profiler by that. It is taken
off the idle times by the calls made in them, at most MOST_CALL_NS a call.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.capture.distinct_values import find_distinct
from profiler_job.analysis.insight.gpu_limit import Timelines
from profiler_job.analysis.insight.gpu_waits import COPY, GpuWaits, Launches, find_blocking_calls
from profiler_job.analysis.reference.rules import Taxonomy

MOST_CALL_NS = 5_000
"""More than this a CUDA call is not slowed by nsys."""
_KEYS = ["gpu", "place", "is_copy"]
_PHASE_KEYS = ["gpu", "phase", "is_copy"]


class StepPlaces(NamedTuple):
    """step and place of each operation of a GPU, by start: -1 outside every step, and its number within its step.
    counts: the different numbers of operations of its steps."""

    step: np.ndarray
    place: np.ndarray
    counts: frozenset[int]


def number_places(step: np.ndarray) -> StepPlaces:
    """Number the operations of each step. step: of each operation, by start."""
    place = pd.Series(step).groupby(step).cumcount().to_numpy()
    _, counts = np.unique(step[step >= 0], return_counts=True)
    return StepPlaces(step, place, frozenset(counts.tolist()))


class CleanGaps:
    """The waiting of each GPU in steps without samples. step_ns: a step without a profiler; None if it is not known.
    call_ns: what nsys adds to a CUDA call."""

    def __init__(
        self,
        capture: Capture,
        attribution: Attribution,
        gpus: Mapping[str, np.ndarray],
        taxonomy: Taxonomy,
        step_ns: float | None,
    ):
        timelines = Timelines(capture, attribution, dict(gpus), taxonomy)
        launches, syncs = Launches(capture, attribution), find_blocking_calls(capture, attribution)
        parts, self._counts = [], {}
        for index, number in enumerate(find_distinct(np.concatenate([*gpus.values()])).tolist()):
            ops = timelines.list_operations(number)
            places = number_places(timelines.list_steps(number))
            gpu = GpuWaits(ops, timelines.calls, launches, syncs)
            pieces = gpu.list_pieces()
            self._counts[index] = places.counts
            pieces = place_pieces(pieces.assign(ns=pieces["end"] - pieces["start"], gpu=index), places)
            calls = pd.DataFrame({"step": places.step, "place": places.place, "calls": gpu.count_calls()})
            of_gpu = _sum_gaps(pieces).merge(calls, on=["step", "place"], how="left")
            parts.append(of_gpu.assign(calls=np.where(of_gpu["is_copy"], 0, of_gpu["calls"])))
        gaps = pd.concat(parts, ignore_index=True)
        self.num_steps = int(gaps["step"].nunique())
        self._regular = _find_medians(gaps, self.num_steps)
        excess = gaps["ns"].sum() / max(self.num_steps, 1) - self._regular["ns"].sum()
        self._excess_ns = max(float(excess), 0.0)
        phases = gaps.groupby(_PHASE_KEYS)[["ns", "calls"]].sum() / max(self.num_steps, 1)
        too_long = _measure_step(attribution) - step_ns if step_ns else 0.0
        self.call_ns = _solve_call(self._regular, too_long * len(self._counts))
        for frame in (self._regular, phases):
            frame["ns"] = np.maximum(frame["ns"] - self.call_ns * frame["calls"], 0.0)
        self._phases = phases

    @property
    def waiting_ns(self) -> float:
        """Waiting in a step, of all GPUs, without what nsys adds."""
        return float(self._regular["ns"].sum()) + self._excess_ns

    def scale(self, pieces: pd.DataFrame, counts: Mapping[int, frozenset[int]]) -> np.ndarray:
        """Return how much of `ns` of each piece of waiting with samples counts, so that a step waits `waiting_ns`.
        pieces: of `place_pieces`; counts: of the GPUs of these steps."""
        inside = (pieces["step"] >= 0).to_numpy()
        num_steps = max(int(pieces.loc[inside, "step"].nunique()), 1)
        gaps = _sum_gaps(pieces)
        is_even = all(len(counts[gpu] | self._counts.get(gpu, frozenset())) == 1 for gpu in counts)
        if not is_even:
            sums = gaps.groupby(_PHASE_KEYS)["ns"].sum() / num_steps
            factor = _divide(self._phases["ns"].reindex(sums.index, fill_value=0.0), sums)
            return _look_up(factor, pieces, _PHASE_KEYS) * inside
        medians = _find_medians(gaps, num_steps)["ns"]
        factor = _divide(self._regular["ns"].reindex(medians.index, fill_value=0.0), medians)
        by_step = gaps.set_index([*_KEYS, "step"])["ns"]
        usual = np.minimum(by_step, medians.reindex(by_step.index.droplevel("step"), fill_value=0.0).to_numpy())
        excess = float((by_step - usual).sum()) / num_steps
        of_excess = self._excess_ns / excess if excess else 0.0
        part = _look_up(_divide(usual, by_step), pieces, [*_KEYS, "step"])
        return (part * _look_up(factor, pieces, _KEYS) + (1 - part) * of_excess) * inside


def place_pieces(pieces: pd.DataFrame, places: StepPlaces) -> pd.DataFrame:
    """Add step, place and is_copy to pieces of the waiting of a GPU. row: of its operations."""
    row = pieces["row"].to_numpy().astype(np.int64)
    return pieces.assign(step=places.step[row], place=places.place[row], is_copy=pieces["cause"].to_numpy() == COPY)


def _sum_gaps(pieces: pd.DataFrame) -> pd.DataFrame:
    """Sum the pieces of each idle time inside a step."""
    inside = pieces[pieces["step"] >= 0].astype({"ns": float})
    return inside.groupby([*_KEYS, "step", "phase"], as_index=False)["ns"].sum()


def _find_medians(gaps: pd.DataFrame, num_steps: int) -> pd.DataFrame:
    """Find the median over the steps of each column, by place; a step without a wait there has 0."""
    values = [name for name in ("ns", "calls") if name in gaps]
    wide = gaps.pivot_table(index=_KEYS, columns="step", values=values, aggfunc="sum").fillna(0.0)
    missing = num_steps - gaps["step"].nunique()
    columns = {name: np.median(np.pad(wide[name].to_numpy(), ((0, 0), (0, missing))), axis=1) for name in values}
    return pd.DataFrame(columns, index=wide.index)


def _measure_step(attribution: Attribution) -> float:
    """Return the mean time of a captured step, from the start of the first to the end of the last."""
    steps = attribution.ranges[attribution.ranges["is_step"]]
    num_steps = max(int(steps["step"].nunique()), 1)
    return float(steps["end_ns"].max() - steps["start_ns"].min()) / num_steps if len(steps) else 0.0


def _solve_call(gaps: pd.DataFrame, too_long_ns: float) -> float:
    """Find how much each call is slowed if that makes steps `too_long_ns` longer. gaps: waiting and calls by place."""
    ns, calls = gaps["ns"].to_numpy(float), gaps["calls"].to_numpy(float)
    low, high = 0.0, float(MOST_CALL_NS)
    for _ in range(40):
        middle = (low + high) / 2
        if np.minimum(ns, middle * calls).sum() > too_long_ns:
            high = middle
        else:
            low = middle
    return low if too_long_ns > 0 else 0.0


def _divide(part: pd.Series, total: pd.Series) -> pd.Series:
    return (part / total.where(total > 0)).fillna(0.0)


def _look_up(values: pd.Series, pieces: pd.DataFrame, keys: list[str]) -> np.ndarray:
    """Look up the value of each piece; 0 if there is none."""
    index = pd.MultiIndex.from_frame(pieces[keys])
    return values.reindex(index, fill_value=0.0).to_numpy(float)
