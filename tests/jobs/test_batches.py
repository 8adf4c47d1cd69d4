"""Processes of a sweep that compiles: they compile side by side, and run one at a time."""

import threading

import pytest

from profiler_job.jobs.executor import collectors, gpu_executor, sweep_runner
from profiler_job.jobs.executor.failures import CollectorError
from profiler_job.jobs.executor.gate import Gate, Passage
from profiler_job.jobs.sweep import batches
from profiler_job.jobs.sweep.batches import UNKNOWN, Need
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP, load_sweep
from profiler_job.jobs.sweep.prediction import predict_stages
from tests.jobs.conftest import eventually
from tests.jobs.test_turns import GROUP, TURNS
from tests.jobs.tiny_runs import FIRST, RUNS, SECOND

pytestmark = pytest.mark.usefixtures("no_worker_is_left")

TRAINED = load_sweep(DEFAULT_SWEEP.parent / "sweeps" / "trained_1.yaml")


@pytest.fixture
def together(monkeypatch):
    """Let three processes compile side by side. Each needs one unit of memory of `room`."""

    def let(room=3.0, need=Need(1.0, 1.0)):  # noqa: B008  a constant
        monkeypatch.setattr(sweep_runner, "count_together", lambda *_: 3)
        monkeypatch.setattr(gpu_executor, "compute_room", lambda *_: room)
        monkeypatch.setattr(Need, "predict", classmethod(lambda cls, run: need))

    return let


class Moments:
    """When each process began, ran and had measured: (moment, `<run_id>/<collector>`), in order."""

    def __init__(self, monkeypatch):
        self.noted: list[tuple[str, str]] = []
        perform = collectors.Collector.perform

        def note(collector, task, timeout_s, between):
            log = task.get("log") or task["logs"][0]
            name = f"{log.split('/')[-2]}/{collector.name if 'log' in task else 'turns'}"
            self.noted.append(("begins", name))

            def noting(event):
                if event == "measured":
                    self.noted.append(("measured", name))
                between(event)
                if event in ("compiled", "ready") and ("runs", name) not in self.noted:
                    self.noted.append(("runs", name))

            return perform(collector, task, timeout_s, noting)

        monkeypatch.setattr(collectors.Collector, "perform", note)

    def check(self) -> int:
        """Check that nothing else happens while a process runs, and return the most that compiled at once."""
        most, compiling, running = 0, set(), ""
        for moment, name in self.noted:
            if moment == "begins":
                assert not running
                compiling.add(name)
                most = max(most, len(compiling))
            elif moment == "runs":
                assert not running and name in compiling
                running = name
                compiling.discard(name)
            else:
                assert running == name
                running = ""
        return most


@pytest.fixture
def moments(monkeypatch):
    return Moments(monkeypatch)


def test_processes_compile_side_by_side_and_run_one_at_a_time(session, fake_worker, together, moments):
    together()
    one = session()
    assert one.run() == dict.fromkeys(RUNS, "ok")
    assert moments.check() == 3
    assert len(fake_worker.tasks) == 2 * len(RUNS) and one.named("run_repeated") == []


def test_groups_take_their_turns_one_after_the_other(session, together, moments):
    together()
    one = session(TURNS | {"context_length": [8, 16], "processes": 2})
    assert set(one.run().values()) == {"ok"}
    assert moments.check() == 3
    assert sum(name.endswith("/turns") for moment, name in moments.noted if moment == "begins") == 2


@pytest.mark.parametrize(("room", "most"), [(2.0, 2), (1.0, 1), (0.0, 1)])
def test_only_what_fits_the_memory_together_compiles_side_by_side(session, together, moments, room, most):
    together(room)
    assert session({"mode": ["forward"], "context_length": [8, 16, 32]}).run()
    assert moments.check() == most


def test_a_run_whose_memory_is_not_known_compiles_alone(session, together, moments):
    together(need=UNKNOWN)
    assert set(session().run().values()) == {"ok"}
    assert moments.check() == 1


def test_what_runs_out_of_memory_next_to_others_is_measured_without_them(session, fake_worker, together, moments):
    together()
    fake_worker.fail({f"{FIRST}/timer": ("warm-up", "oom")})
    one = session()
    assert one.run() == dict.fromkeys(RUNS, "ok") | {FIRST: "oom"}
    assert one.named("run_repeated") == [FIRST]
    assert [name for name, _ in fake_worker.tasks].count(f"{FIRST}/timer") == 2
    last_timed = [name for moment, name in moments.noted if name.endswith("/timer")][-1]
    assert last_timed == f"{FIRST}/timer"


@pytest.mark.parametrize("moment", ["warm-up", "measured"])
def test_a_group_that_runs_out_of_memory_next_to_others_takes_its_turns_without_them(
    session, fake_worker, together, moment
):
    together()
    fake_worker.fail({f"{GROUP[0]}/turns": (moment, "oom")})
    one = session(TURNS | {"context_length": [8, 16], "processes": 2})
    assert set(one.run().values()) == {"ok"}
    turns = [name for name, _ in fake_worker.tasks if name.endswith("/turns")]
    assert sorted(GROUP[0] in name for name in turns) == [False, True, True]
    assert one.record(GROUP[0])["timed"][1]["group"] == ""  # also without them


