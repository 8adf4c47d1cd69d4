"""Order, isolation, statuses and resume, with a worker that computes nothing and the stand-in for nsys."""

import os
import sqlite3
import threading
import time
from collections import Counter

import pytest

from jobs import runner
from jobs.collectors import CollectorError
from jobs.results import Locked
from jobs.runner import Stopped
from tests.jobs.conftest import eventually

RUNS = [f"tiny-ctx{t}-fp32-naive-{mode}" for t in (8, 16) for mode in ("forward", "train_step")]
FIRST, SECOND, THIRD, LAST = RUNS


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(autouse=True)
def no_worker_is_left(fake_worker):
    yield
    eventually(lambda: not [pid for _, pid in fake_worker.tasks if alive(pid)], what="a worker is left")


def test_every_run_is_measured_by_both_collectors_with_one_worker_each(session, fake_worker):
    first = session()
    assert first.run() == dict.fromkeys(RUNS, "ok")
    assert Counter(name for name, _ in fake_worker.tasks) == {
        f"{run}/{c}": 1 for run in RUNS for c in ("timer", "nsys")
    }
    assert len({pid for _, pid in fake_worker.tasks}) == 2
    for run in RUNS:
        folder = first.results.folder / run
        files = {path.name for path in folder.iterdir()}
        assert files >= {"log.txt", "profile.sqlite", "run.json", "timings.json"}
        assert not files & {"in_flight.json", "profile.nsys-rep"}
        assert not [name for name in files if name.endswith(".draft")]
        assert (first.results.raw / f"{run}.nsys-rep").exists()
        record = first.record(run)
        assert record["run_id"] == run
        assert record["status_detail"] is None
        assert record["autograd_multithreading"] is False
        assert {"timer", "nsys", "export"} == set(record["seconds"])


def test_a_finished_sweep_starts_nothing(session, fake_worker):
    session().run()
    before = len(fake_worker.tasks)
    again = session()
    assert again.run() == dict.fromkeys(RUNS, "ok")
    assert len(fake_worker.tasks) == before
    assert again.named("run_started") == []


def test_a_changed_sweep_measures_only_what_changed(session):
    session().run()
    longer = session({"context_length": [8, 16, 32]})
    assert len(longer.run()) == 6
    assert longer.named("run_started") == [f"tiny-ctx32-fp32-naive-{mode}" for mode in ("forward", "train_step")]


@pytest.mark.parametrize("change", [{"measured_steps": 3}, {"profiled_steps": 4}, {"batch_size": 2}])
def test_a_changed_protocol_measures_again(session, change):
    session({"mode": ["forward"], "context_length": [8]}).run()
    changed = session({"mode": ["forward"], "context_length": [8]} | change)
    changed.run()
    assert changed.named("run_started") == [FIRST]


def test_a_run_cut_short_is_measured_again(session):
    first = session()
    first.run()
    record = first.results.folder / SECOND / "run.json"
    record.write_text(record.read_text()[:100])
    (first.results.folder / THIRD / "run.json").unlink()
    again = session()
    assert again.run() == dict.fromkeys(RUNS, "ok")
    assert again.named("run_started") == [SECOND, THIRD]


def workers(fake_worker, collector):
    return {pid for name, pid in fake_worker.tasks if name.endswith(f"/{collector}")}


@pytest.mark.parametrize("collector, other", [("timer", "nsys"), ("nsys", "timer")])
def test_out_of_memory_is_a_result_with_phase_and_bytes(session, fake_worker, collector, other):
    fake_worker.fail({f"{SECOND}/{collector}": ("warm-up", "oom"), f"{THIRD}/{collector}": ("measured", "oom")})
    one = session()
    assert one.run() == {FIRST: "ok", SECOND: "oom", THIRD: "oom", LAST: "ok"}
    for run in (SECOND, THIRD):
        detail = one.record(run)["status_detail"]
        assert (detail["phase"], detail["collector"]) == ("backward", collector)
        assert {"allocated_bytes", "reserved_bytes", "total_bytes", "step", "message"} <= set(detail)
        assert one.record(run)["float32_matmul_precision"] == "highest"
    assert len(workers(fake_worker, other)) == 1
    # The allocator's error leaves the worker usable, unless a capture is running: that ends with its session.
    assert len(workers(fake_worker, collector)) == (1 if collector == "timer" else 2)
    num_tasks = len(fake_worker.tasks)
    assert session().run()[SECOND] == "oom"
    assert len(fake_worker.tasks) == num_tasks


