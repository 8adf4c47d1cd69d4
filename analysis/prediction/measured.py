"""What changes were measured to give: pairs of runs that differ by them and by nothing else."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd
from pydantic import ValidationError

from profiler_job.analysis.metrics import differences, gpu_samples, run_grid, steady, step_clocks, timing
from profiler_job.analysis.metrics.differences import Band
from profiler_job.analysis.metrics.turns import compare_turns, find_turned_runs, list_counted_processes, list_rounds
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.axes import Run, find_default
from profiler_job.jobs.contract.changes import (
    BF16,
    CHANGES,
    COMPILE,
    CUDA_GRAPHS,
    FUSED_ADAMW,
    FUSED_ATTENTION,
    KEEP_ACTIVATIONS,
    LARGER_BATCH,
    TF32,
)
from profiler_job.jobs.contract.layout import SCRIPT
from profiler_job.jobs.contract.modes import MODES
from profiler_job.jobs.contract.paired_ratio import is_faster
from profiler_job.jobs.contract.slow_processes import SLOW_HOST

_LADDER = (BF16, FUSED_ATTENTION, FUSED_ADAMW)
USUAL = (
    *((name,) for name in (TF32, *_LADDER, COMPILE, CUDA_GRAPHS, LARGER_BATCH, KEEP_ACTIVATIONS)),
    _LADDER[:2],
    _LADDER,
    (*_LADDER, COMPILE),
    (*_LADDER, CUDA_GRAPHS),
)
"""The sets of changes that runs are paired by."""
LARGER = 2
"""How many times the batch is of LARGER_BATCH."""
_RATIO = ("times_as_fast", "low", "high")
_OF_BOTH = ("before_ns", "after_ns", *_RATIO, "measured_in", "apart", "gains", "on_slow_host")
SETTINGS = ("attention", "optimizer", "gpus")
"""In which a step may differ from one of the same model, context, batch and precision (`name_same_step`)."""
COLUMNS = ("run_id", "gpu_name", "changes", *_OF_BOTH, "low_over_compile", "same_step", *SETTINGS)
_OF_STEP = ["ns", "min_ns", "max_ns", "shortest_ns", "longest_ns", "issued_ns", "parts", "apart", "loop_ns"]
_TIMES = ["run_id", "gpu_name", "num_parameters", *_OF_STEP, "is_issued", "is_turned", "is_captured", "measured_in"]
LEAST_ISSUED = 0.5
"""Part of a step in phases that the CPU limits, from which on a ratio of the step is one of hosts, too."""


def measure_gains(recordings: Mapping[str, Any], band: Band | None) -> pd.DataFrame:
    """Each run of the recordings on each GPU, with each of the usual sets of changes for which the run with these was
    timed on such a GPU, too: COLUMNS.

    before_ns and after_ns: the unprofiled step as every page shows it (`timing.host_times`). Both are of one recording
    (`measured_in`) where one has both, as hosts differ, first one in which both took turns, then one in which both were
    captured, so that it is known how long the GPU waits; otherwise of the first ones that have them. With a larger
    batch, after_ns is the time for the tokens of the smaller one. times_as_fast: their ratio; low, high: its interval,
    by the noise `band` of wall times, all pairs of processes and what a slower host explains
    (`differences.bound_ratios`). apart: how far the processes of either step are apart (`steady.measure_apart`), the
    larger of both. gains: whether the run is faster with the changes: low is above 1.

    Of runs that took turns in one process, times_as_fast is their ratio within rounds, low and high are its interval,
    and apart is 0 (`metrics.turns`); the two times stay as they are. on_slow_host: whether the CPU limits most of one
    of the two, and the host was slow in the processes that the ratio is of: on a fast one it is another ratio. Where
    two recorded processes had two speeds, it was larger on the slower host in 18 of 18 pairs, by a median of 29%.
    low_over_compile: of CUDA graphs, the low end of their gain over torch.compile; NaN if there is no such gain.
    same_step: of `name_same_step`, and the SETTINGS of the run, which it leaves out.
    """
    times = pd.concat([pd.DataFrame(columns=_TIMES), *(_list_timed(name, rec) for name, rec in recordings.items())])
    of_run = ["run_id", "gpu_name", "num_parameters"]
    before = times.rename(columns={name: f"{name}_before" for name in _TIMES if name not in of_run})
    after = times.rename(columns={"run_id": "other"})
    pairs = pd.DataFrame(_pair_runs(recordings.values()), columns=["run_id", "changes", "other"]).astype(object)
    both = pairs.assign(pair=pairs.index).merge(before, on="run_id").merge(after, on=["other", *of_run[1:]])
    both["is_two"] = both["measured_in_before"] != both["measured_in"]
    both["is_alone"] = both["is_two"] | ~(both["is_turned_before"] & both["is_turned"]).astype(bool)
    both["is_unseen"] = ~(both["is_captured_before"] & both["is_captured"]).astype(bool)
    both = both.sort_values(["pair", "is_alone", "is_two", "is_unseen"], kind="stable")
    both = both.drop_duplicates(["pair", "gpu_name"])
    if both.empty:
        return pd.DataFrame(columns=[*COLUMNS])
    rows = both.drop(columns=["pair", "is_two", "is_alone", "is_unseen"]).reset_index(drop=True).infer_objects()
    times_of_after = [name for name in _OF_STEP if name not in ("apart", "loop_ns")]
    rows[times_of_after] = rows[times_of_after].astype(float).div(rows["changes"].map(count_steps), axis=0)
    sides = rows.rename(columns={f"{name}_before": f"before_{name}" for name in _OF_STEP})
    sides = sides.rename(columns={name: f"after_{name}" for name in _OF_STEP})
    bounds = differences.bound_ratios(sides, "before", "after", band)
    gains = (bounds["low"] > 1) & differences.differ(sides, "before", "after", band)
    apart = sides[["before_apart", "after_apart"]].max(axis=1)
    table = sides.assign(**bounds, gains=gains, apart=apart, on_slow_host=False)
    table["times_as_fast"] = table["before_ns"] / table["after_ns"]
    table = table.merge(_list_settings(recordings.values()), on="run_id")
    return _add_gain_over_compile(_prefer_turns(table, recordings))[[*COLUMNS]]


def name_same_step(run: Mapping[str, Any]) -> str:
    """Name what a run has in common with runs on other GPUs, on other numbers of them, with another optimizer and
    another backend of fused attention: the id of such a run with the usual of these. Eager attention is no such
    backend: it limits a step elsewhere. Empty as for `find_run_id`."""
    is_fused = str(run.get("attention")) not in ("nan", str(find_default("attention")))
    usual = {"attention": CHANGES[FUSED_ATTENTION].value} if is_fused else {}
    usual |= {name: find_default(name) for name in ("optimizer", "gpus", "parallel", "exchange") if name in run}
    return find_run_id({**run, **usual}, ())


def _list_settings(recordings: Iterable[Any]) -> pd.DataFrame:
    """The settings of each run, once: run_id, same_step and SETTINGS, at their defaults in older recordings."""
    runs = {str(run["run_id"]): run for rec in recordings for run in rec.runs.to_dict("records")}
    rows = [
        (run_id, name_same_step(run), *(run.get(name, find_default(name)) for name in SETTINGS))
        for run_id, run in runs.items()
    ]
    return pd.DataFrame(rows, columns=["run_id", "same_step", *SETTINGS])


def _add_gain_over_compile(table: pd.DataFrame) -> pd.DataFrame:
    rows = table.to_dict("records")
    of_graphs = {(row["run_id"], row["gpu_name"]): row for row in rows if row["changes"] == (CUDA_GRAPHS,)}
    lows = {(run_id, gpu): row["low"] for (run_id, gpu), row in of_graphs.items() if row["gains"]}
    compiled = {(row["run_id"], row["gpu_name"]): row["other"] for row in rows if row["changes"] == (COMPILE,)}
    over = [
        lows.get((compiled.get((row["run_id"], row["gpu_name"])), row["gpu_name"]), math.nan)
        if row["changes"] == (CUDA_GRAPHS,)
        else math.nan
        for row in rows
    ]
    return table.assign(low_over_compile=over)


def _prefer_turns(table: pd.DataFrame, recordings: Mapping[str, Any]) -> pd.DataFrame:
    """Replace the ratios of pairs of runs that took turns in one process by those within rounds."""
    rounds = {name: list_rounds(rec.steps, rec.processes) for name, rec in recordings.items()}
    if not any(map(len, rounds.values())):
        return table
    hosts = {name: _list_hosts(recordings[name]) for name, turned in rounds.items() if len(turned)}
    rows = []
    for row in table.to_dict("records"):
        before, after = (rounds[row[name]] for name in ("measured_in_before", "measured_in"))
        after = after.assign(wall_ns=after["wall_ns"] / count_steps(row["changes"]))
        compared = (before, after, [row["run_id"]], [row["other"]])
        if turns := compare_turns(*compared):
            row |= {name: getattr(turns, name) for name in _RATIO}
            row |= {"gains": is_faster(turns), "apart": 0.0}
            is_issued = row["is_issued_before"] or row["is_issued"]
            row["on_slow_host"] = is_issued and _is_slow(hosts[row["measured_in"]], list_counted_processes(*compared))
        rows.append(row)
    return pd.DataFrame(rows, columns=table.columns)


def _list_hosts(rec: Any) -> pd.DataFrame:
    """List the hosts of the processes in which runs took turns: group, host_ratio."""
    names = ["run_id", "rank", "process"]
    hosts = gpu_samples.summarise_processes(rec.processes, rec.telemetry)[[*names, "host_ratio"]]
    groups = rec.processes[[*names, "group"]].astype({"run_id": str})
    return groups.merge(hosts, on=names)[["group", "host_ratio"]]


def _is_slow(hosts: pd.DataFrame, groups: Iterable[str]) -> bool:
    """Return whether the host was slow in processes in which runs took turns. hosts: as `_list_hosts` lists them."""
    return bool(hosts.loc[hosts["group"].isin(groups), "host_ratio"].median() > SLOW_HOST)


def _list_timed(name: str, rec: Any) -> pd.DataFrame:
    """The unprofiled step of each finished run of a recording: _TIMES; shortest_ns, longest_ns: medians of its
    processes, which are `apart`; parts: how long its GPU waits, as a noise band needs it, or at most waits where it was
    not profiled; loop_ns: of a loop of plain Python on its host; is_issued: whether the CPU limits LEAST_ISSUED of the
    step."""
    steps = timing.host_times(rec.steps, "timer", "step")
    steps = steps[steps["phase"] == ranges.STEP].rename(columns=lambda column: column.removeprefix("step_"))
    ok = run_grid.select_measured_runs(rec.runs).astype({"run_id": str, "gpu_name": str})
    table = ok[["run_id", "gpu_name", "num_parameters"]].merge(steps[["run_id", "ns", "min_ns", "max_ns"]], on="run_id")
    table = table.merge(timing.measure_processes(rec.steps), on="run_id")
    waits = differences.times_of_steps(rec.steps, rec.kernels, rec.memops).set_index("run_id")["parts"]
    at_most = table["run_id"].map(step_clocks.measure_host_limited(rec.steps))
    loops = rec.processes.groupby(rec.processes["run_id"].astype(str))["host_loop_ns"].median()
    seen = table["run_id"].map(waits)
    parts = seen.fillna(at_most)
    table["apart"] = table["run_id"].map(steady.measure_apart(rec.steps))
    is_turned = table["run_id"].isin(find_turned_runs(rec.steps))
    loop_ns = table["run_id"].map(loops.astype(float))
    is_issued = at_most / table["ns"] >= LEAST_ISSUED
    known = {"parts": parts, "issued_ns": at_most, "loop_ns": loop_ns, "is_issued": is_issued, "is_turned": is_turned}
    return table.assign(**known, is_captured=seen.notna(), measured_in=name)[_TIMES]


def _pair_runs(recordings: Any) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Of each run, once: its id, the changes that it has none of yet, and the id of the run with them."""
    seen = set()
    for rec in recordings:
        for run in run_grid.select_measured_runs(rec.runs).to_dict("records"):
            run_id = str(run["run_id"])
            if run_id in seen or str(run.get("workload")) == SCRIPT:
                continue
            seen.add(run_id)
            for names in USUAL:
                if all(_is_change(run, name) for name in names):
                    yield run_id, names, find_run_id(run, names)


