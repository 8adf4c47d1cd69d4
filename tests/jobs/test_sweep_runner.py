"""Order, isolation, statuses and resume, with a worker that computes nothing and the fake nsys."""

import errno
import json
import os
import queue
import re
import sqlite3
import threading
import time
from collections import Counter
from random import Random

import pytest

from profiler_job.jobs.contract import privacy
from profiler_job.jobs.contract.layout import Machine
from profiler_job.jobs.executor import attempt, collectors, gpu_executor, nsys_cli, sweep_runner, sweep_state
from profiler_job.jobs.executor.collectors import Nsys, Timer
from profiler_job.jobs.executor.failures import CollectorError
from profiler_job.jobs.executor.nsys_cli import run_nsys
from profiler_job.jobs.executor.result_store import Locked, Results
from profiler_job.jobs.executor.sweep_runner import Stopped
from tests.jobs.conftest import eventually
from tests.records import rewrite
from tests.waiting import HANGS_S

RUNS = [f"tiny-ctx{t}-fp32-naive-{mode}" for t in (8, 16) for mode in ("forward", "train_step")]
FIRST, SECOND, THIRD, LAST = RUNS
ORDER = Random("0-0").sample(RUNS, len(RUNS))
"""In which the first unprofiled process of each run is measured, whose seed is 0."""


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


def test_every_run_is_timed_in_a_fresh_process_and_profiled_in_a_warm_one(session, fake_worker):
    first = session()
    assert first.run() == dict.fromkeys(RUNS, "ok")
    assert Counter(name for name, _ in fake_worker.tasks) == {
        f"{run}/{c}": 1 for run in RUNS for c in ("timer", "nsys")
    }
    assert len(workers(fake_worker, "timer")) == len(RUNS)
    assert len(workers(fake_worker, "nsys")) == gpu_executor.NSYS_WORKERS
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
        assert {"nsys", "export"} == set(record["seconds"])
        assert {"build", "warm_up", "measure"} == set(record["timed"][0]["seconds"])


def test_a_finished_sweep_starts_nothing(session, fake_worker):
    session().run()
    before = len(fake_worker.tasks)
    again = session()
    assert again.run() == dict.fromkeys(RUNS, "ok")
    assert len(fake_worker.tasks) == before
    assert again.named("run_started") == []


def test_what_a_job_left_that_ended_right_after_a_record_is_removed(session):
    first = session({"mode": ["forward"], "context_length": [8]})
    first.run()
    names = {path.name for path in (first.results.folder / FIRST).iterdir()}
    for name in ("in_flight.json", "timed.json"):
        (first.results.folder / FIRST / name).write_text("{}")
    assert session({"mode": ["forward"], "context_length": [8]}).run() == {FIRST: "ok"}
    assert {path.name for path in (first.results.folder / FIRST).iterdir()} == names


def test_a_changed_sweep_measures_only_what_changed(session):
    session().run()
    longer = session({"context_length": [8, 16, 32]})
    assert len(longer.run()) == 6
    assert longer.named("run_started") == [f"tiny-ctx32-fp32-naive-{mode}" for mode in ("forward", "train_step")]


@pytest.mark.parametrize("change", [{"measured_steps": 3}, {"profiled_steps": 4}, {"profiled_steps": 0}])
def test_a_changed_protocol_measures_again(session, change):
    session({"mode": ["forward"], "context_length": [8]}).run()
    changed = session({"mode": ["forward"], "context_length": [8]} | change)
    changed.run()
    assert changed.named("run_started") == [FIRST]


@pytest.mark.long
def test_a_run_cut_short_is_measured_again(session):
    first = session()
    first.run()
    record = first.results.folder / SECOND / "run.json"
    record.write_text(record.read_text()[:100])
    (first.results.folder / THIRD / "run.json").unlink()
    again = session()
    assert again.run() == dict.fromkeys(RUNS, "ok")
    assert sorted(again.named("run_started")) == sorted([SECOND, THIRD])


def test_damaged_results_are_named_and_measured_again(session):
    first = session()
    first.run()
    (first.results.folder / SECOND / "timings.json").write_text("{}")
    with open(first.results.folder / THIRD / "profile.sqlite", "ab") as capture:
        capture.write(b"more")
    again = session()
    assert again.run() == dict.fromkeys(RUNS, "ok")
    assert again.named("run_damaged") == sorted(again.named("run_started"), key=RUNS.index) == [SECOND, THIRD]
    whys = [event["why"] for event in again.events if event["event"] == "run_damaged"]
    assert whys[0].startswith("timings.json has 2 bytes, and ")
    assert whys[1].startswith("profile.sqlite has ")
    assert session().run() == dict.fromkeys(RUNS, "ok")


def workers(fake_worker, collector):
    return {pid for name, pid in fake_worker.tasks if name.endswith(f"/{collector}")}


