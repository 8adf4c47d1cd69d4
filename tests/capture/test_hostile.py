"""Captures made to take all memory or all time are refused with one line, within 10 s and 1 GiB; large real ones are
read."""

import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from profiler_job.analysis.capture import limits
from profiler_job.analysis.capture.attribution import attribute
from profiler_job.analysis.capture.capture_data import ExportError, ExportProblem
from profiler_job.analysis.capture.export_schema import KERNEL, NVTX
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.recording.ingest import ResultsError, ingest
from profiler_job.analysis.show import show_report
from profiler_job.jobs.contract.exit_codes import ExitCode

from .nsys_files import PUSH_POP, Export, global_tid

GIB = 1 << 30


@pytest.fixture(scope="module")
def show_limited():
    """Function from a path to what `show` makes of it under the limits of `tests.capture.limited`."""
    command = [sys.executable, "-m", "tests.capture.limited"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def show(path: Path) -> dict:
            process.stdin.write(f"{path}\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield show
        process.stdin.close()


@pytest.fixture
def assert_refused(show_limited):
    def check(path: Path, said: str, exit_code: ExitCode = ExitCode.DAMAGED) -> None:
        answer = show_limited(path)
        assert "ended_by" not in answer, answer
        assert answer["code"] == exit_code, "it is refused"
        (line,) = answer["err"]
        assert line.startswith(f"error: {path}: ") and "\n" not in line
        assert said in line
        assert answer["peak_bytes"] < GIB

    return check


def _export() -> Export:
    export = Export()
    export.push("forward", 0, 100)
    export.launch(10)
    return export


def _with_rows(path: Path, table: str, columns: str, rows) -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        names = columns.split(", ")
        marks = ", ".join("?" * len(names))
        quoted = ", ".join(f'"{name}"' for name in names)
        connection.executemany(f'INSERT INTO "{table}" ({quoted}) VALUES ({marks})', rows)
    return path


def _with_ranges(path: Path, rows) -> Path:
    """Adds push/pop ranges given as (start, end, text, domain) to an export."""
    rows = ((start, end, PUSH_POP, text, global_tid(1, 1), domain) for start, end, text, domain in rows)
    return _with_rows(path, NVTX, "start, end, eventType, text, globalTid, domainId", rows)


# ---------------------------------------------------------------------------------------------------------- not a file


def _fifo(path):
    os.mkfifo(path)


def _socket(path):
    with socket.socket(socket.AF_UNIX) as one:
        cwd = os.getcwd()
        os.chdir(path.parent)  # a socket's path may be 107 bytes long
        one.bind(path.name)
        os.chdir(cwd)


def _link_to_zeros(path):
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [_fifo, _socket, Path.mkdir, _link_to_zeros])
@pytest.mark.parametrize("table", [NVTX, "StringIds"])
def test_what_is_no_file_in_a_parquetdir_is_not_opened(tmp_path, assert_refused, make, table):
    folder = _export().parquetdir(tmp_path / "x")
    (folder / f"{table}.parquet").unlink()
    make(folder / f"{table}.parquet")
    assert_refused(folder, f"{table}.parquet, which is not a file")


@pytest.mark.parametrize("make", [_fifo, _socket, _link_to_zeros])
@pytest.mark.parametrize("name", ["x.sqlite", "x.nsys-rep"])
def test_what_is_no_file_is_not_opened(tmp_path, assert_refused, make, name):
    make(tmp_path / name)
    assert_refused(tmp_path / name, "is neither a file nor a folder", ExitCode.USAGE)


def test_a_pipe_in_the_results_of_a_sweep_does_not_hang_ingest(tmp_path):
    run = tmp_path / "results" / "small"
    run.mkdir(parents=True)
    os.mkfifo(run / "run.json")
    with pytest.raises(ResultsError, match="is not a file"):
        ingest(tmp_path / "results", tmp_path / "out")


# ------------------------------------------------------------------------------------------------------------- Parquet


def _equal_rows(folder):
    """Millions of kernels in some kB: the dictionary of each column has one value, and runs of it have no length."""
    columns = pq.read_table(folder / f"{KERNEL}.parquet").column_names
    rows = pa.table({name: pa.repeat(pa.scalar(1, pa.int64()), 5_000_000) for name in columns})
    pq.write_table(rows, folder / f"{KERNEL}.parquet", row_group_size=5_000_000)


def _a_string_under_many_rows(folder):
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(15_000, np.int32)), ["x" * (1 << 20)])
    old = pq.read_table(folder / f"{NVTX}.parquet")
    columns = {name: pa.repeat(old.column(name)[0], 15_000) for name in old.column_names} | {"text": text}
    pq.write_table(pa.table(columns), folder / f"{NVTX}.parquet")


