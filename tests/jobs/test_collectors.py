"""Environment and nsys session of a measured process."""

import os
from pathlib import Path
from signal import SIGKILL

import pytest

from profiler_job.jobs.contract import privacy
from profiler_job.jobs.executor.collectors import Nsys, Timer
from profiler_job.jobs.executor.failures import CaptureLostError
from profiler_job.jobs.executor.worker_process import allowed_environment
from tests.jobs.conftest import read_nsys_log


def test_a_worker_gets_an_allow_listed_environment():
    environment = {"PATH": "/bin", "HF_TOKEN": "x", "AWS_SECRET_ACCESS_KEY": "y", "USER": "me", "HOME": "/home/me"}
    assert allowed_environment(environment, Path("/tmp/home"), []) == {
        "PATH": "/bin",
        "HOME": "/tmp/home",
        "TMPDIR": "/tmp/home",
        "PYTHONUNBUFFERED": "1",
    }


def test_what_one_worker_compiled_the_others_find():
    def folder(environment):
        return allowed_environment(environment, Path("/tmp/home"), [], "/tmp/shared")["TORCHINDUCTOR_CACHE_DIR"]

    assert folder({}) == "/tmp/shared"
    assert folder({"TORCHINDUCTOR_CACHE_DIR": "/cache"}) == "/cache"


@pytest.mark.parametrize(
    "visible, gpus, expected",
    [(None, [1], "1"), ("4,7", [1], "7"), ("GPU-a", [0], "GPU-a"), ("", [0], "0"), ("4,7,9", [1, 2], "7,9")],
)
def test_a_worker_sees_its_gpus_alone(visible, gpus, expected):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert allowed_environment(environment, Path("/tmp"), gpus)["CUDA_VISIBLE_DEVICES"] == expected


def test_the_gpus_are_counted_as_the_checks_before_a_sweep_count_them():
    environment = {"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_VISIBLE_DEVICES": "1"}
    assert allowed_environment(environment, Path("/tmp"), [0])["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


# An nsys that launches, and does `body` for every other command.
LAUNCHES = """
import pathlib, subprocess
command, session, *options = sys.argv[1:]
if command == "launch":
    print("launched")
    sys.stdout.flush()
    sys.exit(subprocess.call(sys.argv[6:]))
if command == "start":
    noted.write_text(options[-1].removeprefix("--output="))
report = pathlib.Path(noted.read_text())
"""


@pytest.fixture
def nsys_worker(scripted_nsys, tmp_path):
    """nsys_worker(body): a worker whose nsys does `body`, where `report` is the path it was given."""
    workers = []

    def start(body: str) -> Nsys:
        scripted_nsys(f"import pathlib; noted = pathlib.Path({str(tmp_path / 'noted')!r})\n{LAUNCHES}\n{body}")
        workers.append(Nsys("cpu"))
        workers[0].start()
        return workers[0]

    yield start
    for worker in workers:
        worker.stop()


def test_a_capture_that_leaves_no_report_is_lost_and_ends_its_worker(nsys_worker, tmp_path):
    collector = nsys_worker("")
    collector.begin_capture(tmp_path)
    with pytest.raises(CaptureLostError, match="nsys stop left no report") as lost:
        collector.end_capture()
    assert lost.value.detail["phase"] == "end of capture"
    assert collector.worker is None


def test_what_nsys_says_of_a_capture_is_beside_the_run_and_names_no_folder(nsys_worker, tmp_path):
    collector = nsys_worker(
        "if command == 'start': print('[1/2]\\r[2/2] ' + str(report))\n"
        "if command == 'stop': report.write_text('half'); sys.exit('Generating ' + str(report) + '\\nimport failed')"
    )
    collector.begin_capture(tmp_path)
    with pytest.raises(CaptureLostError, match=r"nsys stop failed \(exit 1\): import failed"):
        collector.end_capture()
    assert read_nsys_log(tmp_path / "nsys.log") == [
        "start: [2/2] profile.nsys-rep",
        "start: done",
        "stop: Generating profile.nsys-rep",
        "stop: import failed",
        "stop: failed (exit 1)",
        "launch: launched",
    ]
    assert (tmp_path / "profile.nsys-rep").read_text() == "half"


def test_a_capture_that_cannot_begin_is_lost_and_ends_its_worker(nsys_worker, tmp_path):
    collector = nsys_worker("if command == 'start': sys.exit('no session')")
    with pytest.raises(CaptureLostError, match=r"nsys start failed \(exit 1\): no session") as lost:
        collector.begin_capture(tmp_path)
    assert lost.value.detail["phase"] == "start of capture"
    assert collector.worker is None
    assert "start: no session" in read_nsys_log(tmp_path / "nsys.log")


def test_a_real_worker_starts_says_what_it_is_and_leaves_nothing():
    timer = Timer("cpu")
    timer.start()
    home, pid = timer.worker.home, timer.worker.pid
    assert timer.worker.facts["gpu_name"] == "CPU (no GPU)"
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    names = {item.partition(b"=")[0].decode() for item in environment if item}
    assert names <= {*privacy.ENVIRONMENT, "HOME", "TMPDIR", "PYTHONUNBUFFERED"}
    timer.fresh = False
    timer.renew()
    assert timer.worker.pid != pid and timer.worker.home == home
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    pid = timer.worker.pid
    timer.stop()
    assert not home.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.long
def test_a_worker_that_died_idle_is_replaced():
    timer = Timer("cpu")
    timer.start()
    first = timer.worker
    timer.start()
    assert timer.worker is first
    os.kill(first.pid, SIGKILL)
    assert first.connection.poll(60)  # it closes when the worker is gone
    timer.start()
    assert timer.worker is not first and not timer.worker.died()
    timer.stop()
    assert not first.home.exists()
