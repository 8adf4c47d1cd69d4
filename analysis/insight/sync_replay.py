"""What a GPU's idle times would be if the CPU launched without waiting for it, and without a profiler."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import intervals
from profiler_job.analysis.insight.gpu_limit import Calls, Gaps, Operations

UNBLOCKED_NS = 8_000
"""What a synchronisation takes that has nothing to wait for: more of it is waiting."""
MOST_SLOWED = 0.7
"""Part of the CPU's time that a profiler adds at most."""
FULL_QUEUE = 1000
"""Launches that a GPU holds. A call that comes then waits until the GPU begins the next one."""


class Replay(NamedTuple):
    """For each gap: the synchronisation before its launch that costs it (a row of `syncs`, by end), the part of its
    late time that stays on a CPU that no profiler slows (0 to 1), and how much of that would be hidden without
    synchronisations (int64, ns)."""

    owner: np.ndarray
    kept: np.ndarray
    hidden: np.ndarray


def replay_launches(ops: Operations, gaps: Gaps, calls: Calls, syncs: pd.DataFrame, call_ns: float = 0.0) -> Replay:
    """Replay the launches without the times in which the CPU was blocked. call_ns: what a profiler adds to each call: a
    CPU without a profiler is farther ahead of the GPU, so that fewer launches are late, and a synchronisation costs it
    more."""
    owner, hidden = np.zeros(len(gaps.row), np.int64), np.zeros(len(gaps.row), np.int64)
    kept = np.ones(len(gaps.row))
    blocking = np.flatnonzero(syncs["blocked_ns"].to_numpy() > 0)
    if not len(gaps.row) or not (len(blocking) or call_ns):
        return Replay(owner, kept, hidden)
    times = _LaunchTimes(ops, gaps, calls, syncs.iloc[blocking], call_ns)
    waited, blocked = np.zeros(len(ops.start), np.int64), syncs["blocked_ns"].to_numpy()[blocking]
    waited[gaps.row] = gaps.late
    if call_ns:
        waited, later = times.replay(ops, keeps_syncs=True)
        blocked = np.bincount(np.maximum(times.last, 0), np.where(times.last >= 0, later, 0), len(blocking))
        kept = np.minimum(waited[gaps.row] / np.maximum(gaps.late, 1), 1.0)
    if not len(blocking):
        return Replay(owner, kept, hidden)
    idle, _ = times.replay(ops, keeps_syncs=False)
    part = np.maximum(waited - idle, 0) / np.maximum(waited, 1)
    if (most := float((part * waited).sum())) > 0:  # idle times that grow take from what others lose
        part *= max(float(waited.sum() - idle.sum()), 0.0) / most
    last = times.last[gaps.row]
    fewer = np.where(last >= 0, np.rint(part[gaps.row] * kept * gaps.late), 0).astype(np.int64)
    owner = _find_owners(last, fewer, blocked)
    return Replay(np.where(last >= 0, blocking[owner], 0), kept, fewer)


def _find_owners(last: np.ndarray, hidden: np.ndarray, blocked: np.ndarray) -> np.ndarray:
    """Find the synchronisation that costs each gap what would be hidden: the last one before it in which the CPU lost
    as much, and that no earlier gap has used up. A short one right after a long one finds the GPU idle already. last:
    the last one before each gap; blocked: how long each blocks the CPU."""
    left, owner = blocked.astype(float), last.copy()
    open_: list[int] = []
    opened = 0
    for gap, (number, ns) in enumerate(zip(last.tolist(), hidden.tolist())):
        open_ += range(opened, number + 1)
        opened = max(opened, number + 1)
        while len(open_) > 1 and left[open_[-1]] < ns:
            ns -= left[open_.pop()]
        if ns and open_:
            owner[gap] = open_[-1]
            left[open_[-1]] -= ns
    return owner


