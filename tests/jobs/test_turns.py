"""Runs that take turns: sweep files, groups, shards, failures, and resume."""

import json
import math

import pytest

from profiler_job.analysis.comparison.print_comparison import Request, load, run
from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.ingest import ingest
from profiler_job.jobs.contract.layout import Protocol
from profiler_job.jobs.contract.paired_ratio import SPREAD_OF_RATIOS
from profiler_job.jobs.executor.result_store import Results
from profiler_job.jobs.executor.sweep_runner import StoppedError
from profiler_job.jobs.sweep.groups import group_runs
from profiler_job.jobs.sweep.plan import SweepError, load_sweep
from profiler_job.jobs.sweep.prediction import count_stage_steps
from profiler_job.jobs.sweep.shards import Shard, select_shard_runs
from tests.jobs.conftest import Session, jobs
from tests.jobs.test_sweep_runner import stop_when

TURNS = {
    "context_length": [8],
    "mode": ["train_step"],
    "precision": ["fp32", "bf16"],
    "optimizer": ["own", "fused"],
    "turns": ["precision", "optimizer"],
    "rounds": 2,
    "measured_steps": 4,
    "processes": 3,
}
PLAIN, FUSED, BF16, BOTH = GROUP = [
    f"tiny-ctx8-{precision}-naive-train_step{optimizer}"
    for precision in ("fp32", "bf16")
    for optimizer in ("", "-adamw_fused")
]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"turns": ["size"]}, "turns.0: should be 'precision', 'attention', 'compile', 'optimizer', 'checkpointing'"),
        ({"turns": ["precision", "precision"]}, "turns: names precision twice"),
        ({"processes": 1}, "processes: should be at least 2 with turns"),
        ({"measured_steps": 5}, "measured_steps: 5 cannot be divided among 2 rounds; choose a multiple"),
        ({"rounds": 0}, "rounds"),
        ({"turns": []}, "rounds: only runs that take turns have rounds; give turns, too, or leave rounds out"),
        ({"turns": ["attention"]}, "turns: no two runs differ in attention alone; give it several values"),
        ({"fresh_process": True}, "turns: runs with fresh_process share no process"),
        ({"gpus": [2], "parallel": ["ddp"]}, "turns: are taken on one GPU; leave out gpus and parallel"),
    ],
)
def test_a_sweep_file_in_which_nothing_can_take_turns_says_why(tiny, changes, said):
    with pytest.raises(SweepError) as refused:
        load_sweep(tiny(**TURNS | changes))
    assert said in str(refused.value)


def test_runs_that_differ_in_the_axes_of_turns_alone_are_a_group(tiny):
    sweep = load_sweep(tiny(**TURNS | {"context_length": [8, 16]}))
    groups = [[run.run_id for run in group] for group in group_runs(sweep.runs, sweep.protocol)]
    assert groups == [GROUP, [run_id.replace("ctx8", "ctx16") for run_id in GROUP]]
    assert [len(group) for group in group_runs(sweep.runs, Protocol())] == [1] * 8


def test_a_sweep_without_turns_is_written_as_before(tiny):
    assert not {"turns", "rounds"} & load_sweep(tiny()).describe().keys()
    assert load_sweep(tiny(**TURNS)).describe()["turns"] == ("precision", "optimizer")


def test_a_group_is_measured_by_one_shard(tiny):
    sweep = load_sweep(tiny(**TURNS | {"context_length": [8, 16, 32]}))
    shards = [select_shard_runs(sweep.runs, Shard(index, 2), sweep.protocol) for index in (1, 2)]
    assert sorted(map(len, shards)) == [4, 8] and {*shards[0], *shards[1]} == {*sweep.runs}
    for runs in shards:
        assert {len(group) for group in group_runs(runs, sweep.protocol)} == {4}


def test_a_turn_has_one_step_that_does_not_count(tiny):
    steps = count_stage_steps(load_sweep(tiny(**TURNS)).protocol)
    assert steps == {"timer": 7, "timer-1": 8, "timer-2": 8, "nsys": 6}


def groups_of(one: Session) -> dict[str, list[str]]:
    """The processes of each run, "" for the one that it has alone."""
    return {run: [process["group"] for process in one.record(run)["timed"]] for run in GROUP}


@pytest.fixture
def turned(fake_worker):
    """The tasks of turns so far, each with its runs."""
    return lambda: [name.removesuffix("/turns").split("+") for name, _ in fake_worker.tasks if name.endswith("/turns")]