def _a_large_page(folder):
    names = ["x" * (1 << 29)]
    strings = pa.table({"id": pa.array([1], pa.uint64()), "value": pa.array(names, pa.large_string())})
    pq.write_table(
        strings, folder / "StringIds.parquet", compression="zstd", use_dictionary=False, write_statistics=False
    )


def _strings_that_are_differences(folder):
    names = pa.array(["x" * (1 << 20)] * 2_000, pa.string())
    strings = pa.table({"id": pa.array(range(2_000), pa.uint64()), "value": names})
    encoding = {"id": "PLAIN", "value": "DELTA_BYTE_ARRAY"}
    options = {"use_dictionary": False, "column_encoding": encoding, "write_statistics": False, "compression": "zstd"}
    pq.write_table(strings, folder / "StringIds.parquet", write_batch_size=4, data_page_size=1 << 20, **options)


def _strings_for_numbers(folder):
    old = pq.read_table(folder / f"{KERNEL}.parquet")
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(15_000, np.int32)), ["1" * (1 << 20)])
    columns = {name: pa.repeat(old.column(name)[0], 15_000) for name in old.column_names} | {"deviceId": text}
    pq.write_table(pa.table(columns), folder / f"{KERNEL}.parquet")


def _lists_for_numbers(folder):
    old = pq.read_table(folder / f"{KERNEL}.parquet")
    lists = pa.ListArray.from_arrays(pa.array([0, 1_000_000]), pa.repeat(pa.scalar(1, pa.int64()), 1_000_000))
    columns = {name: old.column(name)[:1] for name in old.column_names} | {"start": lists}
    pq.write_table(pa.table(columns), folder / f"{KERNEL}.parquet")


def _a_large_footer(folder):
    old = pq.read_table(folder / "StringIds.parquet")
    pq.write_table(old.replace_schema_metadata({"x": "y" * (8 << 20)}), folder / "StringIds.parquet")


def _many_columns(folder):
    pq.write_table(pa.table({f"c{i}": pa.array([1]) for i in range(1_000)}), folder / f"{NVTX}.parquet")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        pytest.param(_equal_rows, "and a row needs 4", marks=pytest.mark.long),
        (_a_string_under_many_rows, "bytes in one name of a range"),
        pytest.param(_a_large_page, "bytes in a page", marks=pytest.mark.nightly),
        pytest.param(_strings_that_are_differences, "differences of strings", marks=pytest.mark.nightly),
        (_strings_for_numbers, "not a whole number in column deviceId"),
        (_lists_for_numbers, "no column start"),
        (_a_large_footer, "bytes in the footer"),
        (_many_columns, "columns in a table"),
    ],
)
def test_parquet_that_unpacks_to_more_than_it_should_is_refused(tmp_path, assert_refused, make, said):
    folder = _export().parquetdir(tmp_path / "x")
    make(folder)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 20 << 20
    assert_refused(folder, said)


