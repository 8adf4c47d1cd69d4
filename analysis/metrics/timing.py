"""Clocks. Times are nanoseconds; a frame is always sorted in model order.

Four clocks, from the outside in:

- timer: Python's clock around a phase, without a profiler, the device synchronised at both ends (`steps`, collector
  `timer`);
- host range: the NVTX range of that phase under nsys, on the host (`steps`, collector `nsys`);
- GPU span: on the GPU, from the start of the phase's first operation to the end of its last (`projected_ns`);
- GPU busy: the union of the phase's kernels, copies and fills on each device, summed over the devices of the rank
  (`analysis.capture.intervals`), so that gaps do not count and overlap counts once.

Kernel time is the sum of kernel durations; without overlap, copies and fills it equals GPU busy.

A run may have several ranks, which are processes; each numbers its steps and its devices from 0. Clocks are taken per
rank, and never summed over ranks: see `analysis.metrics.per_rank`.
"""

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

from profiler_job.analysis.capture import intervals
from profiler_job.analysis.metrics.per_rank import take_largest_rank
from profiler_job.analysis.metrics.remembered import remember
from profiler_job.analysis.metrics.turns import select_fastest_processes
from profiler_job.analysis.recording.run_table import measure_by_run, select_by_row
from profiler_job.jobs.contract.ranges import STEP


def spread(samples: pd.DataFrame, by: list[str], value: str, prefix: str) -> pd.DataFrame:
    """Median, minimum, maximum and number of samples of `value`: by, {prefix}_ns, _min_ns, _max_ns, {prefix}_n."""
    grouped = samples.groupby(by, observed=True, sort=False)[value]
    table = grouped.agg(["median", "min", "max", "count"]).reset_index()
    table.columns = [
        *by,
        f"{prefix}_ns",
        f"{prefix}_min_ns",
        f"{prefix}_max_ns",
        f"{prefix}_n",
    ]
    return table


@remember
def wall_times(steps: pd.DataFrame, collector: str) -> pd.DataFrame:
    """Wall time of each step and phase by `timer` or `nsys` (ranges), of the slowest rank: run_id, process, collector,
    step, phase, wall_ns."""
    rows = steps[steps["collector"].astype(str) == collector].drop(columns=["issue_ns", "round"], errors="ignore")
    return take_largest_rank(rows.astype({"run_id": str, "phase": str}), ["wall_ns"])


def host_times(steps: pd.DataFrame, collector: str, prefix: str) -> pd.DataFrame:
    """Spread of `wall_times` over steps, per run and phase (`step` is a phase here); of runs that took turns, those of
    the fastest process."""
    return spread(wall_times(select_fastest_processes(steps), collector), ["run_id", "phase"], "wall_ns", prefix)


def measure_processes(steps: pd.DataFrame) -> pd.DataFrame:
    """Medians of the unprofiled step in the processes of each run: run_id, num_processes, shortest_ns, longest_ns."""
    walls = wall_times(steps, "timer")
    medians = walls[walls["phase"] == STEP].groupby(["run_id", "process"], sort=False)["wall_ns"].median()
    table = medians.groupby("run_id", sort=False).agg(["count", "min", "max"]).reset_index()
    return table.set_axis(["run_id", "num_processes", "shortest_ns", "longest_ns"], axis=1)


def moments(samples: pd.DataFrame, by: list[str], value: str, prefix: str) -> pd.DataFrame:
    """Mean of `value` and the standard deviation of samples (NaN of a single one): by, {prefix}_mean_ns,
    {prefix}_std_ns."""
    table = samples.groupby(by, observed=True, sort=False)[value].agg(["mean", "std"]).reset_index()
    table.columns = [*by, f"{prefix}_mean_ns", f"{prefix}_std_ns"]
    return table


def differ(rows: pd.DataFrame, first: str, second: str) -> pd.Series:
    """True where two times differ: their minimum-to-maximum intervals do not overlap."""
    return (rows[f"{first}_min_ns"] > rows[f"{second}_max_ns"]) | (rows[f"{second}_min_ns"] > rows[f"{first}_max_ns"])


@select_by_row
def select_steps(kernels: pd.DataFrame) -> pd.DataFrame:
    """Kernels launched inside a measured step."""
    return kernels[kernels["step"] >= 0]


