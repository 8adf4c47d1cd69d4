"""Order, isolation, statuses, stops and several GPUs, with a worker that computes nothing and the fake nsys."""

import errno
import json
import os
import sqlite3
import threading
import time
from collections import Counter

import pytest

from profiler_job.jobs.contract import privacy
from profiler_job.jobs.contract.layout import Machine
from profiler_job.jobs.executor import attempt, collectors, gpu_executor, nsys_cli
from profiler_job.jobs.executor.collectors import Nsys, Timer
from profiler_job.jobs.executor.failures import CollectorError
from profiler_job.jobs.executor.result_store import LockedError, Results
from profiler_job.jobs.executor.sweep_runner import StoppedError
from profiler_job.jobs.executor.sweep_state import SweepState
from profiler_job.jobs.sweep.batches import NSYS_WORKERS
from tests.jobs.conftest import eventually
from tests.jobs.tiny_runs import FIRST, LAST, ORDER, RUNS, SECOND, THIRD, OnGpu
from tests.waiting import HANGS_S

pytestmark = pytest.mark.usefixtures("no_worker_is_left")


def test_every_run_is_timed_in_a_fresh_process_and_profiled_in_a_warm_one(session, fake_worker):
    first = session()
    assert first.run() == dict.fromkeys(RUNS, "ok")
    assert Counter(name for name, _ in fake_worker.tasks) == {
        f"{run}/{c}": 1 for run in RUNS for c in ("timer", "nsys")
    }
    assert len(workers(fake_worker, "timer")) == len(RUNS)
    assert len(workers(fake_worker, "nsys")) == NSYS_WORKERS
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
    """Each run has a timeout: here it is short for the runs that hang."""
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
    with one.results.lock(), pytest.raises(LockedError, match=f"pid {os.getpid()} on "):
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


def has_begun_stage(run, stage):
    return lambda one: {"event": "stage_started", "run": run, "stage": stage} in one.events


@pytest.mark.parametrize("collector", ["timer", "nsys"])
def test_a_stop_marks_the_run_in_flight_and_keeps_the_others(session, fake_worker, collector):
    order = ORDER if collector == "timer" else RUNS
    third, last = order[2:]
    fake_worker.fail({f"{third}/{collector}": ("measured", "hang")})
    one = session()
    assert isinstance(stop_when(one, has_begun_stage(third, collector)), StoppedError)
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
    assert isinstance(stop_when(one, lambda _: f"{SECOND}/nsys" in fake_worker.measured_at), StoppedError)
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
    assert isinstance(stop_when(one, lambda _: (fake_worker.folder / "starting").exists()), StoppedError)


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


def test_several_gpus_profile_the_longest_run_first(session, monkeypatch):
    queued = []
    enqueue = SweepState.enqueue
    monkeypatch.setattr(SweepState, "enqueue", lambda state, run: queued.append(run.run_id) or enqueue(state, run))
    one = session({"context_length": [8, 16384]}, gpus=(0, 1))
    one.run()
    assert queued[len(one.sweep.runs)] == "tiny-ctx16384-fp32-naive-train_step"
