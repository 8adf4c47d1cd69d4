"""What a GPU's idle times would be if the CPU launched without waiting for it."""

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import intervals
from profiler_job.analysis.insight.gpu_limit import Calls, Gaps, Operations

FULL_QUEUE = 1000
"""Launches that a GPU holds. A call that comes then waits until the GPU begins the next one."""


def replay_launches(ops: Operations, gaps: Gaps, calls: Calls, syncs: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Replay the launches without the times in which the CPU was blocked. Return for each gap the last synchronisation
    before its launch (a row of `syncs`, by end), and how much of the late time would be hidden (int64, ns)."""
    last, hidden = np.zeros(len(gaps.row), np.int64), np.zeros(len(gaps.row), np.int64)
    blocking = np.flatnonzero(syncs["blocked_ns"].to_numpy() > 0)
    if not len(blocking) or not len(gaps.row):
        return last, hidden
    least = np.interp(ops.start, ops.start[gaps.row], gaps.least).astype(np.int64)
    known = ops.call >= 0
    call = np.maximum(ops.call, 0)
    launch = np.where(known, calls.start[call], ops.start - least)
    covered = intervals.find_covered_before(np.zeros(len(ops.start), np.int8), ops.start, ops.end)
    ready = np.minimum(launch + least, ops.start)
    ready[gaps.row] = gaps.covered + gaps.late
    owner = np.where(known, calls.process[call], calls.process[call[known][0]] if known.any() else -1)
    blocked_before, last_before = np.zeros(len(launch), np.int64), np.full(len(launch), -1)
    process = syncs["process"].to_numpy()
    for number in np.unique(process[blocking]).tolist():
        mine = blocking[process[blocking] == number]
        ends, blocked = syncs["end_ns"].to_numpy()[mine], np.cumsum(syncs["blocked_ns"].to_numpy()[mine])
        here = np.flatnonzero(owner == number)
        before = np.searchsorted(ends, launch[here], side="right") - 1
        blocked_before[here] = np.where(before >= 0, blocked[before], 0)
        last_before[here] = np.where(before >= 0, mine[before], -1)
    late = np.zeros(len(ops.start), np.int64)
    late[gaps.row] = gaps.late
    idle = _replay_idle(ops.start, ops.end, covered, ready, blocked_before)
    fewer = np.maximum(late - idle, 0)
    if (most := int(fewer.sum())) > 0:  # idle times that grow take from what others lose
        fewer = np.rint(fewer * max(int(late.sum() - idle.sum()), 0) / most).astype(np.int64)
    last = last_before[gaps.row]
    return np.maximum(last, 0), np.where(last >= 0, fewer[gaps.row], 0)


def _replay_idle(
    start: np.ndarray, end: np.ndarray, covered: np.ndarray, ready: np.ndarray, blocked: np.ndarray
) -> np.ndarray:
    """Return for each operation how long the GPU would be idle before it because it is not launched yet (int64, ns).
    covered: when what ran before had ended. ready: when it could have started at the earliest. blocked: how long the
    CPU was blocked before its launch."""
    idle, begun = [0] * len(start), [0] * len(start)
    rest = np.maximum(start - np.maximum(ready, covered), 0).tolist()  # launched, and not started
    columns = (start.tolist(), end.tolist(), covered.tolist(), (ready - blocked).tolist())
    busy_until = before = delay = 0
    for row, (begins, ends, until, arrives) in enumerate(zip(*columns)):
        if row >= FULL_QUEUE:  # a full queue makes the CPU wait, and all that follows
            delay = max(delay, begun[row - FULL_QUEUE] - arrives)
        arrives += delay
        if row == 0:
            begin = arrives + rest[0]
        elif begins < until:  # it runs while another operation does
            begin = max(begun[row - 1] + begins - before, arrives)
        else:
            idle[row] = max(arrives - busy_until, 0)
            begin = busy_until + idle[row] + rest[row]
        begun[row], before = begin, begins
        busy_until = max(busy_until, begin + ends - begins)
    return np.array(idle, np.int64)
