"""Read columns of an nsys export in SQLite, and refuse a file that is damaged or hostile."""

import operator
import os
import sqlite3
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from profiler_job.analysis.capture import limits, sqlite_pages
from profiler_job.analysis.capture.blocks import BLOCK
from profiler_job.analysis.capture.capture_data import (
    EXPORT_AGAIN,
    GIVE_AN_EXPORT,
    ExportError,
    ExportProblem,
    join_lines,
)
from profiler_job.analysis.capture.export_columns import gather_columns
from profiler_job.analysis.capture.export_schema import NO_VALUE, READ
from profiler_job.jobs.contract.exit_codes import ExitCode

LEAST_ROWS = 10_000
"""Rows from which on the pages of a table are decoded here: fewer are read in a moment."""
WAL = bytes([2, 2])
"""Versions of the file format in the header of a database with a write-ahead log."""
WITHOUT_LOG = {"a database in WAL mode without its log": "what was written last may be missing: " + EXPORT_AGAIN}


class SqliteTables:
    """Columns of an export in SQLite: numbers of plain tables from their pages, all else by Python's own sqlite3, in
    flat chunks. 1 M rows of seven columns take 0.2 s, or by sqlite3 a second."""

    CHUNK = 1 << 9  # values that are not numbers take memory until they are refused: half a GiB of limits.ROW_BYTES

    def __init__(self, connection: sqlite3.Connection, file: BinaryIO, shown: Path, problems: dict[str, str]):
        self._connection, self._file = connection, file
        self._problems = problems
        self._names = limits.UniqueNames()
        connection.text_factory = self._decode_text
        (num_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        limits.TABLES.check(num_tables)
        self._plain: dict[str, tuple[int, dict[str, int]]] = {}
        self._columns = {table: columns for table in READ if (columns := self._list_plain_columns(table, shown))}
        # One by one: what lies in other tables is nothing to us, and costs what their author wants.
        for table in self._columns:
            verdict = connection.execute(f'PRAGMA quick_check("{table}")').fetchone()
            if verdict is None or verdict[0] != "ok":
                problem = f"is damaged ({join_lines(ValueError(verdict))})"
                raise ExportError(ExportProblem.DAMAGED, shown, problem, EXPORT_AGAIN)
        counts = {table: connection.execute(f'SELECT count(*) FROM "{table}" NOT INDEXED') for table in self._columns}
        self._num_rows = {table: count.fetchone()[0] for table, count in counts.items()}

    @classmethod
    @contextmanager
    def open(cls, path: Path, shown: Path) -> Iterator["SqliteTables"]:
        problems = _check_sqlite_file(path, shown)
        # immutable: the file may lie on a read-only disk, and nothing else writes it
        file = path.open("rb")
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                raise OSError(f"{path} was replaced while it was opened")
            _limit_sqlite(connection)
            deadline = time.thread_time() + limits.check_s(path.stat())
            # No code of Python, in which a signal would raise: SQLite would take that for a yes.
            is_late = map(operator.lt, repeat(deadline), iter(time.thread_time, None))
            connection.set_progress_handler(is_late.__next__, 10_000)
            try:
                tables = cls(connection, file, shown, problems)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                    raise
                raise ExportError(
                    ExportProblem.TOO_LARGE, shown, "takes too long to check for damage", EXPORT_AGAIN
                ) from error
            connection.set_progress_handler(None, 0)
            yield tables
        finally:
            connection.close()
            file.close()

    def _decode_text(self, raw: bytes) -> str:
        return self._names(raw.decode("utf-8", "replace"))  # what is not UTF-8 must not stop all the rest

    def _list_plain_columns(self, table: str, shown: Path) -> list[str]:
        """List the names of the columns; none if there is no such table. Anything that computes is refused: a view, a
        virtual table, a generated column."""
        query = "SELECT type, rootpage FROM sqlite_master WHERE name = ? COLLATE NOCASE AND type IN ('table', 'view')"
        kind, root = self._connection.execute(query, (table,)).fetchone() or ("", 0)
        if not kind:
            return []
        columns = self._connection.execute(f'PRAGMA table_xinfo("{table}")').fetchall()
        if kind == "view" or not root or any(column[6] for column in columns):
            kind = "view" if kind == "view" else "table with computed columns" if root else "virtual table"
            raise ExportError(
                ExportProblem.DAMAGED, shown, f"has {table} as a {kind}, which nsys never writes", EXPORT_AGAIN
            )
        # Numbers that sqlite3 would give as they are stored: INTEGER columns other than the row's number.
        places = {column[1]: column[0] for column in columns if column[2].upper().split()[:1] in (["INTEGER"], ["INT"])}
        if not any(column[5] for column in columns):
            self._plain[table] = root, places
        return [column[1] for column in columns]

    def list_tables(self) -> set[str]:
        return set(self._columns)

    def list_problems(self) -> dict[str, str]:
        return self._problems

    def list_columns(self, table: str) -> list[str]:
        return self._columns.get(table, [])

    def num_rows(self, table: str) -> int:
        return self._num_rows[table]

    def read_integers(self, table: str, columns: Sequence[str]) -> list[np.ndarray]:
        """The named columns as int64 arrays, NULL as NO_VALUE, in the table's own order."""
        rows, (root, places) = self.num_rows(table), self._plain.get(table, (0, {}))
        if rows >= LEAST_ROWS and all(column in places for column in columns):
            with suppress(sqlite_pages.UnusualPagesError):
                chunks = sqlite_pages.read_columns(self._file, root, [places[column] for column in columns])
                return gather_columns(table, columns, rows, chunks)
        wanted = ", ".join(f'COALESCE("{column}", {NO_VALUE})' for column in columns)
        query = f'SELECT {wanted} FROM "{table}" NOT INDEXED'
        return gather_columns(table, columns, rows, self._read_chunks(table, query, len(columns)))

    def _read_chunks(self, table: str, query: str, num_columns: int) -> Iterator[np.ndarray]:
        cursor = self._connection.execute(query)
        flat = array("q")
        try:
            # Rows are used up one by one, so that Python makes no million tuples. An array takes no fractions.
            while values := list(chain.from_iterable(islice(cursor, self.CHUNK))):
                flat.extend(array("q", values))
                if len(flat) >= BLOCK * num_columns:
                    yield _split_columns(flat, num_columns)
                    flat = array("q")
        except TypeError as error:
            raise ValueError(f"{table} has a value that is not a whole number") from error
        if flat:
            yield _split_columns(flat, num_columns)

    def read_objects(self, table: str, columns: Sequence[str]) -> list[list[Any]]:
        """The named columns as lists of Python values, in the table's own order."""
        wanted = ", ".join(f'"{column}"' for column in columns)
        lists: list[list[Any]] = [[] for _ in columns]
        cursor = self._connection.execute(f'SELECT {wanted} FROM "{table}" NOT INDEXED')
        while rows := list(chain.from_iterable(islice(cursor, self.CHUNK))):
            flat = [self._decode_text(value) if isinstance(value, bytes) else value for value in rows]
            for number, values in enumerate(lists):
                values.extend(flat[number :: len(columns)])
        return lists


def _split_columns(flat: "array[int]", num_columns: int) -> np.ndarray:
    return np.frombuffer(flat, np.int64).reshape(-1, num_columns).T


def _limit_sqlite(connection: sqlite3.Connection) -> None:
    """Let nothing but plain tables of usual sizes be read."""
    for kind, most in (
        (sqlite3.SQLITE_LIMIT_LENGTH, limits.ROW_BYTES.most),
        (sqlite3.SQLITE_LIMIT_SQL_LENGTH, limits.DEFINITION_BYTES.most),
        (sqlite3.SQLITE_LIMIT_COLUMN, limits.COLUMNS.most),
        (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
    ):
        connection.setlimit(kind, most)
    for setting in ("trusted_schema = OFF", "cell_size_check = ON", "ignore_check_constraints = ON", "mmap_size = 0"):
        connection.execute(f"PRAGMA {setting}")


def _check_sqlite_file(path: Path, shown: Path) -> dict[str, str]:
    """Return what may be wrong with a file. Raises ExportError if it is not a whole one."""
    size = path.stat().st_size
    if size == 0:
        raise ExportError(ExportProblem.EMPTY, shown, "is empty", EXPORT_AGAIN)
    with path.open("rb") as file:
        header = file.read(100)
    if header[:4] == b"PAR1":
        raise ExportError(
            ExportProblem.NOT_AN_EXPORT,
            shown,
            "is a single Parquet file",
            "give the parquetdir folder that holds it",
            exit_code=ExitCode.USAGE,
        )
    if header[:16] != b"SQLite format 3\x00":
        raise ExportError(ExportProblem.NOT_AN_EXPORT, shown, "is not an SQLite file", GIVE_AN_EXPORT)
    for ending in ("-wal", "-journal"):
        beside = path.with_name(path.name + ending)
        if beside.exists() and beside.stat().st_size:
            problem = f"is being written, or its writing was broken off ({beside.name} is next to it)"
            raise ExportError(ExportProblem.UNFINISHED, shown, problem, "wait until nsys is done, or " + EXPORT_AGAIN)
    page = int.from_bytes(header[16:18], "big")
    expected = (65536 if page == 1 else page) * int.from_bytes(header[28:32], "big")
    if size < expected:
        raise ExportError(ExportProblem.UNFINISHED, shown, f"is cut off ({size} of {expected} bytes)", EXPORT_AGAIN)
    # Some programs that read a file switch it to this mode; then nothing is missing.
    return dict(WITHOUT_LOG) if header[18:20] == WAL else {}
