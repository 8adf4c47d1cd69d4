"""Where and how the runs were measured: machine, software, settings, steps and dates, and which runs differ."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import run_grid
from profiler_job.analysis.metrics.gpu_samples import summarise_processes
from profiler_job.analysis.pages.titles import title_of
from profiler_job.analysis.render.answer import Answer, Claim, Column, Table, assemble
from profiler_job.jobs.contract.layout import SCRIPT
from profiler_job.jobs.contract.quantities import format_quantity, format_size
from profiler_job.jobs.contract.slow_processes import SLOW_HOST
from profiler_job.jobs.contract.versions import COMPARED, find_mixed_facts

SLUG = "environment"
TITLE = "Environment"

PROPERTIES = {
    "gpu_name": "GPU",
    "gpu_memory_bytes": "GPU memory",
    "driver": "driver",
    "cuda": "CUDA",
    "torch": "torch",
    "nsys": "Nsight Systems",
    "python": "Python",
    "commit": "commit of the job",
    "float32_matmul_precision": "float32_matmul_precision",
    "autograd_multithreading": "autograd's own threads",
    "warmup_steps": "warm-up steps",
    "measured_steps": "steps timed",
    "profiled_steps": "steps profiled",
}
"""Columns of `runs` that should be the same in all runs that are compared, and what a reader calls them."""

OF_GPUS = {"gpu_id": "which GPU (salted hash)", "memory_clock_mhz": "memory clock while busy"}
"""Facts about the processes that timed a run; a run may have several of each."""
UNKNOWN = "not recorded"
CONDITIONS = ("precision", "batch_size", "attention", "compile", "gpu_name")
"""Axes, and the GPU, that no number can be read without."""
SOFTWARE = ("driver", "torch", "nsys")


def answer(
    runs: pd.DataFrame,
    manifest: Mapping[str, Any],
    processes: pd.DataFrame | None = None,
    telemetry: pd.DataFrame | None = None,
) -> Answer:
    """Every value of every property with the number of runs that have it, most first; and each run whose value differs
    from most runs. torch's precision of matmuls follows the precision of a run, so there it is most runs of the same
    precision. Dates span the runs' first start to the last end. Of `processes` and `telemetry`, where given: which
    GPUs, and the clocks of their memory."""
    ordered = run_grid.sort_runs(runs).astype({"run_id": str})
    values = pd.DataFrame({name: _words(name, ordered[name]) for name in PROPERTIES})
    counted = [_counts(name, values[name]) for name in PROPERTIES]
    others = pd.concat([_others(ordered, name, values[name]) for name in PROPERTIES], ignore_index=True)
    started = pd.to_datetime(ordered["started_at"], utc=True, format="ISO8601", errors="coerce")
    facts = {
        "of": dict(zip(PROPERTIES, [", ".join(counts["value"]) for counts in counted], strict=True)),
        "sweep": str(manifest.get("sweep") or ""),
        "start": started.min(),
        "end": pd.to_datetime(manifest.get("recorded_to", ""), utc=True, errors="coerce"),
    }
    if processes is not None and telemetry is not None:
        counted += _list_gpu_values(ordered["run_id"], processes, telemetry)
    claims = [
        Claim("same", values, lambda rows: not len(others)),
        Claim("differ", others, facts=lambda rows: _select_differing(rows, len(ordered))),
    ]
    return assemble(facts, claims, _tables(counted, others), [])


def _tables(counted: list[pd.DataFrame], others: pd.DataFrame) -> list[Table]:
    return [
        Table(
            "environment",
            "What the runs were measured with",
            (Column("property", "property"), Column("value", "value"), Column("num_runs", "runs", "count")),
            pd.concat(counted, ignore_index=True),
        ),
        Table(
            "others",
            "Runs that differ from most",
            (
                Column("run", "run", "run"),
                Column("property", "in"),
                Column("value", "this run"),
                Column("usual", "most runs"),
            ),
            others,
        ),
    ]


def conditions(runs: pd.DataFrame) -> dict[str, Any]:
    """What all numbers of some finished runs were measured under: the values of each of CONDITIONS, most runs first
    (attention: of the reference Transformer alone, since any other model has its own; compile: of no script);
    optimizer, of training steps; accumulation, where the batch of some is cut into micro-batches; driver, torch and
    nsys, where known, and dates, the first and the last day of their starts (one if they are the same);
    num_processes and num_steps, the fewest and the most that timed a run (steps of each process), and num_profiled, the
    steps that its capture holds."""
    ok = run_grid.select_measured_runs(runs)
    ok = ok if "compile" in ok else ok.assign(compile="off")  # a recording older than the axis
    training = ok[ok["mode"].astype(str) == "train_step"]
    reference = run_grid.select_known_shapes(ok)
    columns = {name: ok[name] for name in CONDITIONS}
    columns |= {"attention": reference["attention"], "optimizer": training["optimizer"]}
    columns |= {"compile": ok.loc[ok["workload"].astype(str) != SCRIPT, "compile"]} if "workload" in ok else {}
    if "accumulation" in ok and (ok["accumulation"] > 1).any():
        columns |= {"accumulation": ok["accumulation"]}
    values = {name: column.astype(str).value_counts().index.tolist() for name, column in columns.items()}
    known = {name: ok[name].astype(object)[ok[name].notna() & (ok[name] != "")] for name in SOFTWARE}
    values |= {name: column.astype(str).value_counts().index.tolist() for name, column in known.items()}
    started = pd.to_datetime(ok["started_at"], utc=True, format="ISO8601", errors="coerce").dropna().dt.date
    values["dates"] = sorted({str(started.min()), str(started.max())}) if len(started) else []
    names = {"num_processes": "processes", "num_steps": "measured_steps", "num_profiled": "profiled_steps"}
    return values | {key: (int(ok[name].min()), int(ok[name].max())) for key, name in names.items() if len(ok)}


def machines(runs: pd.DataFrame, processes: pd.DataFrame, telemetry: pd.DataFrame) -> dict[str, Any]:
    """What the machines did to the times of some runs: of num_read processes that timed them, num_slow ran on a slow
    host (more than slow_host times the fastest); in num_lowered runs something held the clock of the GPU down, longest
    in run `longest`: run (its title), share (of the samples while it was busy) and reasons. busy_mhz: the median
    clock of GPUs while they were busy; None if it was not read."""
    states = summarise_processes(processes, telemetry)
    by_run = states.groupby("run_id", sort=False)[["lowered", "samples"]].sum()
    by_run["reasons"] = states[states["lowered"] > 0].groupby("run_id")["reasons"].first()
    lowered = by_run[by_run["lowered"] > 0].assign(share=lambda rows: rows["lowered"] / rows["samples"])
    longest = lowered.sort_values("share", ascending=False, kind="stable").head(1).reset_index()
    titles = {str(run["run_id"]): title_of(run) for run in runs.to_dict("records")}
    longest["run"] = longest["run_id"].map(titles)
    clocks = telemetry.loc[telemetry["moment"].astype(str) == "busy", "sm_clock_mhz"].dropna()
    return {
        "busy_mhz": int(clocks.median()) if len(clocks) else None,
        "num_read": int(states["loop_ns"].notna().sum()),
        "num_slow": int(states["slow_host"].sum()),
        "slow_host": SLOW_HOST,
        "num_lowered": len(lowered),
        "longest": next(iter(longest[["run", "share", "reasons"]].to_dict("records")), None),
    }


def mix(runs: pd.DataFrame, is_main: bool, side: str = "") -> Answer:
    """Whether the runs of one recording are a mix, as in `jobs.contract.versions`: what differs, each with its values
    and their numbers of runs. `is_main`: the Environment page is about these runs. side: of two sides, theirs."""
    machines = runs[list(COMPARED)].astype(object)
    different = find_mixed_facts(machines.where(machines.notna(), "").to_dict("records"))
    rows = pd.DataFrame(
        [(name, value, number) for name, runs_by_value in different.items() for value, number in runs_by_value.items()],
        columns=["property", "value", "num_runs"],
    )
    words = rows.assign(property=rows["property"].map(PROPERTIES), value=rows["value"].replace("", UNKNOWN))
    claim = Claim("mix", words, facts=lambda claimed: {"num_all": len(runs), "by": _group_by_property(claimed)})
    return assemble({"is_main": is_main, "side": side}, [claim], [], [])


def _group_by_property(rows: pd.DataFrame) -> list[dict[str, Any]]:
    grouped = rows.groupby("property", sort=False)
    return [{"property": name, "values": of_one.to_dict("records")} for name, of_one in grouped]


def _words(name: str, column: pd.Series) -> pd.Series:
    """A property's values as a reader says them."""
    if name == "gpu_memory_bytes":
        return column.map(lambda size: format_size(size) if pd.notna(size) else UNKNOWN)
    if name == "autograd_multithreading":
        return column.map({True: "on", False: "off"}).fillna(UNKNOWN)
    return column.astype(object).where(column.notna() & (column != ""), UNKNOWN).astype(str)


