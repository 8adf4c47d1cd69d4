"""Further processes of runs that took turns on a slow host. The host's speed is scripted: the CPU limits runs in BF16,
which are twice as fast as those in FP32 on a fast host."""

import json

import pytest

from profiler_job.analysis.metrics.turns import compare_turns, list_rounds
from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.ingest import ingest
from profiler_job.jobs.contract.slow_processes import find_slow
from profiler_job.jobs.executor.extra_processes import measure_step
from profiler_job.jobs.executor.result_store import Results
from profiler_job.jobs.executor.sweep_runner import StoppedError
from profiler_job.jobs.executor.sweep_state import SweepState
from tests.jobs.conftest import Session, jobs
from tests.jobs.test_turns import BF16, GROUP, PLAIN, TURNS

pytestmark = pytest.mark.usefixtures("no_worker_is_left")

ONE = TURNS | {"optimizer": ["own"], "rounds": 4}
FIRST, SECOND = PAIR = [PLAIN, BF16]
OTHER = [run_id.replace("ctx8", "ctx16") for run_id in PAIR]


def count_turned(fake_worker, first: str = FIRST) -> int:
    return sum(name.startswith(first) and name.endswith("/turns") for name, _ in fake_worker.tasks)


def compare_recorded(one: Session, folder) -> float:
    """Return how many times as fast BF16 is, as the analysis says."""
    ingest(one.results.folder, folder)
    rec = store.load(folder)
    rounds = list_rounds(rec.steps, rec.processes)
    return compare_turns(rounds, rounds, [FIRST], [SECOND]).times_as_fast


@pytest.mark.parametrize(
    ("hosts", "num"),
    [
        ([1, 1], 2),
        ([1, 1.2, 1], 3),  # by the steps alone: the loop is not that much slower
        ([2, 1, 1], 3),
        ([1, 2, 2, 1], 4),
        ([1, 2, 2, 2], 4),  # not for ever
    ],
)
def test_a_group_on_a_slow_host_has_further_processes_until_two_are_fast(session, fake_worker, hosts, num):
    fake_worker.slow_down({FIRST: hosts})
    one = session(ONE)
    assert one.run() == dict.fromkeys(PAIR, "ok")
    assert count_turned(fake_worker) == num
    groups = {run: [process["group"] for process in one.record(run)["timed"]] for run in PAIR}
    assert groups[FIRST] == groups[SECOND] and len({*groups[FIRST]}) == 1 + num
    files = {path.name for path in (one.results.folder / FIRST).glob("timings*.json")}
    assert len(files) == 1 + num, "nothing that was measured is lost"
    before = len(fake_worker.tasks)
    assert session(ONE).run() == dict.fromkeys(PAIR, "ok") and len(fake_worker.tasks) == before


def test_a_host_is_slow_next_to_what_the_sweep_has_seen(session, fake_worker):
    """Both planned processes of a group have one speed: only the loop of another group says that it is the slow one.
    The GPU limits that group's runs, so that a slow host does not matter to them."""
    fake_worker.slow_down({FIRST: [2, 2, 1, 1]})
    one = session(ONE | {"context_length": [8, 16], "measured_steps": 8})
    assert one.run() == dict.fromkeys([*PAIR, *OTHER], "ok")
    assert (count_turned(fake_worker), count_turned(fake_worker, OTHER[0])) == (4, 2)
    assert one.named("process_added") == [FIRST, FIRST] and not one.named("run_repeated")


def test_the_ratio_is_that_of_the_fast_processes(session, fake_worker, tmp_path):
    fake_worker.slow_down({FIRST: [2, 2, 1, 1]})
    one = session(ONE | {"measured_steps": 8, "profiled_steps": 0})
    assert one.run() == dict.fromkeys(PAIR, "ok")
    assert compare_recorded(one, tmp_path / "recording") == pytest.approx(2)


def test_a_slow_process_is_the_same_one_to_the_sweep_and_to_the_analysis(session, fake_worker, tmp_path):
    fake_worker.slow_down({FIRST: [1, 1.08, 1.3, 1]})
    one = session(ONE | {"measured_steps": 8, "profiled_steps": 0, "processes": 4})
    one.run()
    steps = [[measure_step(one.results.read_timings(run, n)["steps"]) for run in one.sweep.runs] for n in (1, 2, 3)]
    assert find_slow(steps) == [False, False, True]
    folder = tmp_path / "recording"
    ingest(one.results.folder, folder)
    rec = store.load(folder)
    rounds = list_rounds(rec.steps, rec.processes)
    medians = rounds.groupby(["group", "run_id"], sort=False)["wall_ns"].median().unstack("run_id", sort=False)
    assert medians[PAIR].to_numpy().tolist() == steps
    assert compare_turns(rounds, rounds, [FIRST], [SECOND]).num_pairs == 2 * ONE["rounds"]