def stack_tables(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Rows of several tables below each other. run_id and phase are categories in order of the alphabet: pandas makes
    text of them where tables have other categories."""
    rows = pd.concat(parts, ignore_index=True)
    for name in ("run_id", "phase"):
        named = [part[name].astype("category") for part in parts]
        # Names of one type: an empty part has `object` where others have `str`.
        named = [values.cat.rename_categories(values.cat.categories.astype(object)) for values in named]
        rows[name] = union_categoricals(named, sort_categories=True)
    return rows


@remember
@measure_by_run
def gpu_times(kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    """GPU time of each phase of each step of each rank, and of the whole step (phase `step`).

    Columns: run_id, rank, step, phase; of kernels launches and kernel_ns; of kernels, copies and fills operation_ns
    (the sum of durations), busy_ns (summed over the rank's devices; `busy_share` makes a share of it) and projected_ns.
    """
    columns = ["run_id", "rank", "step", "phase", "device", "start_ns", "end_ns"]
    parts = [select_steps(frame)[columns].assign(is_kernel=frame is kernels) for frame in (kernels, memops)]
    rows = stack_tables(parts)
    whole_steps = rows.assign(phase=pd.Categorical.from_codes(np.zeros(len(rows), int), [STEP]))
    return pd.concat([_gpu_times(rows[rows["phase"] != ""]), _gpu_times(whole_steps)], ignore_index=True)


def _gpu_times(rows: pd.DataFrame) -> pd.DataFrame:
    by = ["run_id", "rank", "step", "phase"]
    code = np.zeros(len(rows), np.int64)
    for values in (rows["run_id"].cat.codes, rows["rank"], rows["step"], rows["phase"].cat.codes):
        code = intervals.make_keys(code, values.to_numpy(np.int64))
    group, _ = pd.factorize(code)
    start, end, is_kernel = (rows[name].to_numpy() for name in ("start_ns", "end_ns", "is_kernel"))
    timed = pd.DataFrame({"start_ns": start, "end_ns": end, "operation_ns": end - start})
    timed = timed.assign(kernel_ns=timed["operation_ns"].where(is_kernel, 0), is_kernel=is_kernel)
    totals = timed.groupby(group).agg(
        launches=("is_kernel", "sum"),
        kernel_ns=("kernel_ns", "sum"),
        operation_ns=("operation_ns", "sum"),
        first=("start_ns", "min"),
        last=("end_ns", "max"),
    )
    # Names become text only here: there are a thousand times as many kernels as phases.
    a_row = np.zeros(len(totals), np.int64)
    a_row[group] = np.arange(len(group))
    keys = rows.iloc[a_row][by].reset_index(drop=True).astype({"run_id": str, "phase": str})
    totals["busy_ns"] = intervals.measure_busy(group, rows["device"].to_numpy(), start, end, len(totals))
    totals["projected_ns"] = totals["last"] - totals["first"]
    return keys.join(totals[["launches", "kernel_ns", "operation_ns", "busy_ns", "projected_ns"]])


@remember
@measure_by_run
def num_devices(kernels: pd.DataFrame) -> pd.Series:
    """Devices that a rank runs kernels on, the most of any rank, per run_id."""
    used = kernels[["run_id", "rank", "device"]].drop_duplicates().groupby(["run_id", "rank"], observed=True).size()
    counts = used.groupby(level="run_id", observed=True).max()
    counts.index = counts.index.astype(str)
    return counts


def busy_share(rows: pd.DataFrame, kernels: pd.DataFrame, busy: str = "busy_ns", wall: str = "timer_ns") -> pd.Series:
    """Part of the time `wall` in which the GPUs of a rank are busy: `busy` over (`wall` x devices of the rank).

    `rows` has run_id; `kernels` are from the steps that `busy` was taken from.
    """
    return rows[busy] / (rows[wall] * num_devices(kernels).reindex(rows["run_id"]).to_numpy())


def measure_stretch(steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    """What the profiler does to a step of each run that was timed and profiled: run_id, waits (the part of the
    unprofiled step that GPU busy does not account for), busy_ratio (GPU busy under nsys over the unprofiled step),
    longer_ns (how far the GPU span exceeds the whole unprofiled step, for each kernel). Medians over steps."""
    gpu = gpu_times(kernels, memops)
    gpu = gpu[gpu["phase"] == STEP].groupby("run_id")[["projected_ns", "busy_ns", "launches"]].median().reset_index()
    wall = host_times(steps, "timer", "timer")
    table = gpu.merge(wall[wall["phase"] == STEP], on="run_id")
    table = table.assign(busy_ratio=busy_share(table, kernels))
    longer = (table["projected_ns"] - table["timer_ns"]) / table["launches"]
    return table.assign(waits=1 - table["busy_ratio"], longer_ns=longer)[["run_id", "waits", "busy_ratio", "longer_ns"]]


def clock_lead(kernels: pd.DataFrame) -> dict[str, float]:
    """How far the GPU's times are too early against the host's, as far as it shows: a kernel cannot begin before its
    launch.

    share: of the kernels that seem to; time_share: theirs of kernel time; lead_ns: by how much at most; drift_ns: the
    largest change of a step's lead within one rank of a run.
    """
    leads = _measure_leads(kernels)
    sums = leads[["kernels", "early", "time_ns", "early_ns"]].sum()
    facts = {
        "share": sums["early"] / max(sums["kernels"], 1),
        "time_share": sums["early_ns"] / max(sums["time_ns"], 1),
        "lead_ns": leads["lead_ns"].max(),
        "drift_ns": leads["drift_ns"].max(),
    }
    return {name: float(value) if len(leads) else 0.0 for name, value in facts.items()}


@measure_by_run
def _measure_leads(kernels: pd.DataFrame) -> pd.DataFrame:
    """A row for each rank of a run: kernels, time_ns; early and early_ns, of those that seem to begin before their
    launch; lead_ns, drift_ns."""
    of_rank = [kernels["run_id"].astype(str), kernels["rank"]]
    lead, duration = kernels["launch_ns"] - kernels["start_ns"], kernels["end_ns"] - kernels["start_ns"]
    rows = pd.DataFrame({"kernels": 1, "time_ns": duration, "early": lead > 0})
    table = rows.assign(early_ns=duration.where(rows["early"], 0)).groupby(of_rank).sum()
    of_step = lead.groupby([*of_rank, kernels["step"]]).max().groupby(level=[0, 1])
    return table.assign(lead_ns=of_step.max(), drift_ns=of_step.max() - of_step.min())
