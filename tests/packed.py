"""SQLite exports of nsys, packed column by column: less than half of what xz makes of them.

A number is stored as the column's own value or as its difference to the row before, whichever packs best, and by planes
of bytes; other values as places in a list of the distinct ones. Times are stored as gaps and durations, those of the
same function or kernel together, which are alike. `unpack` rebuilds
the database: the same CREATE statements in the same order, and the same rows, values and types. Row numbers and the
layout of pages may differ.
"""

import json
import lzma
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from profiler_job.jobs.contract.integrity import add_digest, read_facts
from profiler_job.jobs.contract.layout import RECORD

SUFFIX = ".packed"
"""Of a packed database, after `.sqlite`."""
FEW_ROWS = 200
"""Rows of a table that is stored as JSON, with the list of tables."""
SHARED = Path(__file__).with_name("data") / "shared_tables.br"
"""What several databases have, as JSON, which packed files name by its place: tables with their SQL, and the rows of
small ones. Add only at its end."""

_BROTLI = pa.Codec("brotli", 11)
_VALUE, _STEP, _GAP, _DURATION, _WORD = "value", "step", "gap", "duration", "word"
"""How the numbers of a column are meant. Gap: start after the end of the row before. Duration: end after start."""
_TIMES = ("start", "end")
_KEYS = ("nameId", "demangledName")
"""Columns that say which rows take alike times, in tables that have one."""


class _Packed(NamedTuple):
    """A column: how its numbers are meant, the numbers, and the distinct words or the places without a value."""

    how: str
    numbers: bytes
    rest: bytes


def pack(database: Path) -> bytes:
    """Pack a database. Raises sqlite3.Error."""
    tables: list[list[Any]] = []
    parts: list[bytes] = []
    with closing(sqlite3.connect(database)) as connection:
        for kind, name, sql in _objects(connection):
            rows = connection.execute(f'SELECT * FROM "{name}"').fetchall() if kind == "table" else []
            about: list[Any] = [_shorten([name, sql]), len(rows)]
            if len(rows) < FEW_ROWS:
                about.append([[_to_json(value) for value in row] for row in rows])
            else:
                columns = list(_pack_columns(_columns(connection, name), rows))
                about.append([[column.how, len(column.numbers), len(column.rest)] for column in columns])
                parts += [part for column in columns for part in column[1:]]
            tables.append(_shorten(about))
    head = _compress(json.dumps(tables, ensure_ascii=False).encode())
    return len(head).to_bytes(4, "little") + head + b"".join(parts)


def unpack(packed: Path, database: Path) -> Path:
    """Rebuild what `pack` was given, as the new file `database`, and return that. Of an .xz file, what it holds."""
    if packed.suffix == ".xz":
        database.write_bytes(lzma.decompress(packed.read_bytes()))
        return database
    data = packed.read_bytes()
    begin = 4 + int.from_bytes(data[:4], "little")
    tables = json.loads(_decompress(data[4:begin]))
    with closing(sqlite3.connect(database)) as connection:
        for table in tables:
            *about, num_rows, body = _lengthen(table)
            name, sql = about if len(about) == 2 else _lengthen(about[0])
            if sql and not name.startswith("sqlite_"):
                connection.execute(sql)
            if num_rows < FEW_ROWS:
                rows = [[_from_json(value) for value in row] for row in body]
            else:
                columns = []
                for how, num_bytes, num_more in body:
                    middle, end = begin + num_bytes, begin + num_bytes + num_more
                    columns.append(_Packed(how, data[begin:middle], data[middle:end]))
                    begin = end
                rows = list(zip(*_unpack_columns(_columns(connection, name), columns), strict=True))
            if rows:
                places = ",".join("?" * len(rows[0]))
                connection.executemany(f'INSERT INTO "{name}" VALUES ({places})', rows)
        connection.commit()
    return database


def unpack_all(folder: Path) -> None:
    """Put each packed file below `folder` in its place, .xz files too.

    A rebuilt database has other bytes than nsys wrote: the record of the run gets its SHA-256.
    """
    for packed in [*folder.rglob(f"*{SUFFIX}"), *folder.rglob("*.xz")]:
        database = unpack(packed, packed.with_suffix(""))
        packed.unlink()
        record = database.with_name(RECORD)
        if packed.suffix == SUFFIX and record.is_file():
            content = json.loads(record.read_text())
            if database.name in content.get("files", {}):
                content["files"][database.name] = read_facts(database).model_dump()
                record.write_text(json.dumps(add_digest(content)))


def content_of(database: Path) -> tuple[list[tuple], dict[str, list[list[tuple[type, Any]]]]]:
    """What `unpack` gives back: the objects of a database with their SQL, and each table's rows with types."""
    with closing(sqlite3.connect(database)) as connection:
        objects = _objects(connection)
        tables = [name for kind, name, _ in objects if kind == "table"]
        rows = {name: connection.execute(f'SELECT * FROM "{name}"').fetchall() for name in tables}
    return objects, {name: [[(type(value), value) for value in row] for row in rows[name]] for name in tables}


@cache
def _read_shared() -> list[str]:
    shared: list[str] = json.loads(_decompress(SHARED.read_bytes()))
    return shared


def _shorten(part: list[Any]) -> list[Any] | int:
    """Return the place of a part in SHARED, or the part if it is not there."""
    text = json.dumps(part, ensure_ascii=False)
    return _read_shared().index(text) if text in _read_shared() else part