@pytest.mark.parametrize("collector", ["timer", "nsys"])
def test_out_of_memory_is_a_result_with_phase_and_bytes(session, fake_worker, collector):
    fake_worker.fail({f"{SECOND}/{collector}": ("warm-up", "oom"), f"{THIRD}/{collector}": ("measured", "oom")})
    one = session()
    assert one.run() == {FIRST: "ok", SECOND: "oom", THIRD: "oom", LAST: "ok"}
    for run in (SECOND, THIRD):
        detail = one.record(run)["status_detail"]
        assert (detail["phase"], detail["collector"]) == ("backward", collector)
        assert {"allocated_bytes", "reserved_bytes", "total_bytes", "step", "message"} <= set(detail)
        assert one.record(run)["float32_matmul_precision"] == "highest"
    num_tasks = len(fake_worker.tasks)
    assert session().run()[SECOND] == "oom"
    assert len(fake_worker.tasks) == num_tasks


@pytest.mark.long
@pytest.mark.parametrize("collector", ["timer", "nsys"])
def test_a_crash_is_a_result_and_the_next_run_has_a_new_worker(session, fake_worker, collector):
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
    broken = [pid for name, pid in fake_worker.tasks if name in {f"{run}/{collector}" for run in faults}]
    assert len(set(broken)) == len(broken) == 3 + len(one.named("run_repeated"))


def test_a_run_is_not_lost_by_the_plain_run_that_its_loss_is_compared_with(session, fake_worker):
    run = "tiny-ctx8-fp32-naive-train_step-adamw_fused"
    fake_worker.fail({f"{run}/timer": ("warm-up", "failed_where_compared")})
    one = session({"context_length": [8], "mode": ["train_step"], "optimizer": ["fused"], "warmup_steps": 5})
    assert one.run() == {run: "ok"}
    (told,) = [event["why"] for event in one.events if event["event"] == "run_repeated"]
    assert "misaligned address" in told and "plain run" in told
    assert len(workers(fake_worker, "timer")) == 2


@pytest.mark.long
@pytest.mark.parametrize("collector", ["timer", "nsys"])
def test_a_hang_becomes_a_timeout_and_only_its_worker_is_killed(session, fake_worker, monkeypatch, collector):
    """The timeout is that of the run: here it is short for the runs that hang."""
    hangs = {FIRST: "warm-up", SECOND: "measured", THIRD: "released"}
    monkeypatch.setattr(attempt, "compute_timeout", lambda run, protocol: 1.0 if run.run_id in hangs else HANGS_S)
    fake_worker.fail({f"{run}/{collector}": (moment, "hang") for run, moment in hangs.items()})
    one = session()
    assert one.run() == {FIRST: "timeout", SECOND: "timeout", THIRD: "timeout", LAST: "ok"}
    details = {run: one.record(run)["status_detail"] for run in hangs}
    assert [details[run]["phase"] for run in hangs] == ["build or warm-up", "measured steps", "measured steps"]
    assert all("no answer within" in detail["message"] for detail in details.values())
    assert len(workers(fake_worker, collector)) == 4


@pytest.mark.parametrize("fault", ["killed_once", "lost_gpu"])
def test_what_the_machine_failed_is_measured_again_when_the_sweep_is_resumed(session, fake_worker, fault):
    fake_worker.fail({f"{SECOND}/timer": ("measured", fault)})
    first = session()
    assert first.run() == dict.fromkeys(RUNS, "ok") | {SECOND: "machine"}
    said = first.record(SECOND)["status_detail"]["message"]
    assert "killed it" in said if fault == "killed_once" else "uncorrectable ECC" in said
    fake_worker.fail({})
    again = session()
    assert again.run() == dict.fromkeys(RUNS, "ok")
    assert again.named("run_started") == [SECOND]


@pytest.mark.long
@pytest.mark.parametrize("collector", ["timer", pytest.param("nsys", marks=pytest.mark.long)])
def test_a_worker_that_somebody_stopped_is_not_waited_for(session, fake_worker, collector):
    fake_worker.fail({f"{FIRST}/{collector}": ("measured", "stopped")})
    first = session({"mode": ["forward"]})
    assert first.run() == {FIRST: "machine", THIRD: "ok"}  # a run that was waited for would end with `timeout`
    said = first.record(FIRST)["status_detail"]
    assert said["message"] == "somebody stopped the worker process (SIGSTOP)" and said["phase"] == "measured steps"
    fake_worker.fail({})
    again = session({"mode": ["forward"]})
    assert again.run() == {FIRST: "ok", THIRD: "ok"}
    assert again.named("run_finished") == [FIRST]


@pytest.mark.long
def test_a_machine_that_fails_run_after_run_ends_the_sweep(session, fake_worker):
    fake_worker.fail({f"{run}/timer": ("measured", "killed") for run in ORDER[:3]})
    one = session()
    with pytest.raises(CollectorError, match="the machine failed 3 runs in a row, the last one: worker process died"):
        one.run()
    assert one.stages("timer") == ORDER[:3]
    fake_worker.fail({})
    assert session().run() == dict.fromkeys(RUNS, "ok")


@pytest.mark.long
def test_machine_failures_between_good_runs_do_not_end_the_sweep(session, fake_worker):
    fake_worker.fail({f"{run}/timer": ("measured", "killed") for run in (ORDER[0], ORDER[1], ORDER[3])})
    assert session().run() == dict.fromkeys(ORDER, "machine") | {ORDER[2]: "ok"}


