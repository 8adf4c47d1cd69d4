"""The queue between host and GPU: what waits in it, and why the GPU is idle."""

import numpy as np
import pandas as pd

from analysis import intervals
from analysis.metrics import timing
from jobs.contract import ranges

CAUSES = {"busy": "busy", "launch": "waits for a launch", "boundary": "between phases", "own": "own overhead"}
STEP = ["run_id", "rank", "step"]
QUEUE = ["run_id", "rank", "device", "step"]
"""One step of one device: each device has a queue, a clock and idle time of its own."""
POINTS = 140
"""Points of a line of the queue: each is the deepest queue of its slice of the step."""


def operations(kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    """What the GPUs do inside measured steps, by QUEUE and start: QUEUE, phase, launch_ns, launch_end_ns (of a copy or
    fill: launch_ns), start_ns, end_ns."""
    columns = [*QUEUE, "phase", "launch_ns", "launch_end_ns", "start_ns", "end_ns"]
    moved = memops.assign(launch_end_ns=memops["launch_ns"])
    parts = [timing.in_steps(frame)[columns].astype({"run_id": str, "phase": str}) for frame in (kernels, moved)]
    return pd.concat(parts).sort_values([*QUEUE, "start_ns"], kind="stable", ignore_index=True)


def placed(ops: pd.DataFrame) -> pd.DataFrame:
    """`operations` with their place in the queue of their device, all on its clock.

    The two clocks of a capture are some microseconds apart, so a launch is put on the GPU's clock by the shortest way
    from launch to start in its step, which counts as no wait at all: what every launch takes at least is not seen.
    Added columns: ready_ns, when the operation could have started at the earliest; gap_ns, how long the GPU was idle
    before it (0 for the first of a step); late_ns, the part of the gap before ready_ns, which the host caused; first,
    whether it is the first of its phase. All nodes of a CUDA graph have one launch: they are ready when that call ends,
    and gaps inside the graph are the GPU's own.
    """
    queue = ops.groupby(QUEUE, sort=False).ngroup()
    call = [*QUEUE, "launch_ns"]
    node, repeated = ops.duplicated(call, keep=False), ops.duplicated(call)
    lag = ops["start_ns"] - ops["launch_ns"]
    least = lag.where(~node).groupby(queue).transform("min")
    least = least.fillna((ops["start_ns"] - ops["launch_end_ns"]).where(~repeated).groupby(queue).transform("min"))
    ready = ops["launch_ns"].where(~node, ops["launch_end_ns"]) + least
    ready = np.minimum(ready, ops["start_ns"])
    times = (queue.to_numpy(), ops["start_ns"].to_numpy(), ops["end_ns"].to_numpy())
    covered = pd.Series(intervals.covered_before(*times), ops.index).where(queue.duplicated())
    gap = (ops["start_ns"] - covered).clip(lower=0).fillna(0)
    late = np.minimum((ready - covered).clip(lower=0).fillna(0), gap).where(~repeated, 0)
    first = ops["phase"] != ops["phase"].groupby(queue).shift(1)
    busy = intervals.new_ns(*times)
    return ops.assign(ready_ns=ready, gap_ns=gap, late_ns=late, first=first, busy_ns=busy)


def depths(ops: pd.DataFrame) -> pd.DataFrame:
    """How many operations of one QUEUE wait, at each moment one gets ready: at_ns (from the first of them), depth."""
    ready, start = np.sort(ops["ready_ns"].to_numpy()), np.sort(ops["start_ns"].to_numpy())
    waiting = np.arange(1, len(ready) + 1) - np.searchsorted(start, ready, side="right")
    return pd.DataFrame({"at_ns": ready - ready[:1].sum(), "depth": np.maximum(waiting, 0)})


def split_gaps(queued: pd.DataFrame) -> pd.DataFrame:
    """`placed` operations with the gap before each by its cause: boundary_ns, launch_idle_ns and own_ns, whose sum it
    is."""
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


def step_ranges(steps: pd.DataFrame) -> pd.DataFrame:
    """The NVTX range of each profiled step of each rank: STEP, wall_ns."""
    rows = steps[(steps["collector"].astype(str) == "nsys") & (steps["phase"].astype(str) == ranges.STEP)]
    return rows.astype({"run_id": str})[[*STEP, "wall_ns"]]


def sliced(ops: pd.DataFrame) -> pd.DataFrame:
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
