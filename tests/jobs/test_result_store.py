"""The results folder: atomic, locked, and plain about what is finished."""

import errno
import fcntl
import json
import multiprocessing
import os
import signal
import threading
from types import SimpleNamespace

import pytest

from profiler_job.jobs.contract.layout import PROTOCOL_VERSION, RunRecord, TimedProcess
from profiler_job.jobs.executor import result_store as results_module
from profiler_job.jobs.executor.result_store import LockedError, Results, read_json, write_json
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP, load_sweep
from tests.waiting import HANGS_S

SWEEP = load_sweep(DEFAULT_SWEEP)
RUN = SWEEP.runs[0]
RECORD = RunRecord(
    protocol_version=PROTOCOL_VERSION, run_id=RUN.run_id, status="ok", run=RUN, **SWEEP.protocol.model_dump()
)
TIMED_ONCE = RECORD.model_copy(update={"status": "timed", "timed": [TimedProcess(position=0)]})


@pytest.fixture
def results(tmp_path) -> Results:
    return Results(tmp_path, "default")


def test_a_run_is_finished_when_its_record_is_written(results):
    folder = results.begin(RUN)
    assert results.finished(RUN, SWEEP.protocol) is None
    assert results.read_in_flight(RUN) == "interrupted"  # nobody holds the lock
    (folder / "profile.nsys-rep").write_text("report")
    results.finish(RUN, RECORD)
    assert results.finished(RUN, SWEEP.protocol).status == "ok"
    assert results.read_in_flight(RUN) is None
    assert (results.raw / f"{RUN.run_id}.nsys-rep").read_text() == "report"
    assert not (folder / "profile.nsys-rep").exists()


def test_a_run_that_is_begun_again_starts_empty(results):
    folder = results.begin(RUN)
    (folder / "profile.sqlite").write_text("old")
    assert os.listdir(results.begin(RUN)) == ["in_flight.json"]


def test_a_record_of_other_parameters_does_not_count(results):
    results.begin(RUN)
    results.finish(RUN, RECORD)
    assert results.finished(RUN, SWEEP.protocol.model_copy(update={"measured_steps": 11})) is None
    assert results.finished(RUN.model_copy(update={"batch_size": 8}), SWEEP.protocol) is None


def test_a_timed_run_keeps_its_timings_and_loses_what_a_capture_left(results):
    folder = results.begin(RUN)
    (folder / "log.txt").write_text("timer: ")
    results.keep_timings(RUN, {"steps": []})
    assert results.timed(RUN, SWEEP.protocol) is None
    record = results.keep_timed(RUN, TIMED_ONCE)
    assert results.timed(RUN, SWEEP.protocol).status == "timed"
    assert results.timed(RUN, SWEEP.protocol.model_copy(update={"measured_steps": 11})) is None
    assert results.read_in_flight(RUN) is None
    (folder / "profile.sqlite").write_text("old")
    assert results.resume(RUN, record) == folder
    assert sorted(os.listdir(folder)) == ["in_flight.json", "log.txt", "timed.json", "timings.json"]
    results.finish(RUN, RECORD)
    assert sorted(os.listdir(folder)) == ["log.txt", "run.json", "timings.json"]


@pytest.mark.parametrize("content", ["", "{", '{"run": 1', "[]", "null", "\x00"])
def test_a_record_that_is_no_record_does_not_count(results, content):
    (results.begin(RUN) / "run.json").write_text(content)
    assert results.finished(RUN, SWEEP.protocol) is None


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    write_json(path, {"a": 1})

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(results_module.os, "fsync", full)
    with pytest.raises(OSError):
        write_json(path, {"a": 2})
    assert read_json(path, dict) == {"a": 1}


def write_forever(path):
    number = 0
    while True:
        number += 1
        write_json(path, {"number": number, "filler": "x" * 100_000})


def test_killing_the_writer_never_leaves_half_a_file(tmp_path):
    path = tmp_path / "run.json"
    write_json(path, {"number": 0})
    for delay in (0.05, 0.08, 0.11):
        writer = multiprocessing.get_context("fork").Process(target=write_forever, args=(path,))
        writer.start()
        writer.join(delay)
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        json.loads(path.read_text())


def hold(results, held, release):
    with results.lock():
        held.set()
        release.wait(HANGS_S)


