"""How long a GPU waits at each place of a step, from captured steps in which Python was not sampled.

Samples make the CPU slower, and not every line by as much: where the CPU was ahead of the GPU, a slower one makes the
GPU wait. So samples only show which line it is. How long counts from the clean steps: the idle time before the n-th
operation of a step counts as long as that before the n-th operation of the clean steps, in the median, phase by phase
of what the CPU does meanwhile. What is more in some of the steps, such as a collection of garbage, has no place: it is
scaled as a whole. If steps have different numbers of operations, each phase is scaled as a whole.

nsys itself makes each CUDA call slower. The clean steps are longer than steps without a profiler by that. So their
launches are replayed with faster calls, by at most MOST_CALL_NS each, until they are as long. Waiting for the batches
of a DataLoader is scaled to its time without a profiler: its workers go on while nsys makes the rest of a step longer.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.capture.distinct_values import find_distinct
from profiler_job.analysis.insight.clean_calls import CleanCalls
from profiler_job.analysis.insight.gpu_limit import Operations, Timelines
from profiler_job.analysis.insight.gpu_waits import AT_SYNC, COPY, GpuWaits, Launches, find_blocking_calls
from profiler_job.analysis.reference.rules import Taxonomy
from profiler_job.jobs.contract.ranges import DATA

MOST_CALL_NS = 10_000
"""More than this a CUDA call is not slowed by nsys: 7 µs were seen on a virtual machine."""
CALL_PRECISION_NS = 50
_FIRST, _LAST = -(2**62), 2**62
_KEYS = ["gpu", "place", "at", "is_copy"]
_PHASE_KEYS = ["gpu", "phase", "at", "is_copy"]


class StepPlaces(NamedTuple):
    """step and place of each operation of a GPU, by start: -1 outside every step, and its number within its step.
    counts: the different numbers of operations of its steps. of_phase: how many its phase has in its step, and its
    number among them."""

    step: np.ndarray
    place: np.ndarray
    counts: frozenset[int]
    of_phase: pd.DataFrame


def number_places(step: np.ndarray, phase: np.ndarray) -> StepPlaces:
    """Number the operations of each step. step, phase: of each operation, by start."""
    phases = pd.DataFrame({"step": step, "phase": phase}).groupby(["step", "phase"])["step"]
    of_phase = pd.DataFrame({"num_in_phase": phases.transform("size"), "number": phases.cumcount()})
    place = pd.Series(step).groupby(step).cumcount().to_numpy()
    _, counts = np.unique(step[step >= 0], return_counts=True)
    return StepPlaces(step, place, frozenset(counts.tolist()), of_phase)


class CleanGaps:
    """The waiting of each GPU in steps without samples. step_ns: a step without a profiler; None if it is not known.
    batches_ns: what the batches of a DataLoader take in it, likewise. call_ns: what nsys adds to a CUDA call. calls:
    times of single calls."""

    def __init__(
        self,
        capture: Capture,
        attribution: Attribution,
        gpus: Mapping[str, np.ndarray],
        taxonomy: Taxonomy,
        step_ns: float | None,
        batches_ns: float | None = None,
    ):
        timelines = Timelines(capture, attribution, dict(gpus), taxonomy)
        launches, syncs = Launches(capture, attribution), find_blocking_calls(capture, attribution)
        every_gpu = find_distinct(np.concatenate([*gpus.values()])).tolist()
        self._counts: dict[int, frozenset[int]] = {}
        self._modules: dict[tuple[int, ...], str] = {}
        data_ns, data_code = _measure_data(attribution)
        self.num_steps = count_steps(attribution)

        def list_gaps(call_ns: float) -> pd.DataFrame:
            parts = []
            for index, number in enumerate(every_gpu):
                operations = timelines.list_operations(number)
                places = number_places(timelines.list_steps(number), operations.phase)
                gpu = GpuWaits(operations, timelines.calls, launches, syncs, call_ns)
                parts.append(_sum_by_place(gpu, places, attribution, index, data_code))
                self._counts[index] = places.counts
                self._modules |= _list_modules(operations, launches, places, index)
            return pd.concat(parts, ignore_index=True)

        gaps = list_gaps(0.0)
        self.step_ns, self.captured_ns = step_ns, _measure_step(attribution)
        self.calls = CleanCalls(capture, attribution)
        is_measured = batches_ns is not None and data_ns > 0
        known_ns = batches_ns if batches_ns is not None and is_measured else data_ns
        too_long = self.captured_ns - data_ns - (step_ns - known_ns) if step_ns else 0.0

        def measure_others(gaps: pd.DataFrame) -> float:
            regular = _find_medians(gaps, self.num_steps)
            return float(regular.loc[regular.index.get_level_values("at") != data_code, "ns"].sum())

        wanted = measure_others(gaps) - too_long * len(self._counts)
        self.call_ns = _solve_call(lambda call_ns: measure_others(list_gaps(call_ns)) - wanted) if too_long > 0 else 0.0
        gaps = list_gaps(self.call_ns)
        self._regular = _find_medians(gaps, self.num_steps)
        excess = gaps["ns"].sum() / max(self.num_steps, 1) - self._regular["ns"].sum()
        self._excess_ns = max(float(excess), 0.0)
        phases = gaps.groupby(_PHASE_KEYS)[["ns"]].sum() / max(self.num_steps, 1)
        for frame in (self._regular, phases):
            is_data = frame.index.get_level_values("at") == data_code
            frame["ns"] *= np.where(is_data & (data_ns > 0), known_ns / (data_ns or 1.0), 1.0)
        self._phases = phases

    def find_call_ns(self, capture: Capture, attribution: Attribution) -> float:
        """Find how much longer each CUDA call takes in a capture of slower steps than without a profiler; 0 if that is
        not known."""
        if self.step_ns is None or not count_steps(attribution):
            return 0.0
        steps = attribution.ranges[attribution.ranges["is_step"]]
        start = capture.api["start_ns"]
        inside = start.between(steps["start_ns"].min(), steps["end_ns"].max())
        return max(_measure_step(attribution) - self.step_ns, 0.0) * len(steps) / max(int(inside.sum()), 1)

    def scale(self, pieces: pd.DataFrame, counts: Mapping[int, frozenset[int]], num_steps: int) -> np.ndarray:
        """Return how much of `ns` of each piece of waiting with samples counts, so that each place of a step, or else
        each phase, waits as long as in the clean steps. pieces: of `place_pieces`; counts: of the GPUs of these
        steps; num_steps: how many these are."""
        inside = (pieces["step"] >= 0).to_numpy()
        pieces = _join_syncs(pieces)
        gaps = _sum_gaps(pieces)
        is_even = all(len(counts[gpu] | self._counts.get(gpu, frozenset())) == 1 for gpu in counts)
        if not is_even:
            sums = gaps.groupby(_PHASE_KEYS)["ns"].sum() / num_steps
            factor = _divide(self._phases["ns"].reindex(sums.index, fill_value=0.0), sums)
            return _look_up(factor, pieces, _PHASE_KEYS) * inside
        medians = _find_medians(gaps, num_steps)["ns"]
        by_step = gaps.set_index([*_KEYS, "step"])["ns"]
        usual = np.minimum(by_step, medians.reindex(by_step.index.droplevel("step"), fill_value=0.0).to_numpy())
        counted = usual.groupby(level=_KEYS).sum() / num_steps
        factor = _divide(self._regular["ns"].reindex(counted.index, fill_value=0.0), counted)
        excess = float((by_step - usual).sum()) / num_steps
        of_excess = self._excess_ns / excess if excess else 0.0
        part = _look_up(_divide(usual, by_step), pieces, [*_KEYS, "step"])
        return (part * _look_up(factor, pieces, _KEYS) + (1 - part) * of_excess) * inside

    def name_modules(self, pieces: pd.DataFrame) -> list[str]:
        """Name the module that launches next after each piece, as steps with samples have no ranges of modules; "" if
        it is not known. pieces: as of `scale`."""
        keys = zip(*(pieces[name].tolist() for name in ("gpu", "phase", "num_in_phase", "number")))
        return [self._modules.get(key, "") for key in keys]


def _list_modules(ops: Operations, launches: Launches, places: StepPlaces, index: int) -> dict[tuple[int, ...], str]:
    """List the modules that launch the operations of a GPU in steps, by GPU, phase, how many operations the phase has
    in the step, and number among them."""
    rows = np.flatnonzero((places.step >= 0) & (ops.call >= 0))
    of_phase = places.of_phase.iloc[rows]
    keys = zip(ops.phase[rows].tolist(), of_phase["num_in_phase"].tolist(), of_phase["number"].tolist())
    return {(index, *key): str(name) for key, name in zip(keys, launches.module[ops.call[rows]]) if name}


def _sum_by_place(
    gpu: GpuWaits, places: StepPlaces, attribution: Attribution, index: int, data_code: int
) -> pd.DataFrame:
    """Sum the waiting of a GPU by place and step, as without a profiler but in the phase of data: _KEYS, step, phase,
    ns."""
    pieces = split_by_phase(gpu.list_pieces(), attribution)
    kept = pieces["kept"].where(pieces["at"] != data_code, 1.0)
    pieces = pieces.assign(ns=(pieces["end"] - pieces["start"]) * pieces["part"] * kept)
    pieces = pd.concat([pieces, gpu.list_moved()], ignore_index=True)
    return _sum_gaps(_join_syncs(place_pieces(pieces.assign(gpu=index), places)))


def _join_syncs(pieces: pd.DataFrame) -> pd.DataFrame:
    """Give one place in a step to all that synchronisations cost: on a slower CPU it is before other operations."""
    is_sync = pieces["at"] == AT_SYNC
    return pieces.assign(**{name: pieces[name].mask(is_sync, -1) for name in ("place", "phase")})


def place_pieces(pieces: pd.DataFrame, places: StepPlaces) -> pd.DataFrame:
    """Add step, place, of_phase and is_copy to pieces of the waiting of a GPU. row: of its operations."""
    row = pieces["row"].to_numpy().astype(np.int64)
    of_phase = {name: values.to_numpy()[row] for name, values in places.of_phase.items()}
    is_copy = pieces["cause"].to_numpy() == COPY
    return pieces.assign(step=places.step[row], place=places.place[row], is_copy=is_copy, **of_phase)


def split_by_phase(pieces: pd.DataFrame, attribution: Attribution) -> pd.DataFrame:
    """Split pieces of waiting (start, end, process) where a phase of the CPU begins or ends. Add `at`: the number of
    that phase, -1 outside all; and when it begins and ends, at_start and at_end."""
    ranges = attribution.ranges
    phase, parent = ranges["phase"].cat.codes.to_numpy(), ranges["parent_id"].to_numpy()
    is_root = (ranges["phase"] != "").to_numpy() & ~((parent >= 0) & (phase[parent] == phase))
    roots = ranges[is_root].assign(code=phase[is_root]).sort_values("start_ns")
    parts = [pieces.assign(at=-1).head(0)]
    for process, mine in pieces.groupby("process"):
        of_process = roots[roots["process"] == process]
        begin, end = of_process["start_ns"].to_numpy(), of_process["end_ns"].to_numpy()
        edges = np.unique(np.concatenate([begin, end]))
        cut = _cut_at(mine, edges)
        middle = (cut["start"].to_numpy() + cut["end"].to_numpy()) // 2
        last = np.searchsorted(begin, middle, side="right") - 1
        inside = (last >= 0) & (middle < end[last]) if len(begin) else np.zeros(len(cut), bool)
        code = np.r_[of_process["code"].to_numpy(), -1]
        place = np.searchsorted(edges, middle, side="right")
        around = np.r_[_FIRST, edges, _LAST]
        parts.append(cut.assign(at=np.where(inside, code[last], -1), at_start=around[place], at_end=around[place + 1]))
    return pd.concat(parts, ignore_index=True)


def _cut_at(pieces: pd.DataFrame, edges: np.ndarray) -> pd.DataFrame:
    """Cut pieces of time at these moments."""
    start, end = pieces["start"].to_numpy(), pieces["end"].to_numpy()
    first, last = np.searchsorted(edges, start, side="right"), np.searchsorted(edges, end, side="left")
    count = last - first + 1
    row = np.repeat(np.arange(len(pieces)), count)
    number = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    at = np.repeat(first, count) + number
    around = np.r_[_FIRST, edges, _LAST]
    return pieces.iloc[row].assign(start=np.maximum(start[row], around[at]), end=np.minimum(end[row], around[at + 1]))


def _sum_gaps(pieces: pd.DataFrame) -> pd.DataFrame:
    """Sum the pieces of each idle time inside a step."""
    inside = pieces[pieces["step"] >= 0].astype({"ns": float})
    return inside.groupby([*_KEYS, "step", "phase"], as_index=False)["ns"].sum()


def _find_medians(gaps: pd.DataFrame, num_steps: int) -> pd.DataFrame:
    """Find the median waiting over the steps by place, ns; a step without a wait there has 0."""
    wide = gaps.pivot_table(index=_KEYS, columns="step", values="ns", aggfunc="sum").fillna(0.0)
    missing = max(num_steps, 1) - gaps["step"].nunique()
    return pd.DataFrame({"ns": np.median(np.pad(wide.to_numpy(), ((0, 0), (0, missing))), axis=1)}, index=wide.index)


def _measure_step(attribution: Attribution) -> float:
    """Return the median time of a captured step, from its start to the start of the next."""
    steps = attribution.ranges[attribution.ranges["is_step"]].sort_values("start_ns")
    times = [
        np.diff(np.r_[mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy()[-1]])
        for _, mine in steps.groupby("process")
    ]
    return float(np.median(np.concatenate(times))) if times else 0.0


def _measure_data(attribution: Attribution) -> tuple[float, int]:
    """Return the median time of a step of a process in the phase of data, and the number of that phase."""
    ranges = attribution.ranges
    code = list(ranges["phase"].cat.categories).index(DATA) if DATA in ranges["phase"].cat.categories else -3
    rows = ranges[(ranges["phase"] == DATA) & (ranges["step"] >= 0) & (ranges["name"] == DATA)]
    times = (rows["end_ns"] - rows["start_ns"]).groupby([rows["process"], rows["step"]]).sum().to_numpy(float)
    return (float(np.median(times)) if 2 * len(times) > ranges["is_step"].sum() else 0.0), code


def count_steps(attribution: Attribution) -> int:
    """Count the captured steps of a process: of several, of the one that has most."""
    return int(attribution.ranges["step"].max()) + 1 if len(attribution.ranges) else 0


def _solve_call(measure_excess: Callable[[float], float]) -> float:
    """Find how much each call is slowed (ns), if without that nothing is left of what measure_excess returns."""
    low, high = 0.0, float(MOST_CALL_NS)
    if measure_excess(high) >= 0:
        return high
    while high - low > CALL_PRECISION_NS:
        middle = (low + high) / 2
        if measure_excess(middle) > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _divide(part: pd.Series, total: pd.Series) -> pd.Series:
    return (part / total.where(total > 0)).fillna(0.0)


def _look_up(values: pd.Series, pieces: pd.DataFrame, keys: list[str]) -> np.ndarray:
    """Look up the value of each piece; 0 if there is none."""
    index = pd.MultiIndex.from_frame(pieces[keys])
    return values.reindex(index, fill_value=0.0).to_numpy(float)
