"""Unions of time intervals: what "GPU busy" means everywhere.

A device is busy while at least one operation runs on it. Several devices are busy for the sum of what each of them is,
so that the busy share of some devices is their busy time over (span x number of devices). Overlap on one device counts
once, overlap across devices counts on each.
"""

import numpy as np
import pandas as pd


def measure_busy(
    group: np.ndarray, device: np.ndarray, start: np.ndarray, end: np.ndarray, num_groups: int
) -> np.ndarray:
    """GPU busy of each of the groups 0..num_groups-1: the union of its intervals on each device, summed over devices
    (int64). Intervals may come in any order."""
    busy = np.zeros(num_groups, np.int64)
    if not len(start):
        return busy
    group_on_device, devices = pd.factorize(device)
    group_on_device += group.astype(np.int64) * len(devices)
    order = np.argsort(make_keys(group_on_device, start), kind="stable")
    group_on_device, start, end = group_on_device[order], start[order], end[order]
    first = np.flatnonzero(np.r_[True, group_on_device[1:] != group_on_device[:-1]])
    np.add.at(
        busy, group_on_device[first] // len(devices), np.add.reduceat(measure_new(group_on_device, start, end), first)
    )
    return busy


def make_keys(group: np.ndarray, time: np.ndarray) -> np.ndarray:
    """One number for each pair of a group (not below 0) and a time (ns, or any integer), ordered by both (int64, as
    many): one column sorts, and tells what is double, in a fraction of the time of two."""
    if not len(time):
        return np.empty(0, np.int64)
    low, step = int(time.min()), int(time.max()) - int(time.min()) + 1
    if step * (int(group.max()) + 1) >= 2**62:
        time, times = pd.factorize(time, sort=True)
        low, step = 0, len(times)
    return group.astype(np.int64) * step + (time - low)


def measure_new(group: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Measure the part of each interval that no earlier one of its group covers (int64): their sum is the union.
    Intervals are sorted by group and start."""
    return np.maximum(end - np.maximum(start, find_covered_before(group, start, end)), 0)


def find_covered_before(group: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """For intervals sorted by group and start: the latest end among the earlier ones of the group (int64); for the
    first of a group something before every start."""
    if not len(start):
        return np.empty(0, np.int64)
    low, last = int(start.min()), int(end.max())
    if group[0] == group[-1]:
        return np.r_[low - 1, np.maximum.accumulate(end[:-1])]
    step = last - low + 1
    if step * (int(group[-1]) + 1) < 2**62:
        # Each group lifted above the one before it, so that one running maximum serves them all.
        lift = group.astype(np.int64)
        lift *= step
        latest = end - low
        latest += lift
        np.maximum.accumulate(latest, out=latest)
        latest[1:] = latest[:-1] - lift[1:]
        latest[0] = -1
        latest += low
        return latest
    latest = pd.Series(end).groupby(group).cummax().groupby(group).shift(1)
    return latest.fillna(low - 1).astype(np.int64).to_numpy()


class Union:
    """The time that intervals cover together, to be asked for parts of it. They may come in any order."""

    def __init__(self, start: np.ndarray, end: np.ndarray):
        if (start[1:] < start[:-1]).any():
            order = np.argsort(start, kind="stable")
            start, end = start[order], end[order]
        first = np.flatnonzero(start > find_covered_before(np.zeros(len(start), np.int8), start, end))
        self.start = start[first]
        self.end = np.maximum.reduceat(end, first) if len(first) else end
        self._before = np.r_[0, np.cumsum(self.end - self.start)]

    def measure_covered(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """How much of each [low, high) is covered (int64)."""
        return self._measure_until(high) - self._measure_until(low)

    def _measure_until(self, time: np.ndarray) -> np.ndarray:
        if not len(self.start):
            return np.zeros(len(time), np.int64)
        number = np.searchsorted(self.start, time, side="right")
        last = np.where(number > 0, self.end[number - 1], time)
        return self._before[number] - np.maximum(last - time, 0)


def measure_busy_shares(start: np.ndarray, end: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The part of each of the bins between `edges` (ascending, ns) in which at least one interval of a device lasts
    (float64, 0 to 1)."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    new = measure_new(np.zeros(len(start), np.int8), start, end)
    end, new = end[new > 0], new[new > 0]
    if not len(new):
        return np.zeros(len(edges) - 1)
    start = end - new
    until = np.r_[0, np.cumsum(new)]
    begun = np.searchsorted(start, edges, side="right")
    last = np.maximum(begun - 1, 0)
    # The last interval that has begun at an edge counts only up to the edge.
    busy = until[begun] - np.where(begun > 0, np.clip(end[last] - edges, 0, new[last]), 0)
    return np.diff(busy) / np.maximum(np.diff(edges), 1e-9)
