"""What the steps of some runs are made of: kernels, copies, and idle time by cause, in integer nanoseconds that sum
exactly to the steps' ranges."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import intervals
from profiler_job.analysis.capture.blocks import count_by, sum_by
from profiler_job.analysis.metrics import queue
from profiler_job.analysis.metrics.kernel_time import module_of
from profiler_job.jobs.contract.ranges import BACKWARD, LOSS_MODULE, OPTIMIZER

KERNEL = ["phase", "module", "family", "kernel_name"]
_NUMBER = re.compile(r", (op_id|seq) = \d+")
COPY = ["phase", "operation"]
_GAPS = {"launch_idle_ns": "launch", "boundary_ns": "boundary", "own_ns": "own"}
"""Columns of gaps, and the cause of idle time that each is."""
IDLE = {
    "launch": "the GPU waits for a launch",
    "boundary": "the GPU waits before the phase begins",
    "own": "between operations that were ready",
    "ends": "before the first and after the last operation of a step",
}
"""Idle time by cause, as in `metrics.queue`. Time at the ends is negative if the GPU continues after the range."""


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over the profiled steps of some runs, each step counted on each device of its rank.

    num: steps on devices. wall_ns: their ranges under nsys: kernels + copies - overlap + idle, exactly.
    kernels: KERNEL, calls, time_ns. copies (and fills): COPY, calls, time_ns. overlap_ns: what was counted twice, since
    it ran at once. idle: by cause, see IDLE. waits: of each phase, operations, launches (one of a CUDA graph is one,
    however many operations it has), and the parts of idle's launch and boundary before them.
    steps: run_id, rank, step, wall_ns, kernel_ns, busy_ns (summed over the devices of the rank), operations, devices.
    """

    num: int
    wall_ns: int
    kernels: pd.DataFrame
    copies: pd.DataFrame
    overlap_ns: int
    idle: dict[str, int]
    waits: pd.DataFrame
    steps: pd.DataFrame


@dataclass(frozen=True, kw_only=True)
class MeasuredCase:
    """A case on one side. clocks: wall time of a step by `timer` and by `nsys`, if known. num_runs: how often it was
    profiled. num_processes: fresh processes that timed it, or else num_runs. num_steps and num_profiled: unprofiled and
    profiled steps of all of these. samples: times of unprofiled steps (`measured_steps`) and their median in each
    process (`processes`), and `kernel` and `busy` of each profiled step. spread: width of the middle 95% of profiled
    steps, by metric. num_tokens: of a step, and num_layers, 0 if not known. energies: J of a step, for each process
    that has it. has_graphs: whether CUDA graphs are replayed: peaks leave out the memory that graphs hold.
    fastest_ns: an unprofiled step of the fastest processes of runs that took turns, of others of all; None if none was
    timed."""

    totals: Totals
    clocks: dict[str, float]
    kernel_ns: float
    busy_ns: float
    num_operations: float
    num_devices: int
    memory_bytes: float | None
    num_runs: int
    num_processes: int
    num_steps: int
    num_profiled: int
    samples: dict[str, tuple[float, ...]]
    spread: dict[str, float]
    num_tokens: int
    num_layers: int
    energies: tuple[float, ...]
    has_graphs: bool = False
    fastest_ns: float | None = None


def sum_totals_by_case(
    kernels: pd.DataFrame, memops: pd.DataFrame, steps: pd.DataFrame, cases: Sequence[Collection[str]]
) -> list[Totals]:
    """Sum the totals of each case, given by its run_ids; rows belong to these runs and no others."""
    walls = queue.step_ranges(steps)
    runs = pd.Index(walls["run_id"].unique())
    phases = _list_phases(kernels, memops)
    gaps = queue.split_gaps(queue.place_operations(_join_operations(kernels, memops, runs, phases)))
    queues = _sum_queues(walls, runs, gaps)
    case_of = {run: number for number, case in enumerate(cases) for run in case}
    of_case = [
        _split_by_case(frame, column, case_of, len(cases))
        for frame, column in (
            (
                _sum_operations(kernels.assign(module=simplify_modules(kernels["module"])), ["run_id", *KERNEL]),
                "run_id",
            ),
            (_sum_operations(memops, ["run_id", *COPY]), "run_id"),
            (gaps.assign(run=pd.Categorical.from_codes(gaps["run_id"], runs)), "run"),
            (queues, "run"),
        )
    ]
    return [_make_totals(*frames, phases=phases) for frames in zip(*of_case, strict=True)]


