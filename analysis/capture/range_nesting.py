"""The stacks of push/pop ranges: which range holds which, and what is open on a thread at a time."""

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import limits
from profiler_job.analysis.capture.blocks import split_into_blocks


class Nesting:
    """The push/pop stacks of a capture's ranges, one per thread and domain, for looking up many moments at once. Raises
    LimitError if a stack is too deep."""

    def __init__(self, ranges: pd.DataFrame):
        self._start = ranges["start_ns"].to_numpy()
        self._end = ranges["end_ns"].to_numpy()
        self.stack_parent = np.full(len(ranges), -1, np.int64)
        self.depth = np.zeros(len(ranges), np.int64)  # in the stack, 1 for the outermost
        pushed = np.flatnonzero((ranges["style"] == "PushPop").to_numpy())
        self._threads, thread = np.unique(ranges["thread"].to_numpy()[pushed], return_inverse=True)
        domain_codes, domain = np.unique(ranges["domain"].cat.codes.to_numpy()[pushed], return_inverse=True)
        self.domains = [ranges["domain"].cat.categories[code] for code in domain_codes]
        self._times = np.sort(np.concatenate([self._start[pushed], self._end[pushed]]))
        self._keys: list[np.ndarray] = []
        self._current: list[np.ndarray] = []
        for code in range(len(domain_codes)):
            mine = domain == code
            self._add_stacks(pushed[mine], thread[mine])

    def _add_stacks(self, rows: np.ndarray, thread: np.ndarray) -> None:
        """Walk the pushes and pops of one domain in the order they happened, all threads at once."""
        start, end = self._start[rows], self._end[rows]
        count = len(rows)
        index = np.arange(count)
        time = np.concatenate([start, end])
        # At one moment: first what ends, inner before outer; then what begins, outer before inner; an empty range last.
        kind = np.concatenate([np.ones(count, np.int8), np.where(start == end, 2, 0).astype(np.int8)])
        other = np.concatenate([-end, -start])
        order = np.lexsort((np.concatenate([index, -index]), other, kind, time, np.concatenate([thread, thread])))
        pushes, event = order < count, order % count
        depth_after = np.cumsum(np.where(pushes, 1, -1))
        position = np.flatnonzero(pushes)
        depth = depth_after[position]
        limits.DEPTH.check(int(depth.max(initial=0)))
        self.depth[rows[event[position]]] = depth
        by_depth = position[np.argsort(depth, kind="stable")]
        parent = np.full(count, -1, np.int64)
        above = None
        for level in np.split(by_depth, np.cumsum(np.bincount(depth)[1:])[:-1]) if count else []:
            if above is not None:
                parent[event[level]] = event[above[np.searchsorted(above, level) - 1]]
            above = level
        current = np.where(pushes, event, parent[event])
        self.stack_parent[rows] = np.where(parent >= 0, rows[parent], -1)
        rank = np.searchsorted(self._times, time[order])
        self._keys.append(np.concatenate([thread, thread])[order] * (len(self._times) + 1) + rank)
        self._current.append(np.where(current >= 0, rows[current], -1).astype(np.int32))

    def find_chains(self, thread: np.ndarray, time: np.ndarray) -> list[np.ndarray]:
        """For each domain: the innermost range (row number, -1 none) of that domain open on `thread` at `time`, as
        int32.

        A range holds the moment it starts and not the moment it ends."""
        if not len(self._threads):
            return []
        innermost = [np.empty(len(time), np.int32) for _ in self._keys]
        for rows in split_into_blocks(len(time)):
            code = np.searchsorted(self._threads, thread[rows])
            code[code == len(self._threads)] = 0
            known = self._threads[code] == thread[rows]
            key = code * (len(self._times) + 1) + np.searchsorted(self._times, time[rows], side="right") - 1
            for chain, keys, current in zip(innermost, self._keys, self._current):
                position = np.searchsorted(keys, key, side="right") - 1
                # After the last event of a thread nothing is open, so a moment before its first event finds nothing
                # either.
                chain[rows] = np.where(known & (position >= 0), current[position], np.int32(-1))
        return innermost

    def find_innermost(self, chains: list[np.ndarray], size: int) -> np.ndarray:
        """Find the range that started last among the innermost ranges of the domains (int32 row numbers, -1 none)."""
        if not chains:
            return np.full(size, -1, np.int32)
        best = chains[0]
        for other in chains[1:]:
            later = (other >= 0) & ((best < 0) | (self._start[other] >= self._start[best]))
            best = np.where(later, other, best)
        return best


def merge_parents(ranges: pd.DataFrame, nesting: Nesting) -> np.ndarray:
    """Parent of each push/pop range: the latest started range on its thread that holds all of it, of any domain."""
    parent = nesting.stack_parent
    if len(nesting.domains) < 2:
        return parent
    start, end = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    domain = ranges["domain"].to_numpy()
    pushed = (ranges["style"] == "PushPop").to_numpy()
    best = parent.copy()
    for name, chain in zip(nesting.domains, nesting.find_chains(ranges["thread"].to_numpy(), start)):
        fits = pushed & (domain != name) & (chain >= 0)
        # Two domains may overlap without nesting, and two ranges that are equal must not become each other's parent.
        fits &= (end[chain] >= end) & ((start[chain] < start) | (end[chain] > end) | (chain < np.arange(len(chain))))
        later = fits & ((best < 0) | (start[chain] > start[best]))
        best = np.where(later, chain, best)
    return best


def split_by_depth(parent: np.ndarray) -> list[np.ndarray]:
    """Row numbers by depth, outermost first, for a forest given by parents (-1 none)."""
    above, depth = parent, (parent >= 0).astype(np.int64)
    # Each round doubles how far `above` looks: pushes that are never popped nest by the ten thousand.
    while (has := above >= 0).any():
        depth, above = depth + np.where(has, depth[above], 0), np.where(has, above[above], -1)
    order = np.argsort(depth, kind="stable")
    return np.split(order, np.cumsum(np.bincount(depth))[:-1]) if len(parent) else []