def _is_change(run: Mapping[str, Any], name: str) -> bool:
    """Whether the run has none of this change yet, and would be another with it."""
    if name == FUSED_ADAMW and str(run["mode"]) != MODES[-1]:
        return False
    if name == KEEP_ACTIVATIONS:
        value = run.get("checkpointing")
        return value is not None and not pd.isna(value) and str(value) != find_default("checkpointing")
    axis = CHANGES[name].axis
    if not axis:
        return True
    known = {str(find_default(axis))} | ({CHANGES[COMPILE].value} if name == CUDA_GRAPHS else set())
    return str(run.get(axis, find_default(axis))) in known


def _change_axes(run: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The values of the axes that a change sets in a run."""
    if name == LARGER_BATCH:
        return {"batch_size": LARGER * run["batch_size"]}
    if name == KEEP_ACTIVATIONS:
        return {"checkpointing": find_default("checkpointing")}
    return {CHANGES[name].axis: CHANGES[name].value}


def count_steps(names: Iterable[str]) -> int:
    """Count the steps without the changes whose tokens one step with them has."""
    return LARGER if LARGER_BATCH in names else 1


def find_run_id(run: Mapping[str, Any], names: Iterable[str]) -> str:
    """Find the id of the run that `run` is with the changes; empty if no sweep can have such a run, as a recording of
    somebody else may say."""
    fields = {name: run[name] for name in Run.model_fields if name in run and not pd.isna(run[name])}
    plain = {name: value.item() if hasattr(value, "item") else value for name, value in fields.items()}
    try:
        changed = {key: value for name in names for key, value in _change_axes(plain, name).items()}
        return Run(**plain | changed).run_id
    except ValidationError:
        return ""
