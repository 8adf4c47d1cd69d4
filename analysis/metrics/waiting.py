"""How long a GPU waits for launches: the measure of the host's part in a time.

Of an unprofiled phase it is known how long it takes and, from the capture of the same run, how long the GPU is busy in
it. The rest is idle time, whose causes only the capture shows: whether the host had launched the next operation yet is
on the time line of the profiled step (`queue`, `idle_time`). The profiler slows the host, so a profiled step waits for
longer than an unprofiled one. Therefore the idle time of the unprofiled phase is divided by cause as in the profiled
one:

    launch wait = (1 - GPU busy / unprofiled time) x (idle time that waits for a launch / idle time, both under nsys)

It is at most the idle share, and rather too large than too small, since the profiler slows launches more than what else
makes a GPU idle. Idle time before the first operation of a phase and after its last (`boundary_wait`) is none of it:
there the host prepares or synchronises, so that an optimizer of few kernels is not blamed for launches.
"""

from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import differences, queue, timing
from profiler_job.analysis.metrics.differences import Band
from profiler_job.analysis.recording.run_table import keep_runs
from profiler_job.jobs.contract import ranges

CAUSES = ("launch", "boundary", "data")


def measure_cpu_shares(steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    """Measure the part of each unprofiled time in which the GPU waits for the CPU: all that it is not busy. Every page
    that says how long a GPU waits says this, or names what else it means: a cause, or the step under nsys.

    Columns: what `timing.host_times` has (timer_ns and its spread), busy_share and cpu_share (parts of timer_ns).
    """
    busy = timing.gpu_times(kernels, memops).groupby(["run_id", "phase"])["busy_ns"].median().reset_index()
    table = timing.host_times(steps, "timer", "timer").merge(busy, on=["run_id", "phase"])
    table["busy_share"] = timing.busy_share(table, kernels)
    return table.drop(columns="busy_ns").assign(cpu_share=(1 - table["busy_share"]).clip(lower=0))


def measure_step_shares(steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.Series:
    """Measure the cpu_share of the whole step of each timed and profiled run, by run_id."""
    shares = measure_cpu_shares(steps, kernels, memops)
    return shares[shares["phase"] == ranges.STEP].set_index("run_id")["cpu_share"]


def launch_waits(
    steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame, band: Band | None = None
) -> pd.DataFrame:
    """How long the GPUs of each timed and profiled run wait for launches, in each phase and in the step (phase `step`).

    Columns: run_id, phase, busy_share, launch_wait, boundary_wait and data_wait, which is in these two (parts of
    the unprofiled time, 0 to 1), launch_wait_ns, waits: whether that is more than the noise `band` of wall times is
    wide for a time without any waiting, so that it is distinguished from no waiting (if no band is known: more than
    the range of the timed steps).
    """
    table = measure_cpu_shares(steps, kernels, memops)
    table = table.merge(queue.idle_causes(kernels, memops, steps), on=["run_id", "phase"])
    under_nsys = table[["launch_ns", "boundary_ns", "own_ns"]].sum(axis=1)
    for cause in CAUSES:
        part = (table[f"{cause}_ns"] / under_nsys).fillna(0.0)
        table[f"{cause}_wait"] = table["cpu_share"] * part
    table["launch_wait_ns"] = table["launch_wait"] * table["timer_ns"]
    table["waits"] = is_beyond_noise(table, band)
    return table[["run_id", "phase", "busy_share", *(f"{cause}_wait" for cause in CAUSES), "launch_wait_ns", "waits"]]


def is_beyond_noise(rows: pd.DataFrame, band: Band | None, prefix: str = "") -> pd.Series:
    """Whether {prefix}launch_wait_ns can be distinguished from no waiting, in the unprofiled time {prefix}timer_ns."""
    if band is None:
        noise = rows[f"{prefix}timer_max_ns"] - rows[f"{prefix}timer_min_ns"]
    else:
        noise = band.width_ns(rows[f"{prefix}timer_ns"], pd.Series(0.0, index=rows.index))
    return rows[f"{prefix}launch_wait_ns"] > noise


Measure = Callable[[pd.DataFrame, pd.DataFrame, pd.DataFrame], pd.DataFrame]


def compute_other_waits(
    runs: pd.DataFrame, others: Iterable[Any], band: Band | None = None, measure: Measure | None = None
) -> pd.DataFrame:
    """`launch_waits` of the same `runs` in each of the other recordings, below each other, or what `measure` makes of
    their steps, kernels and memops; `recording` numbers these from 1."""
    parts = []
    for number, other in enumerate(others, start=1):
        same = set(differences.select_repeated_runs(runs, other.runs)["run_id"])
        steps, kernels, memops = (keep_runs(frame, same) for frame in (other.steps, other.kernels, other.memops))
        waits = measure(steps, kernels, memops) if measure else launch_waits(steps, kernels, memops, band)
        parts.append(waits.assign(recording=number))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["run_id", "phase"])


def count_recordings(waits: pd.DataFrame, others: pd.DataFrame, claimed: str = "waits") -> pd.DataFrame:
    """For each run and phase of `waits`, over all recordings that have it, this one included: run_id, phase,
    num_recordings, num_claimed (those in which `claimed` is true), wait_low and wait_high (lowest and highest
    launch_wait)."""
    keys = ["run_id", "phase"]
    columns = [*keys, "launch_wait", claimed]
    known = others.merge(waits[keys], on=keys) if len(others) else waits.head(0)
    rows = pd.concat([waits[columns], known[columns]]) if len(known) else waits[columns]
    return rows.groupby(keys, sort=False).agg(
        num_recordings=(claimed, "size"),
        num_claimed=(claimed, "sum"),
        wait_low=("launch_wait", "min"),
        wait_high=("launch_wait", "max"),
    ).reset_index()  # fmt: skip
