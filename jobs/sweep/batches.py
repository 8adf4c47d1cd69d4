"""Batches of a sweep that compiles: processes of one GPU that compile side by side, and then run one at a time.

Compiling takes a minute, and nearly all of it one core of the CPU. It needs the memory of the weights alone. So several
processes compile at once, and each waits, before its first step, until none compiles any more and none runs (see
`jobs.executor.gate`). Runs that take turns find what is compiled in a cache: their processes wait before their measured
steps, with the memory of these.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from random import Random
from typing import NamedTuple, TypeVar

from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.layout import Protocol
from profiler_job.jobs.contract.slow_processes import MOST_EXTRA
from profiler_job.jobs.memory import CUDA_CONTEXT_BYTES, GIB, USABLE_GIB, predict_memory_bytes
from profiler_job.jobs.sweep.groups import group_runs
from profiler_job.jobs.sweep.prediction import CAPTURE_S, name_stage, predict_running, predict_stages
from profiler_job.jobs.workloads.costs_by_name import find_costs

MOST_TOGETHER = 8
"""Processes of a GPU at once: each compiles with one core most of the time, and keeps some more busy with kernels."""
CORES_EACH = 2
NSYS_WORKERS = 4
"""The end of a capture takes nsys 3.0 to 3.7 s, most of it waiting, and a short run 1.4 s: with four none waits."""
SAMPLERS = 3
"""Sessions of nsys that sample Python, if processes warm up side by side; one if not."""
MARGIN = 1.05
"""Of the peak that is predicted."""
WEIGHT_BYTES = 4

START_S = 10.0
"""Seconds until all workers of a GPU have started."""
SLOWER = 1.1
"""How much longer processes take that compile side by side."""

Unit = TypeVar("Unit")


class Need(NamedTuple):
    """Memory of a process in bytes: while it waits for others, and at its peak. Infinity if it is not known."""

    waiting: float
    peak: float

    @classmethod
    def predict(cls, run: Run) -> "Need":
        """Predict the need of a process of one run, which waits before its first step."""
        peak = predict_memory_bytes(run)
        return UNKNOWN if peak is None else cls(WEIGHT_BYTES * run.num_parameters, MARGIN * peak)

    @classmethod
    def predict_shared(cls, runs: Iterable[Run]) -> "Need":
        """Predict the need of a process of runs that take turns, which waits before its measured steps."""
        peak = max(cls.predict(run).peak for run in runs)
        return cls(peak, peak)

    def times(self, number: int) -> "Need":
        """Return what several processes of a run need, of which one is at its peak."""
        return Need(number * self.waiting, (number - 1) * self.waiting + self.peak)


UNKNOWN = Need(inf, inf)


class Batch(NamedTuple):
    """Predicted seconds of a batch: until its first process runs, and then of each run alone, by its id and by the
    stage that the batch is of."""

    before_s: float
    running_s: dict[str, dict[str, float]]

    @property
    def seconds(self) -> float:
        return self.before_s + sum(sum(of_stage.values()) for of_stage in self.running_s.values())


def sum_needs(needs: Sequence[Need]) -> float:
    """Sum what processes need of which one is at its peak and the others wait."""
    waiting = sum(need.waiting for need in needs)
    return inf if waiting == inf else waiting + max(need.peak - need.waiting for need in needs)


def count_together(runs: Sequence[Run], cores: int, num_gpus: int) -> int:
    """Count the processes of a GPU that may compile side by side: one if nothing is compiled, and if each of several
    GPUs has a process of its own."""
    if num_gpus != 1 or all(run.compile == "off" for run in runs):
        return 1
    return max(1, min(MOST_TOGETHER, cores // CORES_EACH, len(runs)))


def count_workers(together: int, protocol: Protocol, num_runs: int) -> tuple[int, int]:
    """Count the sessions of nsys of a GPU, and those that sample Python."""
    if not protocol.profiled_steps:
        return 0, 0
    samplers = (min(SAMPLERS, together, num_runs)) if protocol.samples else 0
    return min(max(NSYS_WORKERS, together), num_runs), samplers


def compute_room(gpu_bytes: float, together: int, num_nsys: int) -> float:
    """Compute the memory for processes that warm up side by side, in bytes: what the CUDA contexts of all idle workers
    leave."""
    return gpu_bytes - CUDA_CONTEXT_BYTES * (together + num_nsys)


def shuffle_pass(runs: Sequence[Unit], seed: int, process: int) -> list[Unit]:
    """The runs, or groups of runs, in the order in which their unprofiled processes of a number are measured: shuffled,
    so that what drifts with time meets no run more than others, and each time anew, so that the processes of one run
    are spread over the time of the sweep."""
    return Random(f"{seed}-{process}").sample(list(runs), len(runs))


def order_passes(runs: Sequence[Run], protocol: Protocol) -> list[list[list[Run]]]:
    """Order the passes of unprofiled processes; runs that share a process are together. The last MOST_EXTRA passes are
    for groups whose hosts were slow."""
    alone, groups = [[run] for run in runs], group_runs(runs, protocol)
    return [
        shuffle_pass(groups if protocol.turns and process else alone, protocol.seed, process)
        for process in range(protocol.processes + (MOST_EXTRA if protocol.turns else 0))
    ]


def put_compiled_first(runs: Sequence[Run]) -> list[Run]:
    """Put the runs that are compiled in front, so that they compile in one batch."""
    return sorted(runs, key=lambda run: run.compile == "off")


def take_batch(waiting: Sequence[Unit], fits: Callable[[Sequence[Unit]], bool]) -> list[Unit]:
    """Take the first that waits, and each of the others, in order, with which all `fits`."""
    batch = list(waiting[:1])
    for unit in waiting[1:]:
        if fits([*batch, unit]):
            batch.append(unit)
    return batch


def predict_sweep_seconds(runs: Sequence[Run], protocol: Protocol) -> float | None:
    """Predict the time of a sweep on one H200, in seconds; None if a workload predicts nothing."""
    stages = {run: known for run in runs if (known := predict_stages(run, protocol))}
    if len(stages) < len(runs):
        return None
    together = count_together(runs, MOST_TOGETHER * CORES_EACH, num_gpus=1)
    if together == 1:
        return sum(sum(known.values()) for known in stages.values())
    return sum(batch.seconds for batch in predict_batches(stages, protocol, together))


def predict_extra_seconds(runs: Sequence[Run], protocol: Protocol) -> float | None:
    """Predict how much longer a sweep by turns takes, at most, if hosts are slow; None if a workload predicts
    nothing."""
    turned = [run for group in group_runs(runs, protocol) if len(group) > 1 for run in group]
    longer = protocol.model_copy(update={"processes": protocol.processes + MOST_EXTRA})
    planned, in_all = (predict_sweep_seconds(turned, known) for known in (protocol, longer))
    return None if in_all is None or planned is None else in_all - planned


def predict_batches(stages: Mapping[Run, Mapping[str, float]], protocol: Protocol, together: int) -> list[Batch]:
    """Predict the batches of a sweep on one H200, up to `together` processes in each, in order. stages: the seconds of
    each stage that is left of each run, as `predict_stages` does."""
    runs = list(stages)
    running = {run: predict_running(run, protocol) for run in runs}
    num_nsys, num_samplers = count_workers(together, protocol, len(runs))
    room = compute_room(USABLE_GIB[141] * GIB, together, num_nsys)
    batches: list[Batch] = []

    def fits(units: Sequence[Sequence[Run]], needs: Mapping[Run, Need], most: int) -> bool:
        return len(units) <= most and sum_needs([needs[unit[0]] for unit in units]) <= room

    def add(batch: Sequence[Sequence[Run]], stage: str, sessions: Mapping[Run, int], ending_s: float) -> None:
        whole_s = [sum(stages[run][stage] / sessions.get(run, 1) for run in unit) for unit in batch]
        before_s = join_batch(whole_s, [sum(running[run][stage] for run in unit) for unit in batch])
        before_s += ending_s if batches else START_S + ending_s
        batches.append(Batch(before_s, {run.run_id: {stage: running[run][stage]} for unit in batch for run in unit}))

    for process, order in enumerate(order_passes(runs, protocol)):
        stage, is_shared = name_stage("timer", process), bool(protocol.turns and process)
        left = [unit for group in order if (unit := [run for run in group if stage in stages[run]])]  # of extras none
        units = left if is_shared else [[run] for run in put_compiled_first([run for (run,) in left])]
        needs = {unit[0]: Need.predict_shared(unit) if is_shared else Need.predict(unit[0]) for unit in units}
        for batch in split(units, partial(fits, needs=needs, most=together)):
            add(batch, stage, {}, 0.0)
    if num_nsys:
        sessions = {run: 1 + bool(num_samplers and is_limited_by_cpu(run)) for run in runs}
        needs = {run: Need.predict(run).times(sessions[run]) for run in runs}

        def has_workers(units: Sequence[Sequence[Run]]) -> bool:
            return fits(units, needs, num_nsys) and sum(sessions[run] - 1 for (run,) in units) <= num_samplers

        for batch in split([[run] for run in put_compiled_first(runs)], has_workers):
            add(batch, "nsys", sessions if len(batch) > 1 else {}, CAPTURE_S)
    return batches


def is_limited_by_cpu(run: Run) -> bool:
    costs = find_costs(run.workload)
    return costs is not None and costs.is_limited_by_cpu(run)


def split(units: Sequence[Unit], fits: Callable[[Sequence[Unit]], bool]) -> list[list[Unit]]:
    """Split what waits into batches, in the order in which they are taken."""
    batches, left = [], list(units)
    while left:
        batches.append(take_batch(left, fits))
        left = [unit for unit in left if unit not in batches[-1]]
    return batches


def join_batch(whole_s: Sequence[float], running_s: Sequence[float]) -> float:
    """Join the times of processes in a batch: each as a whole, and the part for which it has the GPU alone. Return
    what passes before the first of them runs."""
    before_s = max(0.0, *(stage_s - alone_s for stage_s, alone_s in zip(whole_s, running_s)))
    return (SLOWER if len(whole_s) > 1 else 1.0) * before_s
