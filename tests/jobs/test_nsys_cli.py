"""nsys's commands, what is kept of what they say, and what an export may keep."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from profiler_job.jobs.executor import nsys_cli
from profiler_job.jobs.executor.failures import CollectorError
from profiler_job.jobs.executor.nsys_cli import (
    NsysLog,
    count_kernels_and_steps,
    count_steps_of_processes,
    export,
    run_nsys,
    scrub,
)
from tests.capture.nsys_files import Export
from tests.jobs.conftest import read_nsys_log


def test_an_error_of_nsys_is_its_last_line(scripted_nsys):
    scripted_nsys("sys.exit('Collecting...\\nNo space left on device')")
    with pytest.raises(CollectorError, match=r"nsys stop failed \(exit 1\): No space left on device"):
        run_nsys("stop", "--session=x")


def test_an_nsys_that_says_nothing_shows_its_exit_code(scripted_nsys):
    scripted_nsys("sys.exit(7)")
    with pytest.raises(CollectorError, match=r"nsys export failed \(exit 7\)$"):
        run_nsys("export")


def test_an_nsys_that_hangs_is_given_up(scripted_nsys):
    scripted_nsys("time.sleep(3600)")
    with pytest.raises(CollectorError, match=r"nsys stop did not end within 0\.3 s"):
        run_nsys("stop", timeout_s=0.3)


def test_what_an_nsys_that_hangs_said_is_kept(scripted_nsys, tmp_path):
    scripted_nsys("print('Generating', flush=True); time.sleep(3600)")
    for timeout_s in (1, 10, 100):  # in the shortest a busy machine may not even have started it
        log = tmp_path / f"{timeout_s}.log"
        with pytest.raises(CollectorError):
            run_nsys("stop", log=NsysLog(log), timeout_s=float(timeout_s))
        if len(read_nsys_log(log)) > 1:
            break
    assert read_nsys_log(log) == ["stop: Generating", f"stop: did not end within {timeout_s} s"]


def test_an_nsys_that_speaks_no_utf8_is_understood_all_the_same(scripted_nsys):
    scripted_nsys("sys.stdout.buffer.write(b'caf\\xe9')")
    assert run_nsys("--version").startswith("caf")


def test_an_export_that_is_no_database_is_an_error_of_the_collector(scripted_nsys, tmp_path):
    scripted_nsys(
        "[output] = [a.split('=', 1)[1] for a in sys.argv if a.startswith('--output=')]\n"
        "open(output, 'w').write('junk' * 999)"
    )
    with pytest.raises(CollectorError, match="the export of nsys cannot be used: file is not a database"):
        export(tmp_path / "profile.nsys-rep")


@pytest.fixture
def capture(tmp_path) -> Path:
    """An export with what NVIDIA's holds of the machine, and one kernel in one step."""
    path = tmp_path / "profile.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(
            """
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            INSERT INTO StringIds VALUES (1, 'kernel'), (2, 'void kernel()'), (3, 'step'), (4, 'cudaLaunchKernel'),
                (5, '/home/planted/python'), (6, 'HF_TOKEN=planted');
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, "end", shortName, demangledName, mangledName);
            INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 1, 2, NULL);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, "end", nameId);
            INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (0, 1, 4);
            CREATE TABLE NVTX_EVENTS (start, "end", text, textId);
            INSERT INTO NVTX_EVENTS VALUES (0, 3, NULL, 3), (4, NULL, 'step', NULL), (5, 6, 'forward', NULL);
            CREATE TABLE PROCESSES (name); INSERT INTO PROCESSES VALUES ('/home/planted/python');
            CREATE TABLE TARGET_INFO_SYSTEM_ENV (name, value);
            INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('HF_TOKEN', 'planted');
            CREATE TABLE META_DATA_EXPORT (name, value);
            INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_HOST', 'planted'), ('EXPORT_USER', 'planted'),
                ('EXPORT_PATH', '/home/planted'), ('EXPORT_SCHEMA_VERSION', '3.20.3');
            CREATE TABLE META_DATA_CAPTURE (name, value); INSERT INTO META_DATA_CAPTURE VALUES ('HOST', 'planted');
            CREATE TABLE DIAGNOSTIC_EVENT (timestamp, timestampType, source, severity, text, globalPid);
            INSERT INTO DIAGNOSTIC_EVENT VALUES (5, 2, 3, 2, 'Not all CUDA events might have been collected.', 8),
                (3, 1, 1, 1, 'Process was launched, see /tmp/planted/streams/pid_8_stdout.log', 8),
                (9, 1, 1, 3, 'Buffer lost:
  OriginalFile=/tmp/planted/x', 9),
                (4, 2, 3, 2, 'Not all CUDA events might have been collected.', 9);
            CREATE TABLE TARGET_INFO_GPU (name, uuid, busLocation);
            INSERT INTO TARGET_INFO_GPU VALUES ('H200', 'planted', '0:1');
            """
        )
    return path


