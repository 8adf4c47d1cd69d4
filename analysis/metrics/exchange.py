"""What communication costs the runs of several GPUs, in a step of one GPU, as `collective_time` splits it."""

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import collective_columns, collective_time, intervals
from profiler_job.analysis.metrics import step_clocks
from profiler_job.analysis.metrics.remembered import remember
from profiler_job.analysis.metrics.timing import select_steps
from profiler_job.analysis.recording.run_table import measure_by_run, select_by_row
from profiler_job.analysis.reference import kernel_families
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.layout import SCRIPT
from profiler_job.jobs.contract.messages import LINK_MESSAGE, LINK_RATE, LINK_SIZE, SILENT

PARTS = ("kernel_ns", "waiting_ns", "transfer_ns", "hidden_ns", "exposed_ns", "critical_ns", "exposed_waiting_ns")
FRAMES = ("of_gpus", "collectives", "messages", "late_kernels")
_KIND = ["kernel_name", "grid_x", "grid_y", "grid_z", "phase"]


@remember
@measure_by_run
def communication_of(kernels: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each run with communication kernels in its steps: run_id; PARTS, of one step, mean over steps and GPUs
    (NaN where waiting is not known); slowed, matmuls next to communication over the same kernels alone (NaN without
    both); unknown, why waiting is not known; exchanged_apart_ns, how well the ranks' clocks agree; num_steps; and four
    frames of sums over these steps: of_gpus (`communication.GPU_COLUMNS`), collectives (rank and
    `communication.COLLECTIVE_COLUMNS`), messages (`communication.MESSAGE_COLUMNS`) and late_kernels
    (`communication.LATE_KERNEL_COLUMNS`).
    """
    rows = []
    worlds = runs.astype({"run_id": str}).set_index("run_id")["gpus"].fillna(0) if "gpus" in runs else pd.Series()
    # When the host of a script waited for its GPU is not recorded.
    scripts = set(runs.loc[runs["workload"].astype(str) == SCRIPT, "run_id"].astype(str)) if "workload" in runs else ()
    for run_id, mine in select_steps(kernels).groupby("run_id", observed=True, sort=False):
        of_family = mine["family"].astype(str).to_numpy()
        if not (of_family == kernel_families.COMMUNICATION).any():
            continue
        num_nodes = mine["node"].nunique() if "node" in mine else 1
        world = int(worlds.get(str(run_id), 0))
        waits = None if str(run_id) in scripts else find_host_waits(mine)
        measured = collective_time.measure(list_operations(mine, of_family), world, num_nodes, waits)
        gpus, num_steps = measured.of_gpus, mine["step"].nunique()
        parts = gpus[list(PARTS)].astype("float64").mean() / num_steps
        alone, beside = gpus["alone_ns"].sum(), gpus["beside_ns"].sum()
        about = {"slowed": float(beside / alone) if alone else np.nan, "unknown": measured.why_not}
        collectives = measured.collectives.merge(gpus[["gpu", "rank"]], on="gpu")
        about |= {"exchanged_apart_ns": measured.apart_ns, "num_steps": num_steps}
        about |= {"of_gpus": gpus, "collectives": collectives, "messages": measured.messages}
        about |= {"late_kernels": measured.late_kernels}
        rows.append({"run_id": str(run_id), **parts, **about})
    columns = ["run_id", *PARTS, "slowed", "unknown", "exchanged_apart_ns", "num_steps", *FRAMES]
    return pd.DataFrame(rows, columns=columns)


def sum_by_gpu(kernels: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """What communication costs each GPU in a step, mean over steps: run_id, unknown (why waiting is not known) and the
    columns of `communication.GPU_COLUMNS`, with the rank of the recording."""
    measured = communication_of(kernels, runs)
    names = [name for name in collective_columns.GPU_COLUMNS if name not in ("gpu", "rank")]
    tables = [
        of[["gpu", "rank"]]
        .astype("int64")
        .join(of[names].astype("float64") / num_steps)
        .assign(run_id=run, unknown=why)
        for run, why, num_steps, of in measured[["run_id", "unknown", "num_steps", "of_gpus"]].itertuples(index=False)
    ]
    return pd.concat(tables or [pd.DataFrame(columns=["run_id", "unknown", *collective_columns.GPU_COLUMNS])])


def list_late_kernels(kernels: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """What GPUs that others waited for run longer than the others in a step: run_id and the columns of
    `communication.LATE_KERNEL_COLUMNS`."""
    measured = communication_of(kernels, runs)
    tables = [
        late.assign(more_ns=late["more_ns"] / num_steps, more_calls=late["more_calls"] / num_steps, run_id=run)
        for run, num_steps, late in measured[["run_id", "num_steps", "late_kernels"]].itertuples(index=False)
    ]
    return pd.concat(tables or [pd.DataFrame(columns=["run_id", *collective_columns.LATE_KERNEL_COLUMNS])])


def sum_by_collective(
    kernels: pd.DataFrame, figures: pd.DataFrame, runs: pd.DataFrame, cases: pd.DataFrame
) -> pd.DataFrame:
    """What each collective of the `cases` (run_id, gpus) of `runs` does in a step, mean over steps and GPUs: run_id,
    collective, calls, bytes (of its messages; NaN where they are not recorded), transfer_ns, bus_rate (bytes a second
    over the link of each GPU while it transfers)."""
    figures = figures.astype({"run_id": str, "figure": str})
    sent = figures[figures["figure"].str.startswith(collective_time.MESSAGES)]
    sent = sent.assign(collective=sent["figure"].str.removeprefix(collective_time.MESSAGES), bytes=sent["value"])
    sent = sent[["run_id", "rank", "collective", "bytes"]].rename(columns={"bytes": "sent"})
    measured = communication_of(kernels, runs)
    rows = [
        of.assign(run_id=run, num_steps=num_steps)
        for run, num_steps, of in measured[["run_id", "num_steps", "collectives"]].itertuples(index=False)
    ]
    table = pd.concat(
        rows or [pd.DataFrame(columns=["run_id", "rank", *collective_columns.COLLECTIVE_COLUMNS, "num_steps"])]
    )
    table = table.astype({"rank": "int64"}).merge(sent, "left", ["run_id", "rank", "collective"])
    table["bytes"] = table["bytes"].astype("float64").fillna(table["sent"])
    parts = ["calls", "transfer_ns", "bytes"]
    table[parts] = table[parts].astype("float64").div(table["num_steps"], axis=0)
    means = table.groupby(["run_id", "collective"])[parts].agg(lambda values: values.mean(skipna=False))
    return _add_rate(means.reset_index().merge(cases[["run_id", "gpus"]], on="run_id"))


def sum_by_message(kernels: pd.DataFrame, runs: pd.DataFrame, cases: pd.DataFrame) -> pd.DataFrame:
    """The same by size of the message, where that was recorded: run_id, collective, message_bytes (of one call), calls,
    waiting_ns, transfer_ns, bytes (of all of them), bus_rate; longest first in each run."""
    measured = communication_of(kernels, runs)
    rows = [
        of.assign(run_id=run, per_gpu=len(gpus) * num_steps)
        for run, num_steps, gpus, of in measured[["run_id", "num_steps", "of_gpus", "messages"]].itertuples(index=False)
    ]
    table = pd.concat(rows or [pd.DataFrame(columns=["run_id", *collective_columns.MESSAGE_COLUMNS, "per_gpu"])])
    parts = ["calls", "kernel_ns", "waiting_ns", "transfer_ns"]
    table[parts] = table[parts].astype("float64").div(table["per_gpu"].astype("float64"), axis=0)
    sums = table.groupby(["run_id", "collective", "message_bytes"])[parts].agg(lambda values: values.sum(skipna=False))
    sums = sums.reset_index().astype({"message_bytes": "float64"})
    sums["bytes"] = sums["calls"] * sums["message_bytes"]
    sums = sums.sort_values(["run_id", "kernel_ns"], ascending=[True, False], kind="stable").drop(columns="kernel_ns")
    return _add_rate(sums.merge(cases[["run_id", "gpus"]], on="run_id"))


def _add_rate(sums: pd.DataFrame) -> pd.DataFrame:
    """Rows of collective, gpus, bytes and transfer_ns with bus_rate, and without gpus."""
    factors = [collective_time.compute_bus_factor(name, gpus) for name, gpus in zip(sums["collective"], sums["gpus"])]
    rate = sums["bytes"] * np.asarray(factors, float) / sums["transfer_ns"] * 1e9
    return sums.drop(columns="gpus").assign(bus_rate=rate)


def list_operations(kernels: pd.DataFrame, family: np.ndarray) -> pd.DataFrame:
    """The kernels of one run as `communication.measure` wants them."""
    names = kernels["kernel_name"].astype(str)
    exchanges = family == kernel_families.COMMUNICATION
    collectives = {name: collective_time.parse_collective(name) for name in names[exchanges].unique()}
    gpu = kernels.groupby(["rank", "device"], sort=True).ngroup()
    kinds = kernels.groupby([name for name in _KIND if name in kernels], observed=True, sort=False).ngroup()
    frame = kernels[["rank", "stream", "start_ns", "end_ns", "launch_ns"]].assign(
        gpu=gpu,
        collective=np.where(exchanges, names.map(collectives).fillna(""), ""),
        bytes=kernels.get("message_bytes", -1),
        communicator=-1,
        is_matmul=family == "gemm",
        kind=kinds,
        kernel_name=kernels["kernel_name"],
    )
    return frame.sort_values("start_ns", kind="stable", ignore_index=True)


def find_host_waits(kernels: pd.DataFrame) -> pd.DataFrame:
    """When the hosts of one run waited for their GPUs, as `communication.measure` wants it: at the end of each phase,
    from its last launch until its last kernel has ended, since a device synchronisation ends each phase. What a host
    does after that launch counts as waiting."""
    gpu = kernels.groupby(["rank", "device"], sort=True).ngroup()
    rows = kernels[["launch_ns", "launch_end_ns", "end_ns"]].assign(gpu=gpu, phase=kernels["phase"].astype(str))
    rows = rows.sort_values(["gpu", "launch_ns"], kind="stable", ignore_index=True)
    begins = (rows["gpu"] != rows["gpu"].shift()) | (rows["phase"] != rows["phase"].shift())
    by = rows.groupby(begins.cumsum())
    waits = by.agg(
        phase=("phase", "first"), gpu=("gpu", "first"), start_ns=("launch_end_ns", "max"), end_ns=("end_ns", "max")
    )
    return waits[waits["phase"] != ""]


@select_by_row
def drop_communication(kernels: pd.DataFrame) -> pd.DataFrame:
    """Return the kernels that compute."""
    return kernels[kernels["family"].astype(str) != kernel_families.COMMUNICATION]


@measure_by_run
def list_exchanging_runs(kernels: pd.DataFrame) -> pd.Series:
    """List the ids of the runs with communication kernels."""
    ids: pd.Series = kernels.loc[kernels["family"] == kernel_families.COMMUNICATION, "run_id"].astype(str)
    return ids.drop_duplicates()


@measure_by_run
def sum_computing_times(kernels: pd.DataFrame) -> pd.Series:
    """computing_ns by run_id and phase: for how long these kernels run on one GPU in a step, the optimizer left out
    (mean of steps and ranks). Those that run at once count once."""
    rows = select_steps(kernels)
    rows = rows[rows["phase"].astype(str) != ranges.OPTIMIZER].astype({"run_id": str, "phase": str})
    by = rows.groupby(["run_id", "phase", "rank", "step"])
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    busy = intervals.measure_busy(by.ngroup().to_numpy(), rows["device"].to_numpy(), start, end, by.ngroups)
    of_steps = pd.Series(busy, by.size().index, name="computing_ns")
    return of_steps.groupby(["run_id", "phase"]).mean()


def estimate_cost(steps: pd.DataFrame, of_one: pd.Series, slower: pd.DataFrame) -> pd.Series:
    """What communication costs an unprofiled step without its optimizer by Python's clock: how much longer a phase
    takes than it would without communication, which is the longer of what its host takes to issue it, and, where its
    GPU limits the phase on one GPU, what it takes there and its computing kernels take longer than there. These are
    the same without communication: what is critical counts them in full, too. Mean over ranks, median over steps.

    of_one: by run of several GPUs the same run on one of them. slower: by run of several GPUs, a column for each phase,
    how much longer its computing kernels run than on one GPU (ns, by captures)."""
    clocks = step_clocks.clocks(steps)

    def alone_ns(run_id: str, phase: str) -> float:
        clock = clocks.get(of_one[run_id], {}).get(phase)
        if clock and clock.issue_ns <= step_clocks.HOST_LIMITED * clock.wall_ns:
            return clock.wall_ns + (slower.at[run_id, phase] if phase in slower else 0.0)
        return 0.0

    rows = steps[steps["collector"].astype(str) == "timer"].astype({"run_id": str, "phase": str})
    rows = rows[rows["run_id"].isin(of_one.index) & ~rows["phase"].isin((ranges.STEP, ranges.OPTIMIZER))]
    alone = np.array([alone_ns(*case) for case in zip(rows["run_id"], rows["phase"])], float)
    issue = pd.to_numeric(rows["issue_ns"], errors="coerce").to_numpy(float)
    rows = rows.assign(longer_ns=rows["wall_ns"] - np.maximum(issue, alone))
    step = ["run_id", "process", "step"]
    of_ranks = rows.groupby([*step, "rank"])["longer_ns"].agg(lambda values: values.sum(skipna=False))
    return of_ranks.groupby(step).mean().groupby("run_id").median()


def silent_times(figures: pd.DataFrame) -> pd.DataFrame:
    """run_id, silent_ns: a step without its optimizer in which ranks exchange nothing, of the slowest rank."""
    rows = figures[figures["figure"].astype(str) == SILENT].astype({"run_id": str})
    return rows.groupby("run_id")["value"].max().rename("silent_ns").reset_index()


BEFORE = 2**30
"""Bytes of the collectives whose rates were measured, where a recording does not say: older ones took no others."""


def link_rates(figures: pd.DataFrame, cases: pd.DataFrame) -> pd.DataFrame:
    """What the link gave in the runs of `cases` (run_id, gpus) when nothing else ran, a row for each collective, number
    of GPUs and size_bytes of the collective (the parts of all GPUs together): bus_rate, bytes a second over the link of
    each GPU (median of runs and ranks), bus_rate_low, bus_rate_high, num_runs."""
    columns = ["collective", "gpus", "size_bytes", "bus_rate", "bus_rate_low", "bus_rate_high", "num_runs"]
    figures = figures.astype({"run_id": str, "figure": str})
    of_run = figures[figures["figure"] == LINK_MESSAGE].set_index(["run_id", "rank"])["value"].rename("size_bytes")
    is_rate = figures["figure"].str.startswith(LINK_RATE) & (figures["figure"] != LINK_MESSAGE)
    rates = figures[is_rate].merge(cases[["run_id", "gpus"]], on="run_id").join(of_run, on=["run_id", "rank"])
    named = (
        rates["figure"].str.removeprefix(LINK_RATE).str.extract(rf"^(?P<collective>\w+?)(?:{LINK_SIZE}(?P<size>\d+))?$")
    )
    rates["collective"] = named["collective"]
    rates["size_bytes"] = pd.to_numeric(named["size"]).fillna(rates["size_bytes"]).fillna(BEFORE)
    factors = [collective_time.compute_bus_factor(name, gpus) for name, gpus in zip(rates["collective"], rates["gpus"])]
    rates["bus"] = rates["value"] * np.asarray(factors, float)
    by = rates.groupby(["collective", "gpus", "size_bytes"], sort=False)
    rows = by["bus"].agg(bus_rate="median", bus_rate_low="min", bus_rate_high="max").reset_index()
    return rows.assign(num_runs=by["run_id"].nunique().to_numpy())[columns]
