"""Exports of any container, version and completeness give the same tidy frames, or one clear line."""

import gzip
import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from profiler_job.analysis.capture import export_files, export_schema
from profiler_job.analysis.capture.capture_data import ExportError, ExportProblem
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.jobs.executor.nsys_cli import scrub
from tests.packed import unpack
from tests.waiting import eventually

from .nsys_files import Export
from .profiles import NAMES, profile

FRAMES = ("kernels", "graphs", "memops", "api", "ranges", "syncs")
DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def export():
    """A capture with something of everything."""
    full = Export()
    full.gpu(process=1)
    full.domain(4, "library")
    full.push("step", 0, 1000)
    full.push("forward", 10, None, registered=True)
    full.push("gemm", 20, 90, domain=4)
    full.span("window", 5, 700, thread=2)
    for i in range(5):
        full.launch(30 + 10 * i, name=f"kernel_{i % 2}", device=i % 2, stream=7 + i)
    full.copy(200, 230, full.call(100, 110, name="cudaMemcpyAsync_v3020"), kind=2)
    full.memset(300, 310, full.call(120, 130, name="cudaMemsetAsync_v3020"))
    full.graph(400, 500, full.call(140, 150, name="cudaGraphLaunch_v10000"))
    full.sync(600, 650, full.call(160, 650, name="cudaDeviceSynchronize_v3020"))
    return full


def _refuse(path) -> ExportError:
    with pytest.raises(ExportError) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    return caught.value


def _problem(path) -> str:
    return str(_refuse(path))


def _code(path) -> ExportProblem:
    return _refuse(path).code


def test_parquetdir_and_sqlite_give_the_same_frames(export, tmp_path):
    one, two = read(export.sqlite(tmp_path / "x.sqlite")), read(export.parquetdir(tmp_path / "x"))
    for name in FRAMES:
        pd.testing.assert_frame_equal(getattr(one, name), getattr(two, name))
        assert len(getattr(one, name)), name
    assert (one.gpus, one.missing, one.schema_version) == (two.gpus, two.missing, two.schema_version)


def test_real_exports_are_read_whole():
    for name in NAMES:
        capture = read(profile(name))
        assert capture.gpus[0]["name"] == "NVIDIA H200"
        assert capture.schema_version == "3.20.3"
        connection = sqlite3.connect(profile(name))
        for frame, table in (
            ("kernels", export_schema.KERNEL),
            ("api", export_schema.API),
            ("ranges", export_schema.NVTX),
        ):
            (rows,) = connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()
            assert len(getattr(capture, frame)) == rows
        connection.close()


def test_frames_are_sorted_by_start_whatever_the_order_of_rows(export, tmp_path):
    for rows in export.rows.values():
        rows.reverse()
    capture = read(export.sqlite(tmp_path / "x.sqlite"))
    for name in FRAMES:
        assert getattr(capture, name)["start_ns"].is_monotonic_increasing


def test_launch_shapes_can_be_left_out(export, tmp_path):
    path = export.sqlite(tmp_path / "x.sqlite")
    assert "grid_x" in read(path).kernels
    assert "grid_x" not in read(path, details=False).kernels


def test_no_api_name_has_a_version(export, tmp_path):
    names = set(read(export.sqlite(tmp_path / "x.sqlite")).api["name"])
    assert names == {
        "cudaLaunchKernel",
        "cudaMemcpyAsync",
        "cudaMemsetAsync",
        "cudaGraphLaunch",
        "cudaDeviceSynchronize",
    }


def test_entry_points_of_one_function_are_one_function(export, tmp_path):
    one = read(export.sqlite(tmp_path / "one.sqlite")).api["name"]
    export.call(700, 710, name="cudaLaunchKernel_ptsz_v7000")
    two = read(export.sqlite(tmp_path / "two.sqlite")).api["name"]
    assert list(two.cat.categories) == list(one.cat.categories)
    assert (two == "cudaLaunchKernel").sum() == (one == "cudaLaunchKernel").sum() + 1