def test_scrubbing_keeps_what_was_measured_and_no_byte_of_the_machine(capture):
    scrub(capture)
    assert b"planted" not in capture.read_bytes()
    assert count_kernels_and_steps(capture) == (1, 1)
    with closing(sqlite3.connect(capture)) as connection:
        assert [row[0] for row in connection.execute("SELECT value FROM StringIds ORDER BY id")] == [
            "kernel",
            "void kernel()",
            "step",
            "cudaLaunchKernel",
        ]
        assert connection.execute("SELECT * FROM TARGET_INFO_GPU").fetchall() == [("H200", None, None)]
        assert connection.execute("SELECT name FROM META_DATA_EXPORT").fetchall() == [("EXPORT_SCHEMA_VERSION",)]


def test_kernels_of_warm_up_are_not_counted(capture):
    with closing(sqlite3.connect(capture)) as connection, connection:
        connection.execute("UPDATE NVTX_EVENTS SET start = 2")
    assert count_kernels_and_steps(capture) == (0, 1)


def test_an_export_without_kernels_counts_as_none(tmp_path):
    empty = tmp_path / "empty.sqlite"
    sqlite3.connect(empty).close()
    assert count_kernels_and_steps(empty) == (0, 0)


def test_what_an_export_says_of_its_capture_is_told_once_each_in_order_of_time(capture, tmp_path):
    log = NsysLog(tmp_path / "nsys.log")
    log.diagnose(capture)
    assert read_nsys_log(log.path) == [
        "information: Process was launched, see pid_8_stdout.log",
        "warning: Not all CUDA events might have been collected.",
        "error: Buffer lost:",
        "error: OriginalFile=x",
    ]
    assert log.complaints == ["Not all CUDA events might have been collected.", "Buffer lost: OriginalFile=x"]


def test_an_export_that_says_nothing_of_its_capture_is_no_error(tmp_path):
    log = NsysLog(tmp_path / "nsys.log")
    log.diagnose(tmp_path / "profile.sqlite")
    assert log.complaints == []


def test_of_much_that_a_command_prints_both_ends_are_kept(scripted_nsys, tmp_path, monkeypatch):
    """1.1 GB lay in nsys.log."""
    monkeypatch.setattr(nsys_cli, "MOST_PRINTED", 10_000)
    monkeypatch.setattr(nsys_cli, "KEPT_OF_COMMAND", 100)
    scripted_nsys("for number in range(100_000): print('line', number)\nprint('an error', file=sys.stderr)")
    log = NsysLog(tmp_path / "nsys.log")
    printed = run_nsys("stop", log=log)
    assert len(printed) < 20_100 and printed.startswith("line 0\n") and printed.endswith("line 99999\n")
    said = read_nsys_log(log.path)
    assert said[0] == "stop: line 0" and said[-2:] == ["stop: an error", "stop: done"]
    assert len(said) < 30 and len([line for line in said if "bytes were cut here" in line]) == 1
    with pytest.raises(CollectorError, match="nsys stats printed more than"):
        run_nsys("stats")


def test_of_many_texts_of_a_capture_about_itself_some_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(nsys_cli, "MOST_DIAGNOSTICS", 3)
    with closing(sqlite3.connect(tmp_path / "profile.sqlite")) as connection, connection:
        connection.execute("CREATE TABLE DIAGNOSTIC_EVENT (severity, text, timestamp)")
        rows = [(2, f"{number} {'x' * 5000}", number) for number in range(100)]
        connection.executemany("INSERT INTO DIAGNOSTIC_EVENT VALUES (?, ?, ?)", rows)
    log = NsysLog(tmp_path / "nsys.log")
    log.diagnose(tmp_path / "profile.sqlite")
    assert [len(line) for line in log.complaints] == [1000, 1000, 1000]


def test_steps_are_counted_by_process(tmp_path):
    two = Export()
    for process, at in ((1, 10), (2, 20), (2, 30)):
        two.push("step", at, at + 5, process=process, registered=process == 2)
    two.push("step", 40, None, process=1)
    assert count_steps_of_processes(two.sqlite(tmp_path / "two.sqlite")) == [1, 2]
    empty = tmp_path / "empty.sqlite"
    sqlite3.connect(empty).close()
    assert count_steps_of_processes(empty) == []
