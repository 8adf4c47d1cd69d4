"""How the starts and ends of a table are stored: as the differences that a run repeats, in fewer bytes than its times.

A row's gap is its start after the end of the row before, or after 0 in the first row of a run; its duration is its end
after its start. Arithmetic is that of 64 bits, so every pair of times comes back.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa


class Pair(NamedTuple):
    """Names of two columns of times, in memory, and of the two that are stored in place of them."""

    start: str
    end: str
    gap: str
    duration: str


PAIRS = (
    Pair("launch_ns", "launch_end_ns", "launch_gap_ns", "launch_duration_ns"),
    Pair("start_ns", "end_ns", "gap_ns", "duration_ns"),
)


def meanings(pair: Pair) -> Iterator[tuple[str, str]]:
    """The stored columns of a pair, each with what it means."""
    yield pair.gap, f"only in the file: {pair.start}, after {pair.end} of the row before (after 0 in a run's first row)"
    yield pair.duration, f"only in the file: {pair.end} - {pair.start}"


def pairs_of(columns: Collection[str]) -> list[Pair]:
    """The pairs whose times are among the columns of a table in memory."""
    return [pair for pair in PAIRS if pair.start in columns and pair.end in columns]


def to_differences(table: pa.Table, pairs: Collection[Pair]) -> pa.Table:
    """`table` as it is stored. A pair stays as it is where one of its columns lacks a value or is not there."""
    for start, end, gap, duration in pairs:
        if not {"run_id", start, end} <= {*table.column_names} or table[start].null_count or table[end].null_count:
            continue
        starts, ends = _integers(table, start), _integers(table, end)
        before = np.roll(ends, 1)
        before[_firsts(table)] = 0
        table = _exchange(table, {start: (gap, starts - before), end: (duration, ends - starts)})
    return table


def to_times(table: pa.Table, pairs: Collection[Pair]) -> pa.Table:
    """`table` as it is in memory; one that holds the times, as older recordings do, as it is.

    Raises ValueError where a difference is not a whole number, KeyError where a column is there twice.
    """
    for start, end, gap, duration in pairs:
        if not {"run_id", gap, duration} <= {*table.column_names} or {start, end} & {*table.column_names}:
            continue
        durations = _integers(table, duration)
        ends = np.cumsum(_integers(table, gap) + durations)
        firsts = _firsts(table)
        of_runs_before = np.concatenate([[0], ends[firsts[1:] - 1]])[: len(firsts)]
        ends -= np.repeat(of_runs_before, np.diff(firsts, append=len(ends)))
        table = _exchange(table, {gap: (start, ends - durations), duration: (end, ends)})
    return table


def _integers(table: pa.Table, column: str) -> np.ndarray:
    values = table[column]
    if values.null_count or not pa.types.is_integer(values.type):
        raise ValueError(f"{column} is {values.type}, {values.null_count} of it absent: it should be int64, whole")
    return values.cast(pa.int64()).to_numpy()


def _firsts(table: pa.Table) -> np.ndarray:
    """Places of the rows before which there is none of the same run."""
    runs = table["run_id"].combine_chunks()
    runs = (runs if pa.types.is_dictionary(runs.type) else runs.dictionary_encode()).indices.to_numpy(False)
    return np.flatnonzero(np.concatenate([[True], runs[1:] != runs[:-1]])[: len(runs)])


def _exchange(table: pa.Table, columns: dict[str, tuple[str, np.ndarray]]) -> pa.Table:
    for old, (name, values) in columns.items():
        table = table.set_column(table.column_names.index(old), name, pa.array(values))
    return table
