"""How long calls of CUDA take in clean steps, by their place: where a thread makes the same calls in the same order.

Steps with samples, and those in which modules are followed, show which line makes a call, and are slower. Each call
there is the one at its place in clean steps, if a thread makes as many calls of the same names in the same order.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.reference import cuda_api

Place = tuple[int, int, tuple[str, ...]]
"""Process, thread, and the names of its calls in a step, in order."""


def iterate_sequences(calls: pd.DataFrame) -> Iterator[tuple[Place, pd.DataFrame]]:
    """Yield the calls of each thread in each step with their place. calls: process, thread, step (-1 outside), name, by
    start."""
    inside = calls[calls["step"] >= 0]
    for (process, thread, _), mine in inside.groupby(["process", "thread", "step"], sort=False):
        yield (process, thread, tuple(mine["name"])), mine


def average_by_place(calls: pd.DataFrame) -> dict[Place, np.ndarray]:
    """Return the mean time of each call (ns) in the clean steps in which a thread makes these calls. calls: as of
    `iterate_sequences`, with wait_ns."""
    times: dict[Place, list[np.ndarray]] = {}
    for place, mine in iterate_sequences(calls):
        times.setdefault(place, []).append(mine["wait_ns"].to_numpy(float))
    return {place: np.mean(steps, axis=0) for place, steps in times.items()}


class CleanCalls:
    """Times of copies from and to the host, and of calls that allocate memory or free it, in clean steps."""

    def __init__(self, capture: Capture, attribution: Attribution):
        kinds = list_copies(capture, attribution), list_allocations(capture, attribution)
        self._means = [average_by_place(_number_owners(calls)) for calls in kinds]

    def find_times(self, calls: pd.DataFrame) -> np.ndarray:
        """Find how long each of these calls of another capture of the program takes in clean steps (float64, ns); NaN
        for those whose thread makes others there. calls: of `list_copies` or `list_allocations`."""
        times = pd.Series(np.nan, calls.index)
        for place, mine in iterate_sequences(_number_owners(calls)):
            for means in self._means:
                if place in means:
                    times[mine.index] = means[place]
        return times.to_numpy()


def list_copies(capture: Capture, attribution: Attribution) -> pd.DataFrame:
    """List the calls that copy from and to the host, by start: process, thread, step, name (with what is copied),
    wait_ns, api (its row) and memop (its row)."""
    memops, row = capture.memops, attribution.memops["api"].to_numpy()
    is_copy = memops["operation"].astype(str).isin(cuda_api.HOST_COPIES).to_numpy() & (row >= 0)
    calls = _list_calls(capture, attribution, row[is_copy]).assign(memop=np.flatnonzero(is_copy))
    names = calls["name"] + " " + memops["operation"].astype(str).to_numpy()[is_copy]
    return calls.assign(name=names).sort_values("start_ns", kind="stable", ignore_index=True)


def list_allocations(capture: Capture, attribution: Attribution) -> pd.DataFrame:
    """List the calls that allocate memory or free it, by start: process, thread, step, name, wait_ns and api (its
    row)."""
    names = capture.api["name"]
    is_kind = [cuda_api.find_group(str(name)) == cuda_api.ALLOCATION for name in names.cat.categories]
    calls = _list_calls(capture, attribution, np.flatnonzero(np.array(is_kind, bool)[names.cat.codes]))
    return calls.sort_values("start_ns", kind="stable", ignore_index=True)


def _list_calls(capture: Capture, attribution: Attribution, rows: np.ndarray) -> pd.DataFrame:
    api = capture.api.iloc[rows]
    columns = {name: api[name].to_numpy() for name in ("process", "thread", "start_ns")}
    columns |= {"name": api["name"].astype(str).to_numpy(object), "api": rows}
    columns |= {"step": attribution.api["step"].to_numpy()[rows] if len(rows) else rows}
    return pd.DataFrame(columns | {"wait_ns": (api["end_ns"] - api["start_ns"]).to_numpy()})


def _number_owners(calls: pd.DataFrame) -> pd.DataFrame:
    """Number processes and threads, which have other ids in another capture of the same program: processes by ids, and
    threads by their first call."""
    thread = calls.groupby("process", sort=False)["thread"].transform(lambda ids: pd.factorize(ids)[0])
    return calls.assign(process=pd.factorize(calls["process"], sort=True)[0], thread=thread.astype(np.int64))
