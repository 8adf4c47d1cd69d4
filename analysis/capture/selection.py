"""A part of a capture: one GPU, what is launched inside ranges of a name, a piece of its time.

What is left is a capture and its attribution again, so that all that is made of them knows nothing of it. Operations
keep the phase, step and module that they have in the whole capture.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.believed_launches import find_launches
from profiler_job.analysis.capture.capture_data import MOST_DEVICES, Capture, ExportError, ExportProblem, get_process_id
from profiler_job.analysis.capture.chosen_part import Selection
from profiler_job.analysis.capture.distinct_values import encode
from profiler_job.analysis.capture.range_nesting import Nesting, split_by_depth
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.quantities import format_time

_OPERATIONS = ("kernels", "memops", "graphs")


def find_gpus(capture: Capture, operations: pd.DataFrame) -> np.ndarray:
    """Number of the GPU of each operation: what CUDA calls device 0 is another GPU in another process."""
    unique, inverse = encode(operations["process"].to_numpy() * MOST_DEVICES + operations["device"].to_numpy())
    known_as = [divmod(int(key), MOST_DEVICES) for key in unique]
    numbers = [capture.gpu_of.get((get_process_id(process), device), device) for process, device in known_as]
    return np.array(numbers, np.int64)[inverse]


def find_first_event(capture: Capture) -> int:
    """When the first event starts, on the clock of the capture."""
    frames = (capture.kernels, capture.graphs, capture.memops, capture.api, capture.ranges, capture.syncs)
    return min((int(frame["start_ns"].min()) for frame in frames if len(frame)), default=0)


def select(capture: Capture, attribution: Attribution, selection: Selection) -> tuple[Capture, Attribution]:
    """Apply `selection` to both. Raises ExportError if the capture lacks what is asked for."""
    if not selection.restricts():
        return capture, attribution
    kept = _find_kept_rows(capture, attribution, selection)
    frames = {name: _select_rows(getattr(capture, name), rows) for name, rows in kept.items()}
    events = [frame for frame in frames.values() if len(frame) and "end_ns" in frame]  # samples are moments
    first = min((int(frame["start_ns"].min()) for frame in events), default=0)
    last = max((int(frame["end_ns"].max()) for frame in events), default=0)
    return replace(capture, **frames, events_ns=last - first), _place_kept(attribution, frames, kept)


def _select_rows(frame: pd.DataFrame, kept: np.ndarray) -> pd.DataFrame:
    """The rows that are kept, without categories that none of them has."""
    rows = frame[kept].reset_index(drop=True)
    categories = [name for name in rows if isinstance(rows[name].dtype, pd.CategoricalDtype)]
    return rows.assign(**{name: rows[name].cat.remove_unused_categories() for name in categories})


# ----------------------------------------------------------------------------------------------------------- which rows


def _find_kept_rows(capture: Capture, attribution: Attribution, selection: Selection) -> dict[str, np.ndarray]:
    """Find the rows of each frame of the capture that are kept."""
    names = (*_OPERATIONS, "api", "ranges", "syncs", "samples")
    kept = {name: np.ones(len(getattr(capture, name)), bool) for name in names}
    if selection.between:
        _keep_between(capture, selection.between, kept)
    if selection.range is not None:
        _keep_inside(capture, attribution, selection.range, kept)
    if selection.gpu is not None:
        _keep_gpu(capture, selection.gpu, kept)
    for name in _OPERATIONS:
        row = getattr(attribution, name)["api"].to_numpy()[kept[name]]
        kept["api"][row[row >= 0]] = True
    return kept


def _keep_between(capture: Capture, moments: tuple[int, int], kept: dict[str, np.ndarray]) -> None:
    start, end = (find_first_event(capture) + moment for moment in moments)
    if moments[0] > capture.events_ns:
        problem = f"ends {format_time(capture.events_ns)} after its first event"
        raise ExportError(
            ExportProblem.NOTHING_SELECTED,
            capture.path,
            problem,
            "choose earlier moments with --between",
            exit_code=ExitCode.USAGE,
        )
    for name, rows in kept.items():
        starts = getattr(capture, name)["start_ns"].to_numpy()
        rows &= (starts >= start) & (starts < end)


def _keep_gpu(capture: Capture, gpu: int, kept: dict[str, np.ndarray]) -> None:
    """API calls are of a GPU only by what they launch, ranges and samples by the processes that use it."""
    numbers = {name: find_gpus(capture, getattr(capture, name)) for name in (*_OPERATIONS, "syncs")}
    used = sorted({int(number) for name in _OPERATIONS for number in pd.unique(numbers[name])})
    if gpu not in used:
        ran = f"ran nothing on GPU {gpu}" if used else "ran nothing on any GPU"
        raise ExportError(
            ExportProblem.NOTHING_SELECTED,
            capture.path,
            ran,
            f"it used GPU {', '.join(map(str, used))}" if used else "leave out --gpu",
            exit_code=ExitCode.USAGE,
        )
    for name, number in numbers.items():
        kept[name] &= number == gpu
    kept["api"][:] = False
    users = {
        int(process)
        for name in _OPERATIONS
        for process in getattr(capture, name)["process"][numbers[name] == gpu].unique()
    }
    for name in ("ranges", "samples"):
        kept[name] &= getattr(capture, name)["process"].isin(users).to_numpy()


def _keep_inside(capture: Capture, attribution: Attribution, name: str, kept: dict[str, np.ndarray]) -> None:
    ranges = capture.ranges
    named = _is_called(ranges, name)
    if not named.any():  # PyTorch's have numbers in their names, which the section `ranges` leaves out
        plain = attribution.ranges["plain_name"].cat
        named = plain.codes.isin(np.flatnonzero(plain.categories == name)).to_numpy()
    inside = _Inside(ranges, attribution.nesting, named)
    if not inside.named.any():
        raise ExportError(
            ExportProblem.NOTHING_SELECTED,
            capture.path,
            f"has no range called {name!r}",
            "the section `ranges` lists their names",
            exit_code=ExitCode.USAGE,
        )
    kept["ranges"] &= inside.named | inside.holds(ranges["process"], ranges["thread"], ranges["start_ns"])
    calls = inside.holds(capture.api["process"], capture.api["thread"], capture.api["start_ns"])
    kept["api"] &= calls
    for operations in _OPERATIONS:
        row = getattr(attribution, operations)["api"].to_numpy()
        kept[operations] &= (row >= 0) & _take(calls, row)
    row = find_launches(capture.syncs, capture.api)
    kept["syncs"] &= (row >= 0) & _take(calls, row)


def _take(values: np.ndarray, row: np.ndarray) -> np.ndarray:
    return values[np.maximum(row, 0)] if len(values) else np.zeros(len(row), bool)


def _is_called(ranges: pd.DataFrame, name: str) -> np.ndarray:
    """Whether each range has that name, alone or after the name of its domain."""
    called = np.array([str(known) == name for known in ranges["name"].cat.categories], bool)
    if not len(ranges):
        return np.zeros(0, bool)
    named = called[ranges["name"].cat.codes]
    domain, colon, rest = name.partition(":")
    while colon:  # either may have a colon of its own
        of_domain = (ranges["domain"] == domain).to_numpy() & (domain != "")
        named |= of_domain & (ranges["name"] == rest).to_numpy()
        more, colon, rest = rest.partition(":")
        domain = f"{domain}:{more}"
    return named


class _Inside:
    """The moments inside ranges that are `named`."""

    def __init__(self, ranges: pd.DataFrame, nesting: Nesting, named: np.ndarray):
        self.named, self._nesting = named, nesting
        self._under = named & (ranges["style"] == "PushPop").to_numpy()
        for rows in split_by_depth(nesting.stack_parent)[1:]:
            self._under[rows] |= self._under[nesting.stack_parent[rows]]
        spans = ranges[named & (ranges["style"] == "StartEnd").to_numpy()]
        self._spans = {int(process): rows for process, rows in spans.groupby("process")}

    def holds(self, process: pd.Series, thread: pd.Series, time: pd.Series) -> np.ndarray:
        """Whether each moment on a thread of a process is inside."""
        moments = time.to_numpy()
        held = np.zeros(len(moments), bool)
        for chain in self._nesting.find_chains(thread.to_numpy(), moments):
            held |= (chain >= 0) & self._under[chain]
        for owner, rows in self._spans.items():
            begun = np.searchsorted(np.sort(rows["start_ns"].to_numpy()), moments, side="right")
            ended = np.searchsorted(np.sort(rows["end_ns"].to_numpy()), moments, side="right")
            held |= (process == owner).to_numpy() & (begun > ended)
        return held


# ---------------------------------------------------------------------------------------------------- their new places


def _place_kept(attribution: Attribution, frames: dict[str, pd.DataFrame], kept: dict[str, np.ndarray]) -> Attribution:
    """The attribution of the kept rows, with the row numbers that calls and ranges have among them."""
    nesting = Nesting(frames["ranges"])
    parents = _find_kept_parents(attribution.ranges["parent_id"].to_numpy(), kept["ranges"])
    ranges = attribution.ranges[kept["ranges"]].reset_index(drop=True).assign(parent_id=parents)
    for name in ("name", "domain"):
        ranges[name] = frames["ranges"][name]
    number = np.cumsum(kept["api"]) - 1
    operations = {}
    for name in _OPERATIONS:
        place = getattr(attribution, name)[kept[name]].reset_index(drop=True)
        row = place["api"].to_numpy()
        innermost = nesting.find_innermost(
            nesting.find_chains(place["thread"].to_numpy(), place["launch_ns"].to_numpy()), len(row)
        )
        calls = np.where(row >= 0, _look_up(number, row), row)
        operations[name] = place.assign(api=calls, range_id=innermost)
    places: Any = _PlacesAmong(attribution._places, nesting)
    return replace(attribution, ranges=ranges, nesting=nesting, _places=places, _calls=frames["api"], **operations)


def _look_up(number: np.ndarray, row: np.ndarray) -> np.ndarray:
    return number[np.maximum(row, 0)] if len(number) else row


def _find_kept_parents(parent: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Row number of the nearest range around each kept one that is kept, too; -1 none."""
    number = np.cumsum(kept) - 1
    above = parent[kept]
    while (lost := (above >= 0) & ~_look_up(kept, above)).any():
        above = np.where(lost, parent[above], above)
    return np.where(above >= 0, _look_up(number, above), -1)


class _PlacesAmong:
    """Places of moments in the whole capture, with the ranges that are kept."""

    def __init__(self, places: Any, nesting: Nesting):
        self._places, self._nesting = places, nesting

    def place_moments(self, process: Any, thread: Any, time: Any, launched: np.ndarray | None) -> pd.DataFrame:
        place = self._places.place_moments(process, thread, time, launched)
        chains = self._nesting.find_chains(np.asarray(thread), np.asarray(time))
        return place.assign(range_id=self._nesting.find_innermost(chains, len(place)))
