"""How the times of a table are stored: as the differences that a run repeats, in fewer bytes than the times. The range
of a kernel is stored in the same way.

A row's gap is its start after the end of the row before, or after 0 in the first row of a run; its duration is its end
after its start. Arithmetic has 64 bits, so every pair of times comes back.

Launches are calls on the CPU. They are stored in ticks of `TICK_NS`, since the offset between the clocks of CPU and GPU
is known less exactly. All other times are exact to the nanosecond.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TICK_NS = 128
"""Times of launches are multiples of this."""


class Pair(NamedTuple):
    """Names of two columns of times, in memory, and of the two that are stored in place of them."""

    start: str
    end: str
    gap: str
    duration: str


PAIRS = (Pair("start_ns", "end_ns", "gap_ns", "duration_ns"),)
LAUNCHES = Pair("launch_ns", "launch_end_ns", "launch_gap_ticks", "launch_duration_ticks")
"""As stored, in ticks. A row whose launch is unknown has no value. Copies and fills have no `launch_end_ns`."""

RANGE, RANGE_STEP = "range_id", "range_step"
"""The range of a kernel, and what is stored in its place."""
MEANING_OF_RANGE_STEP = f"only in the file: {RANGE} less the range of the row before (less 0 in a run's first row)"

_FORMER = Pair("launch_ns", "launch_end_ns", "launch_gap_ns", "launch_duration_ns")
"""As older versions stored launches: exact."""


def meanings(pair: Pair) -> Iterator[tuple[str, str]]:
    """Return the stored columns of a pair, each with its meaning."""
    yield pair.gap, f"only in the file: {pair.start}, after {pair.end} of the row before (after 0 in a run's first row)"
    yield pair.duration, f"only in the file: {pair.end} - {pair.start}"


def meanings_of_launches(columns: Collection[str]) -> Iterator[tuple[str, str]]:
    """Return the stored columns of the launches in a table with these columns in memory, each with its meaning."""
    start, end, gap, duration = LAUNCHES
    before = end if end in columns else start
    if start in columns:
        meaning = f"only in the file: {start}, after {before} of the row before with a known launch (after 0 in a run's"
        yield gap, f"{meaning} first such row); empty if the launch is unknown"
    if end in columns:
        yield duration, f"only in the file: {end} - {start}; empty if the launch is unknown"


def has_range_steps(columns: Collection[str]) -> bool:
    """Whether a table with these columns in memory (the kernels) stores steps in place of ranges."""
    return {"run_id", RANGE, LAUNCHES.start} <= {*columns}


def pairs_of(columns: Collection[str]) -> list[Pair]:
    """Return the pairs whose times are among the columns of a table in memory."""
    return [pair for pair in PAIRS if pair.start in columns and pair.end in columns]


def round_launches(
    launch: np.ndarray, launch_end: np.ndarray | None, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """Round the times of launches to the nearest multiple of `TICK_NS`; `start`: of the operations on the GPU.

    A launch stays before the start, or after it, and no call ends before it starts: if the nearest multiple would
    break that, the next one is taken. An unknown launch, which has the operation's start as its times, stays so.
    """
    rounded = _nearest(launch)
    rounded = np.where((launch <= start) & (rounded >= start), launch // TICK_NS * TICK_NS, rounded)
    rounded = np.where((launch > start) & (rounded <= start), -(-launch // TICK_NS) * TICK_NS, rounded)
    unknown = _is_unknown(launch, launch_end, start)
    if launch_end is not None:
        launch_end = np.where(unknown, launch_end, np.maximum(_nearest(launch_end), rounded))
    return np.where(unknown, launch, rounded), launch_end


def _nearest(times: np.ndarray) -> np.ndarray:
    return (times // TICK_NS + (times % TICK_NS >= TICK_NS // 2)) * TICK_NS


def _is_unknown(launch: np.ndarray, launch_end: np.ndarray | None, start: np.ndarray) -> np.ndarray:
    unknown: np.ndarray = (launch == start) & (True if launch_end is None else launch_end == start)
    return unknown


def to_differences(table: pa.Table, pairs: Collection[Pair]) -> pa.Table:
    """Convert `table` to its stored form. A pair stays as it is if one of its columns lacks a value or is not there."""
    table = _launches_to_ticks(_ranges_to_steps(table))
    for start, end, gap, duration in pairs:
        if not {"run_id", start, end} <= {*table.column_names} or table[start].null_count or table[end].null_count:
            continue
        starts, ends = _integers(table, start), _integers(table, end)
        before = np.roll(ends, 1)
        before[_firsts(table)] = 0
        table = _exchange(table, {start: (gap, starts - before), end: (duration, ends - starts)})
    return table


def _ranges_to_steps(table: pa.Table) -> pa.Table:
    if not has_range_steps(table.column_names) or table[RANGE].null_count:
        return table
    ranges = _integers(table, RANGE)
    before = np.roll(ranges, 1)
    before[_firsts(table)] = 0
    return _exchange(table, {RANGE: (RANGE_STEP, ranges - before)})


def _launches_to_ticks(table: pa.Table) -> pa.Table:
    start, end, gap, duration = LAUNCHES
    needed = {"run_id", start, "start_ns"} | ({end} & {*table.column_names})
    if not needed <= {*table.column_names} or any(table[name].null_count for name in needed):
        return table
    began = _integers(table, "start_ns")
    launch, launch_end = round_launches(
        _integers(table, start), _integers(table, end) if end in needed else None, began
    )
    known = ~_is_unknown(launch, launch_end, began)
    starts = launch[known] // TICK_NS
    ends = starts if launch_end is None else launch_end[known] // TICK_NS
    before = np.roll(ends, 1)
    before[_firsts(table.select(["run_id"]).filter(pa.array(known)))] = 0
    table = _exchange(table, {start: (gap, _with_gaps(known, starts - before))})
    return _exchange(table, {end: (duration, _with_gaps(known, ends - starts))}) if end in needed else table


def _with_gaps(known: np.ndarray, values: np.ndarray) -> pa.Array:
    """Return an array with the values in the places that are known, and none in the others."""
    every = np.zeros(len(known), np.int64)
    every[known] = values
    return pa.array(every, mask=None if known.all() else ~known)


def to_times(table: pa.Table, pairs: Collection[Pair]) -> pa.Table:
    """Convert `table` to its form in memory; a table with times, as in older recordings, stays as it is.

    Raises ValueError if a difference is not a whole number, KeyError if a column is there twice.
    """
    for start, end, gap, duration in (*pairs, _FORMER):
        if not {"run_id", gap, duration} <= {*table.column_names} or {start, end} & {*table.column_names}:
            continue
        durations = _integers(table, duration)
        ends = _sum_by_run(_integers(table, gap) + durations, _firsts(table))
        table = _exchange(table, {gap: (start, ends - durations), duration: (end, ends)})
    if {"run_id", RANGE_STEP} <= {*table.column_names} and RANGE not in table.column_names:
        ranges = _sum_by_run(_integers(table, RANGE_STEP), _firsts(table))
        table = _exchange(table, {RANGE_STEP: (RANGE, pa.array(ranges).cast(pa.int32()))})
    return _ticks_to_launches(table)


def _ticks_to_launches(table: pa.Table) -> pa.Table:
    start, end, gap, duration = LAUNCHES
    columns = {*table.column_names}
    if not {"run_id", gap, "start_ns"} <= columns or {start, end} & columns:
        return table
    known = pc.is_valid(table[gap]).to_numpy()
    rows = table.select([name for name in ("run_id", gap, duration) if name in columns]).filter(pa.array(known))
    for name in {gap, duration} & columns:  # pandas makes decimals of columns that lack values
        rows = _exchange(rows, {name: (name, rows[name].cast(pa.int64()))})
    durations = _integers(rows, duration) if duration in columns else np.int64(0)
    ends = _sum_by_run(_integers(rows, gap) + durations, _firsts(rows))
    began = _integers(table, "start_ns")
    for name, column, ticks in ((gap, start, ends - durations), (duration, end, ends)):
        if name in columns:
            times = began.copy()
            times[known] = ticks * TICK_NS
            table = _exchange(table, {name: (column, times)})
    return table


def _sum_by_run(values: np.ndarray, firsts: np.ndarray) -> np.ndarray:
    """Running sums that begin again in each run."""
    sums = np.cumsum(values)
    of_runs_before = np.concatenate([[0], sums[firsts[1:] - 1]])[: len(firsts)]
    since_first: np.ndarray = sums - np.repeat(of_runs_before, np.diff(firsts, append=len(sums)))
    return since_first


def _integers(table: pa.Table, column: str) -> np.ndarray:
    values = table[column]
    if values.null_count or not pa.types.is_integer(values.type):
        raise ValueError(f"{column} is {values.type}, {values.null_count} of it absent: it should be int64, whole")
    return np.asarray(values.cast(pa.int64()).to_numpy())


def _firsts(table: pa.Table) -> np.ndarray:
    """Places of the rows before which there is none of the same run."""
    runs = table["run_id"].combine_chunks()
    runs = (runs if pa.types.is_dictionary(runs.type) else runs.dictionary_encode()).indices.to_numpy(False)
    return np.flatnonzero(np.concatenate([[True], runs[1:] != runs[:-1]])[: len(runs)])


def _exchange(table: pa.Table, columns: dict[str, tuple[str, np.ndarray | pa.Array | pa.ChunkedArray]]) -> pa.Table:
    for old, (name, values) in columns.items():
        values = pa.array(values) if isinstance(values, np.ndarray) else values
        table = table.set_column(table.column_names.index(old), name, values)
    return table