@pytest.mark.long
def test_retry_keeps_what_the_timer_measured_where_only_nsys_failed(session, fake_worker):
    fake_worker.fail({f"{SECOND}/nsys": ("measured", "failed"), f"{THIRD}/timer": ("measured", "failed")})
    first = session()
    assert first.run() == {FIRST: "ok", SECOND: "failed", THIRD: "failed", LAST: "ok"}
    timings = (first.results.folder / SECOND / "timings.json").read_bytes()
    fake_worker.fail({})
    again = session(retry=True)
    assert again.run() == dict.fromkeys(RUNS, "ok")
    assert again.stages("timer") == [THIRD]
    assert sorted(again.stages("nsys")) == sorted([SECOND, THIRD])
    assert (first.results.folder / SECOND / "timings.json").read_bytes() == timings
    assert again.record(SECOND)["status_detail"] is None


@pytest.mark.long
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
        self.init = gpu_executor.GpuExecutor.__init__

        def on_cpu(one, state, gpus, ranks):
            state.device = "cpu"
            self.init(one, state, (), ranks)
            state.device = "cuda"

        gpu_executor.GpuExecutor.__init__ = on_cpu

    def __exit__(self, *_):
        gpu_executor.GpuExecutor.__init__ = self.init


@pytest.mark.long
def test_an_incomplete_capture_is_measured_again(session, monkeypatch):
    steps = {SECOND: iter([2])}
    monkeypatch.setattr(attempt, "count_kernels_and_steps", lambda _: (100, 3))
    monkeypatch.setattr(
        attempt, "count_steps_of_processes", lambda database: [next(steps.get(database.parent.name, iter([])), 3)]
    )
    one = session()
    with OnGpu(one):
        assert one.run() == dict.fromkeys(RUNS, "ok")
    assert one.named("run_repeated") == [SECOND]
    assert one.stages("timer") == one.named("run_started") == ORDER
    assert Counter(one.stages("nsys")) == Counter([*RUNS, SECOND])
    assert Counter(one.named("run_finished")) == Counter(RUNS)
    assert Counter(one.named("stage_finished")) == Counter(2 * RUNS)


@pytest.mark.long
def test_a_capture_that_stays_incomplete_fails_in_the_end(session, monkeypatch):
    monkeypatch.setattr(attempt, "count_kernels_and_steps", lambda _: (100, 2))
    monkeypatch.setattr(attempt, "count_steps_of_processes", lambda _: [2])
    one = session({"mode": ["forward"], "context_length": [8]})
    with OnGpu(one):
        assert one.run() == {FIRST: "failed"}
    assert one.record(FIRST)["status_detail"]["message"] == "nsys recorded 2 of 3 steps (see nsys.log)"
    assert len(one.named("run_repeated")) == sweep_state.MAX_REPEATS
    assert len(one.stages("timer")) == 1


def test_a_capture_without_kernels_says_so(session, monkeypatch):
    monkeypatch.setattr(attempt, "count_kernels_and_steps", lambda _: (0, 3))
    one = session({"mode": ["forward"], "context_length": [8]})
    with OnGpu(one):
        assert one.run() == {FIRST: "no_kernels"}
    assert len(one.named("run_repeated")) == sweep_state.MAX_REPEATS  # a capture may be lost
    assert "no kernel" in one.record(FIRST)["status_detail"]["message"]


def test_where_no_capture_is_ever_whole_not_every_run_is_repeated(session, monkeypatch):
    monkeypatch.setattr(attempt, "count_kernels_and_steps", lambda _: (0, 3))
    one = session()
    with OnGpu(one):
        assert one.run() == dict.fromkeys(RUNS, "no_kernels")
    assert len(one.named("run_repeated")) == sweep_state.MAX_REPEATS


@pytest.fixture
def losing_nsys(monkeypatch):
    """losing_nsys(command, run, times, why): an nsys that fails at `command` of a run's capture so many times."""

    def lose(failing, run, times, why="/opt/nsys/lost"):
        left = [times]

        def said(command, *options, log=None, **environment):
            if command == failing and log and log.path.parent.name == run and left[0]:
                left[0] -= 1
                log(command, "Importing /opt/nsys/x: lost")
                log.complaints.append("Not all CUDA events might have been collected.")
                if command == "export":
                    raise CollectorError(f"nsys export failed: {why}")
                run_nsys(command, *options, **environment)
                raise CollectorError(f"nsys {command} failed: {why}")
            return run_nsys(command, *options, log=log, **environment)

        monkeypatch.setattr(collectors, "run_nsys", said)
        monkeypatch.setattr(nsys_cli, "run_nsys", said)

    return lose


