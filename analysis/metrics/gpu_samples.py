"""The machine of each run: how fast its host was, what its GPU's clocks did, and the energy of a step.

Each process that times a run first times a loop of plain Python (`host_loop_ns`), since what issues kernels is plain
Python, too. While the GPU is kept busy with further steps, its clocks, power and temperature are read from outside, and
the counter of its energy before and after. So a slow host is not mistaken for a slow program.
"""

import pandas as pd

from profiler_job.analysis.metrics import run_grid, timing
from profiler_job.jobs.contract.ranges import STEP
from profiler_job.jobs.contract.slow_processes import SLOW_HOST

AT_EASE = ("none", "gpu_idle")
"""Reasons for a clock that hold nothing back."""
WORDS = {
    "sw_power_cap": "power cap",
    "hw_slowdown": "hardware slowdown",
    "sw_thermal_slowdown": "temperature",
    "hw_thermal_slowdown": "temperature",
    "hw_power_brake_slowdown": "power brake",
    "sync_boost": "sync boost",
    "applications_clocks_setting": "clock setting",
    "display_clock_setting": "clock setting",
}
"""NVML's reasons for a lower clock, as a reader calls them."""


def summarise_processes(processes: pd.DataFrame, telemetry: pd.DataFrame) -> pd.DataFrame:
    """One row per process of a run and rank that read the state of its machine.

    Columns: run_id, rank, process, loop_ns, host_ratio (loop_ns over the fastest on the same CPU model), slow_host,
    joules (of a step, by one GPU's counter), watts, samples and lowered (of the samples while the GPU is busy, all and
    those in which a reason held its clock down), lowest_mhz, hottest, reasons (as WORDS). NaN where not read.
    """
    rows = processes.astype({"run_id": str, "cpu_model": str})[
        ["run_id", "rank", "process", "cpu_model", "host_loop_ns", "energy_mj", "energy_steps", "energy_wall_ns"]
    ]
    numbers = ["host_loop_ns", "energy_mj", "energy_steps", "energy_wall_ns"]
    rows[numbers] = rows[numbers].astype("float64")
    rows = rows.rename(columns={"host_loop_ns": "loop_ns"})
    rows["host_ratio"] = rows["loop_ns"] / rows.groupby("cpu_model")["loop_ns"].transform("min")
    rows["slow_host"] = rows["host_ratio"] > SLOW_HOST
    rows["joules"] = (rows["energy_mj"] / rows["energy_steps"] / 1000).where(rows["energy_mj"] > 0)
    rows["watts"] = (rows["energy_mj"] * 1e6 / rows["energy_wall_ns"]).where(rows["energy_mj"] > 0)
    rows = rows.drop(columns=["cpu_model", "energy_mj", "energy_steps", "energy_wall_ns"])
    return rows.merge(_summarise_samples(telemetry), how="left", on=["run_id", "rank", "process"])


def _summarise_samples(telemetry: pd.DataFrame) -> pd.DataFrame:
    """The samples taken while the GPU was busy, per process."""
    busy = telemetry[telemetry["moment"].astype(str) == "busy"]
    busy = busy.astype({"run_id": str, "throttle_reasons": str})
    reasons = busy["throttle_reasons"]
    words = {text: _words(text) for text in reasons.unique()}
    busy = busy.assign(
        words=reasons.map(words).astype(object), lowered=reasons.map(lambda text: bool(words[text])).astype(bool)
    )
    grouped = busy.groupby(["run_id", "rank", "process"], sort=False)
    table = grouped.agg(
        samples=("lowered", "size"),
        lowered=("lowered", "sum"),
        lowest_mhz=("sm_clock_mhz", "min"),
        hottest=("temperature_celsius", "max"),
        reasons=("words", _join_reasons),
    )
    return table.reset_index().astype({"reasons": object})


def _words(reasons: str) -> str:
    """What holds a clock down; "" where nothing does."""
    named = [reason for reason in reasons.split("-") if reason not in (*AT_EASE, "nan", "None", "<NA>", "")]
    return ", ".join(dict.fromkeys(WORDS.get(reason, reason.replace("_", " ")) for reason in named))


