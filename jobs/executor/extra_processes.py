"""Whether runs that took turns need one more process, since too few ran on a fast host."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import count, takewhile
from statistics import median
from typing import Any

from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.layout import RunRecord
from profiler_job.jobs.contract.ranges import STEP
from profiler_job.jobs.contract.slow_processes import ENOUGH, SLOW_HOST, find_slow
from profiler_job.jobs.executor.python_samples import is_limited_by_cpu
from profiler_job.jobs.executor.result_store import Results

Timings = Mapping[str, Any]
"""The tables of one process of a run, as in its timings.json."""
Loops = Mapping[str | None, int]
"""The shortest loop of plain Python (ns) of each kind of CPU."""


def find_shortest_loops(results: Results, runs: Iterable[Run]) -> Loops:
    """Find how fast hosts of each kind were at best in all processes of these runs so far."""
    shortest: dict[str | None, int] = {}
    for run in runs:
        for timings in takewhile(bool, (results.read_timings(run, process) for process in count())):
            model, loop_ns = read_host(timings)
            if loop_ns:
                shortest[model] = min(loop_ns, shortest.get(model, loop_ns))
    return shortest


def needs_another(results: Results, group: Mapping[Run, RunRecord], shortest: Loops) -> bool:
    """Return whether a group needs one more process. All its runs had the same processes, and took turns in all but the
    first.

    A process does not count if its steps are slow, next to the fastest one; or if its host was slow, next to all hosts
    so far, and held it up: the CPU issued work in nearly all of a step of a run."""
    record = next(iter(group.values()))
    shared = [[results.read_timings(run, number) for run in group] for number in range(1, len(record.timed))]
    slow = find_slow([[measure_step(timings["steps"]) for timings in of_runs] for of_runs in shared])
    num_fast = sum(not (is_slow or is_held_up(of_runs, shortest)) for is_slow, of_runs in zip(slow, shared))
    return num_fast < min(ENOUGH, record.processes - 1)


def is_held_up(of_runs: Sequence[Timings], shortest: Loops) -> bool:
    """Return whether a slow host held up a process. of_runs: its timings of each run."""
    model, loop_ns = read_host(of_runs[0])
    is_slow = bool(loop_ns) and loop_ns > SLOW_HOST * shortest[model]
    return is_slow and any(is_limited_by_cpu(timings["steps"]) for timings in of_runs)


def read_host(timings: Timings) -> tuple[str | None, int]:
    """Return the kind of a process's CPU and its loop of plain Python in ns, 0 if it was not timed."""
    row: Mapping[str, Any] = next(iter(timings.get("processes", [])), {})
    return row.get("cpu_model"), row.get("host_loop_ns") or 0


def measure_step(rows: Iterable[Mapping[str, Any]]) -> float:
    """Return the step of a run in a process, in ns: the median of its turns, each with the median of its steps."""
    turns: dict[int, list[int]] = {}
    for row in rows:
        if row["phase"] == STEP:
            turns.setdefault(row["round"], []).append(row["wall_ns"])
    return median(map(median, turns.values()))
