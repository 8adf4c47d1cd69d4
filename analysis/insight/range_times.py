"""Times of NVTX ranges: the kernels launched inside, and how long GPU and host took for them."""

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import intervals
from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.capture.kernel_overlaps import KernelOverlaps
from profiler_job.analysis.capture.range_nesting import split_by_depth
from profiler_job.analysis.insight.section_columns import make_frame
from profiler_job.jobs.contract import ranges as vocabulary


def summarise_ranges(
    capture: Capture, attribution: Attribution, duration: np.ndarray, overlaps: KernelOverlaps
) -> pd.DataFrame:
    ranges = attribution.ranges
    keys = pd.DataFrame({name: ranges[name].cat.codes for name in ("domain", "plain_name", "style")})
    grouped = keys.groupby(list(keys), sort=True)
    group = grouped.ngroup().to_numpy()
    unique = keys.assign(group=group).drop_duplicates("group").sort_values("group")
    num_groups = len(unique)
    pushed = (ranges["style"] == "PushPop").to_numpy()
    outermost = _mark_outermost(ranges, group)
    sums = _PushPopSums(capture, attribution, duration)
    calls = np.bincount(group[outermost], sums.calls[outermost], num_groups).astype(np.int64)
    time = np.bincount(group[outermost], sums.time[outermost], num_groups).astype(np.int64)
    span = np.bincount(group[outermost], sums.projected[outermost], num_groups).astype(np.int64)
    busy = _measure_push_pop_busy(attribution, group, outermost, time, overlaps)
    if not pushed.all():
        started = _sum_start_end(capture, attribution, group, np.flatnonzero(~pushed), overlaps)
        calls, time, busy, span = (own + other for own, other in zip((calls, time, busy, span), started))
    host = (ranges["end_ns"] - ranges["start_ns"]).to_numpy()
    domain, name, style = (ranges[c].cat.categories[unique[c]] for c in ("domain", "plain_name", "style"))
    columns = {
        "name": [f"{d}:{n}" if d else str(n) for d, n in zip(domain, name)],
        "style": list(style),
        "instances": np.bincount(group[outermost], minlength=num_groups),
        "kernel_calls": calls,
        "kernel_ns": time,
        "busy_ns": pd.array(np.where(np.isnan(busy), 0, busy).astype(np.int64), "Int64"),
        "projected_ns": span,
        "host_ns": np.bincount(group[outermost], host[outermost], num_groups).astype(np.int64),
        **_describe_instances(group[outermost], host[outermost]),
    }
    frame = make_frame("ranges", columns)
    frame.loc[np.isnan(busy), "busy_ns"] = pd.NA
    frame = frame[np.bincount(group[~_mark_notes(ranges)], minlength=num_groups) > 0]
    return frame.sort_values(["kernel_ns", "host_ns"], ascending=False, kind="stable", ignore_index=True)


def _mark_notes(ranges: pd.DataFrame) -> np.ndarray:
    """Mark the ranges in which `profile` has written what graphs hold, in which nothing runs, and which are called, and
    those of single calls that wait for the GPU or copy."""
    paths = ranges["path"].cat
    texts = paths.categories.astype(str)
    notes = texts.str.startswith((vocabulary.GRAPH, vocabulary.BREAK, vocabulary.CAPTURED))
    calls = "|".join((vocabulary.CALL, vocabulary.SYNC, vocabulary.COPY))
    notes |= texts.str.contains(rf"(?:^|/)(?:{calls})\d+(?:{vocabulary.BROKEN})?$")
    return np.asarray(notes, bool)[paths.codes.to_numpy()] if len(ranges) else np.zeros(0, bool)


def _describe_instances(group: np.ndarray, host: np.ndarray) -> dict[str, np.ndarray]:
    """Describe the CPU time of one instance of each group: its mean, median, minimum and maximum, in whole ns."""
    by_group = pd.Series(host).groupby(group, sort=True)
    return {
        f"host_{name}_ns": np.rint(by_group.agg(name).to_numpy(dtype=np.float64)).astype(np.int64)
        for name in ("mean", "median", "min", "max")
    }