def test_the_lock_names_its_holder_and_ends_with_it_however_it_ends(results):
    context = multiprocessing.get_context("fork")
    held, release = context.Event(), context.Event()
    holder = context.Process(target=hold, args=(results, held, release))
    holder.start()
    assert held.wait(HANGS_S)
    assert results.is_locked()
    with pytest.raises(LockedError, match=f"pid {holder.pid} on .+"), results.lock():
        pass
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert not results.is_locked()
    with results.lock():
        assert f"pid {os.getpid()}" in (results.folder / "lock").read_text()
    assert (results.folder / "lock").read_text() == ""


def test_shards_have_folders_of_their_own(tmp_path):
    one, two = Results(tmp_path, "default", "shard-1-of-2"), Results(tmp_path, "default", "shard-2-of-2")
    with one.lock(), two.lock():
        assert one.folder != two.folder and one.raw != two.raw


def test_a_nearly_full_disk_is_named(results, monkeypatch):
    results.folder.mkdir(parents=True)
    results.check_space()
    monkeypatch.setattr(results_module.shutil, "disk_usage", lambda folder: SimpleNamespace(free=10**6))
    with pytest.raises(OSError) as raised:
        results.check_space()
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(results.folder))


@pytest.mark.parametrize("said", ["nsys export failed: No space left on device", "database or disk is full"])
def test_a_failure_that_says_that_the_disk_was_full_is_believed_when_there_is_room_again(results, said):
    results.folder.mkdir(parents=True)
    results.check_space("nsys export failed")
    with pytest.raises(OSError) as raised:
        results.check_space(said)
    assert (raised.value.errno, raised.value.strerror) == (errno.ENOSPC, said)


def test_looking_whether_a_folder_is_locked_refuses_no_job(results, monkeypatch):
    monkeypatch.setattr(results_module, "LOCK_S", 30)
    results.folder.mkdir(parents=True)
    with open(results.folder / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert not results.is_locked()
        threading.Timer(0.2, fcntl.flock, (file, fcntl.LOCK_UN)).start()
        with results.lock():
            assert results.is_locked()


def test_a_folder_that_cannot_be_emptied_is_begun_all_the_same(results, monkeypatch):
    folder = results.begin(RUN)
    results.finish(RUN, RECORD)
    (folder / ".nfs01").write_text("held open by another host")
    monkeypatch.setattr(results_module.shutil, "rmtree", lambda folder, ignore_errors: None)
    assert results.begin(RUN) == folder
    assert results.finished(RUN, SWEEP.protocol) is None and results.read_in_flight(RUN) == "interrupted"


@pytest.fixture
def victim(tmp_path):
    """A file of somebody else, to which a planted link leads."""
    path = tmp_path / "victim"
    path.write_text("precious")
    yield path
    assert path.read_text() == "precious"


def test_a_planted_link_is_no_lock(results, victim):
    results.folder.mkdir(parents=True)
    (results.folder / "lock").symlink_to(victim)
    with pytest.raises(OSError, match="is a symbolic link, which no job makes") as raised, results.lock():
        pass
    assert raised.value.filename == str(results.folder / "lock")
    assert not results.is_locked()


def test_nothing_is_written_through_a_planted_link(results, victim, tmp_path):
    (tmp_path / "run.json.draft").symlink_to(victim)
    write_json(tmp_path / "run.json", {"a": 1})
    assert read_json(tmp_path / "run.json", dict) == {"a": 1}
    folder = results.begin(RUN)
    results.keep_timings(RUN, {"steps": []})
    record = results.keep_timed(RUN, TIMED_ONCE)
    (folder / "nsys.log").symlink_to(victim)
    results.resume(RUN, record)
    assert not (folder / "nsys.log").is_symlink()


def test_a_planted_folder_of_a_run_is_left_alone(results, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "run.json").write_text("precious")
    results.folder.mkdir(parents=True)
    (results.folder / RUN.run_id).symlink_to(elsewhere)
    assert not results.begin(RUN).is_symlink()
    assert [file.read_text() for file in elsewhere.iterdir()] == ["precious"]


def test_of_long_logs_both_ends_are_kept(results, monkeypatch):
    monkeypatch.setattr(results_module, "KEPT_OF_LOG", 100)
    folder = results.begin(RUN)
    for name in ("log.txt", "nsys.log"):
        (folder / name).write_text("".join(f"{number}\n" for number in range(10_000)))
    results.finish(RUN, RECORD)
    for name in ("log.txt", "nsys.log"):
        lines = (folder / name).read_text().splitlines()
        assert lines[0] == "0" and lines[-1] == "9999" and len(lines) < 100
        assert len([line for line in lines if "bytes were cut here" in line]) == 1
    assert results.finished(RUN, SWEEP.protocol) is not None
