"""Cut two captures without ranges of steps to the work that both have.

Windows of equal length of a program that became slower hold different work: compared as they are, the slower one does
less. So both are cut to their longest common sequence of kernels, from the start of its first kernel to the end of its
last, and that work is compared.
"""

import hashlib
from dataclasses import replace

import numpy as np
import pandas as pd

from profiler_job.analysis.comparison.capture_rows import count_blocks
from profiler_job.analysis.comparison.errors import ComparisonProblem, NotComparableError
from profiler_job.analysis.comparison.sides import Side
from profiler_job.jobs.contract.quantities import format_share

LEAST_COMMON = 0.5
"""Part of the shorter sequence of kernels that both must have in common."""
_BASE = np.uint64(0x9E3779B97F4A7C15)


def keep_common_work(first: Side, second: Side) -> tuple[Side, Side]:
    """Return both sides with their common kernels only, and a note about how much that is. Sides with steps, and sides
    whose kernels are all the same, stay as they are. Raises NotComparableError if they have too little in common."""
    if first.has_steps or second.has_steps or not (first.is_capture and second.is_capture):
        return first, second
    rows = [_sort_kernels(side) for side in (first, second)]
    names = pd.Index(pd.unique(pd.concat([of["kernel_name"].astype(str) for of in rows], ignore_index=True)))
    codes = [names.get_indexer(of["kernel_name"].astype(str)) for of in rows]
    if np.array_equal(*codes):
        return first, second
    starts, length = find_longest_run(*codes)
    shortest = min(map(len, codes))
    if not length or length < LEAST_COMMON * shortest:
        raise NotComparableError(
            ComparisonProblem.LITTLE_IN_COMMON,
            f"{first.label} and {second.label} have no ranges of steps, and at most {length:,} of {shortest:,} kernels "
            "in the same order: windows of different work cannot be compared",
            "; mark each step with an NVTX range called step",
        )
    sides = zip((first, second), rows, starts, strict=True)
    return tuple(_cut(side, of.iloc[start : start + length], len(of)) for side, of, start in sides)  # type: ignore[return-value]


def hash_sequence(side: Side) -> str:
    """Hash the names of the kernels that `keep_common_work` compares, in their order."""
    values = _sort_kernels(side)["kernel_name"].astype(str)
    names = sorted(values.unique())
    codes = pd.Index(names).get_indexer(values).astype(np.int32)
    return hashlib.sha256("\n".join(names).encode() + codes.tobytes()).hexdigest()


def _sort_kernels(side: Side) -> pd.DataFrame:
    """Return the kernels of the device that has most, by start."""
    devices = side.kernels["device"]
    mine = side.kernels[devices == devices.value_counts().idxmax()] if len(devices) else side.kernels
    return mine.sort_values("start_ns", kind="stable")


def _cut(side: Side, common: pd.DataFrame, num_all: int) -> Side:
    """Cut a side to the time of its `common` kernels, of `num_all` of their device."""
    start, end = int(common["start_ns"].iloc[0]), int(common["end_ns"].max())
    kernels, memops = (
        frame[(frame["start_ns"] >= start) & (frame["end_ns"] <= end)] for frame in (side.kernels, side.memops)
    )
    share = format_share(len(common) / num_all)
    note = (
        f"{side.label} is compared from the first to the last of {len(common):,} kernels that both have, {share} of its"
    )
    return replace(
        side,
        steps=side.steps.assign(wall_ns=end - start),
        kernels=kernels,
        memops=memops,
        blocks=count_blocks(kernels, 1),
        notes=[*side.notes, note],
    )


def find_longest_run(first: np.ndarray, second: np.ndarray) -> tuple[tuple[int, int], int]:
    """Find the longest sequence that both arrays of codes have without a gap: where it starts in each, and its length.
    Of several the first one of `first` counts."""
    least, most, starts = 0, min(len(first), len(second)), (0, 0)
    of_first, of_second = _hash_prefixes(first), _hash_prefixes(second)
    while least < most:
        length = (least + most + 1) // 2
        places = _find_common(first, second, of_first, of_second, length)
        if places is None:
            most = length - 1
        else:
            least, starts = length, places
    return starts, least


def _hash_prefixes(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the powers of the base, and the sum of powers x values up to each place, modulo 2^64."""
    with np.errstate(over="ignore"):
        powers = np.cumprod(np.r_[np.uint64(1), np.full(len(codes), _BASE)], dtype=np.uint64)
        values = (codes.astype(np.uint64) + np.uint64(1)) * np.uint64(0xD6E8FEB86659FD93)
        values ^= values >> np.uint64(32)
        return powers, np.r_[np.uint64(0), np.cumsum(values * powers[:-1], dtype=np.uint64)]


def _find_common(
    first: np.ndarray,
    second: np.ndarray,
    of_first: tuple[np.ndarray, np.ndarray],
    of_second: tuple[np.ndarray, np.ndarray],
    length: int,
) -> tuple[int, int] | None:
    """Find where both have the same `length` codes; None if nowhere."""
    most = max(len(first), len(second)) + 1
    longest = of_first[0] if len(of_first[0]) == most else of_second[0]
    with np.errstate(over="ignore"):
        windows = [
            (sums[length:] - sums[:-length]) * longest[most - 1 - np.arange(len(sums) - length)]
            for _, sums in (of_first, of_second)
        ]
    unique, places = np.unique(windows[1], return_index=True)
    places_of_first = np.searchsorted(unique, windows[0])
    places_of_first[places_of_first == len(unique)] = 0
    for start in np.flatnonzero(unique[places_of_first] == windows[0]):
        other = int(places[places_of_first[start]])
        if np.array_equal(first[start : start + length], second[other : other + length]):
            return int(start), other
    return None
