"""Slurm, tini -g and a terminal signal every process of a job at once: no run may look failed because of it."""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.jobs.conftest import ROOT, command, jobs


def descendants(pid):
    """The processes below `pid`, innermost last."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


@pytest.mark.long
@pytest.mark.parametrize("moment_s", [pytest.param(0.0, marks=pytest.mark.nightly), 0.2])
def test_a_signal_to_workers_first_interrupts_and_fails_nothing(tiny, tmp_path, fake_nsys, moment_s):
    arguments = [
        "run",
        "--device",
        "cpu",
        "--sweep",
        tiny(mode=["forward"]),
        "--results",
        tmp_path / "results",
    ]
    folder = tmp_path / "results" / "tiny"
    with subprocess.Popen(command(*arguments), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as job:
        while not descendants(job.pid) and job.poll() is None:
            time.sleep(0.01)
        if moment_s:
            while not any(folder.glob("*/in_flight.json")) and job.poll() is None:
                time.sleep(0.01)
        time.sleep(moment_s)
        for pid in descendants(job.pid)[::-1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        time.sleep(0.2)
        with suppress(ProcessLookupError):
            job.send_signal(signal.SIGTERM)
        said = job.stderr.read().decode()
        code = job.wait()
    statuses = [json.loads(path.read_text())["status"] for path in folder.glob("*/run.json")]
    assert set(statuses) <= {"ok"}
    assert code == 128 + signal.SIGTERM, said
    resumed = jobs(*arguments)
    assert resumed.returncode == 0, resumed.stderr
    assert len(list(folder.glob("*/run.json"))) == 2