@pytest.mark.long
@pytest.mark.parametrize("command", ["start", "stop", "export"])
def test_a_lost_capture_is_repeated_with_its_reason_and_its_report_kept_until_then(session, losing_nsys, command):
    losing_nsys(command, SECOND, 1)
    one = session()
    lost = one.results.raw / f"{SECOND}.lost.nsys-rep"
    kept_before = []
    resume = one.results.resume
    one.results.resume = lambda run, timed: (kept_before.append((run.run_id, lost.exists())), resume(run, timed))[1]
    assert one.run() == dict.fromkeys(RUNS, "ok")
    (told,) = [event for event in one.events if event["event"] == "run_repeated"]
    phase = {"start": "start of capture", "stop": "end of capture", "export": "export"}[command]
    assert told["run"] == SECOND
    said = "nsys said: Not all CUDA events might have been collected. (see nsys.log)"
    assert told["why"] == f"{phase}: nsys {command} failed: lost; {said}"
    assert (SECOND, command != "start") in kept_before
    assert not lost.exists()
    assert (one.results.raw / f"{SECOND}.nsys-rep").exists()
    log = (one.results.folder / SECOND / "nsys.log").read_text()
    assert f"{command}: Importing x: lost" in log
    assert log.count("stop: done") == (2 if command == "export" else 1)
    assert len(one.stages("timer")) == len(RUNS)


@pytest.mark.long
def test_a_capture_that_stays_lost_says_what_nsys_said_and_keeps_its_report(session, losing_nsys):
    losing_nsys("stop", FIRST, 9)
    one = session()
    assert one.run() == dict.fromkeys(RUNS, "ok") | {FIRST: "failed"}
    detail = one.record(FIRST)["status_detail"]
    assert detail["phase"] == "end of capture"
    assert "nsys said: Not all CUDA events might have been collected. (see nsys.log)" in detail["message"]
    assert (one.results.raw / f"{FIRST}.lost.nsys-rep").exists()
    again = session(retry=True)
    losing_nsys("stop", FIRST, 0)
    assert again.run() == dict.fromkeys(RUNS, "ok")
    assert not (one.results.raw / f"{FIRST}.lost.nsys-rep").exists()


@pytest.mark.long
def test_a_capture_lost_while_the_sweep_stops_is_interrupted_and_not_repeated(session, losing_nsys, monkeypatch):
    losing_nsys("stop", FIRST, 1)
    one = session()
    set_aside = Results.set_capture_aside
    monkeypatch.setattr(Results, "set_capture_aside", lambda *a: (set_aside(*a), one.runner.stop()))
    with pytest.raises(Stopped):
        one.run()
    assert one.named("run_repeated") == []
    assert FIRST in one.named("run_interrupted")
    assert one.results.read_in_flight(one.sweep.runs[0]) == "interrupted"
    assert session().run() == dict.fromkeys(RUNS, "ok")


@pytest.mark.long
@pytest.mark.parametrize("command", ["stop", "export"])
def test_a_full_disk_is_not_taken_for_a_lost_capture(session, losing_nsys, command):
    losing_nsys(command, FIRST, 1, "No space left on device")
    one = session()
    with pytest.raises(OSError, match="No space"):
        one.run()
    assert one.named("run_repeated") == []
    assert one.results.record(one.sweep.runs[RUNS.index(FIRST)]) is None
    assert session().run() == dict.fromkeys(RUNS, "ok")


class NsysCalls:
    """Notes what is asked of nsys, and when; `before_stop` is called first when a capture ends."""

    def __init__(self, monkeypatch):
        self.calls: list[tuple[str, str, float, float]] = []  # command, session, began, ended
        self.before_stop = lambda: None
        monkeypatch.setattr(collectors, "run_nsys", self)

    def __call__(self, command, *options, **environment):
        began = time.monotonic()
        if command == "stop":
            self.before_stop()
        said = run_nsys(command, *options, **environment)
        self.calls.append((command, options[0], began, time.monotonic()))
        return said

    def of(self, command):
        return sorted((call for call in self.calls if call[0] == command), key=lambda call: call[2])