def test_the_size_of_a_page_is_believed_from_the_page_alone(tmp_path, assert_refused):
    """The footer's sizes may lie: here the header of a page does not say what the footer says."""
    folder = _export().parquetdir(tmp_path / "x")
    strings = pa.table({"id": pa.array(range(2), pa.uint64()), "value": pa.array(["a" * 4096, "b" * 4096])})
    file = folder / "StringIds.parquet"
    pq.write_table(strings, file, use_dictionary=False, compression="zstd", write_statistics=False)
    chunk = pq.read_metadata(file).row_group(0).column(1)
    data = bytearray(file.read_bytes())
    assert data[chunk.data_page_offset : chunk.data_page_offset + 3] == b"\x15\x00\x15", "type, then the unpacked size"
    size = re.match(rb"[\x80-\xff]*[\x00-\x7f]", bytes(data[chunk.data_page_offset + 3 :]))[0]
    assert len(size) == 3
    data[chunk.data_page_offset + 3 : chunk.data_page_offset + 6] = b"\xfe\xff\x7f"
    file.write_bytes(data)
    with pytest.raises(ExportError):
        read(folder)


# -------------------------------------------------------------------------------------------------------------- SQLite


def _rewritten(path: Path, table: str, definition: str, copy: bool = True) -> Path:
    """The export with a table that is defined anew."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f'ALTER TABLE "{table}" RENAME TO old')
        connection.execute(definition)
        if copy:
            columns = ", ".join(f'"{row[1]}"' for row in connection.execute("PRAGMA table_info(old)"))
            connection.execute(f'INSERT INTO "{table}" ({columns}) SELECT {columns} FROM old')
    return path


SLOW = "(length(replace(hex(zeroblob(4000000)), '00', 'abcdefgh')) + start)"


def _events(more: str) -> str:
    columns = "start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER"
    return f"CREATE TABLE {NVTX} ({columns}, domainId INTEGER, {more})"


@pytest.mark.parametrize("generated", ["VIRTUAL", "STORED"])
def test_generated_columns_are_refused(tmp_path, assert_refused, generated):
    path = _export().sqlite(tmp_path / "x.sqlite")
    more = f"x INTEGER NOT NULL GENERATED ALWAYS AS {SLOW} {generated}"
    assert_refused(_rewritten(path, NVTX, _events(more)), "table with computed columns")


def test_a_view_is_refused(tmp_path, assert_refused):
    path = _export().sqlite(tmp_path / "x.sqlite")
    endless = "WITH RECURSIVE r(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM r) SELECT * FROM r"
    assert_refused(_rewritten(path, NVTX, f"CREATE VIEW {NVTX} AS {endless}", copy=False), "as a view")


def test_a_virtual_table_is_refused(tmp_path, assert_refused):
    path = _export().sqlite(tmp_path / "x.sqlite")
    made = _rewritten(path, NVTX, f"CREATE VIRTUAL TABLE {NVTX} USING fts5(start, end)", copy=False)
    assert_refused(made, "as a virtual table")


@pytest.mark.long
def test_the_checks_of_a_table_are_not_computed(tmp_path, show_limited):
    path = _export().sqlite(tmp_path / "x.sqlite")
    _rewritten(path, NVTX, _events(f"CHECK ({SLOW} > 0)"))
    _with_ranges(path, ((i, i + 1, "x", 0) for i in range(30)))
    assert show_limited(path)["code"] == 0


@pytest.mark.long
def test_what_other_tables_compute_does_not_matter(tmp_path, show_limited):
    path = _export().sqlite(tmp_path / "x.sqlite")
    with closing(sqlite3.connect(path)) as connection, connection:
        generated = "b INTEGER NOT NULL GENERATED ALWAYS AS (length(hex(zeroblob(400000000 + a)))) VIRTUAL"
        connection.execute(f"CREATE TABLE more (a INTEGER, {generated})")
        connection.execute("CREATE VIEW kernels_by_name AS SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL")
        connection.execute("CREATE INDEX by_start ON CUPTI_ACTIVITY_KIND_KERNEL (start)")
        connection.execute("CREATE TRIGGER t AFTER INSERT ON more BEGIN SELECT 1; END")
        connection.execute("PRAGMA writable_schema = ON")
        connection.executemany("INSERT INTO more (a) VALUES (?)", [(1,)])
    assert show_limited(path)["code"] == 0


@pytest.mark.nightly
def test_a_schema_of_many_tables_is_refused(tmp_path, assert_refused):
    path = _export().sqlite(tmp_path / "x.sqlite")
    with closing(sqlite3.connect(path)) as connection, connection:
        for i in range(limits.TABLES.most):
            connection.execute(f"CREATE VIEW v{i} AS SELECT 1")
    assert_refused(path, "tables, indexes and views")


@pytest.mark.parametrize("value", ["x", b"x"], ids=["text", "blob"])
def test_values_that_are_too_long_are_refused(tmp_path, assert_refused, value):
    path = _export().sqlite(tmp_path / "x.sqlite")
    rows = ((value * (4 << 20), 1, PUSH_POP, "x", global_tid(1, 1), 0) for _ in range(20))
    _with_rows(path, NVTX, "start, end, eventType, text, globalTid, domainId", rows)
    assert_refused(path, "too big")


@pytest.mark.nightly
def test_blobs_for_times_are_refused(tmp_path, assert_refused):
    path = _export().sqlite(tmp_path / "x.sqlite")
    rows = ((b"x" * 1_000_000, 1, PUSH_POP, "x", global_tid(1, 1), 0) for _ in range(1_500))
    _with_rows(path, NVTX, "start, end, eventType, text, globalTid, domainId", rows)
    assert_refused(path, "not a whole number")


# ----------------------------------------------------------------------------------------------- names, depth, numbers


def _a_long_name(export):
    for i in range(300):
        export.push("x" * (1 << 20), i, 1000 - i, registered=True)


def _a_long_kernel_name(export):
    export.launch(50, name="x" * (limits.NAME_BYTES.most + 1))


def _long_paths(export):
    for i in range(60):
        export.push(f"{i}" * 30_000, i, 1000 - i)


def _many_paths(export):
    for i in range(25):
        export.push("x" * 30_000, i, 10**6 - i)
    for i in range(1_000):
        export.push(f"leaf {i}", 1000 + 2 * i, 1001 + 2 * i)


def _many_domains(export):
    for i in range(limits.DOMAINS.most + 1):
        export.push("x", i, i + 1, domain=i)


def _many_processes(export):
    for i in range(limits.PROCESSES.most + 1):
        export.launch(i, process=1 + i)


def _many_gpus(export):
    for i in range(limits.GPUS.most + 1):
        export.launch(i, process=1 + i % 2, device=i // 2)


def _deep_ranges(export):
    for i in range(limits.DEPTH.most + 1):
        export.push("x", i, 10**6 - i)


def _deep_ranges_of_two_domains(export):
    for i in range(limits.DEPTH.most + 1):
        export.push("x", 200 + i, 10**6 - i, domain=i % 2)


def _many_kernel_names(export):
    for i in range(limits.KERNEL_NAMES.most):
        export.launch(i, name=f"kernel {i}")


@pytest.mark.parametrize("container", ["sqlite", "parquetdir"])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_a_long_name, "1,048,576 bytes in one name of a range, and at most 65,536 are read"),
        (_a_long_kernel_name, "65,537 bytes in one name of a kernel"),
        (_long_paths, "bytes in the path of a range"),
        (_many_paths, "bytes of different paths"),
        (_many_domains, "has 101 NVTX domains"),
        (_many_processes, "has 1,025 processes"),
        (_many_gpus, "has 1,025 GPUs"),
        pytest.param(_deep_ranges, "20,001 ranges open inside each other", marks=pytest.mark.long),
        pytest.param(_deep_ranges_of_two_domains, "20,001 ranges open inside each other", marks=pytest.mark.long),
        pytest.param(_many_kernel_names, "50,001 different kernel names", marks=pytest.mark.long),
    ],
)
def test_captures_beyond_the_limits_are_refused(tmp_path, assert_refused, damage, said, container):
    export = _export()
    damage(export)
    assert_refused(getattr(export, container)(tmp_path / f"x.{container}"), said)


@pytest.mark.nightly
def test_a_million_ranges_inside_each_other_are_refused(tmp_path, assert_refused):
    path = _export().sqlite(tmp_path / "x.sqlite")
    _with_ranges(path, ((i, 10**7 - i, "x", 0) for i in range(1_000_000)))
    assert_refused(path, "ranges open inside each other")


def _with_texts(path: Path, names) -> Path:
    return _with_ranges(path, ((2 * i, 2 * i + 1, name, 0) for i, name in enumerate(names)))


def _with_registered(path: Path, names) -> Path:
    names = [*names]
    _with_rows(path, "StringIds", "id, value", enumerate(names, 1000))
    rows = ((2 * i, 2 * i + 1, PUSH_POP, 1000 + i, global_tid(1, 1), 0) for i in range(len(names)))
    return _with_rows(path, NVTX, "start, end, eventType, textId, globalTid, domainId", rows)


@pytest.mark.long
@pytest.mark.parametrize("add", [_with_texts, _with_registered])
def test_ranges_that_are_all_called_something_else_are_refused(tmp_path, assert_refused, add):
    path = _export().sqlite(tmp_path / "x.sqlite")
    assert_refused(add(path, (f"r{i}" for i in range(500_000))), "250,001 different paths of ranges")


@pytest.mark.parametrize("add", [_with_texts, _with_registered])
def test_names_are_counted_without_numbers_and_before_ranges_are_placed(tmp_path, monkeypatch, add):
    monkeypatch.setattr(limits, "PATHS", limits.PATHS._replace(most=10))
    numbered = (f"aten::linear, seq = {i}, op_id = {i}" for i in range(12))
    assert len(read(add(_export().sqlite(tmp_path / "numbered.sqlite"), numbered)).ranges) == 13
    different = add(_export().sqlite(tmp_path / "different.sqlite"), (f"r{i}" for i in range(12)))
    with pytest.raises(ExportError, match="11 different paths of ranges") as refused:
        read(different)
    assert refused.value.code is ExportProblem.TOO_LARGE


@pytest.mark.long
def test_many_ranges_that_are_instances_of_one_are_read(tmp_path, show_limited):
    path = _export().sqlite(tmp_path / "x.sqlite")
    names = ((2 * i, 2 * i + 1, f"aten::linear, op_id = {i}", 0) for i in range(limits.PATHS.most + 1))
    answer = show_limited(_with_ranges(path, names))
    assert answer["code"] == 0, answer
    assert answer["peak_bytes"] < GIB


@pytest.mark.long
@pytest.mark.parametrize("names", ["one", "many"])
def test_ranges_as_deep_as_the_limit_are_read_within_it(tmp_path, show_limited, names):
    path = _export().sqlite(tmp_path / "x.sqlite")
    name = {"one": "x{0}", "many": "x{1}"}[names]
    _with_ranges(path, ((i, None, name.format("", i), 0) for i in range(limits.DEPTH.most - 1)))
    answer = show_limited(path)
    assert answer["code"] == 0, answer
    assert answer["peak_bytes"] < GIB


@pytest.mark.nightly
def test_names_made_to_be_slow_to_classify_are_classified_in_time(tmp_path, show_limited):
    export = _export()
    for i, part in enumerate(
        ["<", "(", "gemm_", "_tn_nn", "16x16x", "a" * 8 + "_", "at::native::", "Functor<", "nvjet_"]
    ):
        export.launch(100 + i, name=(part * (limits.NAME_BYTES.most // len(part)))[:-1])
        export.push((part * (limits.NAME_BYTES.most // len(part)))[:-1], 1000 + i, 1001 + i)
    answer = show_limited(export.sqlite(tmp_path / "x.sqlite"))
    assert answer.get("code") == 0, answer


@pytest.mark.long
@pytest.mark.parametrize("style", ["push", "span"])
def test_many_kernels_at_once_in_many_ranges_are_summed_in_time(tmp_path, show_limited, style):
    export = _export()
    for i in range(15_000):
        getattr(export, style)(f"range {i}", i, 10**6 - i)
    for i in range(15_000):
        export.launch(100_000 + i, start=200_000 + i, end=300_000 + i, stream=i % 9)
    answer = show_limited(export.sqlite(tmp_path / "x.sqlite"))
    assert answer.get("code") == 0, answer
    assert answer["peak_bytes"] < GIB


# ---------------------------------------------------------------------------------------------------- what must be read


def test_names_of_several_kb_and_paths_forty_deep_are_read(tmp_path):
    export = Export()
    for i in range(40):
        export.push(f"level {i} " + "x" * 4_000, i, 1000 - i)
    export.launch(100, name="cutlass::" + "Template<" * 2_000)
    attribution = attribute(read(export.parquetdir(tmp_path / "x")))
    assert len(str(attribution.ranges["path"].iloc[-1])) > 40 * 4_000


@pytest.mark.long
def test_as_many_ranges_as_autograd_writes_are_read(tmp_path, show_limited):
    path = _export().sqlite(tmp_path / "x.sqlite")

    def rows():
        for i in range(90_432):
            outer, level = divmod(i, 12)
            yield 100 * outer + level, 100 * outer + 99 - level, f"aten::linear, op_id = {i}", 0

    answer = show_limited(_with_ranges(path, rows()))
    assert answer["code"] == 0, answer
    assert answer["peak_bytes"] < GIB


def _small(monkeypatch, limit: str, most: int) -> str:
    """Set a limit that a test cannot reach in time; return the message about it."""
    known = getattr(limits, limit)
    monkeypatch.setattr(limits, limit, known._replace(most=most))
    return rf"{known.what}.*at most {most} are read"


@pytest.mark.parametrize(("limit", "most"), [("ROWS", 5), ("FACT_ROWS", 1), ("PAGES", 3)])
def test_what_takes_millions_to_reach_is_limited(tmp_path, monkeypatch, limit, most):
    folder = _export().parquetdir(tmp_path / "x")
    read(folder)
    said = _small(monkeypatch, limit, most)
    with pytest.raises(ExportError, match=said):
        read(folder)


def test_what_the_tables_of_ranges_are_made_from_is_limited(tmp_path, monkeypatch):
    export = _export()
    export.push("inner", 1, 99)
    path = export.sqlite(tmp_path / "x.sqlite")
    said = _small(monkeypatch, "HELD_IN", 1)  # the launch is in two ranges
    err: list[str] = []
    assert show_report([path], "nvtx_kern_sum", lambda line: None, err.append) == 65
    assert re.search(said, err[0])


def test_a_check_that_takes_too_long_is_ended(tmp_path, monkeypatch):
    export = _export()
    for i in range(2000):  # more than the steps of SQLite between two looks at the clock
        export.push("x", i, i + 1)
    path = export.sqlite(tmp_path / "x.sqlite")
    monkeypatch.setattr(limits, "CHECK_S", -1)
    os.truncate(path, 16 << 30)  # with a hole: no size earns more time
    with pytest.raises(ExportError) as refused:
        read(path)
    assert refused.value.code is ExportProblem.TOO_LARGE


@pytest.mark.long
def test_what_is_on_the_disk_earns_the_check_more_time(tmp_path):
    (tmp_path / "full").write_bytes(b"x" * 10_000_000)
    (tmp_path / "hole").touch()
    os.truncate(tmp_path / "hole", 16 << 30)
    full, hole = (limits.check_s((tmp_path / name).stat()) for name in ("full", "hole"))
    assert full == pytest.approx(limits.CHECK_S + 0.1, rel=0.01) and hole < limits.CHECK_S + 0.01


@pytest.mark.nightly
def test_the_check_of_a_large_file_takes_no_longer(tmp_path, assert_refused):
    """Rows of nine bytes, each with the default of 199 columns to be checked: 100 MB are 20 s of work."""
    path = tmp_path / "x.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("PRAGMA synchronous = OFF")
        database.execute(f"CREATE TABLE {NVTX} (start INTEGER)")
        numbers = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers LIMIT 12000000)"
        database.execute(f"{numbers} INSERT INTO {NVTX} SELECT 1 FROM numbers")
        for number in range(199):
            database.execute(f"ALTER TABLE {NVTX} ADD COLUMN x{number} TEXT NOT NULL DEFAULT 'x'")
    assert_refused(path, "takes too long to check for damage")
