"""What limits the unprofiled steps of a recording, by the rule in `jobs.contract.step_limit`.

The timer says how long a step takes, and the profiled steps of the same run how long the GPU is busy in it, and with
what. The rest of the unprofiled step is the CPU's part. Its causes have the proportions of the profiled step.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import kernel_time, roofline, timing, waiting
from profiler_job.analysis.metrics.differences import Band
from profiler_job.analysis.metrics.remembered import remember
from profiler_job.analysis.metrics.turns import select_fastest_processes
from profiler_job.analysis.recording.run_table import measure_by_run
from profiler_job.analysis.reference import cuda_api, kernel_families
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.step_limit import (
    COMMUNICATION,
    COMPUTE,
    CPU,
    DATA,
    GAPS,
    LAUNCHES,
    MEMORY,
    SYNCHRONISATION,
    StepLimit,
)

KEY = ["run_id", "phase"]
PARTS = {COMPUTE: "compute_ns", MEMORY: "memory_ns", COMMUNICATION: "communication_ns", CPU: "cpu_ns"}
"""The column of each part of a step; they add up to `timer_ns`."""
CAUSES = {LAUNCHES: "launches_ns", SYNCHRONISATION: "synchronisation_ns", DATA: "data_ns", GAPS: "gaps_ns"}
"""The column of each cause; they add up to `cpu_ns`."""
COMPUTE_FAMILIES = kernel_families.COMPUTE_FAMILIES


def measure_limits(
    steps: pd.DataFrame,
    kernels: pd.DataFrame,
    memops: pd.DataFrame,
    costs: pd.DataFrame | None = None,
    band: Band | None = None,
) -> pd.DataFrame:
    """Measure the parts of each phase, and of the whole step (phase `step`), of each timed and profiled run.

    Columns: run_id, phase, timer_ns with its spread, the columns of `waiting.launch_waits`, PARTS, CAUSES, interval_ns,
    host_copies_ns (of memory_ns, in which only copies from and to the host run), above and below (shares of kernel time
    at the ridge; NaN if no ridge or formula is known: then all matmuls and attention count as compute), limit ("" if no
    time passes).

    costs: of `roofline.costs_of`. Of a script, whose phases end in no synchronisation, waiting between phases is
    waiting for launches, too.
    """
    waits = waiting.launch_waits(steps, kernels, memops, band)
    table = timing.host_times(steps, "timer", "timer").merge(waits, on=KEY)
    table = table.merge(_measure_busy_parts(kernels, memops), how="left", on=KEY)
    table = table.merge(_measure_above(kernels, costs), how="left", on=KEY)
    above = table["above_of_matmuls"].fillna(1.0)
    busy_ns = table["busy_share"].clip(upper=1) * table["timer_ns"]
    table["compute_ns"] = busy_ns * table["compute_share"] * above
    table["communication_ns"] = busy_ns * table["communication_share"]
    table["memory_ns"] = busy_ns - table["compute_ns"] - table["communication_ns"]
    table["host_copies_ns"] = busy_ns * table["host_copies_share"]
    table["cpu_ns"] = table["timer_ns"] - busy_ns
    data = table["data_wait"] * table["timer_ns"]
    boundary = (table["boundary_wait"] * table["timer_ns"] - data).clip(lower=0)
    synchronised = table["run_id"].isin(_find_synchronised(steps))
    table["data_ns"] = data.clip(upper=table["cpu_ns"])
    table["synchronisation_ns"] = boundary.where(synchronised, 0.0)
    from_data = (data - table["boundary_wait"] * table["timer_ns"]).clip(lower=0)
    table["launches_ns"] = (table["launch_wait_ns"] - from_data).clip(lower=0) + boundary.where(~synchronised, 0.0)
    known = table[["data_ns", "synchronisation_ns", "launches_ns"]].sum(axis=1)
    table["gaps_ns"] = (table["cpu_ns"] - known).clip(lower=0)
    table = table.merge(_measure_intervals(steps), how="left", on=KEY)
    table["limit"] = [make_limit(row).name for row in table.to_dict("records")]
    return table.drop(columns=["compute_share", "communication_share", "host_copies_share", "above_of_matmuls"])


def make_limit(row: Mapping[str, Any]) -> StepLimit:
    """Make the limit of a row of `measure_limits`."""
    return StepLimit(
        {name: float(row[column]) for name, column in PARTS.items()},
        {name: float(row[column]) for name, column in CAUSES.items()},
        float(row["interval_ns"]),
        float(row["host_copies_ns"]),
    )


def find_limits(steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame) -> dict[str, StepLimit]:
    """Find what limits the whole step of each timed and profiled run, by run_id."""
    return select_step_limits(measure_limits(steps, kernels, memops))


def select_step_limits(table: pd.DataFrame) -> dict[str, StepLimit]:
    """Select the limit of the whole step of each run, by run_id. table: of `measure_limits`."""
    rows = table[table["phase"] == ranges.STEP].to_dict("records")
    return {str(row["run_id"]): make_limit(row) for row in rows}


def _find_synchronised(steps: pd.DataFrame) -> set[str]:
    """Find the runs whose phases end in a synchronisation: the timer then knows when the host had issued them."""
    if "issue_ns" not in steps:
        return set()
    return set(steps.loc[steps["issue_ns"].notna(), "run_id"].astype(str))


def _measure_intervals(steps: pd.DataFrame) -> pd.DataFrame:
    """Measure how wide the interval of each time of `timing.host_times` is: between the quartiles of its steps."""
    rows = timing.wall_times(select_fastest_processes(steps), "timer")
    walls = rows.groupby(KEY, sort=False)["wall_ns"]
    return (walls.quantile(0.75) - walls.quantile(0.25)).rename("interval_ns").reset_index()


@remember
@measure_by_run
def _measure_busy_parts(kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    """Measure the shares of busy time in which matmuls or attention run, and in which only communication does: KEY,
    compute_share, communication_share, host_copies_share. Copies come after communication, as in
    `insight.gpu_limit`."""
    nothing = memops.head(0)
    family = kernels["family"]
    computing = kernels[family.isin(COMPUTE_FAMILIES)]
    is_own = family != kernel_families.COMMUNICATION
    own = kernels if is_own.all() else kernels[is_own]
    operation = memops["operation"].astype(str) if "operation" in memops else pd.Series("", index=memops.index)
    host_copies = memops[operation.isin(cuda_api.HOST_COPIES)]
    sums = {}
    for name, rows, moved in (
        ("compute", computing, nothing),
        ("own", own, nothing),
        ("kernels", kernels, nothing),
        ("copying", kernels, host_copies),
        ("busy", kernels, memops),
    ):
        times = timing.gpu_times(rows, moved) if len(rows) + len(moved) else pd.DataFrame(columns=[*KEY, "busy_ns"])
        sums[name] = times.groupby(KEY)["busy_ns"].sum()
    table = pd.DataFrame(sums).fillna(0.0)
    busy = table["busy"].where(table["busy"] > 0, 1.0)
    shares = {"compute_share": table["compute"], "communication_share": table["kernels"] - table["own"]}
    shares |= {"host_copies_share": table["copying"] - table["kernels"]}
    return pd.DataFrame({name: times / busy for name, times in shares.items()}).reset_index()


def _measure_above(kernels: pd.DataFrame, costs: pd.DataFrame | None) -> pd.DataFrame:
    """Measure what lies above the ridge: KEY, above and below (shares of kernel time), above_of_matmuls (share of the
    time of matmuls and attention)."""
    columns = [*KEY, "above", "below", "above_of_matmuls"]
    if costs is None or costs.empty:
        return pd.DataFrame(columns=columns).astype({"run_id": str, "phase": str})
    totals = roofline.sum_by_range(kernel_time.kernel_totals(kernels))
    known = costs[costs["peak_flops"].notna() & costs["peak_bytes"].notna()]
    parts = totals[totals["run_id"].isin(set(known["run_id"]))]
    parts = parts.merge(known.assign(limit=roofline.limit(known)), how="left", on=roofline.KEY)
    is_compute = parts["family"].isin(COMPUTE_FAMILIES)
    parts["above_ns"] = parts["time_ns"].where(is_compute & (parts["limit"] == COMPUTE), 0.0)
    parts["matmuls_ns"] = parts["time_ns"].where(is_compute, 0.0)
    parts = pd.concat([parts, parts.assign(phase=ranges.STEP)])
    sums = parts.groupby(KEY, sort=False)[["time_ns", "above_ns", "matmuls_ns"]].sum()
    above = sums["above_ns"] / sums["time_ns"]
    of_matmuls = (sums["above_ns"] / sums["matmuls_ns"].where(sums["matmuls_ns"] > 0)).fillna(1.0)
    return pd.DataFrame({"above": above, "below": 1 - above, "above_of_matmuls": of_matmuls}).reset_index()[columns]