@pytest.fixture
def nsys_calls(monkeypatch):
    return NsysCalls(monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("gpus", [(0,), (0, 1)])
def test_nsys_does_nothing_while_unprofiled_steps_are_measured(session, fake_worker, monkeypatch, gpus):
    """The first run is the slow one: the other GPU has nothing left to time, and waits."""
    doings = []

    def note(command, *options, **environment):
        doings.append(time.monotonic())
        return run_nsys(command, *options, **environment)

    monkeypatch.setattr(collectors, "run_nsys", note)
    keep_timings = Results.keep_timings

    def slow(results, run, tables, process):
        if run.run_id == FIRST:
            time.sleep(1)
        keep_timings(results, run, tables, process)
        ended.append(time.monotonic())

    ended: list[float] = []
    monkeypatch.setattr(Results, "keep_timings", slow)
    one = session(gpus=gpus)
    assert one.run() == dict.fromkeys(RUNS, "ok")
    assert len(ended) == len(RUNS)
    assert not [at for at in doings if at < max(ended)]
    began = {name.rpartition("/")[2]: at for name, at in reversed(fake_worker.measured_at.items())}
    assert began["nsys"] > max(ended)


def test_a_capture_ends_while_the_next_run_is_measured(session, fake_worker, nsys_calls):
    nsys_calls.before_stop = lambda: eventually(lambda: f"{SECOND}/nsys" in fake_worker.measured_at)
    assert session().run() == dict.fromkeys(RUNS, "ok")
    sessions = [session for _, session, *_ in nsys_calls.of("start")]
    assert sessions[0] != sessions[1]
    assert len(set(sessions)) == gpu_executor.NSYS_WORKERS
    _, _, stop_began, stop_ended = next(call for call in nsys_calls.of("stop") if call[1] == sessions[0])
    assert stop_began < fake_worker.measured_at[f"{SECOND}/nsys"] < stop_ended


@pytest.mark.long
def test_measured_steps_wait_until_a_capture_has_settled(session, fake_worker, nsys_calls):
    one = session()
    one.runner.state.cooldown_s = 0.4
    assert one.run() == dict.fromkeys(RUNS, "ok")
    disturbed = [ended for *_, ended in nsys_calls.of("start")] + [began for *_, began, _ in nsys_calls.of("stop")]
    assert len(disturbed) == 8
    assert len(fake_worker.measured_at) == 8
    waits = [at - before for at in fake_worker.measured_at.values() for before in disturbed if before < at]
    assert min(waits) >= 0.39


def test_a_run_that_fails_unprofiled_opens_no_capture(session, fake_worker, nsys_calls):
    fake_worker.fail({f"{FIRST}/timer": ("warm-up", "oom"), f"{SECOND}/timer": ("measured", "segfault")})
    assert session().run() == {FIRST: "oom", SECOND: "failed", THIRD: "ok", LAST: "ok"}
    assert len(nsys_calls.of("start")) == len(nsys_calls.of("stop")) == 2


def test_a_worker_that_fails_in_a_capture_is_replaced_with_its_session(session, fake_worker, nsys_calls):
    fake_worker.fail({f"{FIRST}/nsys": ("warm-up", "oom")})
    one = session({"context_length": [8]})
    one.runner.state.cooldown_s = 0.4
    assert one.run() == {FIRST: "oom", SECOND: "ok"}
    assert len(nsys_calls.of("start")) == 2
    assert len(nsys_calls.of("stop")) == 1
    assert (one.results.folder / FIRST / "timings.json").exists()


@pytest.mark.long
@pytest.mark.parametrize("moment", ["warm-up", "measured"])
def test_a_worker_that_dies_under_nsys_takes_its_capture_with_it_and_the_run_is_profiled_again(
    session, fake_worker, moment
):
    fake_worker.fail({f"{SECOND}/nsys": (moment, "segfault_once")})
    one = session()
    assert one.run() == dict.fromkeys(RUNS, "ok")
    (told,) = [event for event in one.events if event["event"] == "run_repeated"]
    phase = {"warm-up": "build or warm-up", "measured": "measured steps"}[moment]
    assert told["run"] == SECOND
    assert re.fullmatch(rf"{phase}: worker process died \(exit \d+\) under nsys \(see nsys.log\)", told["why"])
    assert "about to segfault" in (one.results.folder / SECOND / "log.txt").read_text()


@pytest.mark.long
def test_a_worker_that_always_dies_under_nsys_fails_its_run_and_keeps_what_nsys_left(session, fake_worker, monkeypatch):
    begin_capture = Nsys.begin_capture

    def begin(collector, folder):
        begin_capture(collector, folder)
        (collector.worker.home / "profile.qdstrm").write_text("half a report")
        (collector.worker.home / "log.txt").write_text("the target aborted")

    monkeypatch.setattr(Nsys, "begin_capture", begin)
    fake_worker.fail({f"{SECOND}/nsys": ("measured", "segfault")})
    one = session()
    assert one.run() == dict.fromkeys(RUNS, "ok") | {SECOND: "failed"}
    assert one.named("run_repeated") == [SECOND] * sweep_state.MAX_REPEATS
    assert (one.results.folder / SECOND / "nsys.log").read_text().count("launch: the target aborted") == 3
    assert (one.results.raw / f"{SECOND}.lost.qdstrm").read_text() == "half a report"
    assert "worker process died" in one.record(SECOND)["status_detail"]["message"]


class Killed(BaseException):
    """Ends a session where a kill would, with nothing tidied up in the results."""


@pytest.fixture
def killed_between_the_stages(session, monkeypatch):
    with monkeypatch.context() as patched:

        def kill(executor):
            raise Killed

        patched.setattr(gpu_executor.GpuExecutor, "profile_runs", kill)
        one = session()
        with pytest.raises(Killed):
            one.run()
    return one


def test_what_was_timed_is_not_timed_again(session, fake_worker, killed_between_the_stages):
    folder = killed_between_the_stages.results.folder
    timings = {run: (folder / run / "timings.json").read_bytes() for run in RUNS}
    started = json.loads((folder / FIRST / "timed.json").read_text())["started_at"]
    (folder / SECOND / "profile.sqlite").write_text("of a capture that was cut short")
    again = session()
    assert again.run() == dict.fromkeys(RUNS, "ok")
    assert again.events[0]["timed"] == len(RUNS)
    assert again.events[0]["predicted_s"].keys() == set(RUNS)
    assert {collector for one in again.events[0]["predicted_s"].values() for collector in one} == {"nsys"}
    assert again.stages("timer") == again.named("run_started") == []
    assert {run: (folder / run / "timings.json").read_bytes() for run in RUNS} == timings
    record = again.record(FIRST)
    assert record["started_at"] == started
    assert set(record["seconds"]) == {"nsys", "export"} and len(record["timed"]) == 1
    assert "timer: " in (folder / FIRST / "log.txt").read_text()
    assert not list(folder.glob("*/timed.json"))


@pytest.mark.long
@pytest.mark.parametrize("name", ["timed.json", "timings.json"])
def test_a_run_whose_timings_are_cut_short_is_timed_again(session, killed_between_the_stages, name):
    path = killed_between_the_stages.results.folder / SECOND / name
    path.write_text(path.read_text()[:40])
    again = session()
    assert again.run() == dict.fromkeys(RUNS, "ok")
    assert again.stages("timer") == [SECOND]


def test_a_run_timed_on_another_machine_is_timed_again(session, killed_between_the_stages):
    path = killed_between_the_stages.results.folder / SECOND / "timed.json"
    timed = json.loads(path.read_text())
    rewrite(path, machine=timed["machine"] | {"gpu_name": "another"})
    again = session()
    assert again.run() == dict.fromkeys(RUNS, "ok")
    assert again.stages("timer") == again.named("run_repeated") == [SECOND]
    assert again.record(SECOND)["machine"]["gpu_name"] == "none"


def measure_elsewhere(folder, run_ids, **facts):
    """As if finished runs had been measured on a machine with other facts."""
    for run_id in run_ids:
        path = folder / run_id / "run.json"
        rewrite(path, machine=json.loads(path.read_text())["machine"] | facts)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


@pytest.mark.parametrize("fact", ["gpu_name", "driver", "cuda", "torch", "nsys", "commit"])
def test_runs_finished_with_another_version_are_refused_before_anything_is_measured(session, fact):
    first = session()
    first.run()
    folder = first.results.folder
    measure_elsewhere(folder, RUNS[1:3], **{fact: "another"})
    (folder / FIRST / "run.json").unlink()
    before = contents(folder)
    again = session()
    with pytest.raises(sweep_runner.MixedVersions) as refused:
        again.run()
    here = first.record(LAST)["machine"][fact] or "unknown"
    said = str(refused.value)
    assert said.startswith(f"2 of 3 finished runs in {folder} were measured with other versions: ")
    assert f"{fact} another (2 runs), here {here};" in said
    assert all(way in said for way in ("another --results", "--allow-mix", "remove the folders of those runs"))
    assert again.named("run_started") == again.named("run_repeated") == []
    assert contents(folder) == before


def test_a_mix_that_is_allowed_is_told(session):
    first = session()
    first.run()
    folder = first.results.folder
    measure_elsewhere(folder, RUNS[1:3], torch="1.0", gpu_name="another")
    measure_elsewhere(folder, RUNS[3:], torch="2.0")
    (folder / FIRST / "run.json").unlink()
    again = session(allow_mix=True)
    assert again.run() == dict.fromkeys(RUNS, "ok")
    here = again.record(FIRST)["machine"]
    differences = {
        "gpu_name": {"here": "none", "runs": {"another": 2}},
        "torch": {"here": here["torch"], "runs": {"1.0": 2, "2.0": 1}},
    }
    told = {"event": "mixed_versions", "runs": 3, "differences": differences}
    assert [one for one in again.events if one["event"] == "mixed_versions"] == [told]
    assert again.named("run_started") == [FIRST]


@pytest.mark.long
def test_a_commit_that_is_not_known_equals_nothing_but_itself(session, monkeypatch):
    first = session()
    first.run()
    folder = first.results.folder
    measure_elsewhere(folder, RUNS[1:], commit="")
    (folder / FIRST / "run.json").unlink()
    with pytest.raises(sweep_runner.MixedVersions, match=r"commit unknown \(3 runs\), here this"):
        session().run()
    monkeypatch.setenv("PROFILER_COMMIT", "")
    assert session().run() == dict.fromkeys(RUNS, "ok")


@pytest.mark.parametrize("facts", [{"python": "3.1.1"}, {"gpu_memory_bytes": 1}])
def test_python_and_the_bytes_of_memory_make_no_mix(session, facts):
    first = session()
    first.run()
    measure_elsewhere(first.results.folder, RUNS[1:], **facts)
    (first.results.folder / FIRST / "run.json").unlink()
    assert session().run() == dict.fromkeys(RUNS, "ok")


def test_where_nothing_is_left_to_measure_nothing_is_refused(session):
    first = session()
    first.run()
    measure_elsewhere(first.results.folder, RUNS, torch="1.0")
    assert session().run() == dict.fromkeys(RUNS, "ok")


@pytest.mark.long
def test_failed_runs_that_are_measured_again_make_no_mix(session, fake_worker):
    fake_worker.fail({f"{FIRST}/timer": ("warm-up", "failed")})
    first = session()
    first.run()
    measure_elsewhere(first.results.folder, [FIRST], torch="1.0")
    fake_worker.fail({})
    assert session(retry=True).run() == dict.fromkeys(RUNS, "ok")


def test_a_changed_protocol_times_again_what_was_only_timed(session, killed_between_the_stages):
    again = session({"measured_steps": 3})
    again.run()
    assert again.stages("timer") == ORDER


@pytest.mark.long
def test_an_export_that_fails_while_the_next_run_is_measured_fails_its_run_alone(session, fake_worker, monkeypatch):
    scrub = nsys_cli.scrub

    def damaged(database):
        if database.parent.name == SECOND:
            eventually(lambda: f"{THIRD}/nsys" in fake_worker.measured_at)
            sqlite3.connect(database).execute("SELECT broken")
        scrub(database)

    monkeypatch.setattr(nsys_cli, "scrub", damaged)
    one = session()
    assert one.run() == dict.fromkeys(RUNS, "ok") | {SECOND: "failed"}
    assert one.record(SECOND)["status_detail"]["phase"] == "export"


def test_a_full_disk_in_an_export_ends_the_sweep_and_keeps_what_was_measured(session, fake_worker, monkeypatch):
    def no_space(database):
        if database.parent.name == SECOND:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(database))

    monkeypatch.setattr(nsys_cli, "scrub", no_space)
    one = session({"context_length": [8, 16, 32, 64]})
    with pytest.raises(OSError, match="No space"):
        one.run()
    assert one.record(FIRST)["status"] == "ok"
    assert one.results.record(one.sweep.runs[1]) is None
    assert len(one.stages("nsys")) < len(one.sweep.runs)


