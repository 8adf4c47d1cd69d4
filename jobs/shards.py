"""Splitting a sweep over machines: the same deterministic split everywhere, balanced by predicted time."""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jobs.plan import Protocol, Run, SweepError
from jobs.prediction import predicted_seconds


class Shard(NamedTuple):
    """Part `index` (from 1) of `count`."""

    index: int
    count: int

    @property
    def folder(self) -> str:
        return f"shard-{self.index}-of-{self.count}" if self.count > 1 else ""


class Engine(NamedTuple):
    """How a batch engine tells a task its number: variables for index and count, and the first index."""

    name: str
    index: str
    count: str
    first: str | int  # the number of the first task, or the variable that holds it


ENGINES = (
    Engine("Slurm array", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN"),
    Engine("AWS Batch array", "AWS_BATCH_JOB_ARRAY_INDEX", "AWS_BATCH_JOB_ARRAY_SIZE", 0),
    Engine("Google Batch", "BATCH_TASK_INDEX", "BATCH_TASK_COUNT", 0),
    Engine("SkyPilot", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES", 0),
    # Kubernetes sets the index of an Indexed Job only; the job's manifest adds the count.
    Engine("Kubernetes Indexed Job", "JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", 0),
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
        first = environment.get(engine.first, "0") if isinstance(engine.first, str) else engine.first
        try:
            shard = Shard(int(environment[engine.index]) - int(first) + 1, int(environment[engine.count]))
        except ValueError:
            raise SweepError(f"{engine.name}: {engine.index} and {engine.count} must be whole numbers") from None
        if not 1 <= shard.index <= shard.count:
            raise SweepError(f"{engine.name}: task {shard.index} of {shard.count} does not exist; give --shard I/N")
        return shard, engine.name
    return Shard(1, 1), ""


def runs_of_shard(runs: Sequence[Run], shard: Shard, protocol: Protocol) -> list[Run]:
    """The runs of one shard, in the sweep's order: longest first, each to the shard with the least work so far."""
    load = [0.0] * shard.count
    mine = set()
    for run in sorted(runs, key=lambda run: (-predicted_seconds(run, protocol), run.run_id)):
        least = min(range(shard.count), key=load.__getitem__)
        load[least] += predicted_seconds(run, protocol)
        if least == shard.index - 1:
            mine.add(run)
    return [run for run in runs if run in mine]
