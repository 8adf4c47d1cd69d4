"""What surrounds a measured process: its environment, nsys's commands, and what an export may keep."""

import os
import sqlite3
import stat
import sys
from contextlib import closing
from pathlib import Path

import pytest

from jobs import collectors
from jobs.collectors import (
    CollectorError,
    Nsys,
    Timer,
    allowed_environment,
    count_kernels_and_steps,
    export,
    nsys,
    scrub,
)


def test_a_worker_gets_an_allow_listed_environment():
    environment = {"PATH": "/bin", "HF_TOKEN": "x", "AWS_SECRET_ACCESS_KEY": "y", "USER": "me", "HOME": "/home/me"}
    assert allowed_environment(environment, Path("/tmp/home"), None) == {
        "PATH": "/bin",
        "HOME": "/tmp/home",
        "TMPDIR": "/tmp/home",
        "PYTHONUNBUFFERED": "1",
    }


@pytest.mark.parametrize(
    "visible, gpu, expected", [(None, 1, "1"), ("4,7", 1, "7"), ("GPU-a", 0, "GPU-a"), ("", 0, "0")]
)
def test_a_worker_sees_its_gpu_alone(visible, gpu, expected):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert allowed_environment(environment, Path("/tmp"), gpu)["CUDA_VISIBLE_DEVICES"] == expected


@pytest.fixture
def fake_nsys(tmp_path, monkeypatch):
    """Writes a program called nsys."""

    def write(body: str) -> None:
        path = tmp_path / "bin" / "nsys"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!{sys.executable}\nimport sys, time\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(path.parent))

    return write


def test_an_error_of_nsys_is_its_last_line(fake_nsys):
    fake_nsys("sys.exit('Collecting...\\nNo space left on device')")
    with pytest.raises(CollectorError, match="nsys stop failed: No space left on device"):
        nsys("stop", "--session=x")


def test_an_nsys_that_says_nothing_shows_its_exit_code(fake_nsys):
    fake_nsys("sys.exit(7)")
    with pytest.raises(CollectorError, match="nsys export failed: exit 7"):
        nsys("export")


def test_an_nsys_that_hangs_is_given_up(fake_nsys, monkeypatch):
    monkeypatch.setattr(collectors, "STOP_TIMEOUT_S", 0.3)
    fake_nsys("time.sleep(60)")
    with pytest.raises(CollectorError, match="nsys stop did not end within"):
        nsys("stop")


def test_an_export_that_is_no_database_is_an_error_of_the_collector(fake_nsys, tmp_path):
    fake_nsys(
        "[output] = [a.split('=', 1)[1] for a in sys.argv if a.startswith('--output=')]\n"
        "open(output, 'w').write('junk' * 999)"
    )
    with pytest.raises(CollectorError, match="the export of nsys cannot be used: file is not a database"):
        export(tmp_path / "profile.nsys-rep")


def test_an_nsys_that_leaves_no_report_is_an_error_of_the_collector_and_ends_its_worker(fake_nsys, tmp_path):
    fake_nsys("import subprocess; sys.exit(sys.argv[1] == 'launch' and subprocess.call(sys.argv[6:]))")
    collector = Nsys("cpu")
    collector.start()
    collector.begin_capture()
    with pytest.raises(CollectorError, match="nsys stop left no report"):
        collector.end_capture(tmp_path)
    assert collector.worker is None


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
            CREATE TABLE META_DATA_CAPTURE (name, value); INSERT INTO META_DATA_CAPTURE VALUES ('HOST', 'planted');
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


def test_kernels_of_warm_up_are_not_counted(capture):
    with closing(sqlite3.connect(capture)) as connection, connection:
        connection.execute("UPDATE NVTX_EVENTS SET start = 2")
    assert count_kernels_and_steps(capture) == (0, 1)


def test_an_export_without_kernels_counts_as_none(tmp_path):
    empty = tmp_path / "empty.sqlite"
    sqlite3.connect(empty).close()
    assert count_kernels_and_steps(empty) == (0, 0)


def test_a_real_worker_starts_says_what_it_is_and_leaves_nothing():
    timer = Timer("cpu")
    timer.start()
    home, pid = timer.worker.home, timer.worker.pid
    assert timer.worker.facts["gpu_name"] == "CPU (no GPU)"
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    names = {item.partition(b"=")[0].decode() for item in environment if item}
    assert names <= {*collectors.ENVIRONMENT, "HOME", "TMPDIR", "PYTHONUNBUFFERED"}
    timer.stop()
    assert not home.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