class _LaunchTimes:
    """When the CPU launches each operation if it is never blocked. syncs: the calls in which it was, by end.

    covered: when what ran before an operation had ended. ready: when it could have started at the earliest. saved: how
    long the CPU was blocked or slowed before its launch. least_idle: how long the GPU idles before it if it is launched
    early: as between operations that were. last: the last synchronisation before it (a row of `syncs`;
    below 0: none). since: how long after this the operation could start, if it is the first launch after it, else
    below 0."""

    def __init__(self, ops: Operations, gaps: Gaps, calls: Calls, syncs: pd.DataFrame, call_ns: float):
        least = np.interp(ops.start, ops.start[gaps.row], gaps.least).astype(np.int64)
        known = ops.call >= 0
        call = np.maximum(ops.call, 0)
        launch = np.where(known, calls.start[call], ops.start - least)
        self.covered = intervals.find_covered_before(np.zeros(len(ops.start), np.int8), ops.start, ops.end)
        self.ready = np.minimum(launch + least, ops.start)
        self.ready[gaps.row] = gaps.covered + gaps.late
        self.least_idle = np.zeros(len(ops.start), np.int64)
        waits = ops.start[gaps.row] - gaps.covered
        if (gaps.late == 0).any():
            self.least_idle[gaps.row] = np.minimum(gaps.late, int(np.median(waits[gaps.late == 0])))
        owner = np.where(known, calls.process[call], calls.process[call[known][0]] if known.any() else -1)
        self.last, self.saved = np.full(len(launch), -1), np.zeros(len(launch), np.int64)
        self.since = np.full(len(launch), -1)
        process, every_end = syncs["process"].to_numpy(), syncs["end_ns"].to_numpy()
        for number in np.unique(owner).tolist():
            here, mine = np.flatnonzero(owner == number), np.flatnonzero(process == number)
            ends, blocked = every_end[mine], np.cumsum(syncs["blocked_ns"].to_numpy()[mine])
            before = np.searchsorted(ends, launch[here], side="right") - 1
            has_sync = before >= 0
            at = np.maximum(before, 0)
            if len(mine):
                self.saved[here] = np.where(has_sync, blocked[at], 0)
                self.last[here] = np.where(has_sync, mine[at], -1)
            slowed = _sum_slowed(launch[here], self.saved[here], np.sort(calls.start[calls.process == number]), call_ns)
            if len(mine):
                is_first = has_sync & (ends[at] > np.r_[-(2**62), launch[here][:-1]])
                since = self.ready[here] - ends[at] - np.diff(slowed, prepend=0)
                self.since[here] = np.where(is_first, np.maximum(since, 0), -1)
            self.saved[here] += slowed

    def replay(self, ops: Operations, keeps_syncs: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return for each operation how long the GPU would be idle before it because it is not launched yet, and how
        long the CPU is blocked right before it launches it (int64, ns). keeps_syncs: the CPU waits in synchronisations
        until the GPU has done what was launched before."""
        idle, begun, blocked = [0] * len(ops.start), [0] * len(ops.start), [0] * len(ops.start)
        rest = np.maximum(ops.start - np.maximum(self.ready, self.covered), 0).tolist()  # launched, and not started
        since = self.since if keeps_syncs else np.full(len(ops.start), -1)
        columns = (ops.start, ops.end, self.covered, self.ready - self.saved, since, self.least_idle)
        busy_until = before = delay = 0
        for row, (begins, ends, until, arrives, after, least) in enumerate(
            zip(*(column.tolist() for column in columns))
        ):
            if row >= FULL_QUEUE:  # a full queue makes the CPU wait, and all that follows
                delay = max(delay, begun[row - FULL_QUEUE] - arrives)
            if row and after >= 0:
                blocked[row] = max(busy_until + UNBLOCKED_NS + after - arrives - delay, 0)
                delay += blocked[row]
            arrives += delay
            if row == 0:
                begin = arrives + rest[0]
            elif begins < until:  # it runs while another operation does
                begin = max(begun[row - 1] + begins - before, arrives)
            else:
                idle[row] = max(arrives - busy_until, least)
                begin = busy_until + idle[row] + rest[row]
            begun[row], before = begin, begins
            busy_until = max(busy_until, begin + ends - begins)
        return np.array(idle, np.int64), np.array(blocked, np.int64)


def _sum_slowed(launch: np.ndarray, blocked: np.ndarray, calls: np.ndarray, call_ns: float) -> np.ndarray:
    """Sum until each launch how long a profiler slowed the CPU: by call_ns a call, at most MOST_SLOWED of the time in
    which it was not blocked (int64, ns). blocked: until each launch; calls: their starts, in order."""
    order = np.argsort(launch, kind="stable")
    worked = np.diff(launch[order] - blocked[order], prepend=launch[order[:1]] - blocked[order[:1]])
    made = np.diff(np.searchsorted(calls, launch[order]), prepend=0)
    slowed = np.minimum(call_ns * made, MOST_SLOWED * np.maximum(worked, 0))
    sums = np.zeros(len(launch), np.int64)
    sums[order] = np.cumsum(slowed).astype(np.int64)
    return sums
