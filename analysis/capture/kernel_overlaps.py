"""Kernels that run at the same time as another of their GPU."""

import numpy as np

from profiler_job.analysis.capture import intervals
from profiler_job.analysis.capture.blocks import BLOCK
from profiler_job.analysis.capture.distinct_values import encode


class KernelOverlaps:
    """The kernels that run at the same time as another kernel of their GPU. Kernels are given by start.

    GPU busy is the union of `intervals`, kernels only. Time without overlap is a sum, which is fast for any grouping,
    so only overlapping kernels need the union.
    """

    def __init__(self, gpu: np.ndarray, start: np.ndarray, end: np.ndarray):
        numbers, code = encode(gpu)
        self.num_gpus = max(len(numbers), 1)
        self.gpu, self.start, self.end = code.astype(np.min_scalar_type(self.num_gpus)), start, end
        self.shared = np.zeros(len(gpu), bool)
        self.blocks: list[np.ndarray] = []  # shared rows of one GPU, cut only where nothing runs on it
        for number in range(len(numbers)):
            rows = np.flatnonzero(self.gpu == number)
            latest = np.maximum.accumulate(end[rows])
            # A cluster of overlapping kernels: all from one that starts when none runs to the next such one.
            begins = np.flatnonzero(np.r_[True, start[rows[1:]] >= latest[:-1]])
            size = np.diff(np.r_[begins, len(rows)])
            rows = rows[np.repeat(size > 1, size)]
            self.shared[rows] = True
            ends = np.cumsum(size[size > 1])
            cuts = np.searchsorted(ends, np.arange(BLOCK, len(rows), BLOCK))
            self.blocks += [block for block in np.split(rows, ends[np.unique(cuts)]) if len(block)]

    def discount(self, busy: np.ndarray, group: np.ndarray, rows: np.ndarray) -> None:
        """Subtract from the sums of each group, in place, the time that kernels of one group and GPU overlap an earlier
        one. `rows`: all kernels of the groups, or of one block, by start on each GPU."""
        if not len(rows):
            return
        key = group.astype(np.int64) * self.num_gpus + self.gpu[rows]
        order = np.argsort(key.astype(np.min_scalar_type(len(busy) * self.num_gpus)), kind="stable")  # 16 bits: radix
        key, rows = key[order], rows[order]
        start, end = self.start[rows], self.end[rows]
        twice = end - start - intervals.measure_new(key, start, end)
        first = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])
        np.subtract.at(busy, key[first] // self.num_gpus, np.add.reduceat(twice, first))