def test_each_run_has_a_process_alone_and_shares_the_others(session, fake_worker, turned):
    one = session(TURNS)
    assert one.run() == dict.fromkeys(GROUP, "ok")
    assert [sorted(runs) for runs in turned()] == [sorted(GROUP)] * 2
    alone = [pid for name, pid in fake_worker.tasks if name.endswith("/timer")]
    shared = [pid for name, pid in fake_worker.tasks if name.endswith("/turns")]
    assert len({*alone, *shared}) == 4 + 2
    processes = groups_of(one)
    assert processes[PLAIN][0] == "" and len(set(processes[PLAIN])) == 3
    assert all(of_run == processes[PLAIN] for of_run in processes.values())
    assert {one.record(run)["protocol_version"] for run in GROUP} == {3}
    assert len([name for name, _ in fake_worker.tasks if name.endswith("/nsys")]) == 4
    again = session(TURNS)
    assert again.run() == dict.fromkeys(GROUP, "ok") and not again.named("run_started")


@pytest.mark.long
def test_what_was_measured_without_turns_is_measured_again(session, fake_worker):
    plain = {name: value for name, value in TURNS.items() if name not in ("turns", "rounds")}
    assert session(plain).run() == dict.fromkeys(GROUP, "ok")
    again = session(TURNS)
    again.run()
    assert sorted(again.named("run_started")) == sorted(GROUP)


@pytest.mark.long
@pytest.mark.parametrize(("moment", "fault"), [("warm-up", "oom"), ("measured", "oom"), ("measured", "oom_for_good")])
def test_a_run_without_room_beside_the_others_has_its_processes_alone(session, fake_worker, turned, moment, fault):
    fake_worker.fail({f"{BF16}/turns": (moment, fault)})
    one = session(TURNS)
    assert one.run() == dict.fromkeys(GROUP, "ok")
    num_tasks = len(turned())
    assert num_tasks == (2 if fault == "oom" else 4)
    assert one.named("run_repeated") == [BF16] * 2
    processes = groups_of(one)
    assert processes[BF16] == ["", "", ""] and processes[PLAIN] == processes[FUSED] == processes[BOTH]
    again = session(TURNS)
    again.run()
    assert not again.named("run_repeated") and len(turned()) == num_tasks


@pytest.mark.long
@pytest.mark.parametrize(("fault", "status"), [("failed", "failed"), ("segfault", "failed"), ("killed", "machine")])
def test_a_run_that_fails_ends_alone_and_the_others_begin_again(session, fake_worker, turned, fault, status):
    fake_worker.fail({f"{BF16}/turns": ("measured", fault)})
    one = session(TURNS)
    assert one.run() == dict.fromkeys(GROUP, "ok") | {BF16: status}
    assert [len(runs) for runs in turned()] == [4, 3, 3]
    processes = groups_of(one)
    assert processes[PLAIN] == processes[FUSED] == processes[BOTH]


@pytest.mark.long
def test_a_run_that_lacks_rounds_is_measured_by_turns_with_its_whole_group(session, fake_worker, turned):
    fake_worker.fail({f"{BF16}/turns": ("measured", "killed")})
    session(TURNS).run()
    fake_worker.fail({})
    before = len(fake_worker.tasks)
    again = session(TURNS)
    assert again.run() == dict.fromkeys(GROUP, "ok")
    assert [len(runs) for runs in turned()[-2:]] == [4, 4]
    assert len({tuple(processes) for processes in groups_of(again).values()}) == 1
    new = [name for name, _ in fake_worker.tasks[before:]]
    assert not [name for name in new if name.endswith("/timer")], "the processes that they had alone stay"
    assert len([name for name in new if name.endswith("/nsys")]) == 4


@pytest.mark.long
def test_a_run_that_joins_a_finished_group_has_its_rounds_with_all(session, fake_worker, turned):
    assert session(TURNS | {"precision": ["fp32"]}).run() == dict.fromkeys((PLAIN, FUSED), "ok")
    more = session(TURNS)
    assert more.run() == dict.fromkeys(GROUP, "ok")
    assert [len(runs) for runs in turned()] == [2, 2, 4, 4]
    assert sorted(more.named("run_started")) == sorted((BF16, BOTH))
    assert len({tuple(processes) for processes in groups_of(more).values()}) == 1


