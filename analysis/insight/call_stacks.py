"""Which Python stack makes a call of CUDA that is shorter than the time between two samples.

Calls at the same place of a step are a pool: the same call (of a copy: the same kind and size) at the same position in
steps that have as many of them, or between the same operations. The line is that of the samples inside calls of the
pool. Without one it is that of the samples right before and right after, if they agree, or else not known.
"""

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.insight.stack_samples import LONGEST_PERIODS, NOT_SAMPLED, StackSamples
from profiler_job.analysis.reference import cuda_api

NEIGHBOURS = 8
"""So many operations before a call, and after it, are those of the other calls of its pool."""
ONE_CALL_NS = 10_000
"""PyTorch waits for a copy at most this long after it: 1 to 7 µs were seen. The wait is then of the copy's line."""
LEAST_AGREEMENT = 0.75
"""Least part of the samples of a pool that must be of one line."""
_STREAM_SYNC = "cudaStreamSynchronize"


class CallStacks:
    """Finds the stacks of calls. lines: number of the line of each stack."""

    def __init__(self, capture: Capture, attribution: Attribution, samples: StackSamples, lines: np.ndarray):
        self._samples, self._lines = samples, lines
        api = capture.api
        self._start, self._end = api["start_ns"].to_numpy(), api["end_ns"].to_numpy()
        self._thread, self._process = api["thread"].to_numpy(), api["process"].to_numpy()
        self._step = attribution.api["step"].to_numpy() if len(api) else np.zeros(0, np.int64)
        self._what, is_operation = _number_operations(capture, attribution)
        order = np.lexsort((self._start, self._thread))
        self._sequence = order[is_operation[order]]
        self._next_wait, self._copy_before = find_waits_of_copies(capture, attribution)

    def is_waited_for(self, rows: np.ndarray) -> np.ndarray:
        """Whether these calls (rows of `api`) are copies that PyTorch waits for at once, as most of their pool are."""
        waits = pd.Series(self._next_wait[rows] > self._end[rows])
        return (waits.groupby(self._number_positions(rows)).transform("mean") > 0.5).to_numpy()

    def find(self, rows: np.ndarray) -> np.ndarray:
        """Find the stack of each of these calls (rows of `api`); NOT_SAMPLED if its line is not known."""
        stacks = np.full(len(rows), NOT_SAMPLED)
        if not len(rows):
            return stacks
        sampled = self._samples.choose_thread(self._thread[rows], self._process[rows])
        own = self._list_inside(rows, sampled, self._start[rows], self._end[rows])
        with_waits = self._list_inside(rows, sampled, self._copy_before[rows], self._next_wait[rows])
        first = own.drop_duplicates("call")
        stacks[first["call"]] = first["stack"]
        around = self._list_around(rows, sampled)
        keys = [self._number_positions(rows), self._number_neighbours(rows)]
        for pool in keys:
            for inside in (own, with_waits):
                self._fill(stacks, pool, inside)
        for pool in keys:
            often = around.groupby(pool[around["call"]])["call"].transform("size")
            is_often = 2 * often.to_numpy() >= np.bincount(pool)[pool[around["call"]]]
            self._fill(stacks, pool, around[is_often])
        return stacks

    def _fill(self, stacks: np.ndarray, pool: np.ndarray, seen: pd.DataFrame) -> None:
        """Fill what is not known of each pool with its most frequent stack in its line, if enough of `seen` agree."""
        seen = seen.assign(pool=pool[seen["call"]], line=self._lines[seen["stack"]])
        if not len(seen):
            return
        counts = seen.groupby(["pool", "line"], as_index=False).size().sort_values("size", kind="stable")
        most = counts.drop_duplicates("pool", keep="last").set_index("pool")
        total = seen.groupby("pool").size()
        most = most[most["size"] >= LEAST_AGREEMENT * total.reindex(most.index)]
        counts = seen.groupby(["pool", "line", "stack"], as_index=False).size().sort_values("size", kind="stable")
        counts = counts[counts["line"].to_numpy() == most["line"].reindex(counts["pool"]).to_numpy()]
        by_pool = counts.drop_duplicates("pool", keep="last").set_index("pool")["stack"]
        missing = np.flatnonzero(stacks == NOT_SAMPLED)
        stacks[missing] = by_pool.reindex(pool[missing]).fillna(NOT_SAMPLED).to_numpy(np.int64)

    def _list_inside(self, rows: np.ndarray, sampled: np.ndarray, start: np.ndarray, end: np.ndarray) -> pd.DataFrame:
        """List the samples between start and end of each call: call (its place in rows), stack."""
        parts = [pd.DataFrame({"call": [], "stack": []}, dtype=np.int64)]
        for thread in set(sampled.tolist()) & set(self._samples.by_thread):
            time, stack, _ = self._samples.by_thread[thread]
            mine = np.flatnonzero(sampled == thread)
            first, last = np.searchsorted(time, start[mine]), np.searchsorted(time, end[mine], side="right")
            count = last - first
            number = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
            at = np.repeat(first, count) + number
            parts.append(pd.DataFrame({"call": np.repeat(mine, count), "stack": stack[at]}))
        return pd.concat(parts, ignore_index=True)

    def _list_around(self, rows: np.ndarray, sampled: np.ndarray) -> pd.DataFrame:
        """List the calls for which the samples right before and right after are near and of one line: call, stack."""
        parts = [pd.DataFrame({"call": [], "stack": []}, dtype=np.int64)]
        longest = LONGEST_PERIODS * self._samples.period_ns
        for thread in set(sampled.tolist()) & set(self._samples.by_thread):
            time, stack, _ = self._samples.by_thread[thread]
            mine = np.flatnonzero(sampled == thread)
            start, end = self._start[rows[mine]], self._end[rows[mine]]
            before, after = np.searchsorted(time, start) - 1, np.searchsorted(time, end, side="right")
            mine, start, end, before, after = (
                values[(before >= 0) & (after < len(time))] for values in (mine, start, end, before, after)
            )
            is_near = (start - time[before] <= longest) & (time[after] - end <= longest)
            both = is_near & (self._lines[stack[before]] == self._lines[stack[after]])
            parts.append(pd.DataFrame({"call": mine[both], "stack": stack[before[both]]}))
        return pd.concat(parts, ignore_index=True)

    def _number_positions(self, rows: np.ndarray) -> np.ndarray:
        """Number the pools of calls at the same position of steps with as many of them; others are alone."""
        frame = pd.DataFrame(
            {"thread": self._thread[rows], "what": self._what[rows], "step": self._step[rows], "at": self._start[rows]}
        ).sort_values("at", kind="stable")
        steps = frame.groupby(["thread", "what", "step"])
        frame["position"], frame["num"] = steps.cumcount(), steps["at"].transform("size")
        frame["alone"] = np.where(frame["step"] < 0, frame.index, -1)
        return frame.groupby(["thread", "what", "num", "position", "alone"]).ngroup().sort_index().to_numpy()

    def _number_neighbours(self, rows: np.ndarray) -> np.ndarray:
        """Number the pools of calls between the same operations. A call near the first or last operation of its thread
        belongs to the only pool with the same operations on the other side."""
        pools = np.empty(len(rows), object)
        for thread in np.unique(self._thread[rows]).tolist():
            sequence = self._sequence[self._thread[self._sequence] == thread]
            mine = np.flatnonzero(self._thread[rows] == thread)
            before = np.searchsorted(self._start[sequence], self._start[rows[mine]])
            after = np.searchsorted(self._start[sequence], self._start[rows[mine]], side="right")
            codes = self._what[sequence].tolist()
            known: dict[tuple[object, ...], set[tuple[object, ...]]] = {}
            cut = []
            for call, left, right in zip(mine.tolist(), before.tolist(), after.tolist()):
                what = (thread, int(self._what[rows[call]]))
                sides = (tuple(codes[max(left - NEIGHBOURS, 0) : left]), tuple(codes[right : right + NEIGHBOURS]))
                pools[call] = (*what, *sides)
                are_whole = [len(side) == NEIGHBOURS for side in sides]
                if all(are_whole):
                    for place, side in enumerate(sides):
                        known.setdefault((*what, place, side), set()).add(pools[call])
                elif any(are_whole):
                    place = are_whole.index(True)
                    cut.append((call, (*what, place, sides[place])))
            for call, key in cut:
                if len(same := known.get(key, set())) == 1:
                    (pools[call],) = same
        return pd.factorize(pd.Series(pools, dtype=object))[0]


