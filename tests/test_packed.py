"""A packed database comes back with the same statements, rows, values and types."""

import sqlite3
from contextlib import closing
from pathlib import Path

from tests import packed


def test_every_kind_of_value_comes_back(tmp_path):
    file = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(file)) as made:
        made.execute("CREATE TABLE LARGE (start INTEGER NOT NULL, end INTEGER, maybe INTEGER, mixed, none TEXT)")
        made.execute("CREATE TABLE CALLS (start INTEGER NOT NULL, end INTEGER NOT NULL, nameId INTEGER NOT NULL)")
        made.execute("CREATE TABLE SMALL (text TEXT, number REAL, bytes BLOB, whole INT PRIMARY KEY)")
        made.execute("CREATE INDEX BY_START ON LARGE (start)")
        made.execute("CREATE VIEW SHORT AS SELECT * FROM LARGE WHERE end - start < 5")
        kinds = ("a", 1.5, b"\x00\xff", -(2**63), 2**63 - 1, None, "", "é\n")
        for i in range(1000):
            end = i * 1000 + i % 9 if i % 5 else None
            row = (i * 1000 - 7, end, None if i % 3 else -i, kinds[i % len(kinds)], None)
            made.execute("INSERT INTO LARGE VALUES (?, ?, ?, ?, ?)", row)
            made.execute("INSERT INTO CALLS VALUES (?, ?, ?)", (i * 777 % 1000, i * 777 % 1000 + i % 9, i % 4))
        made.execute("INSERT INTO SMALL VALUES ('x', 0.1, x'00', 5)")
        made.commit()
    (tmp_path / "a.packed").write_bytes(packed.pack(file))
    back = packed.unpack(tmp_path / "a.packed", tmp_path / "b.sqlite")
    assert packed.content_of(back) == packed.content_of(file)
    assert (tmp_path / "a.packed").stat().st_size < file.stat().st_size / 5


def test_what_captures_share_is_packed_once(tmp_path):
    shipped = Path(__file__).parent / "data" / "h200_waits" / "copy" / "copy" / "profile.sqlite.packed"
    file = packed.unpack(shipped, tmp_path / "a.sqlite")
    (tmp_path / "a.packed").write_bytes(packed.pack(file))
    assert (tmp_path / "a.packed").stat().st_size < 1.02 * shipped.stat().st_size
    back = packed.unpack(tmp_path / "a.packed", tmp_path / "b.sqlite")
    assert packed.content_of(back) == packed.content_of(file)
