"""Columns that are decoded from pages are those that sqlite3 gives, and what is not plain is left to it."""

import random
import signal
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from profiler_job.analysis.capture import sqlite_pages, sqlite_tables
from profiler_job.analysis.capture.export_schema import API, NO_VALUE
from profiler_job.analysis.capture.sqlite_tables import SqliteTables
from tests.bench.generate import tables, write_sqlite

COLUMNS = ("start", "end", "globalTid", "correlationId", "nameId")
EDGES = [0, 1, -1, 127, 128, -128, -129, 2**15 - 1, -(2**15), 2**23, 2**31, 2**47 - 1, -(2**47), 2**62, -(2**63) + 1]


@pytest.fixture(autouse=True)
def decoded(monkeypatch):
    """Small tables are decoded, too."""
    monkeypatch.setattr(sqlite_tables, "LEAST_ROWS", 0)
    monkeypatch.setattr(sqlite_pages, "_BLOCK_BYTES", 1 << 14)


def _write(path, rows, *, declared="INTEGER", page_bytes=4096, extra="note TEXT"):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size = {page_bytes}")
        columns = ", ".join(f'"{name}" {declared}' for name in COLUMNS)
        connection.execute(f'CREATE TABLE "{API}" ({extra}, {columns}, eventClass INTEGER)')
        connection.executemany(f'INSERT INTO "{API}" VALUES (?, ?, ?, ?, ?, ?, 7)', rows)
        connection.commit()
    return path


def _read(path):
    """The columns, and whether they were decoded from pages."""
    used = []
    with SqliteTables.open(path, path) as tables:
        read_chunks = tables._read_chunks
        tables._read_chunks = lambda *arguments: used.append(1) or read_chunks(*arguments)
        return tables.read_integers(API, list(COLUMNS)), not used


def _ask_sqlite(path):
    with closing(sqlite3.connect(path)) as connection:
        wanted = ", ".join(f'COALESCE("{name}", {NO_VALUE})' for name in COLUMNS)
        rows = connection.execute(f'SELECT {wanted} FROM "{API}"').fetchall()
    return [np.array(column, np.int64) for column in zip(*rows)]


def _is_equal(columns, others):
    return all(np.array_equal(a, b) for a, b in zip(columns, others, strict=True))


@pytest.mark.parametrize("page_bytes", [512, 4096, 65536])
@pytest.mark.parametrize("seed", range(3))
def test_decoded_columns_are_those_of_sqlite(tmp_path, page_bytes, seed):
    rng = random.Random(seed)

    def draw():
        if rng.random() < 0.1:
            return None
        return rng.choice(EDGES) if rng.random() < 0.3 else rng.randrange(-(2 ** rng.randrange(63)), 2**62)

    rows = [("x" * rng.randrange(150), *(draw() for _ in COLUMNS)) for _ in range(3000)]
    path = _write(tmp_path / "a.sqlite", rows, page_bytes=page_bytes)
    with closing(sqlite3.connect(path)) as connection:  # gaps, and rows on pages in another order
        connection.execute(f'DELETE FROM "{API}" WHERE rowid % 3 = {seed}')
        connection.execute(f'UPDATE "{API}" SET "end" = 5 WHERE rowid % 7 = 1')
        connection.commit()
    columns, is_decoded = _read(path)
    assert is_decoded and _is_equal(columns, _ask_sqlite(path))


def test_an_empty_table_has_no_rows(tmp_path):
    columns, is_decoded = _read(_write(tmp_path / "a.sqlite", []))
    assert is_decoded and all(len(column) == 0 for column in columns)


@pytest.mark.parametrize(
    "options",
    [{"declared": "REAL"}, {"extra": "note INTEGER PRIMARY KEY"}],
    ids=["reals", "key"],
)
def test_what_is_stored_in_another_form_is_left_to_sqlite(tmp_path, options):
    path = _write(tmp_path / "a.sqlite", [(i, i, i, i, i, i) for i in range(50)], **options)
    if options.get("declared") == "REAL":
        with pytest.raises(ValueError, match="not a whole number"):
            _read(path)
        return
    columns, is_decoded = _read(path)
    assert not is_decoded and _is_equal(columns, _ask_sqlite(path))


def test_rows_that_continue_on_other_pages_are_left_to_sqlite(tmp_path):
    path = _write(tmp_path / "a.sqlite", [("x" * 9000, i, i, i, i, i) for i in range(20)])
    columns, is_decoded = _read(path)
    assert not is_decoded and _is_equal(columns, _ask_sqlite(path))


def test_rows_from_before_a_column_was_added_are_left_to_sqlite(tmp_path):
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f'CREATE TABLE "{API}" (start INTEGER, "end" INTEGER)')
        connection.executemany(f'INSERT INTO "{API}" VALUES (?, ?)', [(i, i + 1) for i in range(100)])
        for name in COLUMNS[2:]:
            connection.execute(f'ALTER TABLE "{API}" ADD COLUMN "{name}" INTEGER DEFAULT 9')
        connection.commit()
    columns, is_decoded = _read(path)
    assert not is_decoded and set(columns[4]) == {9}


@pytest.mark.parametrize("value", [1.5, "12", b"\x01"])
def test_a_value_that_is_no_whole_number_is_refused_as_before(tmp_path, value):
    path = _write(tmp_path / "a.sqlite", [("", 1, 2, 3, 4, 5)] * 30 + [("", 1, 2, 3, 4, value)], declared="INTEGER")
    if value == "12":  # stored as a number, since the column is of numbers
        assert _read(path)[0][4][-1] == 12
        return
    with pytest.raises((ValueError, sqlite3.Error)):
        _read(path)


def test_flipped_bytes_give_an_error_or_what_sqlite_gives(tmp_path):
    rng = random.Random(46)
    path = _write(tmp_path / "a.sqlite", [("x" * (i % 40), i, i + 5, 7, i, 3) for i in range(2000)])
    whole = path.read_bytes()
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(rng.choice([1, 3, 20])):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            columns, is_decoded = _read(path)
        except (ValueError, sqlite3.Error, OSError):
            continue
        if is_decoded:
            assert _is_equal(columns, _ask_sqlite(path))


def test_a_signal_during_the_check_is_no_damage(tmp_path):
    """Python calls the handler of a signal when SQLite asks whether to go on; what it raises would be taken for a
    no."""
    capture = tmp_path / "a.sqlite"
    write_sqlite(tables(50_000), capture)

    class CameError(BaseException):
        pass

    def come(*_):
        raise CameError

    before, came = signal.signal(signal.SIGALRM, come), 0
    try:
        for number in range(40):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005 * (number + 1))
                with SqliteTables.open(capture, capture):
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except CameError:
                came += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert came