@pytest.mark.parametrize("table", export_schema.CONSEQUENCES)
@pytest.mark.parametrize("container", ["sqlite", "parquetdir"])
def test_a_missing_table_is_listed_with_what_it_makes_unanswerable(export, tmp_path, table, container):
    export.drop(table)
    capture = read(getattr(export, container)(tmp_path / "x"))
    assert capture.missing[table] == export_schema.CONSEQUENCES[table]


_OLD = [
    ("CUPTI_ACTIVITY_KIND_KERNEL", "graphNodeId"),
    ("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid"),
    ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName"),
    ("CUPTI_ACTIVITY_KIND_KERNEL", "correlationId"),
    ("CUPTI_ACTIVITY_KIND_KERNEL", "gridX"),
    ("CUPTI_ACTIVITY_KIND_KERNEL", "contextId"),
    ("CUPTI_ACTIVITY_KIND_MEMCPY", "copyKind"),
    ("CUPTI_ACTIVITY_KIND_MEMSET", "graphNodeId"),
    ("CUPTI_ACTIVITY_KIND_RUNTIME", "eventClass"),
    ("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid"),
    ("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "syncType"),
    ("NVTX_EVENTS", "textId"),
    ("NVTX_EVENTS", "text"),
    ("NVTX_EVENTS", "domainId"),
    ("TARGET_INFO_GPU", "smCount"),
    ("META_DATA_EXPORT", "value"),
]


@pytest.mark.parametrize(("table", "column"), _OLD)
def test_columns_that_older_versions_lack_do_not_stop_the_reading(export, tmp_path, table, column):
    whole = read(export.sqlite(tmp_path / "whole.sqlite"))
    export.drop(table, column)
    capture = read(export.sqlite(tmp_path / "x.sqlite"))
    for name in FRAMES:
        assert len(getattr(capture, name)) == len(getattr(whole, name))
        assert list(getattr(capture, name)["start_ns"]) == list(getattr(whole, name)["start_ns"])


def test_a_missing_indispensable_column_is_named(export, tmp_path):
    export.drop("CUPTI_ACTIVITY_KIND_KERNEL", "end")
    assert "CUPTI_ACTIVITY_KIND_KERNEL has no column end" in _problem(export.sqlite(tmp_path / "x.sqlite"))


def test_names_without_a_string_table_are_marked(export, tmp_path):
    export.drop("StringIds")
    capture = read(export.sqlite(tmp_path / "x.sqlite"))
    assert all(name.startswith("<unnamed kernel") for name in capture.kernels["kernel_name"])
    assert capture.kernels["kernel_name"].nunique() == 2


def test_a_string_that_the_table_lacks_is_damage(export, tmp_path):
    export.rows["StringIds"] = export.rows["StringIds"][:2]
    assert "StringIds does not have" in _problem(export.sqlite(tmp_path / "x.sqlite"))


@pytest.mark.parametrize("container", ["sqlite", "parquetdir"])
def test_copies_say_which_host_memory_they_use(tmp_path, container):
    export = Export()
    for number, copy in enumerate([{"kind": 1}, {"kind": 2, "host": 1}, {"kind": 1, "host": 4}, {"kind": 8}]):
        export.copy(10 * number, 10 * number + 5, number, **copy)
    export.memset(90, 95, 9)
    memops = read(getattr(export, container)(tmp_path / "x")).memops
    assert list(memops["host_memory"]) == ["pageable", "pinned", "managed", "", ""]


@pytest.mark.parametrize("column", ["srcKind", "dstKind"])
def test_an_export_that_does_not_say_the_host_memory_lacks_nothing(tmp_path, column):
    export = Export()
    export.copy(0, 5, 1, kind=1 if column == "srcKind" else 2)
    export.drop("CUPTI_ACTIVITY_KIND_MEMCPY", column)
    capture = read(export.sqlite(tmp_path / "x.sqlite"))
    assert list(capture.memops["host_memory"]) == [""]
    assert not any("Kind" in what for what in capture.missing)


@pytest.mark.parametrize(
    ("table", "column", "value", "said"),
    [
        ("CUPTI_ACTIVITY_KIND_KERNEL", "end", 1, "ends before it starts"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "start", None, "without a time"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "end", 2**62, "out of range"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId", "x", "values that no nsys writes"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "deviceId", 2**40, "out of range"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "deviceId", -1, "device number out of range"),
        ("CUPTI_ACTIVITY_KIND_MEMCPY", "deviceId", 1024, "device number out of range"),
        ("TARGET_INFO_CUDA_DEVICE", "gpuId", -1, "gpuId in TARGET_INFO_CUDA_DEVICE is out of range"),
        ("TARGET_INFO_GPU", "smCount", 2**62, "smCount in TARGET_INFO_GPU is out of range"),
        ("TARGET_INFO_GPU", "clockRate", -1, "clockRate in TARGET_INFO_GPU is out of range"),
        ("NVTX_EVENTS", "end", -5, "ends before it starts"),
    ],
)
def test_impossible_values_are_damage(export, tmp_path, table, column, value, said):
    export.rows[table][-1][column] = value
    assert said in _problem(export.sqlite(tmp_path / "x.sqlite"))


@pytest.mark.parametrize("column", ["start", "correlationId", "deviceId"])
@pytest.mark.parametrize("container", ["sqlite", "parquetdir"])
def test_a_fraction_is_not_cut_to_a_whole_number(export, tmp_path, container, column):
    path = getattr(export, container)(tmp_path / "x")
    _halve(path, column)
    assert "KERNEL has a value that is not a whole number" in _problem(path)


def _halve(path, column):
    """Add a half to a column of the kernels."""
    if path.is_dir():
        file = path / f"{export_schema.KERNEL}.parquet"
        table = pq.read_table(file)
        place = table.column_names.index(column)
        halves = pa.array([value + 0.5 for value in table.column(place).to_pylist()])
        pq.write_table(table.set_column(place, column, halves), file)
    else:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f'UPDATE {export_schema.KERNEL} SET "{column}" = "{column}" + 0.5')


@pytest.mark.parametrize("container", ["sqlite", "parquetdir"])
def test_names_stored_as_bytes_are_read_as_text(export, tmp_path, container):
    whole = read(export.sqlite(tmp_path / "whole.sqlite"))
    path = getattr(export, container)(tmp_path / "x")
    for table, column in (("StringIds", "value"), ("NVTX_EVENTS", "text"), ("TARGET_INFO_GPU", "name")):
        if path.is_dir():
            file = path / f"{table}.parquet"
            names = pq.read_table(file)
            blobs = names.column(column).cast(pa.large_binary())
            pq.write_table(names.set_column(names.column_names.index(column), column, blobs), file)
        else:
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute(f'UPDATE {table} SET "{column}" = CAST("{column}" AS BLOB)')
    capture = read(path)
    for name in FRAMES:
        pd.testing.assert_frame_equal(getattr(capture, name), getattr(whole, name))
    assert capture.gpus == whole.gpus


def test_whole_numbers_as_floats_are_read(export, tmp_path):
    path = export.parquetdir(tmp_path / "x")
    whole = read(path).kernels
    file = path / f"{export_schema.KERNEL}.parquet"
    table = pq.read_table(file)
    floats = table.column("correlationId").cast(pa.float64())
    pq.write_table(table.set_column(table.column_names.index("correlationId"), "correlationId", floats), file)
    pd.testing.assert_frame_equal(read(path).kernels, whole)


def test_files_that_are_no_exports_say_so(tmp_path):
    assert _code(tmp_path / "nothing.sqlite") is ExportProblem.MISSING
    (tmp_path / "empty.sqlite").touch()
    assert _code(tmp_path / "empty.sqlite") is ExportProblem.EMPTY
    (tmp_path / "text.sqlite").write_text("hello\n" * 100)
    assert _code(tmp_path / "text.sqlite") is ExportProblem.NOT_AN_EXPORT
    os.mkfifo(tmp_path / "pipe.sqlite")
    assert _code(tmp_path / "pipe.sqlite") is ExportProblem.NOT_AN_EXPORT
    (tmp_path / "folder").mkdir()
    assert _code(tmp_path / "folder") is ExportProblem.NOT_AN_EXPORT
    (tmp_path / "folder" / "StringIds.parquet").write_bytes(b"PAR1 no")
    assert _code(tmp_path / "folder") is ExportProblem.DAMAGED
    assert _code(tmp_path / "folder" / "StringIds.parquet") is ExportProblem.NOT_AN_EXPORT
    connection = sqlite3.connect(tmp_path / "other.sqlite")
    connection.execute("CREATE TABLE songs (title TEXT)")
    connection.close()
    assert _code(tmp_path / "other.sqlite") is ExportProblem.NOT_AN_EXPORT


def test_a_truncated_export_says_so(export, tmp_path):
    path = export.sqlite(tmp_path / "x.sqlite")
    path.write_bytes(path.read_bytes()[:-5000])
    assert _code(path) is ExportProblem.UNFINISHED


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_an_export_that_is_being_written_says_so(export, tmp_path, mode):
    """The file alone would be read as whole, without what is still to be moved into it."""
    path = export.sqlite(tmp_path / "x.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute(f"DELETE FROM {export_schema.KERNEL}")
        if mode == "WAL":
            connection.commit()
        assert _code(path) is ExportProblem.UNFINISHED
        connection.commit()
    assert len(read(path).kernels) == 0


def test_a_capture_without_events_says_so(tmp_path):
    empty = Export()
    empty.gpu()
    assert _code(empty.sqlite(tmp_path / "x.sqlite")) is ExportProblem.NO_EVENTS


def test_a_report_without_nsys_tells_how_to_export_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "x.nsys-rep").write_bytes(b"report")
    refused = _refuse(tmp_path / "x.nsys-rep")
    assert refused.code is ExportProblem.NSYS_MISSING and "nsys export --type sqlite" in str(refused)


def _fake_nsys(tmp_path, monkeypatch, script: str, interpreter: str = "/bin/sh"):
    nsys = tmp_path / "bin" / "nsys"
    nsys.parent.mkdir()
    nsys.write_text(f"#!{interpreter}\n{script}\n")
    nsys.chmod(0o755)
    monkeypatch.setenv("PATH", f"{nsys.parent}:/usr/bin:/bin")
    report = tmp_path / "x.nsys-rep"
    report.write_bytes(b"report")
    return report


_TO_OUTPUT = 'while [ "$1" != --output ]; do shift; done; '


def test_a_report_is_exported_through_nsys_afresh(export, tmp_path, monkeypatch):
    made = export.sqlite(tmp_path / "made.sqlite")
    report = _fake_nsys(
        tmp_path,
        monkeypatch,
        f'echo "$@" > {tmp_path}/arguments; {_TO_OUTPUT} cp {made} "$2"',
    )
    (tmp_path / "x.sqlite").write_text("a stale export next to the report")
    assert len(read(report).kernels) == 5
    said = (tmp_path / "arguments").read_text()
    assert "export --type sqlite --force-overwrite=true" in said
    assert (tmp_path / "x.sqlite").read_text() == "a stale export next to the report"


def test_a_report_that_nsys_cannot_export_says_what_nsys_said(tmp_path, monkeypatch):
    report = _fake_nsys(tmp_path, monkeypatch, "echo 'the report is from the future' >&2; exit 1")
    refused = _refuse(report)
    assert refused.code is ExportProblem.NSYS_FAILED
    assert "exit code 1" in refused.problem and "the report is from the future" in refused.problem


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 3", "exit code 3"),
        ("kill -9 $$", "signal 9"),
        ("exit 0", "nothing"),
        ("echo Done.; exit 0", "Done."),
        (_TO_OUTPUT + ': > "$2"', "empty"),
        (_TO_OUTPUT + 'echo garbage > "$2"', "SQLite"),
        (_TO_OUTPUT + 'mkdir "$2"', "nothing"),
        ("cat; exit 4", "exit code 4"),  # and does not wait for what a user types
        (r"printf '\377\033[2J\n\n'; exit 5", "exit code 5"),
    ],
)
def test_an_nsys_that_fails_is_one_clear_line(tmp_path, monkeypatch, script, said):
    refused = _refuse(_fake_nsys(tmp_path, monkeypatch, script))
    assert refused.code is ExportProblem.NSYS_FAILED and said in refused.problem