@pytest.mark.parametrize("collector, other", [("timer", "nsys"), ("nsys", "timer")])
def test_a_crash_is_a_result_and_the_next_run_has_a_new_worker(session, fake_worker, collector, other):
    faults = {FIRST: ("warm-up", "exit"), SECOND: ("measured", "segfault"), THIRD: ("warm-up", "failed")}
    fake_worker.fail({f"{run}/{collector}": fault for run, fault in faults.items()})
    one = session()
    assert one.run() == {FIRST: "failed", SECOND: "failed", THIRD: "failed", LAST: "ok"}
    details = {run: one.record(run)["status_detail"] for run in faults}
    assert {detail["collector"] for detail in details.values()} == {collector}
    assert [details[run]["phase"] for run in faults] == ["build or warm-up", "measured steps", "forward"]
    assert ["worker process died" in details[run]["message"] for run in faults] == [True, True, False]
    logs = {run: (one.results.folder / run / "log.txt").read_text() for run in faults}
    assert all(f"{collector}: " in log for log in logs.values())
    assert "about to segfault" in logs[SECOND]
    assert len(workers(fake_worker, collector)) == 4
    assert len(workers(fake_worker, other)) == 1


@pytest.mark.parametrize("collector, other", [("timer", "nsys"), ("nsys", "timer")])
def test_a_hang_becomes_a_timeout_and_only_its_worker_is_killed(session, fake_worker, monkeypatch, collector, other):
    """The timeout is that of the run: here it is short for the runs that hang."""
    hangs = {FIRST: "warm-up", SECOND: "measured", THIRD: "released"}
    monkeypatch.setattr(runner, "timeout_seconds", lambda run, protocol: 1.0 if run.run_id in hangs else 60)
    fake_worker.fail({f"{run}/{collector}": (moment, "hang") for run, moment in hangs.items()})
    one = session()
    assert one.run() == {FIRST: "timeout", SECOND: "timeout", THIRD: "timeout", LAST: "ok"}
    details = {run: one.record(run)["status_detail"] for run in hangs}
    assert [details[run]["phase"] for run in hangs] == ["build or warm-up", "measured steps", "measured steps"]
    assert all("no answer within" in detail["message"] for detail in details.values())
    assert len(workers(fake_worker, collector)) == 4
    assert len(workers(fake_worker, other)) == 1


def test_retry_measures_failures_again_and_keeps_results(session, fake_worker):
    fake_worker.fail({f"{FIRST}/timer": ("warm-up", "oom"), f"{SECOND}/timer": ("warm-up", "exit")})
    session().run()
    fake_worker.fail({})
    assert session().run() == dict.fromkeys(RUNS, "ok") | {FIRST: "oom", SECOND: "failed"}
    again = session(retry=True)
    assert again.run() == dict.fromkeys(RUNS, "ok") | {FIRST: "oom"}
    assert again.named("run_started") == [SECOND]


class OnGpu:
    """Makes the judgement of a capture what it is on a GPU, with workers on the CPU."""

    def __init__(self, one):
        self.runner = one.runner

    def __enter__(self):
        self.lane = runner.Lane.__init__

        def lane_on_cpu(lane, sweep_runner, gpu):
            sweep_runner.device = "cpu"
            self.lane(lane, sweep_runner, None)
            sweep_runner.device = "cuda"

        runner.Lane.__init__ = lane_on_cpu

    def __exit__(self, *_):
        runner.Lane.__init__ = self.lane


def test_an_incomplete_capture_is_measured_again(session, monkeypatch):
    counts = [(100, 3), (100, 2), (100, 3)]
    monkeypatch.setattr(runner, "count_kernels_and_steps", lambda _: counts.pop(0) if len(counts) > 1 else counts[0])
    one = session()
    with OnGpu(one):
        assert one.run() == dict.fromkeys(RUNS, "ok")
    assert one.named("run_repeated") == [SECOND]
    assert Counter(one.named("run_started")) == Counter([*RUNS, SECOND])
    assert Counter(one.named("run_finished")) == Counter(RUNS)


def test_a_capture_that_stays_incomplete_fails_in_the_end(session, monkeypatch):
    monkeypatch.setattr(runner, "count_kernels_and_steps", lambda _: (100, 2))
    one = session({"mode": ["forward"], "context_length": [8]})
    with OnGpu(one):
        assert one.run() == {FIRST: "failed"}
    assert one.record(FIRST)["status_detail"]["message"] == "nsys recorded 2 of 3 steps"
    assert len(one.named("run_repeated")) == runner.MAX_REPEATS


def test_a_capture_without_kernels_says_so(session, monkeypatch):
    monkeypatch.setattr(runner, "count_kernels_and_steps", lambda _: (0, 3))
    one = session({"mode": ["forward"], "context_length": [8]})
    with OnGpu(one):
        assert one.run() == {FIRST: "no_kernels"}
    assert "no kernel" in one.record(FIRST)["status_detail"]["message"]


