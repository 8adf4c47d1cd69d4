"""Captures in which nsys saw no kernel: no verdict and no advice, but why, and what to do."""

import sqlite3

import pytest

from profiler_job.analysis.capture.capture_data import ExportError
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight.limit_lines import describe_verdict
from profiler_job.analysis.insight.summary import summarise
from tests.capture.nsys_files import Export

DRIVER = "Installed CUDA driver version (13.3) is not supported by this build of Nsight Systems."


def add_table(path, name, rows):
    with sqlite3.connect(path) as database:
        columns = ", ".join(rows[0])
        database.execute(f"CREATE TABLE {name} ({columns})")
        for row in rows:
            database.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", [*row.values()])
    database.close()
    return path


@pytest.fixture
def launched(tmp_path):
    """A capture with two launches, a range and no kernel."""
    export = Export()
    export.push("step", 0, 1000)
    for correlation in (1, 2):
        export.call(100 * correlation, 100 * correlation + 10)
    return export.sqlite(tmp_path / "x.sqlite")


def test_launches_without_kernels_are_said_and_nothing_is_advised(launched):
    capture = read(launched)
    assert "2 launches and no kernel" in capture.problems
    summary = summarise(capture)
    assert [line.split(" in ")[0] for line in describe_verdict(summary)] == ["No kernels"]
    assert not len(summary.sections["advice"])


def test_a_warning_of_nsys_is_told_with_what_to_do(launched):
    rows = [{"severity": 1, "text": "Profiling has started."}, *({"severity": 2, "text": DRIVER} for _ in range(2))]
    problems = read(add_table(launched, "DIAGNOSTIC_EVENT", rows)).problems
    (told,) = [what for what in problems if "nsys warned" in what]
    assert DRIVER in told and "newer than the driver" in problems[told]


def test_a_capture_with_kernels_tells_no_warnings(tmp_path):
    export = Export()
    export.launch(0)
    path = add_table(export.sqlite(tmp_path / "x.sqlite"), "DIAGNOSTIC_EVENT", [{"severity": 2, "text": DRIVER}])
    assert not read(path).problems


@pytest.mark.parametrize("traced", [True, False])
def test_a_capture_without_events_tells_whether_cuda_was_traced(tmp_path, traced):
    export = Export()
    export.gpu()
    path = export.sqlite(tmp_path / "x.sqlite")
    if traced:
        add_table(path, "META_DATA_CAPTURE", [{"name": "PROCESS_0:COLLECT_CUDA_TRACE", "value": "true"}])
    with pytest.raises(ExportError) as raised:
        read(path)
    assert ("used no CUDA" in str(raised.value)) == traced
    assert ("--trace-fork-before-exec=true" in str(raised.value)) == traced
    assert ("--trace=cuda,nvtx" in str(raised.value)) != traced


@pytest.mark.parametrize("rows", [[{"severity": "x", "words": 1}], [{"severity": None, "text": None}]])
def test_diagnostics_of_another_form_are_left_out(launched, rows):
    assert not [what for what in read(add_table(launched, "DIAGNOSTIC_EVENT", rows)).problems if "warned" in what]