def _lengthen(part: list[Any] | int) -> list[Any]:
    return json.loads(_read_shared()[part]) if isinstance(part, int) else part


def _objects(connection: sqlite3.Connection) -> list[tuple]:
    return connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY rowid").fetchall()


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [column[1] for column in connection.execute(f'PRAGMA table_info("{table}")')]


def _pack_columns(names: Sequence[str], rows: Sequence[tuple]) -> Iterator[_Packed]:
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    order = _order_alike(columns)
    times = _times(columns)
    for name, values in columns.items():
        absent = np.array([value is None for value in values])
        whole = [0 if value is None else value for value in values]
        if absent.all() or not all(type(value) is int and abs(value) < 2**62 for value in whole):
            yield _pack_words(values)
            continue
        numbers = np.array(whole, np.int64)
        ways = {_VALUE: numbers, _STEP: np.diff(numbers, prepend=0)}
        if times is not None and name in _TIMES:
            start, end = times
            is_start = name == "start"
            ways = {_GAP: start - np.concatenate([[0], end[:-1]])} if is_start else {_DURATION: end - start}
            ways = {how: apart[order] for how, apart in ways.items()}
        made = {how: _compress(_planes(values)) for how, values in ways.items()}
        best = min(made, key=lambda how: len(made[how]))
        yield _Packed(best, made[best], _compress(np.packbits(absent).tobytes()) if absent.any() else b"")


def _times(columns: dict[str, Sequence[Any]]) -> tuple[np.ndarray, np.ndarray] | None:
    """Starts and ends, if a table has both as numbers. A row without an end has its start as one."""
    if not {*_TIMES} <= {*columns} or not _is_whole(columns, "start"):
        return None
    ends = [start if end is None else end for start, end in zip(columns["start"], columns["end"], strict=True)]
    if not _is_whole({"end": ends}, "end"):
        return None
    return np.array(columns["start"], np.int64), np.array(ends, np.int64)


def _is_whole(columns: dict[str, Sequence[Any]], name: str) -> bool:
    """Whether a column is there, and all its values are numbers that fit."""
    return name in columns and all(type(value) is int and abs(value) < 2**62 for value in columns[name])


def _order_alike(columns: dict[str, Sequence[Any]]) -> np.ndarray:
    """The order in which times are stored: by the key of their row, then by that of the row before."""
    keys = [np.array(columns[name], np.int64) for name in _KEYS if _is_whole(columns, name)]
    if not keys:
        return np.arange(len(next(iter(columns.values()))))
    return np.lexsort((np.concatenate([[0], keys[0][:-1]]), keys[0]))


def _pack_words(values: Sequence[Any]) -> _Packed:
    words = list(dict.fromkeys((type(value).__name__, value) for value in values))
    place = {word: i for i, word in enumerate(words)}
    places = np.array([place[type(value).__name__, value] for value in values], np.int64)
    distinct = json.dumps([_to_json(value) for _, value in words], ensure_ascii=False).encode()
    return _Packed(_WORD, _compress(_planes(places)), _compress(distinct))


def _unpack_columns(names: Sequence[str], packed: Sequence[_Packed]) -> list[Sequence[Any]]:
    columns: dict[str, Sequence[Any]] = {}
    apart: dict[str, np.ndarray] = {}
    for name, column in zip(names, packed, strict=True):
        numbers = _from_planes(_decompress(column.numbers))
        columns[name] = ()  # its place
        if column.how == _WORD:
            words = [_from_json(value) for value in json.loads(_decompress(column.rest))]
            columns[name] = [words[place] for place in numbers.tolist()]
            continue
        if column.how in (_GAP, _DURATION):
            apart[column.how] = numbers
            continue
        columns[name] = (np.cumsum(numbers) if column.how == _STEP else numbers).tolist()
    if apart:
        order = _order_alike({name: values for name, values in columns.items() if name not in _TIMES})
        gaps, durations = np.empty_like(apart[_GAP]), np.empty_like(apart[_DURATION])
        gaps[order], durations[order] = apart[_GAP], apart[_DURATION]
        ends = np.cumsum(gaps + durations)
        columns |= {"start": (ends - durations).tolist(), "end": ends.tolist()}
    for name, column in zip(names, packed, strict=True):
        if column.how != _WORD and column.rest:
            values = columns[name]
            absent = np.unpackbits(np.frombuffer(_decompress(column.rest), np.uint8), count=len(values))
            columns[name] = [None if gone else value for gone, value in zip(absent.tolist(), values, strict=True)]
    return list(columns.values())


def _planes(numbers: np.ndarray) -> bytes:
    """All lowest bytes, then all next ones; signs in the lowest bit."""
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint8).reshape(-1, 8).T.tobytes()


def _from_planes(planes: bytes) -> np.ndarray:
    numbers = np.ascontiguousarray(np.frombuffer(planes, np.uint8).reshape(8, -1).T).view(np.uint64).ravel()
    return (numbers >> np.uint64(1)).view(np.int64) ^ -(numbers & np.uint64(1)).view(np.int64)


def _to_json(value: Any) -> Any:
    return {"bytes": value.hex()} if isinstance(value, bytes) else value


def _from_json(value: Any) -> Any:
    return bytes.fromhex(value["bytes"]) if isinstance(value, dict) else value


def _compress(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + _BROTLI.compress(data, asbytes=True)


def _decompress(data: bytes) -> bytes:
    return _BROTLI.decompress(data[4:], int.from_bytes(data[:4], "little"), asbytes=True)