def match_modules(first: pd.DataFrame, second: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the kernels of both sides, without modules in the phases in which only one side knows any. If modules were
    not followed, backward and the optimizer have only ranges that libraries open, and all their kernels would seem to
    be launched elsewhere."""
    sides = (first, second)
    known = [{*of["phase"][of["module"] != ""]} for of in sides]
    only_one = {*first["phase"]} & {*second["phase"]} & (known[0] ^ known[1])
    if len({(of["module"] == LOSS_MODULE).any() for of in sides}) > 1:
        only_one |= {BACKWARD, OPTIMIZER}
    first, second = (of.assign(module=of["module"].mask(of["phase"].isin(only_one), "")) for of in sides)
    return _merge(first), _merge(second)


def _merge(kernels: pd.DataFrame) -> pd.DataFrame:
    return kernels.groupby(KERNEL, sort=True)[["calls", "time_ns"]].sum().reset_index()


def _split_by_case(rows: pd.DataFrame, column: str, case_of: dict[str, int], num: int) -> list[pd.DataFrame]:
    """Split the rows by case, by the run in `column`."""
    if num == 1:
        return [rows]
    numbers = rows[column].map(case_of).to_numpy()
    groups = dict(iter(rows.groupby(numbers, sort=False)))
    return [groups.get(number, rows.head(0)) for number in range(num)]


def _make_totals(
    kernels: pd.DataFrame, copies: pd.DataFrame, gaps: pd.DataFrame, queues: pd.DataFrame, *, phases: pd.Index
) -> Totals:
    spans = int((queues["end"] - queues["begin"]).sum())
    wall, busy = int(queues["wall_ns"].sum()), int(queues["busy_ns"].sum())
    idle = {cause: int(queues[cause].sum()) for cause in ("launch", "boundary", "own")} | {"ends": wall - spans}
    assert wall == busy + sum(idle.values()), "the gaps between operations are all that is not busy"
    return Totals(
        num=len(queues),
        wall_ns=wall,
        kernels=_sum_over_runs(kernels, KERNEL),
        copies=_sum_over_runs(copies, COPY),
        overlap_ns=int(queues["time_ns"].sum()) - busy,
        idle=idle,
        waits=_sum_waits(gaps, phases),
        steps=_sum_steps(queues),
    )


def _sum_queues(walls: pd.DataFrame, runs: pd.Index, gaps: pd.DataFrame) -> pd.DataFrame:
    """Sum the operations and the gaps between them, for each step on each device of its rank."""
    groups = gaps.groupby(queue.QUEUE, sort=False)
    summed = ["kernel_ns", "time_ns", "busy_ns", *_GAPS]  # at once: `agg` takes as long for each column
    of_queue = groups[summed].sum().rename(columns=_GAPS)
    of_queue["begin"], of_queue["end"] = groups["start_ns"].min(), groups["end_ns"].max()
    of_queue["operations"] = groups.size()
    of_queue = of_queue.reset_index()
    walls = walls.assign(run=walls["run_id"], run_id=runs.get_indexer(walls["run_id"]))
    devices = of_queue[["run_id", "rank", "device"]].drop_duplicates()
    return walls.merge(devices, on=["run_id", "rank"]).merge(of_queue, how="left", on=queue.QUEUE).fillna(0)


def _sum_over_runs(sums: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Sums of several runs in one."""
    if sums["run_id"].nunique() < 2:
        return sums.drop(columns="run_id").reset_index(drop=True)
    return sums.groupby(by, sort=True)[["calls", "time_ns"]].sum().reset_index()


def _list_phases(kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.Index:
    return pd.Index(sorted({*_list_names(kernels["phase"]), *_list_names(memops["phase"])}))


def _sum_waits(gaps: pd.DataFrame, phases: pd.Index) -> pd.DataFrame:
    groups = gaps.assign(launches=~gaps["later"]).groupby("phase")
    by_phase = groups[["launches", "launch_idle_ns", "boundary_ns"]].sum().rename(columns=_GAPS)
    by_phase.insert(0, "operations", groups.size())
    return by_phase.astype("int64").rename(index=dict(enumerate(phases)))


def _join_operations(kernels: pd.DataFrame, memops: pd.DataFrame, runs: pd.Index, phases: pd.Index) -> pd.DataFrame:
    """Join both tables as `queue.operations` does, with numbers (from `_list_phases`) instead of names, since there may
    be millions of rows. Adds time_ns, and kernel_ns, which is 0 for a copy or fill."""
    parts = []
    for frame, is_kernel in ((kernels, True), (memops, False)):
        time = (frame["end_ns"] - frame["start_ns"]).to_numpy()
        columns = {
            name: frame[name].to_numpy() for name in ("rank", "device", "step", "launch_ns", "start_ns", "end_ns")
        }
        columns |= {"run_id": _encode(frame["run_id"], runs), "phase": _encode(frame["phase"], phases)}
        columns |= {"launch_end_ns": frame["launch_end_ns" if is_kernel else "launch_ns"].to_numpy()}
        parts.append(pd.DataFrame(columns | {"time_ns": time, "kernel_ns": time if is_kernel else 0}))
    both = pd.concat(parts, ignore_index=True)
    order = np.lexsort([both[name].to_numpy() for name in ("start_ns", *reversed(queue.QUEUE))])
    return both.iloc[order].reset_index(drop=True)


def _list_names(values: pd.Series) -> list[str]:
    return [str(name) for name in values.astype("category").cat.categories]


def _encode(values: pd.Series, index: pd.Index) -> np.ndarray:
    """Return the place of each value in `index`; the values are a category, so that few texts are looked up."""
    values = values.astype("category")
    places: np.ndarray = index.get_indexer([str(name) for name in values.cat.categories])
    return np.asarray(places[values.cat.codes.to_numpy()])


def simplify_modules(modules: pd.Series) -> pd.Series:
    """Modules as `module_of` has them, and without the numbers that PyTorch gives to each call."""
    modules = modules.astype("category")
    names = [_NUMBER.sub("", module_of(str(path))) for path in modules.cat.categories]
    number, unique = pd.factorize(np.array(names, dtype=object)) if names else (np.empty(0, np.int64), [])
    codes = modules.cat.codes.to_numpy()
    merged = pd.Categorical.from_codes(number[codes] if names else codes, pd.Index(unique, dtype=object))
    return pd.Series(merged, modules.index)


def _sum_operations(operations: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """by, calls, time_ns of the operations. Names become text only here: there may be a thousand times as many
    operations."""
    named = [operations[name].astype("category").cat for name in by]
    keys = np.zeros(len(operations), np.int64)
    for values in named:
        keys = intervals.make_keys(keys, values.codes.to_numpy())
    group, unique = pd.factorize(keys, sort=True)
    row = np.zeros(len(unique), np.int64)
    row[group] = np.arange(len(group))
    texts = {
        name: values.categories.astype(str).to_numpy()[values.codes.to_numpy()[row]] for name, values in zip(by, named)
    }
    times = (operations["end_ns"] - operations["start_ns"]).to_numpy()
    return pd.DataFrame(texts | {"calls": count_by(group, len(unique)), "time_ns": sum_by(group, times, len(unique))})


def _sum_steps(queues: pd.DataFrame) -> pd.DataFrame:
    groups = queues.groupby(["run", "rank", "step"], sort=False)
    steps = groups[["kernel_ns", "busy_ns", "operations"]].sum()
    steps.insert(0, "wall_ns", groups["wall_ns"].max())
    steps["devices"] = groups.size()
    return steps.reset_index().rename(columns={"run": "run_id"})
