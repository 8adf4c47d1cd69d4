"""The queue between host and GPU: what waits in it, and why the GPU is idle."""

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import idle_time, intervals
from profiler_job.analysis.metrics import timing
from profiler_job.analysis.metrics.remembered import remember
from profiler_job.analysis.recording.run_table import measure_by_run
from profiler_job.analysis.reference import cuda_api
from profiler_job.jobs.contract import ranges

CAUSES = {"busy": "busy", "launch": "waits for a launch", "boundary": "between phases", "own": "own overhead"}
_IDLE = {"launch": "launch_idle_ns", "boundary": "boundary_ns", "own": "own_ns"}
"""The causes of idle time, and the column of `split_gaps` that has it before each operation."""
STEP = ["run_id", "rank", "step"]
QUEUE = ["run_id", "rank", "device", "step"]
"""One step of one device: each device has a queue, a clock and idle time of its own."""
POINTS = 140
"""Points of a line of the queue: each is the deepest queue of its slice of the step."""


def operations(kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    """What the GPUs do inside measured steps, by QUEUE and start: QUEUE, phase, launch_ns, launch_end_ns (of a copy or
    fill: launch_ns), start_ns, end_ns, is_upload (a copy from the host)."""
    columns = [*QUEUE, "phase", "launch_ns", "launch_end_ns", "start_ns", "end_ns", "is_upload"]
    is_upload = memops["operation"].astype(str) == cuda_api.UPLOAD if "operation" in memops else False
    moved = memops.assign(launch_end_ns=memops["launch_ns"], is_upload=is_upload)
    parts = (kernels.assign(is_upload=False), moved)
    rows = timing.stack_tables([timing.select_steps(frame)[columns] for frame in parts])
    return rows.sort_values([*QUEUE, "start_ns"], kind="stable", ignore_index=True)


def place_operations(ops: pd.DataFrame) -> pd.DataFrame:
    """`operations` with their place in the queue of their device, all on its clock; `idle_time` has the
    definitions. In a step the clocks do not drift.

    Added columns: ready_ns, when the operation could have started at the earliest; gap_ns, how long the GPU was idle
    before it (0 for the first of a step); late_ns, the part of the gap before ready_ns, which the host caused; first,
    whether it is the first of its phase; later, whether another one came by the same launch (of a graph) before it.
    """
    queue = ops.groupby(QUEUE, sort=False).ngroup()
    call = pd.Series(intervals.make_keys(queue.to_numpy(), ops["launch_ns"].to_numpy(np.int64)))
    node, later = call.duplicated(keep=False).to_numpy(), call.duplicated().to_numpy()
    start, end, launch, launch_end = (
        ops[name].to_numpy(np.int64) for name in ("start_ns", "end_ns", "launch_ns", "launch_end_ns")
    )
    begins = ~queue.duplicated().to_numpy()
    steps = np.split(np.arange(len(ops)), np.flatnonzero(begins)[1:])
    least = np.concatenate(
        [idle_time.find_least_lag(start[i], launch[i], launch_end[i], node[i], later[i]) for i in steps],
    )
    ready = idle_time.compute_ready_times(start, launch, launch_end, node, least)
    covered = np.where(begins, start, intervals.find_covered_before(queue.to_numpy(), start, end))
    gap = np.maximum(start - covered, 0)
    late = np.where(begins, 0, idle_time.compute_late_times(covered, ready, later))
    first = ops["phase"] != ops["phase"].groupby(queue).shift(1)
    busy = intervals.measure_new(queue.to_numpy(), start, end)
    return ops.assign(ready_ns=ready, gap_ns=gap, late_ns=late, first=first, later=later, busy_ns=busy)


def depths(ops: pd.DataFrame) -> pd.DataFrame:
    """How many operations of one QUEUE wait, at each moment one gets ready: at_ns (from the first of them), depth."""
    ready, start = np.sort(ops["ready_ns"].to_numpy()), np.sort(ops["start_ns"].to_numpy())
    waiting = np.arange(1, len(ready) + 1) - np.searchsorted(start, ready, side="right")
    return pd.DataFrame({"at_ns": ready - ready[:1].sum(), "depth": np.maximum(waiting, 0)})


def split_gaps(queued: pd.DataFrame) -> pd.DataFrame:
    """`place_operations` operations with the gap before each by its cause: boundary_ns, launch_idle_ns and own_ns,
    whose sum it is."""
    return queued.assign(
        boundary_ns=queued["gap_ns"].where(queued["first"], 0),
        launch_idle_ns=queued["late_ns"].where(~queued["first"], 0),
        own_ns=(queued["gap_ns"] - queued["late_ns"]).where(~queued["first"], 0),
    )


def causes(queued: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """What a GPU does in a step by cause, mean over the profiled steps, ranks and devices of a run: run_id, wall_ns,
    {cause}_captured_ns and {cause}_share for each of CAUSES, operations (of a device in a step), depth (mean over
    time), deepest, ahead_ns (the longest wait of one). GPU busy is of kernels, copies and fills.

    Idle time at the two ends of a step counts as between phases: the range less the time from the first operation's
    start to the last one's end.
    """
    rows = split_gaps(queued).assign(wait_ns=queued["start_ns"] - queued["ready_ns"])
    of_step = rows.groupby(QUEUE, sort=False).agg(
        operations=("start_ns", "size"),
        busy_ns=("busy_ns", "sum"),
        launch_ns=("launch_idle_ns", "sum"),
        boundary_ns=("boundary_ns", "sum"),
        own_ns=("own_ns", "sum"),
        begin=("start_ns", "min"),
        end=("end_ns", "max"),
        waits=("wait_ns", "sum"),
        ahead_ns=("wait_ns", "max"),
    )
    of_step["deepest"] = pd.Series(
        {key: depths(group)["depth"].max() for key, group in queued.groupby(QUEUE, sort=False)}, dtype=float
    )
    of_step = of_step.reset_index().merge(step_ranges(steps), on=STEP)
    projected = of_step["end"] - of_step["begin"]
    of_step["boundary_ns"] += of_step["wall_ns"] - projected
    of_step["depth"] = of_step["waits"] / projected
    extremes = of_step.groupby("run_id", sort=False)[["deepest", "ahead_ns"]].max()
    means = ["wall_ns", "operations", "depth", *(f"{cause}_ns" for cause in CAUSES)]
    table = of_step.groupby("run_id", sort=False)[means].mean().join(extremes).reset_index()
    for cause in CAUSES:
        table[f"{cause}_share"] = table[f"{cause}_ns"] / table["wall_ns"]
    return table.rename(columns={f"{cause}_ns": f"{cause}_captured_ns" for cause in CAUSES})


@measure_by_run
def measure_causes(kernels: pd.DataFrame, memops: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """`causes` of the operations of a recording."""
    return causes(place_operations(operations(kernels, memops)), steps)


@remember
@measure_by_run
def idle_causes(kernels: pd.DataFrame, memops: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Why a GPU is idle in each phase under nsys, and in the whole step (phase `step`), mean over the profiled steps,
    ranks and devices of a run: run_id, phase, launch_ns, boundary_ns, own_ns (as in `causes`),
    and data_ns, the part of the first two before copies from the host and before operations of the phase `data`.

    Of a phase, `boundary` is what comes before its first and after its last operation: there the host prepares, and
    synchronises.
    """
    rows = split_gaps(place_operations(operations(kernels, memops)))
    is_data = rows["is_upload"].astype(bool) | (rows["phase"].astype(str) == ranges.DATA)
    rows = rows.assign(data_ns=rows["late_ns"].where(is_data, 0))
    of_phases = rows[rows["phase"] != ""].assign(boundary_ns=0)
    sums = {f"{cause}_ns": (column, "sum") for cause, column in _IDLE.items()}
    sums["data_ns"] = ("data_ns", "sum")
    wanted = sums | {"begin": ("start_ns", "min"), "end": ("end_ns", "max")}
    by_phase = of_phases.groupby([*QUEUE, "phase"], sort=False).agg(**wanted).reset_index()
    by_step = rows.groupby(QUEUE, sort=False).agg(**wanted).reset_index().assign(phase=ranges.STEP)
    # Names become text only here: there are a thousand times as many operations as phases.
    totals = pd.concat([frame.astype({"run_id": str, "phase": str}) for frame in (by_phase, by_step)])
    walls = steps[steps["collector"].astype(str) == "nsys"].astype({"run_id": str, "phase": str})
    totals = totals.merge(walls[[*STEP, "phase", "wall_ns"]], on=[*STEP, "phase"])
    ends = totals["wall_ns"] - (totals["end"] - totals["begin"])
    totals["boundary_ns"] += ends.clip(lower=0)  # without a synchronisation, a phase's last kernel may end after it
    return totals.groupby(["run_id", "phase"], sort=False)[list(sums)].mean().reset_index()


def step_ranges(steps: pd.DataFrame) -> pd.DataFrame:
    """The NVTX range of each profiled step of each rank: STEP, wall_ns."""
    rows = steps[(steps["collector"].astype(str) == "nsys") & (steps["phase"].astype(str) == ranges.STEP)]
    return rows.astype({"run_id": str})[[*STEP, "wall_ns"]]


def slice_queue(ops: pd.DataFrame) -> pd.DataFrame:
    """The queue of a run's first device in the last profiled step, in POINTS slices: x (ms), y (the deepest of the
    slice)."""
    ops = ops[(ops["rank"] == ops["rank"].min()) & (ops["step"] == ops["step"].max())]
    ops = ops[ops["device"] == ops["device"].min()]
    begin, end = ops["ready_ns"].min(), ops["end_ns"].max()
    table = depths(ops)
    edges = np.linspace(0, end - begin, POINTS + 1)
    starts = np.sort(ops["start_ns"].to_numpy()) - begin
    ready = table["at_ns"].to_numpy()
    left = np.searchsorted(ready, edges[:-1], side="right") - np.searchsorted(starts, edges[:-1], side="right")
    inside = table.groupby(np.clip(np.searchsorted(edges, ready, side="right") - 1, 0, POINTS - 1))["depth"].max()
    deepest = np.maximum(inside.reindex(range(POINTS), fill_value=0).to_numpy(), np.maximum(left, 0))
    return pd.DataFrame({"x": edges[:-1] / 1e6, "y": deepest})
