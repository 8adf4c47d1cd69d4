"""Every machine finds the same split on its own, and learns its part from its batch engine."""

import random
import time

import pytest

from profiler_job.jobs.contract.layout import Protocol
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP, SweepError, load_sweep
from profiler_job.jobs.sweep.prediction import predict_seconds
from profiler_job.jobs.sweep.shards import Shard, detect_shard, parse_shard, select_shard_runs

SWEEP = load_sweep(DEFAULT_SWEEP)


def split(runs, count, protocol=SWEEP.protocol):
    return [select_shard_runs(runs, Shard(index, count), protocol) for index in range(1, count + 1)]


def seconds(runs):
    return sum(predict_seconds(run, SWEEP.protocol) for run in runs)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 60, 64])
def test_every_run_is_in_exactly_one_shard(count):
    shards = split(SWEEP.runs, count)
    assert sorted(run.run_id for shard in shards for run in shard) == sorted(run.run_id for run in SWEEP.runs)


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_shards_are_balanced_by_predicted_time(count):
    times = [seconds(shard) for shard in split(SWEEP.runs, count)]
    longest = max(predict_seconds(run, SWEEP.protocol) for run in SWEEP.runs)
    assert max(times) - min(times) <= longest
    assert max(times) <= 1.05 * max(seconds(SWEEP.runs) / count, longest)


def test_the_split_does_not_depend_on_the_order_of_the_runs():
    shuffled = random.Random(0).sample(SWEEP.runs, len(SWEEP.runs))
    for straight, mixed in zip(split(SWEEP.runs, 4), split(shuffled, 4)):
        assert {run.run_id for run in straight} == {run.run_id for run in mixed}


def test_a_run_goes_to_the_shard_with_the_least_work_so_far():
    shards, loads = [[] for _ in range(7)], [0.0] * 7
    for run in sorted(SWEEP.runs, key=lambda run: (-seconds([run]), run.run_id)):
        least = loads.index(min(loads))
        loads[least] += seconds([run])
        shards[least].append(run)
    for found, wanted in zip(split(SWEEP.runs, 7), shards):
        assert {run.run_id for run in found} == {run.run_id for run in wanted}


def test_a_large_sweep_is_split_over_many_shards_in_seconds():
    sweep = SWEEP.model_copy(update={"repeats": 200})
    started = time.process_time()
    assert len(select_shard_runs(sweep.runs, Shard(1, len(sweep.runs)), sweep.protocol)) == 1
    assert time.process_time() - started < 5


def test_a_shard_keeps_the_order_of_the_sweep():
    position = {run: place for place, run in enumerate(SWEEP.runs)}
    for shard in split(SWEEP.runs, 4):
        assert [position[run] for run in shard] == sorted(position[run] for run in shard)


def test_more_shards_than_runs_leaves_some_without_work():
    assert sorted(map(len, split(SWEEP.runs[:2], 4, Protocol()))) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("environment", "shard", "engine"),
    [
        ({}, Shard(1, 1), ""),
        (
            {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "1"},
            Shard(3, 4),
            "Slurm array",
        ),
        (
            {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "0"},
            Shard(1, 4),
            "Slurm array",
        ),
        (
            {
                "SLURM_ARRAY_TASK_ID": "15",
                "SLURM_ARRAY_TASK_COUNT": "3",
                "SLURM_ARRAY_TASK_MIN": "5",
                "SLURM_ARRAY_TASK_STEP": "5",
            },
            Shard(3, 3),
            "Slurm array",
        ),
        ({"AWS_BATCH_JOB_ARRAY_INDEX": "9", "AWS_BATCH_JOB_ARRAY_SIZE": "10"}, Shard(10, 10), "AWS Batch array"),
        ({"BATCH_TASK_INDEX": "0", "BATCH_TASK_COUNT": "3"}, Shard(1, 3), "Google Batch"),
        ({"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2"}, Shard(2, 2), "SkyPilot"),
        ({"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "1"}, Shard(1, 1), "SkyPilot"),
        ({"JOB_COMPLETION_INDEX": "3", "JOB_COMPLETIONS": "4"}, Shard(4, 4), "Kubernetes Indexed Job"),
    ],
)
def test_batch_engines_say_which_shard_this_is(environment, shard, engine):
    assert detect_shard(environment) == (shard, engine)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"JOB_COMPLETION_INDEX": "0"}, "JOB_COMPLETIONS is not"),
        ({"SKYPILOT_NODE_RANK": "two", "SKYPILOT_NUM_NODES": "4"}, "SKYPILOT_NODE_RANK=two"),
        ({"BATCH_TASK_INDEX": "4", "BATCH_TASK_COUNT": "4"}, "BATCH_TASK_INDEX=4"),
        # Slurm, --array=1,2,7: three tasks, unevenly numbered
        ({"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "1"}, "evenly numbered"),
    ],
)
def test_what_an_engine_says_must_make_sense(environment, said):
    with pytest.raises(SweepError, match=said) as raised:
        detect_shard(environment)
    assert "--shard I/N" in str(raised.value) or "set it" in str(raised.value)


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "1/", "a/b", "-1/4"])
def test_a_shard_is_given_as_i_of_n(text):
    with pytest.raises(SweepError, match="expected I/N"):
        parse_shard(text)


def test_a_shard_has_a_folder_of_its_own():
    assert parse_shard("2/4").folder == "shard-2-of-4"
    assert parse_shard("1/1").folder == ""