@pytest.mark.parametrize("fault", ["failed", "segfault", "killed"])
@pytest.mark.parametrize("moment", ["warm-up", "measured"])
def test_a_process_that_fails_keeps_no_other_waiting(session, fake_worker, together, moment, fault):
    together()
    fake_worker.fail({f"{FIRST}/timer": (moment, fault), f"{SECOND}/nsys": (moment, fault)})
    statuses = session().run()
    assert statuses[FIRST] in ("failed", "machine") and statuses[SECOND] in ("failed", "machine")
    assert {statuses[run] for run in RUNS[2:]} == {"ok"}


def test_samples_are_taken_next_to_the_captures(session, together, moments, monkeypatch):
    together(room=6.0)
    monkeypatch.setattr(collectors, "keep_samples", lambda database, folder: 7)
    monkeypatch.setattr(gpu_executor, "is_limited_by_cpu", lambda steps: True)
    one = session({"samples": True})
    assert one.run() == dict.fromkeys(RUNS, "ok")
    assert moments.check() == 6
    for run in RUNS:
        assert {"profile.sqlite", "samples.sqlite"} <= one.record(run)["files"].keys()
    assert one.named("samples_left_out") == one.named("run_repeated") == []


def test_with_fewer_sessions_of_nsys_than_asked_for_batches_are_smaller(session, together, moments, monkeypatch):
    together()
    prepare, launched = collectors.Nsys.prepare, []

    def prepare_two(nsys):
        launched.append(nsys)
        if len(launched) > 2:
            raise CollectorError("too many sessions")
        prepare(nsys)

    monkeypatch.setattr(collectors.Nsys, "prepare", prepare_two)
    assert session().run() == dict.fromkeys(RUNS, "ok")
    assert len(launched) == 4
    under_nsys = [name for moment, name in moments.noted if moment == "begins" and name.endswith("/nsys")]
    assert len(under_nsys) == 4 and moments.check() == 3


def test_a_stop_ends_processes_that_wait(session, fake_worker, together):
    together()
    forward = [run for run in RUNS if "forward" in run]
    fake_worker.fail({f"{run}/timer": ("warm-up", "hang") for run in forward})  # one does, the other waits for it
    one = session({"mode": ["forward"]})
    ended: list[BaseException] = []

    def run():
        try:
            one.run()
        except sweep_runner.StoppedError as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    eventually(lambda: len(fake_worker.tasks) == 2)
    one.runner.stop()
    thread.join(30)
    assert not thread.is_alive() and len(ended) == 1
    assert sorted(one.named("run_interrupted")) == sorted(forward)


def test_processes_go_through_a_gate_in_their_order_when_all_have_come():
    gate = Gate()
    passages = [Passage(gate) for _ in range(4)]
    order: list[int] = []

    def go(number):
        passages[number]("compiled")
        order.append(number)

    threads = [threading.Thread(target=go, args=(number,), daemon=True) for number in (2, 1, 0)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(gate.waiting) == 3)
    assert not order
    passages[3].leave()  # it failed
    for number in range(3):
        eventually(lambda: len(order) == number + 1)  # noqa: B023  at once
        passages[number]("ready")
        passages[number].leave()
    assert order == [0, 1, 2]


def test_a_process_waits_with_the_memory_of_its_weights_and_one_is_at_its_peak():
    eager, compiled, *_ = TRAINED.runs
    assert (eager.compile, compiled.compile) == ("off", "default")
    need = Need.predict(eager)
    assert need.waiting == 4 * eager.num_parameters < need.peak / 4
    assert batches.sum_needs([need, need]) == need.waiting + need.peak == need.times(2).peak
    shared = Need.predict_shared([eager, compiled])
    assert batches.sum_needs([shared, shared]) == 2 * need.peak
    assert batches.sum_needs([need, UNKNOWN]) == batches.sum_needs([UNKNOWN]) == UNKNOWN.peak


def test_only_a_sweep_that_compiles_on_one_gpu_has_batches():
    runs = TRAINED.runs
    assert batches.count_together(runs, 16, 1) == len(runs) == 4
    assert batches.count_together(3 * runs, 16, 1) == batches.MOST_TOGETHER
    assert batches.count_together(runs, 2, 1) == 1
    assert batches.count_together(runs, 16, 2) == batches.count_together(runs, 16, 0) == 1
    assert batches.count_together([run for run in runs if run.compile == "off"], 16, 1) == 1


def test_the_batches_of_a_sweep_that_goes_on_have_what_is_left():
    stages = {run: predict_stages(run, TRAINED.protocol) for run in TRAINED.runs}
    whole = batches.predict_batches(stages, TRAINED.protocol, 4)
    assert sum(len(batch.running_s) for batch in whole) == sum(map(len, stages.values()))
    left = {run: {"nsys": seconds["nsys"]} for run, seconds in stages.items()}
    (last,) = batches.predict_batches(left, TRAINED.protocol, 4)
    assert last.running_s == whole[-1].running_s
    assert last.before_s == pytest.approx(batches.START_S + whole[-1].before_s)


def test_a_batch_is_taken_in_order():
    assert batches.take_batch([5, 3, 9, 1, 2], lambda batch: sum(batch) <= 10) == [5, 3, 1]
    assert batches.take_batch([20, 1], lambda batch: sum(batch) <= 10) == [20]
    assert batches.take_batch([], lambda batch: True) == []
