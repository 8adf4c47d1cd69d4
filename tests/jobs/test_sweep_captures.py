"""Captures of a sweep: when they begin and end, and what becomes of one that is lost or not whole."""

import re
import time
from collections import Counter

import pytest

from profiler_job.jobs.executor import attempt, collectors, gpu_executor, nsys_cli, sweep_state
from profiler_job.jobs.executor.collectors import Nsys
from profiler_job.jobs.executor.failures import CollectorError
from profiler_job.jobs.executor.nsys_cli import run_nsys
from profiler_job.jobs.executor.python_samples import is_limited_by_cpu
from profiler_job.jobs.executor.result_store import Results
from profiler_job.jobs.executor.sweep_runner import StoppedError
from profiler_job.jobs.sweep.batches import NSYS_WORKERS
from tests.jobs.conftest import eventually
from tests.jobs.tiny_runs import FIRST, LAST, ORDER, RUNS, SECOND, THIRD, OnGpu

pytestmark = pytest.mark.usefixtures("no_worker_is_left")


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

        def run_or_lose(command, *options, log=None, **environment):
            if command == failing and log and log.path.parent.name == run and left[0]:
                left[0] -= 1
                log(command, "Importing /opt/nsys/x: lost")
                log.complaints.append("Not all CUDA events might have been collected.")
                if command == "export":
                    raise CollectorError(f"nsys export failed: {why}")
                run_nsys(command, *options, **environment)
                raise CollectorError(f"nsys {command} failed: {why}")
            return run_nsys(command, *options, log=log, **environment)

        monkeypatch.setattr(collectors, "run_nsys", run_or_lose)
        monkeypatch.setattr(nsys_cli, "run_nsys", run_or_lose)

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
    with pytest.raises(StoppedError):
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

    def find(self, command):
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
    sessions = [session for _, session, *_ in nsys_calls.find("start")]
    assert sessions[0] != sessions[1]
    assert len(set(sessions)) == NSYS_WORKERS
    _, _, stop_began, stop_ended = next(call for call in nsys_calls.find("stop") if call[1] == sessions[0])
    assert stop_began < fake_worker.measured_at[f"{SECOND}/nsys"] < stop_ended


@pytest.mark.long
def test_measured_steps_wait_until_a_capture_has_settled(session, fake_worker, nsys_calls):
    one = session()
    one.runner.state.cooldown_s = 0.4
    assert one.run() == dict.fromkeys(RUNS, "ok")
    disturbed = [ended for *_, ended in nsys_calls.find("start")] + [began for *_, began, _ in nsys_calls.find("stop")]
    assert len(disturbed) == 8
    assert len(fake_worker.measured_at) == 8
    waits = [at - before for at in fake_worker.measured_at.values() for before in disturbed if before < at]
    assert min(waits) >= 0.39


def test_a_run_that_fails_unprofiled_opens_no_capture(session, fake_worker, nsys_calls):
    fake_worker.fail({f"{FIRST}/timer": ("warm-up", "oom"), f"{SECOND}/timer": ("measured", "segfault")})
    assert session().run() == {FIRST: "oom", SECOND: "failed", THIRD: "ok", LAST: "ok"}
    assert len(nsys_calls.find("start")) == len(nsys_calls.find("stop")) == 2


def test_a_worker_that_fails_in_a_capture_is_replaced_with_its_session(session, fake_worker, nsys_calls):
    fake_worker.fail({f"{FIRST}/nsys": ("warm-up", "oom")})
    one = session({"context_length": [8]})
    one.runner.state.cooldown_s = 0.4
    assert one.run() == {FIRST: "oom", SECOND: "ok"}
    assert len(nsys_calls.find("start")) == 2
    assert len(nsys_calls.find("stop")) == 1
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


ONE_SAMPLED = {"mode": ["train_step"], "context_length": [8], "samples": True}


def test_a_run_that_the_cpu_limits_has_a_capture_with_samples_of_python(session, monkeypatch):
    launched = []
    begin = Nsys.begin_capture
    monkeypatch.setattr(collectors, "keep_samples", lambda database, folder: 7)
    monkeypatch.setattr(gpu_executor, "is_limited_by_cpu", lambda steps: True)
    monkeypatch.setattr(Nsys, "begin_capture", lambda one, folder: launched.append(one.launcher) or begin(one, folder))
    one = session(ONE_SAMPLED)
    assert one.run() == {SECOND: "ok"}
    folder = one.results.folder / SECOND
    assert {"profile.sqlite", "samples.sqlite"} <= one.record(SECOND)["files"].keys()
    assert (folder / "samples.sqlite").is_file() and not (folder / "profile.nsys-rep").exists()
    with_samples = ["--python-sampling=true" in launcher for launcher in launched]
    assert with_samples == [True, False] and one.named("samples_left_out") == []


def test_samples_begin_after_the_warm_up(session, monkeypatch):
    """A compilation holds a hundred times as many as the steps: the export of one took minutes."""
    called = []
    begin, measure = collectors.SampledNsys.begin_capture, collectors.SampledNsys.measure
    monkeypatch.setattr(collectors, "keep_samples", lambda database, folder: 7)
    monkeypatch.setattr(gpu_executor, "is_limited_by_cpu", lambda steps: True)

    def note_measure(sampler, run, *, between, **options):
        def note(event):
            called.append(event)
            between(event)

        return measure(sampler, run, between=note, **options)

    def note_begin(sampler, folder):
        called.append("capture")
        begin(sampler, folder)

    monkeypatch.setattr(collectors.SampledNsys, "measure", note_measure)
    monkeypatch.setattr(collectors.SampledNsys, "begin_capture", note_begin)
    assert session(ONE_SAMPLED).run() == {SECOND: "ok"}
    assert called == ["ready", "capture", "measured"]


def test_without_samples_a_run_is_measured_all_the_same(session, monkeypatch):
    monkeypatch.setattr(collectors, "keep_samples", lambda database, folder: 0)
    monkeypatch.setattr(gpu_executor, "is_limited_by_cpu", lambda steps: True)
    one = session(ONE_SAMPLED)
    assert one.run() == {SECOND: "ok"}
    assert one.named("samples_left_out") == [SECOND] and "samples.sqlite" not in one.record(SECOND)["files"]


def test_an_nsys_that_cannot_sample_measures_all_the_same(session, monkeypatch):
    def refuse(sampler):
        raise CollectorError("unrecognised option '--python-sampling=true'")

    monkeypatch.setattr(collectors.SampledNsys, "start", refuse)
    one = session(ONE_SAMPLED)
    assert one.run() == {SECOND: "ok"}
    assert one.named("samples_left_out") == [""]


def test_a_run_that_the_gpu_limits_is_not_sampled(session, monkeypatch):
    monkeypatch.setattr(gpu_executor, "is_limited_by_cpu", lambda steps: False)
    monkeypatch.setattr(collectors.SampledNsys, "begin_capture", lambda one, folder: pytest.fail("it was sampled"))
    one = session(ONE_SAMPLED)
    assert one.run() == {SECOND: "ok"}


def test_the_cpu_limits_a_step_in_which_it_issues_work_nearly_all_the_time():
    steps = [{"phase": "step", "wall_ns": 100, "issue_ns": issued} for issued in (95, 96, 20)]
    assert is_limited_by_cpu([*steps, {"phase": "forward", "wall_ns": 100, "issue_ns": 1}])
    assert not is_limited_by_cpu([row | {"issue_ns": 80} for row in steps]) and not is_limited_by_cpu([])
