"""Temporary folders end with their job, or when another job looks."""

import multiprocessing
import os
import signal
import tempfile
from pathlib import Path

import pytest

from profiler_job.jobs.executor import temporary
from profiler_job.jobs.executor.temporary import TemporaryFolder, create_temporary_folder, remove_abandoned


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """The temporary folder of the machine."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def hold(sender):
    folder = TemporaryFolder()
    sender.send(folder.path)
    signal.pause()


def test_what_a_killed_job_left_is_removed_and_nothing_else(machine):
    receiver, sender = multiprocessing.Pipe()
    job = multiprocessing.get_context("fork").Process(target=hold, args=(sender,), daemon=True)
    job.start()
    left = receiver.recv()
    (left / "report").touch()
    (machine / "profiler-of-somebody").mkdir()  # has nothing of ours
    (machine / "victim").mkdir()
    (machine / "victim" / temporary.HELD).touch()
    (machine / "profiler-link").symlink_to(machine / "victim")
    with create_temporary_folder("site-") as own:
        remove_abandoned()
        assert left.exists() and own.exists()
        os.kill(job.pid, signal.SIGKILL)
        job.join()
        remove_abandoned()
        assert not left.exists() and own.exists()
    names = {path.name for path in machine.iterdir()}
    assert names == {"profiler-of-somebody", "victim", "profiler-link"}
    assert list((machine / "victim").iterdir())


def test_a_folder_that_another_job_makes_is_left_alone(machine):
    """It has no lock for an instant."""
    folder = Path(tempfile.mkdtemp(prefix=temporary.PREFIX))
    (folder / f"{temporary.HELD}.new").touch()
    remove_abandoned()
    assert folder.exists()