def _mark_outermost(ranges: pd.DataFrame, group: np.ndarray) -> np.ndarray:
    """Mark the rows that are inside no other row of their group: push/pop ranges of one thread, and every start/end
    range."""
    outermost = np.ones(len(ranges), bool)
    rows = np.flatnonzero(ranges["style"] == "PushPop")
    if not len(rows):
        return outermost
    thread = np.unique(ranges["thread"].to_numpy()[rows], return_inverse=True)[1]
    key = thread * (int(group.max()) + 1) + group[rows]
    order = np.argsort(key, kind="stable")
    key, rows = key[order], rows[order]
    start, end = ranges["start_ns"].to_numpy()[rows], ranges["end_ns"].to_numpy()[rows]
    outermost[rows] = start >= intervals.find_covered_before(key, start, end)
    return outermost


class _PushPopSums:
    """Per push/pop range, what it and the ranges inside it launched: calls, time, projected (0 without GPU
    operations)."""

    def __init__(self, capture: Capture, attribution: Attribution, duration: np.ndarray):
        nesting, count = attribution.nesting, len(attribution.ranges)
        self.calls, self.time = np.zeros(count, np.int64), np.zeros(count, np.int64)
        first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
        for kind in ("kernels", "memops"):
            place, frame = getattr(attribution, kind), getattr(capture, kind)
            start, end = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
            for chain in attribution.find_chains(place):
                row = np.flatnonzero(chain >= 0)
                inside = chain[row]
                np.minimum.at(first, inside, start[row])
                np.maximum.at(last, inside, end[row])
                if kind == "kernels":
                    self.calls += np.bincount(inside, minlength=count)
                    self.time += np.bincount(inside, duration[row], count).astype(np.int64)
        parent = nesting.stack_parent
        for rows in split_by_depth(parent)[:0:-1]:
            above = parent[rows]
            np.add.at(self.calls, above, self.calls[rows])
            np.add.at(self.time, above, self.time[rows])
            np.minimum.at(first, above, first[rows])
            np.maximum.at(last, above, last[rows])
        self.projected = np.where(last >= first, last - np.where(last >= first, first, 0), 0)