def test_a_sweep_that_stops_among_further_processes_goes_on_there(session, fake_worker, monkeypatch):
    fake_worker.slow_down({FIRST: [2, 1, 2, 1]})
    one, keep_timed = session(ONE), Results.keep_timed

    def stop(results, run, record):
        if len(record.timed) == 4 and run.run_id == SECOND:
            one.runner.stop()
        return keep_timed(results, run, record)

    with monkeypatch.context() as patched:
        patched.setattr(Results, "keep_timed", stop)
        with pytest.raises(StoppedError):
            one.run()
    assert count_turned(fake_worker) == 3
    assert session(ONE).run() == dict.fromkeys(PAIR, "ok")
    assert count_turned(fake_worker) == 4


@pytest.fixture
def fail_in_further(fake_worker, monkeypatch):
    """Let the second run fail in the first process that was not planned. The first process that was is on a slow host.
    Returns a function that takes a fault."""
    keep_timed = Results.keep_timed
    fake_worker.slow_down({FIRST: [2, 1, 1]})

    def fail(*fault: str) -> None:
        def keep(results, run, record):
            if len(record.timed) == 3 and run.run_id == SECOND:
                fake_worker.fail({f"{SECOND}/turns": fault})
            return keep_timed(results, run, record)

        monkeypatch.setattr(Results, "keep_timed", keep)

    return fail


@pytest.mark.parametrize(
    ("moment", "fault"),
    [
        ("warm-up", "failed"),
        ("measured", "failed"),
        ("warm-up", "segfault"),
        ("warm-up", "killed"),
        ("warm-up", "oom"),
        ("measured", "oom"),
        ("measured", "oom_for_good"),
    ],
)
def test_a_further_process_in_which_a_run_fails_is_left_out(session, fake_worker, fail_in_further, moment, fault):
    fail_in_further(moment, fault)
    one = session(ONE)
    assert one.run() == dict.fromkeys(PAIR, "ok")
    assert [len(one.record(run)["timed"]) for run in PAIR] == [3, 3] and count_turned(fake_worker) == 3
    (told,) = [event for event in one.events if event["event"] == "process_left_out"]
    assert (told["run"], told["others"]) == (SECOND, [FIRST]) and told["why"]
    assert not one.named("run_repeated") and one.stages("nsys") == PAIR
    again = session(ONE)
    assert again.run() == dict.fromkeys(PAIR, "ok") and not again.stages("nsys")


def test_a_sweep_that_stops_while_a_further_process_fails_goes_on_there(
    session, fake_worker, fail_in_further, monkeypatch
):
    fail_in_further("warm-up", "killed")
    one = session(ONE)

    def stop(state, status):
        one.runner.stop()
        return True

    with monkeypatch.context() as patched:
        patched.setattr(SweepState, "is_stopping", stop)
        with pytest.raises(StoppedError):
            one.run()
    assert sorted(one.named("run_interrupted")) == sorted(PAIR) and not one.named("process_left_out")
    fake_worker.fail({})
    assert session(ONE).run() == dict.fromkeys(PAIR, "ok") and count_turned(fake_worker) == 4
    assert [len(one.record(run)["timed"]) for run in PAIR] == [4, 4]


@pytest.mark.long
def test_a_run_without_room_takes_no_further_turns(session, fake_worker):
    fake_worker.slow_down({GROUP[0]: [1, 2, 1]})
    fake_worker.fail({GROUP[3]: ("warm-up", "oom")} | {f"{GROUP[3]}/turns": ("warm-up", "oom")})
    one = session(TURNS)
    assert one.run() == dict.fromkeys(GROUP, "ok")
    assert {run: len(one.record(run)["timed"]) for run in GROUP} == dict.fromkeys(GROUP, 4) | {GROUP[3]: 3}
    again = session(TURNS)
    again.run()
    assert not again.named("run_started")


def test_the_plan_says_how_much_longer_a_slow_host_may_take(tiny):
    sweep = tiny(**ONE)
    planned = json.loads(jobs("plan", "--sweep", sweep, "--format", "json").stdout)
    assert planned["groups"][0]["time_s"] > planned["extra_time_s"] > 0
    said = " ".join(jobs("plan", "--sweep", sweep).stdout.split())
    assert "if the host is slow" in said