def _counts(name: str, values: pd.Series) -> pd.DataFrame:
    counts = values.value_counts(sort=False).sort_values(ascending=False, kind="stable")
    return pd.DataFrame(
        {"property": (PROPERTIES | OF_GPUS)[name], "value": counts.index, "num_runs": counts.to_numpy()}
    )


def _list_gpu_values(run_ids: pd.Series, processes: pd.DataFrame, telemetry: pd.DataFrame) -> list[pd.DataFrame]:
    """What each run's processes read of their GPUs, one row a value: a run on several GPUs counts for each."""
    busy = telemetry[telemetry["moment"].astype(str) == "busy"]
    read = {
        "gpu_id": processes[["run_id", "gpu_id"]].dropna().drop_duplicates(),
        "memory_clock_mhz": busy[["run_id", "memory_clock_mhz"]].dropna().drop_duplicates(),
    }
    counted = []
    for name, rows in read.items():
        words = (
            rows[name].astype(str) if name == "gpu_id" else rows[name].map(lambda mhz: format_quantity("Hz", 1e6 * mhz))
        )
        unread = ~run_ids.isin(rows["run_id"].astype(str))
        counted.append(
            _counts(name, pd.concat([words.astype(object), pd.Series([UNKNOWN] * unread.sum(), dtype=object)]))
        )
    return counted


def _others(runs: pd.DataFrame, name: str, values: pd.Series) -> pd.DataFrame:
    """Runs whose value is not the usual one, and known unless it makes a mix: see `mix`."""
    alike = runs["precision"].astype(str) if name == "float32_matmul_precision" else pd.Series("", runs.index)
    usual = values.groupby(alike).transform(lambda of_some: of_some.value_counts().index[0])
    unusual = (values != usual) & ((values != UNKNOWN) | (name in COMPARED and name != "nsys"))
    rows = {"run_id": runs["run_id"], "property": PROPERTIES[name], "value": values, "usual": usual}
    others = pd.DataFrame(rows)[unusual]
    return others.assign(run=[title_of(run) for run in runs[unusual].to_dict("records")])


def _select_differing(rows: pd.DataFrame, num_runs: int) -> dict[str, Any]:
    return {
        "num_differing": rows["run_id"].nunique(),
        "num_all": num_runs,
        "properties": list(dict.fromkeys(rows["property"])),
    }