def test_an_export_that_cannot_be_read_fails_its_run_alone(session, monkeypatch):
    end_capture = runner.Nsys.end_capture

    def damaged(self, folder):
        if folder.name == SECOND:
            monkeypatch.setattr("jobs.collectors.scrub", lambda path: sqlite3.connect(path).execute("SELECT broken"))
        try:
            return end_capture(self, folder)
        finally:
            monkeypatch.setattr("jobs.collectors.scrub", lambda path: None)

    monkeypatch.setattr(runner.Nsys, "end_capture", damaged)
    one = session()
    assert one.run() == dict.fromkeys(RUNS, "ok") | {SECOND: "failed"}
    assert one.record(SECOND)["status_detail"]["phase"] == "export"


def test_without_nsys_the_message_says_what_to_install(session, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(CollectorError, match="nsys is not on PATH: install"):
        session().run()


def test_a_worker_that_cannot_start_is_reported_with_its_last_line(session, fake_worker):
    (fake_worker.folder / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if sys.orig_argv[1:3] == ['-m', 'jobs.workload']:\n"
        "    print('ImportError: libcuda.so.1', file=sys.stderr, flush=True)\n"
        "    os._exit(1)\n"
    )
    with pytest.raises(CollectorError, match=r"did not start: ImportError: libcuda\.so\.1"):
        session().run()


def test_a_second_job_on_the_same_folder_is_refused(session):
    one, two = session(), session()
    with one.results.lock(), pytest.raises(Locked, match=f"pid {os.getpid()} on "):
        two.run()
    assert two.run() == dict.fromkeys(RUNS, "ok")


def stop_when(one, condition):
    """Run in a thread, stop as soon as the events satisfy `condition`; returns the exception that ended the run."""
    ended = []

    def work():
        try:
            ended.append(one.run())
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    eventually(lambda: condition(one))
    one.runner.stop()
    thread.join(20)
    assert not thread.is_alive()
    return ended[0]


def in_phase(run, phase):
    return lambda one: {"event": "phase", "run": run, "phase": phase} in one.events


@pytest.mark.parametrize("collector", ["timer", "nsys"])
def test_a_stop_marks_the_run_in_flight_and_keeps_the_others(session, fake_worker, collector):
    fake_worker.fail({f"{THIRD}/{collector}": ("measured", "hang")})
    one = session()
    assert isinstance(stop_when(one, in_phase(THIRD, collector)), Stopped)
    assert one.named("run_interrupted") == [THIRD]
    states = [one.results.in_flight(run) for run in one.sweep.runs]
    assert states == [None, None, "interrupted", None]
    assert [one.results.record(run) is not None for run in one.sweep.runs] == [True, True, False, False]
    fake_worker.fail({})
    again = session()
    assert again.run() == dict.fromkeys(RUNS, "ok")
    assert again.named("run_started") == [THIRD, LAST]
    assert again.results.in_flight(again.sweep.runs[2]) is None


def test_a_stop_lets_the_export_in_progress_finish(session, monkeypatch):
    """Its session stays, also while the next run waits for it before its measured steps."""
    end_capture = runner.Nsys.end_capture
    waited = threading.Event()

    def slow(self, folder):
        time.sleep(1)
        waited.set()
        time.sleep(1)
        assert self.worker.process.poll() is None
        return end_capture(self, folder)

    monkeypatch.setattr(runner.Nsys, "end_capture", slow)
    one = session()
    assert isinstance(stop_when(one, lambda _: waited.is_set()), Stopped)
    assert one.record(FIRST)["status"] == "ok"
    assert one.named("run_finished") == [FIRST]
    assert one.named("run_interrupted") == [SECOND]


def test_a_stop_while_a_worker_starts_does_not_wait_for_it(session, fake_worker):
    (fake_worker.folder / "sitecustomize.py").write_text(
        "import pathlib, sys, time\n"
        "if sys.orig_argv[1:3] == ['-m', 'jobs.workload']:\n"
        f"    pathlib.Path({str(fake_worker.folder)!r}, 'starting').touch()\n"
        "    time.sleep(600)\n"
    )
    one = session()
    assert isinstance(stop_when(one, lambda _: (fake_worker.folder / "starting").exists()), Stopped)


def test_several_gpus_share_one_queue(session, fake_worker):
    one = session(gpus=(0, 1))
    assert one.run() == dict.fromkeys(RUNS, "ok")
    assert Counter(one.named("run_started")) == Counter(RUNS)
    assert len({pid for name, pid in fake_worker.tasks if name.endswith("/timer")}) == 2


def test_several_gpus_take_the_longest_run_first(session):
    one = session({"context_length": [8, 512]}, gpus=(0, 1))
    one.run()
    assert "tiny-ctx512-fp32-naive-train_step" in one.named("run_started")[:2]
