"""Whatever command of nsys hangs, a stop ends, with nothing left running, and a second signal ends it at once."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from profiler_job.jobs.executor import stop
from profiler_job.jobs.executor.nsys_cli import POLL_S
from profiler_job.jobs.executor.sweep_state import SIGNAL_S
from tests.jobs.conftest import ROOT, command, eventually, jobs
from tests.waiting import HANGS_S

"""Far more than a stop takes, and less than the 300 s that nsys gets when nothing stops."""


@pytest.fixture
def hanging_nsys(fake_nsys, tmp_path, monkeypatch):
    """hanging_nsys(command): that command of nsys hangs, deaf to SIGTERM, as does a child that it left to itself."""

    def hang(name: str) -> Path:
        real, path, began = tmp_path / "fake_nsys" / "nsys", tmp_path / "hanging" / "nsys", tmp_path / "began"
        path.parent.mkdir()
        path.write_text(
            f"#!{sys.executable}\n"
            "import os, signal, sys, time\n"
            f"if sys.argv[1] == {name!r}:\n"
            "    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):\n"
            "        signal.signal(number, signal.SIG_IGN)\n"
            "    child = os.fork()\n"
            "    if child == 0:\n"
            "        os.setsid()\n"
            f"    open({str(began)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
            "    time.sleep(3600)\n"
            f"os.execv({str(real)!r}, [{str(real)!r}, *sys.argv[1:]])\n"
        )
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
        return began

    return hang


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def started(tiny, tmp_path):
    """Start a sweep of one run."""
    processes = []
    arguments = ["run", "--device", "cpu", "--sweep", tiny(mode=["forward"], context_length=[8])]
    arguments += ["--results", tmp_path / "results"]

    def start() -> subprocess.Popen:
        pipe = subprocess.PIPE
        process = subprocess.Popen(command(*arguments), cwd=ROOT, stdout=pipe, stderr=pipe, text=True)
        processes.append(process)
        return process

    start.arguments = arguments
    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.long
@pytest.mark.parametrize("name", ["launch", "start", "export", "stats", "stop"])
def test_a_stop_ends_while_a_command_of_nsys_hangs(fake_worker, hanging_nsys, started, tmp_path, name, monkeypatch):
    began = hanging_nsys(name)
    process = started()
    eventually(began.exists)
    eventually(lambda: len(began.read_text().split()) >= 2)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 143, out + err
    hung = [int(pid) for pid in began.read_text().split()]
    eventually(lambda: not any(map(is_running, hung)))
    assert not list((tmp_path / "results").glob("tiny/*/run.json"))
    monkeypatch.setenv("PATH", os.environ["PATH"].partition(os.pathsep)[2])
    again = jobs(*started.arguments)
    assert again.returncode == 0, again.stdout + again.stderr
    records = [json.loads(file.read_text())["status"] for file in (tmp_path / "results").glob("tiny/*/run.json")]
    assert records == ["ok"]


@pytest.mark.long
def test_a_stop_ends_while_the_shutdown_of_nsys_hangs(hanging_nsys, started):
    began = hanging_nsys("shutdown")
    process = started()
    eventually(began.exists)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=HANGS_S)
    assert process.returncode in (0, 143)
    eventually(lambda: not any(is_running(int(pid)) for pid in began.read_text().split()))


@pytest.mark.long
def test_a_second_signal_ends_it_at_once(hanging_nsys, started):
    began = hanging_nsys("stop")
    process = started()
    eventually(lambda: began.exists() and len(began.read_text().split()) >= 2)
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(SIGNAL_S + 0.5)  # the stop waits for the capture, for some seconds
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 143, out + err
    eventually(lambda: not any(is_running(int(pid)) for pid in began.read_text().split()))


def test_all_that_a_stop_waits_for_is_within_its_limit():
    """A capture is given up, then sessions are; each command is looked at every POLL_S; a run that failed waits for the
    signal that made it fail."""
    assert stop.CAPTURE_S < stop.SHUTDOWN_S
    assert stop.SHUTDOWN_S + SIGNAL_S + 4 * POLL_S < stop.STOP_S