def summarise_runs(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    processes: pd.DataFrame,
    telemetry: pd.DataFrame,
    price: float | None = None,
) -> pd.DataFrame:
    """One row per finished run in model order, of its processes: medians with low and high.

    Columns: run_id, the axes, loop_ns, loop_low_ns, loop_high_ns, num_read, num_slow (processes that timed the loop,
    and those on a slow host), joules, joules_low, joules_high (of a step of all ranks), watts, samples, lowered,
    lowest_mhz, hottest, reasons; step_ns (the unprofiled step), tokens_per_s, joules_per_1k (tokens), and with a
    `price` of all GPUs of a run for an hour cost_per_million (tokens). NaN where not read or without tokens.
    """
    read = summarise_processes(processes, telemetry)
    by_process = read.groupby(["run_id", "process"], sort=False).agg(
        loop_ns=("loop_ns", "max"),
        slow_host=("slow_host", "any"),
        joules=("joules", lambda values: values.sum(min_count=len(values))),
        watts=("watts", lambda values: values.sum(min_count=len(values))),
        samples=("samples", "sum"),
        lowered=("lowered", "sum"),
        lowest_mhz=("lowest_mhz", "min"),
        hottest=("hottest", "max"),
        reasons=("reasons", _join_reasons),
    )
    table = by_process.groupby("run_id", sort=False).agg(
        loop_ns=("loop_ns", "median"),
        loop_low_ns=("loop_ns", "min"),
        loop_high_ns=("loop_ns", "max"),
        num_read=("loop_ns", "count"),
        num_slow=("slow_host", "sum"),
        joules=("joules", "median"),
        joules_low=("joules", "min"),
        joules_high=("joules", "max"),
        watts=("watts", "median"),
        samples=("samples", "sum"),
        lowered=("lowered", "sum"),
        lowest_mhz=("lowest_mhz", "min"),
        hottest=("hottest", "max"),
        reasons=("reasons", _join_reasons),
    )
    cases = [*run_grid.case_columns(runs), "mode"]
    ordered = run_grid.sort_runs(run_grid.select_measured_runs(runs)).astype({"run_id": str})
    kept = ordered[["run_id", *cases, *(name for name in ("context_length", "batch_size") if name not in cases)]]
    numbers = [name for name in table if name != "reasons"]
    table[numbers] = table[numbers].astype("float64")  # which a recording without any has not
    rows = kept.merge(table, how="inner", left_on="run_id", right_index=True).reset_index(drop=True)
    timed = timing.host_times(steps, "timer", "step")
    rows["step_ns"] = rows["run_id"].map(timed[timed["phase"] == STEP].set_index("run_id")["step_ns"]).astype("float64")
    rows["tokens_per_s"] = run_grid.tokens_per_s(rows, rows["step_ns"])
    rows["joules_per_1k"] = rows["joules"] / run_grid.tokens_of(rows) * 1000
    if price is not None:
        rows["cost_per_million"] = price / 3600 / rows["tokens_per_s"] * 1e6
    return rows


def _join_reasons(texts: pd.Series) -> str:
    """Reasons of several processes, each once."""
    named = [word for text in texts.dropna() for word in text.split(", ") if word]
    return ", ".join(dict.fromkeys(named))


def compare_slow_hosts(steps: pd.DataFrame, processes: pd.DataFrame, telemetry: pd.DataFrame) -> pd.DataFrame:
    """Runs that had processes on slow hosts and on others: run_id, slow_ns and other_ns (medians of the unprofiled
    steps of these processes), ratio. Its rows rise by ratio."""
    read = summarise_processes(processes, telemetry).dropna(subset=["loop_ns"])
    slow = read.groupby(["run_id", "process"])["slow_host"].any().rename("slow_host").reset_index()
    walls = timing.wall_times(steps, "timer")
    walls = walls[walls["phase"] == STEP].merge(slow, on=["run_id", "process"])
    medians = walls.groupby(["run_id", "slow_host"])["wall_ns"].median().unstack("slow_host")
    medians = medians.reindex(columns=[True, False]).dropna()
    table = pd.DataFrame({"slow_ns": medians[True], "other_ns": medians[False]}).reset_index()
    table["ratio"] = table["slow_ns"] / table["other_ns"]
    return table.sort_values("ratio", kind="stable", ignore_index=True)


def locate_processes(steps: pd.DataFrame, processes: pd.DataFrame) -> pd.DataFrame:
    """The processes that timed runs, and on which GPUs, as far as their first rank shows: run_id, process,
    first_gpu (numbered from 1 by the first start), step_ns (median of its unprofiled steps). In the order of their
    starts; those that did not read their GPU are left out."""
    first = processes[processes["rank"] == 0].astype({"run_id": str}).dropna(subset="gpu_id")
    started = pd.to_datetime(first["started_at"], utc=True, format="ISO8601", errors="coerce")
    first = first.assign(started=started).sort_values("started", kind="stable")
    first["first_gpu"] = pd.factorize(first["gpu_id"].astype(str))[0] + 1
    walls = timing.wall_times(steps, "timer")
    walls = walls[walls["phase"] == STEP].groupby(["run_id", "process"])["wall_ns"].median().rename("step_ns")
    rows = first[["run_id", "process", "first_gpu"]].merge(walls.reset_index(), on=["run_id", "process"])
    return rows.reset_index(drop=True)


def gpus_at_once(processes: pd.DataFrame) -> pd.Series:
    """Of each run that read its GPU, by run_id: on how many GPUs processes were timed at the same time, from when the
    first and the last one began on each. GPUs of other sessions and machines do not count."""
    known = processes[processes["gpu_id"].notna() & (processes["gpu_id"].astype(str) != "")]
    known = known[["run_id", "gpu_id", "started_at"]].astype(str)
    began = pd.to_datetime(known["started_at"], utc=True, format="ISO8601", errors="coerce")
    spans = began.groupby(known["gpu_id"]).agg(["min", "max"])
    at_once = {
        gpu: float(((spans["min"] <= last) & (spans["max"] >= first)).sum()) for gpu, first, last in spans.itertuples()
    }
    return known["gpu_id"].map(at_once).astype(float).groupby(known["run_id"]).max()
