"""From columns of an nsys export to checked arrays with neutral values and sorted frames."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.blocks import BLOCK
from profiler_job.analysis.capture.capture_data import MOST_DEVICES, UNKNOWN_PROCESS
from profiler_job.analysis.capture.distinct_values import encode, make_categorical
from profiler_job.analysis.capture.export_schema import API, GPU_OPERATION, MOST_EXACT, NO_VALUE, NVTX, SMALL_COLUMNS


class ExportTables(Protocol):
    """The tables of an export, whatever contains them."""

    def list_tables(self) -> set[str]:
        """Return the names of the tables that are there, of those in `READ`."""

    def list_problems(self) -> dict[str, str]:
        """Return what may be wrong with the file itself, and what that means."""

    def list_columns(self, table: str) -> list[str]:
        """Return the columns of a table; none if there is no such table."""

    def num_rows(self, table: str) -> int:
        """Return the number of rows of a table that is there."""

    def read_integers(self, table: str, columns: Sequence[str]) -> list[np.ndarray]:
        """Return the named columns, int64 or int32, with NULL as `NO_VALUE`, in the table's own order."""

    def read_objects(self, table: str, columns: Sequence[str]) -> list[list[Any]]:
        """Return the named columns as lists of Python values, in the table's own order."""


def gather_columns(
    table: str, columns: Sequence[str], rows: int, chunks: Iterable[np.ndarray | Sequence[np.ndarray]]
) -> list[np.ndarray]:
    """Gather whole columns of `rows` values from chunks: int64, and int32 for columns of SMALL_COLUMNS whose values
    fit. Raises ValueError if there are more or fewer rows."""
    arrays = [np.empty(rows, np.int32 if column in SMALL_COLUMNS else np.int64) for column in columns]
    low = 0
    for chunk in chunks:
        high = low + len(chunk[0])
        if high > rows:
            break
        for number, part in enumerate(chunk):
            arrays[number][low:high] = part
            if arrays[number].dtype == np.int32 and (arrays[number][low:high] != part).any():
                arrays[number] = arrays[number].astype(np.int64)
                arrays[number][low:high] = part
        low = high
    if low != rows:
        raise ValueError(f"table {table} does not have the {rows} rows that it says it has")
    return arrays


def name_constants(codes: np.ndarray, texts: dict[int, str], form: str) -> pd.Categorical:
    unique, inverse = encode(codes)
    return make_categorical(inverse, [form.format(texts.get(int(code), f"kind {code}")) for code in unique])


def read_columns(
    tables: ExportTables, table: str, wanted: dict[str, str], missing: dict[str, str]
) -> dict[str, np.ndarray]:
    """`wanted` (our name -> nsys column) of `table` as int64 arrays without gaps in the frame; columns that this
    export does not have are listed in `missing` and come back as NO_VALUE. start and end are indispensable."""
    have = set(tables.list_columns(table))
    for column in ("start", "end"):
        if column in wanted.values() and column not in have:
            raise ValueError(f"table {table} has no column {column}")
    present = {ours: theirs for ours, theirs in wanted.items() if theirs in have}
    arrays = dict(zip(present, tables.read_integers(table, list(present.values()))))
    rows = len(next(iter(arrays.values())))
    for ours, theirs in wanted.items():
        if ours not in arrays:
            arrays[ours] = np.full(rows, NO_VALUE)
            missing[f"{table}.{theirs}"] = _explain_missing_column(theirs)
    return {ours: arrays[ours] for ours in wanted}


def _explain_missing_column(column: str) -> str:
    return {
        "correlationId": "the launch of these operations is unknown, so they cannot be attributed to ranges",
        "globalPid": "the process of these operations is unknown, so they cannot be attributed to ranges",
        "globalTid": "the thread of these events is unknown, so ranges cannot hold them",
        "graphNodeId": "operations inside CUDA graphs cannot be distinguished from others",
    }.get(column, f"{column} is unknown")


def fill_neutral(values: np.ndarray, value: int = 0) -> np.ndarray:
    absent = values == NO_VALUE
    return np.where(absent, value, values) if absent.any() else values


def narrow_to_int32(values: np.ndarray, value: int = 0) -> np.ndarray:
    """Convert `values` to int32, NULL to `value`. Raises ValueError if one does not fit."""
    values = fill_neutral(values, value)
    if len(values) and (values.max() > 2**32 - 1 or values.min() < -(2**31)):
        raise ValueError("an id or size is out of range")
    return values.astype(np.int32, copy=False) if not len(values) or values.max() < 2**31 else values


def check_times(start: np.ndarray, end: np.ndarray, table: str) -> None:
    if not len(start):
        return
    if start.min() == NO_VALUE or end.min() == NO_VALUE:
        raise ValueError(f"{table} has an event without a time")
    if max(abs(int(start.min())), abs(int(end.max()))) > 2**61:
        raise ValueError(f"{table} has a time out of range")
    total = 0.0
    for low in range(0, len(start), BLOCK):
        duration = end[low : low + BLOCK] - start[low : low + BLOCK]
        if duration.min() < 0:
            raise ValueError(f"{table} has an event that ends before it starts")
        total += duration.sum(dtype=np.float64)
    # The work of one GPU cannot take longer than the capture, but many threads may wait at the same time.
    most = 2**62 if table in (API, NVTX) else MOST_EXACT
    if total > most:
        raise ValueError(f"{table} has events that take years")


def sort_frame(arrays: dict[str, Any]) -> pd.DataFrame:
    """Frame of the arrays by start, then end; moves their values in place."""
    rows, order = _find_order(arrays["start_ns"], arrays["end_ns"])
    if len(order):
        for values in arrays.values():
            values[rows] = values[order]
    return pd.DataFrame(arrays, copy=False)


def _find_order(start: np.ndarray, end: np.ndarray) -> tuple[slice | np.ndarray, np.ndarray]:
    """Find the places to fill and the rows that belong there, by start, then end. nsys mostly writes rows in order, and
    then only rows that start together can be in a wrong place."""
    if (start[1:] < start[:-1]).any():
        return slice(None), np.lexsort((end, start))
    same = np.flatnonzero(start[1:] == start[:-1])
    rows = np.union1d(same, same + 1)
    return rows, rows[np.lexsort((end[rows], start[rows]))]


def read_operations(
    tables: ExportTables, table: str, more: dict[str, str], missing: dict[str, str]
) -> dict[str, np.ndarray]:
    """Columns that every kind of GPU operation has, and `more`, as arrays."""
    if table not in tables.list_tables():
        return {name: np.empty(0, np.int64) for name in (GPU_OPERATION | more)}
    arrays = read_columns(tables, table, GPU_OPERATION | more, missing)
    check_times(arrays["start_ns"], arrays["end_ns"], table)
    arrays["process"] = decode_process(arrays["process"])
    for name in ("device", "stream"):
        arrays[name] = narrow_to_int32(arrays[name])
    if len(arrays["device"]) and not 0 <= arrays["device"].min() <= arrays["device"].max() < MOST_DEVICES:
        raise ValueError(f"{table} has a device number out of range")
    arrays["correlation"] = fill_neutral(arrays["correlation"], -1)
    return arrays


def decode_process(serialised: np.ndarray) -> np.ndarray:
    """Return the process part of a serialised process or thread id; UNKNOWN_PROCESS if the export does not have it."""
    absent = serialised == NO_VALUE
    return np.where(absent, UNKNOWN_PROCESS, serialised >> 24) if absent.any() else serialised >> 24