def _measure_push_pop_busy(
    attribution: Attribution, group: np.ndarray, outermost: np.ndarray, time: np.ndarray, overlaps: KernelOverlaps
) -> np.ndarray:
    """Measure the busy time of each group; NaN if overlapping kernels are in too many ranges to compute it. It differs
    from the sum `time` only for overlapping kernels."""
    busy = time.copy()
    parent = attribution.nesting.stack_parent
    counted, _ = _count_ranges(parent, outermost)
    pairs = int(counted.max(initial=0)) * max(map(len, overlaps.blocks), default=0)
    parts = pairs // _MOST_PAIRS + 1
    if parts > _MOST_PARTS:
        return np.where(time > 0, np.nan, 0)
    place = attribution.kernels[["range_id", "thread", "launch_ns"]]
    for part in range(parts):
        _, innermost = _count_ranges(parent, outermost & (group % parts == part))
        for rows in overlaps.blocks:
            held_in = []
            for chain in attribution.find_chains(place.iloc[rows]):
                chain = np.where(chain >= 0, innermost[chain], -1)
                while (chain >= 0).any():
                    held_in.append(chain)
                    above = np.where(chain >= 0, parent[chain], -1)
                    chain = np.where(above >= 0, innermost[above], -1)
            if held_in:
                ranges = np.column_stack(held_in).ravel()  # grouped by kernel, so that kernels stay in order
                held = np.flatnonzero(ranges >= 0)
                overlaps.discount(busy, group[ranges[held]], rows[held // len(held_in)])
    return busy.astype("float64")


def _count_ranges(parent: np.ndarray, outermost: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count, for each range, how many ranges that are outermost of their name hold it, itself included. Also return the
    innermost of them (-1 none)."""
    counted = outermost.astype(np.int64)
    innermost = np.where(outermost, np.arange(len(parent)), -1)
    for rows in split_by_depth(parent)[1:]:
        above = parent[rows]
        counted[rows] += counted[above]
        innermost[rows] = np.where(outermost[rows], rows, innermost[above])
    return counted, innermost


_MOST_PAIRS = 5_000_000  # of kernel and range, worked out at once: half a GiB
_MOST_PARTS = 4  # more than a second each


def _sum_start_end(
    capture: Capture, attribution: Attribution, group: np.ndarray, rows: np.ndarray, overlaps: KernelOverlaps
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sum calls, time, busy (NaN if too much overlaps) and projected time of each group of the start/end ranges `rows`:
    what their process launched while they were open. A kernel in two ranges of a group counts once."""
    ranges, place = attribution.ranges, attribution.kernels
    num_groups = int(group.max()) + 1
    calls, time, span = (np.zeros(num_groups, np.int64) for _ in range(3))
    starts, ends, processes = (ranges[name].to_numpy()[rows] for name in ("start_ns", "end_ns", "process"))
    owner, known = capture.kernels["process"].to_numpy(), place["api"].to_numpy() >= 0
    beside: list[tuple[np.ndarray, ...]] = []  # group, low and high of slices of `shared`
    shared = np.empty(0, np.int64)
    for process in np.unique(processes):
        mine = processes == process
        kernel = np.flatnonzero(known & (owner == process))
        kernel = kernel[np.argsort(place["launch_ns"].to_numpy()[kernel], kind="stable")]
        launch, start, end = place["launch_ns"].to_numpy()[kernel], overlaps.start[kernel], overlaps.end[kernel]
        low, high = np.searchsorted(launch, starts[mine]), np.searchsorted(launch, ends[mine])
        np.add.at(span, group[rows[mine]], _measure_projected(start, end, low, high))
        order = np.lexsort((low, group[rows[mine]]))
        number, low, high = group[rows[mine]][order], low[order], high[order]
        low = np.minimum(np.maximum(low, intervals.find_covered_before(number, low, high)), high)
        np.add.at(calls, number, high - low)
        until = np.r_[0, np.cumsum(end - start)]
        np.add.at(time, number, until[high] - until[low])
        num_before = np.r_[0, np.cumsum(overlaps.shared[kernel])] + len(shared)
        beside.append((number, num_before[low], num_before[high]))
        shared = np.concatenate([shared, kernel[overlaps.shared[kernel]]])
    busy = time.astype("float64")
    number, low, high = map(np.concatenate, zip(*beside))
    pairs = np.bincount(number, high - low, num_groups)
    ascending = np.argsort(pairs, kind="stable")
    too_many = np.zeros(num_groups, bool)
    too_many[ascending] = np.cumsum(pairs[ascending]) > _MOST_PARTS * _MOST_PAIRS
    too_many |= pairs > _MOST_PAIRS
    busy[too_many] = np.nan
    part = (np.cumsum(np.where(too_many, 0, pairs)) // _MOST_PAIRS)[number]
    for part_number in np.unique(part[high > low]):
        here = np.flatnonzero((part == part_number) & ~too_many[number])
        kernel, held_in = shared[_expand_slices(low[here], high[here])], np.repeat(number[here], (high - low)[here])
        order = np.argsort(kernel, kind="stable")
        counted = np.zeros(num_groups, np.int64)
        overlaps.discount(counted, held_in[order], kernel[order])
        busy += counted
    return calls, time, busy, span


def _expand_slices(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The numbers of all slices low:high, one slice after the other."""
    size = high - low
    return np.repeat(low - np.cumsum(size) + size, size) + np.arange(size.sum())


def _measure_projected(start: np.ndarray, end: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Measure latest end - earliest start of each slice low:high, 0 if it is empty. Windows double, so that long slices
    cost no more."""
    size, width = high - low, 1
    projected = np.zeros(len(low), np.int64)
    while len(start):
        fits = (size >= width) & (size < 2 * width)
        a, b = low[fits], high[fits] - width
        projected[fits] = np.maximum(end[a], end[b]) - np.minimum(start[a], start[b])
        if not (size >= 2 * width).any():
            break
        start, end = np.minimum(start[:-width], start[width:]), np.maximum(end[:-width], end[width:])
        width *= 2
    return projected