@pytest.mark.long
def test_a_job_that_was_killed_between_the_records_of_a_group_loses_the_last_process_alone(
    session, fake_worker, turned, monkeypatch
):
    one, keep_timed = session(TURNS), Results.keep_timed

    def stop(results, run, record):
        if len(record.timed) == 3 and len({path.parent for path in results.folder.glob("*/timings-2.json")}) == 2:
            raise KeyboardInterrupt
        return keep_timed(results, run, record)

    with monkeypatch.context() as patched:
        patched.setattr(Results, "keep_timed", stop)
        with pytest.raises(KeyboardInterrupt):
            one.run()
    again = session(TURNS)
    assert again.run() == dict.fromkeys(GROUP, "ok")
    assert [len(runs) for runs in turned()] == [4, 4, 4]
    assert len({tuple(processes) for processes in groups_of(again).values()}) == 1


@pytest.mark.long
def test_a_stop_in_a_shared_process_marks_all_its_runs(session, fake_worker, turned):
    fake_worker.fail({f"{BF16}/turns": ("measured", "hang")})
    one = session(TURNS)
    assert isinstance(stop_when(one, lambda one: bool(turned())), StoppedError)
    assert sorted(one.named("run_interrupted")) == sorted(GROUP)
    fake_worker.fail({})
    assert session(TURNS).run() == dict.fromkeys(GROUP, "ok")
    assert [len(runs) for runs in turned()] == [4, 4, 4]


@pytest.mark.long
def test_the_wall_time_of_a_shared_process_is_divided_among_its_runs(session, fake_worker):
    one = session(TURNS)
    one.run()
    finished = [stage for stage in one.events if (stage["event"], stage.get("stage")) == ("stage_finished", "timer-1")]
    walls = {stage["run"]: stage["wall_s"] for stage in finished}
    assert walls.keys() == {*GROUP}
    assert max(walls.values()) - min(walls.values()) < 0.2


def test_plan_shows_groups_with_their_time_and_memory(tiny):
    sweep = tiny(**TURNS | {"context_length": [8, 16]})
    said = " ".join(jobs("plan", "--sweep", sweep).stdout.split())
    assert "each run timed in 3 processes, all but the first shared by turns in 2 groups" in said
    planned = json.loads(jobs("plan", "--sweep", sweep, "--memory", "--format", "json").stdout)
    first, second = planned["groups"]
    assert first["run_ids"] == GROUP and len(second["run_ids"]) == 4
    runs = [run for run in planned["runs"] if run["run_id"] in GROUP]
    assert first["time_s"] == sum(run["time_s"] for run in runs)
    assert first["memory_bytes"] == max(run["memory_bytes"] for run in runs)
    assert all(sum(run["memory_by_owner"].values()) == run["memory_bytes"] for run in planned["runs"])


@pytest.mark.long
def test_the_way_from_a_sweep_file_to_a_ratio_by_turns(session, fake_worker, tmp_path):
    """The fake worker's BF16 steps take half as long as the others by turns, and as long alone."""
    axes = {"mode": ["forward"], "optimizer": ["own"], "turns": ["precision"], "rounds": 4}
    one = session(TURNS | axes)
    assert set(one.run().values()) == {"ok"}
    folder = tmp_path / "recording"
    ingest(one.results.folder, folder)
    rec = store.load(folder)
    assert set(rec.runs["protocol_version"]) == {3}
    timed = rec.steps[rec.steps["collector"].astype(str) == "timer"]
    assert timed.groupby("process")["round"].max().to_dict() == {0: -1, 1: 3, 2: 3}
    assert set(rec.steps[rec.steps["collector"].astype(str) == "nsys"]["round"]) == {-1}
    groups = rec.processes.groupby("process", observed=True)["group"].agg(lambda of_run: set(of_run.astype(str)))
    assert groups[0] == {""} and [len(groups[process]) for process in (1, 2)] == [1, 1]
    request = Request(first=folder, second=folder, only_first=["precision=fp32"], only_second=["precision=bf16"])
    (pair,) = load(request).pairs
    of_two_processes = 2 * math.exp(-1.96 * SPREAD_OF_RATIOS / math.sqrt(2))
    assert (pair.turns.times_as_fast, pair.turns.num_pairs) == (pytest.approx(2), 8)
    assert pair.turns.low == pytest.approx(of_two_processes, rel=1e-4)
    step = pair.judgements["step"]
    assert (step.first, step.second, step.verdict) == (1000, pytest.approx(500), "faster")
    assert [width.of for width in step.widths] == ["rounds"]
    said: list[str] = []
    assert run(request, said.append, pytest.fail) == 0
    assert "By turns in one process, 8 rounds: 2.000 times as fast [1.972, 2.028]" in " ".join(said[0].split())