def find_waits_of_copies(capture: Capture, attribution: Attribution) -> tuple[np.ndarray, np.ndarray]:
    """Find for each call the end of the wait for it, if it is a copy, or else its own end; and the start of the copy
    that it waits for, if it is such a wait, or else its own start."""
    api = capture.api
    start, end, thread = (api[name].to_numpy(copy=True) for name in ("start_ns", "end_ns", "thread"))
    order = np.lexsort((start, thread))
    first, second = order[:-1], order[1:]
    is_wait = (api["name"].astype(str) == _STREAM_SYNC).to_numpy()
    is_near = start[second] - end[first] <= ONE_CALL_NS
    same = thread[first] == thread[second]
    both = _find_host_copies(capture, attribution)[first] & is_wait[second] & is_near & same
    end[first[both]], start[second[both]] = end[second[both]], start[first[both]]
    return end, start


def _find_host_copies(capture: Capture, attribution: Attribution) -> np.ndarray:
    """Whether each call copies from or to the host."""
    row = attribution.memops["api"].to_numpy()
    is_copy = capture.memops["operation"].astype(str).isin(cuda_api.HOST_COPIES).to_numpy() & (row >= 0)
    of_calls = np.zeros(len(capture.api), bool)
    of_calls[row[is_copy]] = True
    return of_calls


def _number_operations(capture: Capture, attribution: Attribution) -> tuple[np.ndarray, np.ndarray]:
    """Number what each call is: its name, and the kernel, or copy with its size, that it launches; and whether it
    launches something or waits for the GPU."""
    api = capture.api
    names = api["name"].astype(str)
    groups = {name: cuda_api.find_group(name) for name in names.unique()}
    is_operation = (names.map(groups) == cuda_api.SYNCHRONISATION).to_numpy(bool, copy=True)
    launched = np.full(len(api), "", object)
    parts = [capture.memops[name].astype(str) for name in ("operation", "host_memory", "bytes")]
    texts = parts[0].str.cat(parts[1:], sep=" ")
    of_kernels = capture.kernels["kernel_name"].astype(str)
    for text, operations in ((texts, attribution.memops), (of_kernels, attribution.kernels)):
        row = operations["api"].to_numpy()
        launched[row[row >= 0]] = text.to_numpy(object)[row >= 0]
    row = attribution.graphs["api"].to_numpy()
    is_operation[row[row >= 0]] = True
    is_operation |= launched != ""
    return pd.factorize(names + " " + pd.Series(launched, index=names.index, dtype=object))[0], is_operation
