"""Splitting a sweep over machines: the same deterministic split everywhere, balanced by predicted time."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapreplace

from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.layout import Protocol, name_shard_folder
from profiler_job.jobs.sweep.groups import group_runs
from profiler_job.jobs.sweep.plan import SweepError
from profiler_job.jobs.sweep.prediction import assume_seconds


@dataclass(frozen=True)
class Shard:
    """Part `index` (from 1) of `count`."""

    index: int
    count: int

    @property
    def folder(self) -> str:
        return name_shard_folder(self.index, self.count)


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Environment variables in which a batch engine gives a task its number: the index, the number of tasks and, if
    tasks are not numbered 0, 1, 2..., the first index and the distance between two."""

    name: str
    index: str
    count: str
    first: str = ""
    step: str = ""


ENGINES = (
    Engine(
        name="Slurm array",
        index="SLURM_ARRAY_TASK_ID",
        count="SLURM_ARRAY_TASK_COUNT",
        first="SLURM_ARRAY_TASK_MIN",
        step="SLURM_ARRAY_TASK_STEP",
    ),
    Engine(name="AWS Batch array", index="AWS_BATCH_JOB_ARRAY_INDEX", count="AWS_BATCH_JOB_ARRAY_SIZE"),
    Engine(name="Google Batch", index="BATCH_TASK_INDEX", count="BATCH_TASK_COUNT"),
    Engine(name="SkyPilot", index="SKYPILOT_NODE_RANK", count="SKYPILOT_NUM_NODES"),
    # Kubernetes sets the index of an Indexed Job only; the job's manifest adds the count.
    Engine(name="Kubernetes Indexed Job", index="JOB_COMPLETION_INDEX", count="JOB_COMPLETIONS"),
)


def parse_shard(text: str) -> Shard:
    """`2/4` -> Shard(2, 4). Raises SweepError."""
    index, _, count = text.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise SweepError(f"--shard {text}: expected I/N with 1 <= I <= N, for example 2/4")
    return Shard(int(index), int(count))


def detect_shard(environment: Mapping[str, str] = os.environ) -> tuple[Shard, str]:
    """The shard a batch engine assigned to this task and the engine's name; the whole sweep and "" outside of one.

    Raises SweepError when an engine's variables do not make sense.
    """
    for engine in ENGINES:
        if engine.index not in environment:
            continue
        if engine.count not in environment:
            raise SweepError(
                f"{engine.name}: {engine.index} is set but {engine.count} is not; set it or give --shard I/N"
            )
        index, count = environment[engine.index], environment[engine.count]
        try:
            offset = int(index) - int(environment.get(engine.first, "0"))
            position, rest = divmod(offset, int(environment.get(engine.step, "1")))
            shard = Shard(position + 1, int(count))
        except (ValueError, ZeroDivisionError):
            raise SweepError(
                f"{engine.name}: {engine.index}={index} and {engine.count}={count} are not a task's number and a number"
                " of tasks; give --shard I/N"
            ) from None
        if rest or not 1 <= shard.index <= shard.count:
            raise SweepError(
                f"{engine.name}: {engine.index}={index} is not one of {count} evenly numbered tasks; give --shard I/N"
            )
        return shard, engine.name
    return Shard(1, 1), ""


def select_shard_runs(runs: Sequence[Run], shard: Shard, protocol: Protocol) -> list[Run]:
    """The runs of one shard, in the sweep's order: longest first, each to the shard with the least work so far. Runs
    that take turns stay together."""
    groups = group_runs(runs, protocol)
    longest_first = sorted(
        (-sum(assume_seconds(run, protocol) for run in group), group[0].run_id, number)
        for number, group in enumerate(groups)
    )
    loads = [(0.0, index) for index in range(1, shard.count + 1)]  # a heap: the least first
    mine: set[Run] = set()
    for negative_s, _, number in longest_first:
        load, least = loads[0]
        heapreplace(loads, (load - negative_s, least))
        if least == shard.index:
            mine.update(groups[number])
    return [run for run in runs if run in mine]