def test_an_export_cut_short_by_nsys_says_so(export, tmp_path, monkeypatch):
    made = export.sqlite(tmp_path / "made.sqlite")
    report = _fake_nsys(tmp_path, monkeypatch, f'{_TO_OUTPUT} head -c 9000 {made} > "$2"')
    assert _code(report) is ExportProblem.NSYS_FAILED


def test_an_nsys_that_cannot_start_says_so(tmp_path, monkeypatch):
    report = _fake_nsys(tmp_path, monkeypatch, "", interpreter="/nowhere")
    assert _code(report) is ExportProblem.NSYS_MISSING


def test_an_nsys_that_hangs_is_ended_with_what_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(export_files, "EXPORT_LIMIT_S", 0.5)
    report = _fake_nsys(tmp_path, monkeypatch, f"sleep 600 & echo $! > {tmp_path}/child; wait")
    assert _code(report) is ExportProblem.NSYS_FAILED
    child = int((tmp_path / "child").read_text())
    state = Path(f"/proc/{child}/stat")
    eventually(lambda: not state.exists() or state.read_text().split()[2] == "Z", "what nsys had started runs on")


def test_what_nsys_leaves_running_is_not_waited_for(export, tmp_path, monkeypatch):
    made = export.sqlite(tmp_path / "made.sqlite")
    monkeypatch.setattr(export_files, "EXPORT_LIMIT_S", 100)
    report = _fake_nsys(tmp_path, monkeypatch, f'sleep 120 & {_TO_OUTPUT} cp {made} "$2"')
    assert len(read(report).kernels) == 5