def test_a_fresh_process_serves_one_stage_of_one_run(session, fake_worker):
    one = session({"fresh_process": True, "warmup_steps": 0})
    assert set(one.run().values()) == {"ok"}
    assert len({pid for _, pid in fake_worker.tasks}) == len(fake_worker.tasks) == 2 * len(RUNS)


def test_workers_share_a_folder_of_what_they_compile_which_ends_with_the_sweep(session, monkeypatch):
    monkeypatch.delenv(privacy.COMPILED, raising=False)
    start, folders = Timer.start, []

    def note(self):
        start(self)
        folders.append(self.worker.environment[privacy.COMPILED])
        assert os.path.isdir(folders[-1])

    monkeypatch.setattr(Timer, "start", note)
    session({"context_length": [8], "mode": ["forward"]}).run()
    assert len(folders) > 1
    assert len(set(folders)) == 1
    assert not os.path.exists(folders[0])


def test_without_profiled_steps_nsys_is_not_needed(session, fake_worker, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    one = session({"profiled_steps": 0})
    assert one.run() == dict.fromkeys(RUNS, "ok")
    assert {name.rpartition("/")[2] for name, _ in fake_worker.tasks} == {"timer"}
    files = {path.name for path in (one.results.folder / FIRST).iterdir()}
    assert files == {"log.txt", "run.json", "timings.json"}
    assert one.record(FIRST)["machine"]["nsys"] == ""


def test_what_the_timer_observes_is_kept(session):
    one = session()
    one.run()
    timings = json.loads((one.results.folder / FIRST / "timings.json").read_text())
    assert set(timings) == {"steps", "memory", "figures", "processes", "telemetry"}


def test_the_machine_is_calibrated_before_the_first_run_and_not_again(session, fake_worker):
    first, again = session(calibrate=True), session({"context_length": [8, 16, 32]}, calibrate=True)
    for one in (first, again):
        with OnGpu(one):
            one.run()
    assert [name for name, _ in fake_worker.tasks].count("calibrate/timer") == 1
    assert fake_worker.tasks[0][0] == "calibrate/timer"
    assert json.loads((first.results.folder / "calibration.json").read_text())[0]["figure"] == "gemm_fp32"


@pytest.mark.parametrize("older", ['[{"figure": "copy", "gpu_name": "another"}]', '[{"figure": "copy"}]', "[{"])
def test_rates_that_are_not_known_to_be_of_this_gpu_are_measured_again(session, fake_worker, older):
    one = session({"context_length": [8], "mode": ["forward"]}, calibrate=True)
    one.results.folder.mkdir(parents=True)
    (one.results.folder / "calibration.json").write_text(older)
    with OnGpu(one):
        one.run()
    rates = json.loads((one.results.folder / "calibration.json").read_text())
    assert [(rate["figure"], rate["gpu_name"]) for rate in rates] == [("gemm_fp32", "none")]


def test_a_machine_that_cannot_be_calibrated_measures_nothing(session, fake_worker, monkeypatch):
    monkeypatch.setattr(collectors, "CALIBRATE_TIMEOUT_S", 0.2)
    fake_worker.fail({"calibrate/timer": ("measured", "hang")})
    one = session(calibrate=True)
    with OnGpu(one), pytest.raises(CollectorError, match="rates cannot be measured: no answer within"):
        one.run()
    assert one.named("run_started") == []
    assert not (one.results.folder / "calibration.json").exists()


def test_without_nsys_the_message_says_what_to_install(session, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(CollectorError, match="profiler-job install-nsys"):
        session().run()


def test_a_worker_that_cannot_start_is_reported_with_its_last_line(session, fake_worker):
    (fake_worker.folder / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if sys.orig_argv[1:4] == ['-P', '-m', 'profiler_job.jobs.worker']:\n"
        "    print('ImportError: libcuda.so.1', file=sys.stderr, flush=True)\n"
        "    os._exit(1)\n"
    )
    with pytest.raises(CollectorError, match=r"did not start: ImportError: libcuda\.so\.1"):
        session().run()


@pytest.mark.long
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
    thread.join(HANGS_S)
    assert not thread.is_alive(), f"the sweep does not stop within {HANGS_S} s"
    return ended[0]


def in_stage(run, stage):
    return lambda one: {"event": "stage_started", "run": run, "stage": stage} in one.events


@pytest.mark.parametrize("collector", ["timer", "nsys"])
def test_a_stop_marks_the_run_in_flight_and_keeps_the_others(session, fake_worker, collector):
    order = ORDER if collector == "timer" else RUNS
    third, last = order[2:]
    fake_worker.fail({f"{third}/{collector}": ("measured", "hang")})
    one = session()
    assert isinstance(stop_when(one, in_stage(third, collector)), Stopped)
    assert one.named("run_interrupted") == [third]
    runs = sorted(one.sweep.runs, key=lambda run: order.index(run.run_id))
    assert [one.results.read_in_flight(run) for run in runs] == [None, None, "interrupted", None]
    kept = one.results.record if collector == "nsys" else lambda run: one.results.timed(run, one.sweep.protocol)
    assert [kept(run) is not None for run in runs] == [True, True, False, False]
    fake_worker.fail({})
    again = session()
    assert again.run() == dict.fromkeys(RUNS, "ok")
    assert again.stages("timer") == ([third, last] if collector == "timer" else [])
    assert again.stages("nsys") == (RUNS if collector == "timer" else [third, last])
    assert again.results.read_in_flight(runs[2]) is None


@pytest.mark.long
def test_a_stop_lets_the_export_in_progress_finish(session, fake_worker, monkeypatch):
    """Its session stays, while the run that is measured meanwhile is given up."""
    end_capture = Nsys.end_capture
    stopped = threading.Event()

    def slow(self):
        assert stopped.wait(HANGS_S)
        time.sleep(1)
        assert self.worker.process.poll() is None
        return end_capture(self)

    monkeypatch.setattr(Nsys, "end_capture", slow)
    fake_worker.fail({f"{SECOND}/nsys": ("measured", "hang")})
    one = session()
    stop = one.runner.stop
    monkeypatch.setattr(one.runner, "stop", lambda: (stop(), stopped.set()))
    assert isinstance(stop_when(one, lambda _: f"{SECOND}/nsys" in fake_worker.measured_at), Stopped)
    assert one.record(FIRST)["status"] == "ok"
    assert one.named("run_finished") == [FIRST]
    assert one.named("run_interrupted") == [SECOND]
    assert one.results.timed(one.sweep.runs[1], one.sweep.protocol)


def test_a_stop_while_a_worker_starts_does_not_wait_for_it(session, fake_worker):
    (fake_worker.folder / "sitecustomize.py").write_text(
        "import pathlib, sys, time\n"
        "if sys.orig_argv[1:4] == ['-P', '-m', 'profiler_job.jobs.worker']:\n"
        f"    pathlib.Path({str(fake_worker.folder)!r}, 'starting').touch()\n"
        "    time.sleep(3600)\n"
    )
    one = session()
    assert isinstance(stop_when(one, lambda _: (fake_worker.folder / "starting").exists()), Stopped)


def test_several_gpus_share_one_queue(session, fake_worker):
    one = session(gpus=(0, 1))
    assert one.run() == dict.fromkeys(RUNS, "ok")
    assert Counter(one.named("run_started")) == Counter(RUNS)
    assert len({pid for name, pid in fake_worker.tasks if name.endswith("/timer")}) == len(RUNS)
    assert {event["gpu"] for event in one.events if event["event"] == "run_started"} == {0}  # without one, on the CPU


def test_what_breaks_on_one_gpu_ends_the_sweep_at_once_on_all(session, fake_worker, monkeypatch):
    """One GPU hangs in the first run of the order when the other finds the disk full."""
    fake_worker.fail({f"{ORDER[0]}/timer": ("measured", "hang")})

    def full(results, run, tables, process):
        eventually(lambda: f"{ORDER[0]}/timer" in fake_worker.measured_at)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Results, "keep_timings", full)
    one = session(gpus=(0, 1))
    with pytest.raises(OSError, match="No space"):
        one.run()
    assert one.named("run_interrupted") == [ORDER[0]]
    assert len(one.named("run_started")) == 2


def test_gpus_of_several_kinds_are_refused(session, monkeypatch):
    kinds = iter(["A100", "H100"])
    monkeypatch.setattr(gpu_executor, "read_machine_facts", lambda facts, with_nsys: Machine(gpu_name=next(kinds)))
    one = session(gpus=(0, 1))
    with pytest.raises(CollectorError, match=r"the GPUs differ \(A100, H100\)"):
        one.run()
    assert one.named("run_started") == []


def test_several_gpus_profile_the_longest_run_first(session):
    queued = []

    class Queue(queue.SimpleQueue):
        def put(self, run):
            queued.append(run.run_id)
            super().put(run)

    one = session({"context_length": [8, 512]}, gpus=(0, 1))
    one.runner.state.queue = Queue()
    one.run()
    assert queued[len(one.sweep.runs)] == "tiny-ctx512-fp32-naive-train_step"
