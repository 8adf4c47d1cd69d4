"""Tables of a recording that take too much memory: parts of whole runs, each in a file of its own, read one after
another. Functions of tables take them in place of frames, if `measure_by_run` or `select_by_row` decorates them."""

import pickle
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import pyarrow as pa

Result = TypeVar("Result", pd.DataFrame, pd.Series)
CODEC = "lz4"
"""A fifth of the bytes, in the time that it takes to read the rest."""


@dataclass(frozen=True)
class Part:
    """The rows of some runs in a file: `num_bytes` once decompressed. run_ids: of the part; one may have no rows.
    changes: what is done to the rows when they are read, functions of a frame with their further arguments. has_rows:
    whether any are left, as far as is known."""

    file: Path
    run_ids: frozenset[str]
    num_bytes: int
    has_rows: bool = True
    changes: tuple[tuple[Callable[..., pd.DataFrame], tuple[Any, ...]], ...] = ()

    @classmethod
    def write(cls, frame: pd.DataFrame, run_ids: Collection[str], file: Path) -> "Part":
        """Write rows into `file`, which only this program reads."""
        content = pickle.dumps(frame, pickle.HIGHEST_PROTOCOL)
        file.write_bytes(pa.compress(content, CODEC, asbytes=True))
        return cls(file, frozenset(run_ids), len(content), len(frame) > 0)

    def read(self) -> pd.DataFrame:
        """Read the rows, and change them."""
        frame: pd.DataFrame = pickle.loads(pa.decompress(self.file.read_bytes(), self.num_bytes, CODEC, asbytes=True))
        for change, args in self.changes:
            frame = change(frame, *args)
        return frame


@dataclass(frozen=True, eq=False)
class RunTable:
    """A table in parts. Tables of one recording have their runs in the same parts."""

    parts: tuple[Part, ...]


def select_by_row(select: Callable[..., pd.DataFrame]) -> Callable[..., Any]:
    """Decorate a function of a table, and of other values, that selects or changes each row on its own: parts stay
    parts, and are changed when they are read."""

    @wraps(select)
    def apply(table: Any, *args: Any) -> Any:
        if not isinstance(table, RunTable):
            return select(table, *args)
        return RunTable(tuple(replace(part, changes=(*part.changes, (apply, args))) for part in table.parts))

    return apply


def measure_by_run(measure: Callable[..., Result]) -> Callable[..., Result]:
    """Decorate a function of tables, and of other values, whose rows of a run come from the rows of that run alone: if
    one of the tables is in parts, it is called part by part."""

    @wraps(measure)
    def apply(*args: Any) -> Result:
        if not any(isinstance(arg, RunTable) for arg in args):
            return measure(*args)
        results = [measure(*part) for part in iterate_parts(*args)]
        is_numbered = all(isinstance(result.index, pd.RangeIndex) for result in results)
        return pd.concat(results, ignore_index=is_numbered)

    return apply


def iterate_parts(*args: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the arguments for each part in which a table has rows (for one, if there is none), with the rows of these
    runs of frames with run_id; other values stay as they are. Yield them once if none is in parts."""
    tables = [arg for arg in args if isinstance(arg, RunTable)]
    if not tables:
        yield args
        return
    every = [*zip(*(table.parts for table in tables), strict=True)]
    for parts in [of for of in every if any(part.has_rows for part in of)] or every[:1]:
        read = iter(parts)
        yield tuple(next(read).read() if isinstance(arg, RunTable) else _keep(arg, parts[0].run_ids) for arg in args)


def _keep(arg: Any, run_ids: Collection[str]) -> Any:
    return keep_runs(arg, run_ids) if isinstance(arg, pd.DataFrame) and "run_id" in arg else arg


def keep_runs(table: Any, run_ids: Collection[str]) -> Any:
    """Return the rows of these runs, by their ids as text; the table itself if these are all its runs, so that what was
    measured of it is known (`metrics.remembered`)."""
    if _list_runs(table) <= {*run_ids}:
        return table
    kept = _select_runs(table, run_ids)
    if not isinstance(kept, RunTable):
        return kept
    return RunTable(
        tuple(replace(part, has_rows=part.has_rows and not part.run_ids.isdisjoint(run_ids)) for part in kept.parts)
    )


def _list_runs(table: Any) -> set[str]:
    if isinstance(table, RunTable):
        return {run_id for part in table.parts for run_id in part.run_ids}
    return {*table["run_id"].drop_duplicates().astype(str)}


@select_by_row
def _select_runs(table: pd.DataFrame, run_ids: Collection[str]) -> pd.DataFrame:
    return table[table["run_id"].isin(run_ids)]


@select_by_row
def number_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows numbered from 0, within each part."""
    return table.reset_index(drop=True)


@measure_by_run
def count_rows(table: pd.DataFrame) -> pd.Series:
    """Count the rows of each run, in the order of the runs: by run_id as text."""
    counts = table["run_id"].value_counts(sort=False)
    counts.index = counts.index.astype(str)
    return counts[counts > 0]


def read_whole(table: Any) -> pd.DataFrame:
    """Return all rows of a table in memory."""
    if not isinstance(table, RunTable):
        return table
    return pd.concat([rows for (rows,) in iterate_parts(table)], ignore_index=True)


def join_parts(tables: Sequence[RunTable]) -> RunTable:
    """Return the parts of tables of several recordings as one table."""
    return RunTable(tuple(part for table in tables for part in table.parts))