def test_an_export_on_a_read_only_folder_is_read(export, tmp_path):
    path = export.sqlite(tmp_path / "x.sqlite")
    path.chmod(0o444)
    assert len(read(path).kernels) == 5
    assert sorted(one.name for one in tmp_path.iterdir()) == ["x.sqlite"]


def test_a_shipped_real_export_is_read(tmp_path):
    """Whole real captures are next to the repository; this small one is always here."""
    path = tmp_path / "graph_node.sqlite"
    with gzip.open(DATA / "graph_node.sqlite.gz") as packed, path.open("wb") as plain:
        shutil.copyfileobj(packed, plain)
    capture = read(path)
    assert len(capture.kernels) == 20
    assert (capture.kernels["graph_node"] > 0).sum() == 18


def test_a_real_parquetdir_export_is_read():
    """Exported by nsys 2025.3 on an H200, three training steps; the totals equal the SQLite export."""
    capture = read(DATA / "h200_parquetdir")
    assert capture.missing == {}
    assert len(capture.kernels) == 8664
    assert (capture.kernels["end_ns"] - capture.kernels["start_ns"]).sum() == 54_372_233
    assert len(capture.api) == 16_149
    assert len(capture.ranges) == 420


def test_nsys_is_never_needed_for_an_export(export, tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: pytest.fail("ran a program"))
    assert len(read(export.sqlite(tmp_path / "x.sqlite")).kernels) == 5


