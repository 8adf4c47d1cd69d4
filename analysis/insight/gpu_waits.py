"""The times in which a GPU waits, piece by piece, and what it waits for.

It waits while it runs no kernel and no fill. A piece is an idle time, or a time in which it only copies from or to the
host. What a synchronisation costs is the idle time that a replay without it would hide (`sync_replay`).
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import intervals
from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.insight.gpu_limit import Calls, Operations, are_before_data, find_gaps
from profiler_job.analysis.insight.sync_replay import UNBLOCKED_NS, replay_launches
from profiler_job.analysis.reference import cuda_api

LEAST_COPY_NS = 20_000
"""A call that copies is a synchronisation if it takes longer."""
LATE, SYNC, COPY, BETWEEN, FOR_DATA, IDLING = range(6)
"""Causes of a piece. FOR_DATA and IDLING are late launches, too: the thread that launches makes data, or nothing."""
AT_SYNC = -2
"""In place of the phase of the CPU, for what a synchronisation costs later."""


class Launches:
    """By API call: thread, process, and the module of what it launches."""

    def __init__(self, capture: Capture, attribution: Attribution):
        api = capture.api
        self.thread, self.process = api["thread"].to_numpy(), api["process"].to_numpy()
        modules = np.full(len(api), "", object)
        for name in ("memops", "kernels"):
            places = getattr(attribution, name)
            row = places["api"].to_numpy()
            modules[row[row >= 0]] = places["module"].astype(str).to_numpy(object)[row >= 0]
        self.module = modules


def find_blocking_calls(capture: Capture, attribution: Attribution) -> pd.DataFrame:
    """Find the calls in which the CPU waits for the GPU, by end: start_ns, end_ns, process, thread, name,
    api (row), and blocked_ns."""
    api = capture.api
    groups = [cuda_api.find_group(str(name)) for name in api["name"].cat.categories]
    codes = api["name"].cat.codes.to_numpy()
    is_sync = np.array([group == cuda_api.SYNCHRONISATION for group in groups], bool)[codes]
    duration = (api["end_ns"] - api["start_ns"]).to_numpy()
    copies = attribution.memops["api"].to_numpy()
    from_host = capture.memops["operation"].astype(str).isin(cuda_api.HOST_COPIES).to_numpy()
    is_copy = np.zeros(len(api), bool)
    is_copy[copies[(copies >= 0) & from_host]] = True
    rows = np.flatnonzero(is_sync | (is_copy & (duration > LEAST_COPY_NS)))
    blocking = api.iloc[rows].assign(api=rows, blocked_ns=np.maximum(duration[rows] - UNBLOCKED_NS, 0))
    return blocking.sort_values("end_ns", kind="stable", ignore_index=True)


class GpuWaits:
    """One GPU: the times in which it waits, and what a replay without synchronisations makes of them. call_ns: what a
    profiler adds to each call."""

    def __init__(self, ops: Operations, calls: Calls, launches: Launches, syncs: pd.DataFrame, call_ns: float = 0.0):
        self._ops, self._calls, self._launches = ops, calls, launches
        self._gaps, self._unknown, self._unknown_ns = find_gaps(ops, calls)
        self._replay = replay_launches(ops, self._gaps, calls, syncs, call_ns)

    def list_pieces(self) -> pd.DataFrame:
        """List the times in which the GPU waits, see `StackSamples.split`. row: of the operation that ends it. part: of
        it that no synchronisation costs; kept: that stays without a profiler."""
        ops, gaps = self._ops, self._gaps
        call = ops.call[gaps.row]
        begin, end = gaps.covered, ops.start[gaps.row]
        ready = begin + gaps.late
        own = 1 - self._replay.hidden / np.maximum(self._replay.kept * gaps.late, 1)
        place = {
            "thread": self._launches.thread[call],
            "process": self._launches.process[call],
            "phase": ops.phase[gaps.row],
            "module": self._launches.module[call],
            "row": gaps.row,
        }
        of_late = {"start": begin, "end": ready, "part": np.maximum(own, 0.0), "kept": self._replay.kept}
        late = _split_by_syncs(pd.DataFrame(place | of_late), gaps.least, self._calls.syncs)
        is_data = (late["cause"] == LATE) & are_before_data(ops, late["row"].to_numpy())
        late["cause"] = late["cause"].mask(is_data, FOR_DATA)
        between = pd.DataFrame(place | {"start": ready, "end": end, "part": 1.0, "cause": BETWEEN})
        unknown = self._unknown
        nowhere = {"thread": -1, "process": -1, "phase": ops.phase[unknown], "module": "", "row": unknown}
        lost = pd.DataFrame(
            nowhere
            | {"start": ops.start[unknown] - self._unknown_ns, "end": ops.start[unknown], "part": 1.0, "cause": LATE}
        )
        pieces = pd.concat([late, between, lost, self._list_copies()], ignore_index=True).fillna({"kept": 1.0})
        return pieces[pieces["end"] > pieces["start"]].reset_index(drop=True)

    def _list_copies(self) -> pd.DataFrame:
        """List the times in which only copies from or to the host run."""
        ops = self._ops
        copies = np.flatnonzero(ops.is_host_copy & (ops.call >= 0))
        others = np.flatnonzero(~ops.is_host_copy)
        start, end = _subtract(ops.start[copies], ops.end[copies], ops.start[others], ops.end[others])
        copy = copies[np.clip(np.searchsorted(ops.start[copies], start, side="right") - 1, 0, None)]
        call = ops.call[copy]
        return pd.DataFrame(
            {
                "thread": self._launches.thread[call],
                "process": self._launches.process[call],
                "phase": ops.phase[copy],
                "module": self._launches.module[call],
                "row": copy,
                "start": start,
                "end": end,
                "part": 1.0,
                "cause": COPY,
            }
        )

    def list_moved(self) -> pd.DataFrame:
        """List what synchronisations cost: the row of each in `syncs`, and the idle time after it that would be hidden
        without it."""
        moved = np.flatnonzero(self._replay.hidden > 0)
        row = self._gaps.row[moved]
        return pd.DataFrame(
            {
                "state": 0,
                "ns": self._replay.hidden[moved].astype(float),
                "cause": SYNC,
                "phase": self._ops.phase[row],
                "at": AT_SYNC,
                "module": "",
                "row": row,
                "sync": self._replay.owner[moved],
            }
        )


def _split_by_syncs(late: pd.DataFrame, least: np.ndarray, syncs: Mapping[int, intervals.Union]) -> pd.DataFrame:
    """Split late times by whether a thread of the process is in a synchronisation call meanwhile, as columns cause."""
    waits = np.zeros(len(late), np.int64)
    start, end = late["start"].to_numpy(), late["end"].to_numpy()
    for process, union in syncs.items():
        mine = (late["process"] == process).to_numpy()
        waits[mine] = union.measure_covered(start[mine] - least[mine], end[mine] - least[mine])
    middle = start + waits  # the call that waits comes first
    first = late.assign(end=middle, cause=SYNC)
    return pd.concat([first, late.assign(start=middle, cause=LATE)], ignore_index=True)


def _subtract(
    start: np.ndarray, end: np.ndarray, other_start: np.ndarray, other_end: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the parts of intervals that no other interval covers, in order."""
    edges = np.unique(np.concatenate([start, end, other_start, other_end]))
    low, high = edges[:-1], edges[1:]
    inside = intervals.Union(start, end).measure_covered(low, high) > 0
    inside &= intervals.Union(other_start, other_end).measure_covered(low, high) == 0
    return low[inside], high[inside]