def test_what_nccls_ranges_say_of_their_messages_is_read(tmp_path):
    """An export with `--include-json=true`, of one H200: DDP in a world of one, 8.4 M FP32 parameters, three steps."""
    file = unpack(DATA / "nccl_messages.sqlite.packed", tmp_path / "nccl_messages.sqlite")
    messages = read(file).messages
    assert messages["bytes"].sum() == 3 * 4 * 8_398_848, "each step sends all gradients once"
    assert messages["communicator"].tolist() == [0] * len(messages)


def test_what_ranges_of_programs_carry_is_not_kept(tmp_path):
    file = unpack(DATA / "nccl_messages.sqlite.packed", tmp_path / "nccl_messages.sqlite")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute('INSERT INTO NVTX_EVENTS (start, eventType, jsonText) VALUES (1, 59, \'{"path": "/x"}\')')
        connection.commit()
    scrub(file)
    with closing(sqlite3.connect(file)) as connection:
        kept = [text for (text,) in connection.execute("SELECT jsonText FROM NVTX_EVENTS WHERE jsonText NOT NULL")]
    assert len(kept) == 6 and all(text.startswith('{"NCCL communicator ID"') for text in kept)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("kind", ["timestamp", "duration"])
def test_times_with_a_unit_become_nanoseconds(tmp_path, unit, kind):
    factor = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[unit]
    export = Export()
    export.launch(1000 * factor, start=2000 * factor, end=3000 * factor)
    folder = export.parquetdir(tmp_path / "x")
    before = read(folder)
    for table in (export_schema.KERNEL, export_schema.API):
        rows = pq.read_table(folder / f"{table}.parquet")
        for name in ("start", "end"):
            times = pa.array([value // factor for value in rows[name].to_pylist()], pa.int64())
            rows = rows.set_column(rows.column_names.index(name), name, times.view(getattr(pa, kind)(unit)))
        pq.write_table(rows, folder / f"{table}.parquet", version="2.6")
    after = read(folder)
    if unit != "s":  # which Parquet does not have: pyarrow writes ms
        assert after.kernels[["start_ns", "end_ns"]].equals(before.kernels[["start_ns", "end_ns"]])
    assert (after.kernels["end_ns"] - after.kernels["start_ns"]).tolist() == [1000 * factor]


def test_times_beyond_64_bits_of_nanoseconds_and_dates_are_refused(export, tmp_path):
    folder = export.parquetdir(tmp_path / "x")
    file = folder / f"{export_schema.KERNEL}.parquet"
    plain = pq.read_table(file)
    for values in (pa.array([2**62] * plain.num_rows, pa.timestamp("us")), pa.array([1] * plain.num_rows, pa.date32())):
        rows = plain.set_column(plain.column_names.index("start"), "start", values)
        pq.write_table(rows, file)
        assert "holds values that no nsys writes" in _problem(folder)


def test_a_parquet_table_without_rows_is_an_empty_table(export, tmp_path):
    folder = export.parquetdir(tmp_path / "x")
    whole = read(folder)
    for table in ("CUPTI_ACTIVITY_KIND_MEMCPY", "NVTX_EVENTS", "TARGET_INFO_GPU"):
        file = folder / f"{table}.parquet"
        rows = pq.read_table(file if file.exists() else folder / f"{export_schema.KERNEL}.parquet")
        pq.write_table(rows[:0], file)
    made = read(folder)
    assert (len(made.kernels), len(made.ranges)) == (len(whole.kernels), 0)
    assert {*made.memops["operation"]} < {*whole.memops["operation"]}


def test_a_database_in_wal_mode_without_its_log_is_named(export, tmp_path):
    path = export.sqlite(tmp_path / "x.sqlite")
    assert not read(path).problems
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    connection.close()
    assert [advice for problem, advice in read(path).problems.items() if "WAL" in problem and "-wal" not in advice]
