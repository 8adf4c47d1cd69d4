"""What changes were measured to give: pairs of runs that differ by them and by nothing else."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd
from pydantic import ValidationError

from profiler_job.analysis.metrics import differences, run_grid, steady, step_clocks, timing
from profiler_job.analysis.metrics.differences import Band
from profiler_job.analysis.metrics.turns import compare_turns, find_turned_runs, list_rounds
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
COLUMNS = ("run_id", "gpu_name", "changes", "before_ns", "after_ns", *_RATIO, "measured_in", "apart", "gains")
_OF_STEP = ["ns", "min_ns", "max_ns", "shortest_ns", "longest_ns", "parts", "apart"]
_TIMES = ["run_id", "gpu_name", "num_parameters", *_OF_STEP, "loop_ns", "is_turned", "measured_in"]


def measure_gains(recordings: Mapping[str, Any], band: Band | None) -> pd.DataFrame:
    """Each run of the recordings on each GPU, with each of the usual sets of changes for which the run with these was
    timed on such a GPU, too: COLUMNS.

    before_ns and after_ns: the unprofiled step as every page shows it (`timing.host_times`). Both are of one recording
    (`measured_in`) where one has both, as hosts differ, first one in which both took turns; otherwise of the first ones
    that have them. With a larger batch, after_ns is the time for the tokens of the smaller one. times_as_fast:
    their ratio; low, high: its range over pairs of processes, each with the median of its steps. apart: how far the
    processes of either step are apart (`steady.measure_apart`), the larger of both. gains: whether the run is faster
    with the changes, beyond the noise `band` of wall times and what a faster host explains, by all pairs of processes.

    Of runs that took turns in one process, times_as_fast is their ratio within rounds, low and high are its interval,
    and apart is 0 (`metrics.turns`); the two times stay as they are.
    """
    times = pd.concat([pd.DataFrame(columns=_TIMES), *(_list_timed(name, rec) for name, rec in recordings.items())])
    of_run = ["run_id", "gpu_name", "num_parameters"]
    before = times.rename(columns={name: f"{name}_before" for name in _TIMES if name not in of_run})
    after = times.rename(columns={"run_id": "other"})
    pairs = pd.DataFrame(_pair_runs(recordings.values()), columns=["run_id", "changes", "other"]).astype(object)
    both = pairs.assign(pair=pairs.index).merge(before, on="run_id").merge(after, on=["other", *of_run[1:]])
    both["is_two"] = both["measured_in_before"] != both["measured_in"]
    both["is_alone"] = both["is_two"] | ~(both["is_turned_before"] & both["is_turned"]).astype(bool)
    both = both.sort_values(["pair", "is_alone", "is_two"], kind="stable").drop_duplicates(["pair", "gpu_name"])
    if both.empty:
        return pd.DataFrame(columns=[*COLUMNS])
    rows = both.drop(columns=["pair", "is_two", "is_alone"]).reset_index(drop=True).infer_objects()
    times_of_after = [name for name in _OF_STEP if name.endswith("ns")]
    rows[times_of_after] = rows[times_of_after].div(rows["changes"].map(count_steps), axis=0)
    of_host = (rows["loop_ns_before"] / rows["loop_ns"]).astype(float).fillna(1.0).clip(lower=1)
    sides = rows.rename(columns={f"{name}_before": f"before_{name}" for name in _OF_STEP})
    sides = sides.rename(columns={name: f"after_{name}" for name in _OF_STEP})
    low = sides["before_shortest_ns"] / sides["after_longest_ns"]
    high = sides["before_longest_ns"] / sides["after_shortest_ns"]
    gains = differences.differ(sides, "before", "after", band) & (sides["before_ns"] / sides["after_ns"] > of_host)
    gains &= low > 1
    apart = sides[["before_apart", "after_apart"]].max(axis=1)
    table = sides.assign(gains=gains, low=low, high=high, apart=apart)
    table["times_as_fast"] = table["before_ns"] / table["after_ns"]
    rounds = {name: list_rounds(rec.steps, rec.processes) for name, rec in recordings.items()}
    return _prefer_turns(table, rounds)[[*COLUMNS]]


def _prefer_turns(table: pd.DataFrame, rounds: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Replace the ratios of pairs of runs that took turns in one process by those within rounds."""
    if not any(map(len, rounds.values())):
        return table
    rows = []
    for row in table.to_dict("records"):
        before, after = (rounds[row[name]] for name in ("measured_in_before", "measured_in"))
        after = after.assign(wall_ns=after["wall_ns"] / count_steps(row["changes"]))
        if turns := compare_turns(before, after, [row["run_id"]], [row["other"]]):
            row |= {name: getattr(turns, name) for name in _RATIO}
            row |= {"gains": is_faster(turns), "apart": 0.0}
        rows.append(row)
    return pd.DataFrame(rows, columns=table.columns)


def _list_timed(name: str, rec: Any) -> pd.DataFrame:
    """The unprofiled step of each finished run of a recording: _TIMES; shortest_ns, longest_ns: medians of its
    processes, which are `apart`; parts: how long its GPU waits, as a noise band needs it, or at most waits where it was
    not profiled; loop_ns: of a loop of plain Python on its host."""
    steps = timing.host_times(rec.steps, "timer", "step")
    steps = steps[steps["phase"] == ranges.STEP].rename(columns=lambda column: column.removeprefix("step_"))
    ok = run_grid.select_measured_runs(rec.runs).astype({"run_id": str, "gpu_name": str})
    table = ok[["run_id", "gpu_name", "num_parameters"]].merge(steps[["run_id", "ns", "min_ns", "max_ns"]], on="run_id")
    table = table.merge(timing.measure_processes(rec.steps), on="run_id")
    waits = differences.times_of_steps(rec.steps, rec.kernels, rec.memops).set_index("run_id")["parts"]
    at_most = table["run_id"].map(step_clocks.measure_host_limited(rec.steps))
    loops = rec.processes.groupby(rec.processes["run_id"].astype(str))["host_loop_ns"].median()
    parts = table["run_id"].map(waits).fillna(at_most)
    table["apart"] = table["run_id"].map(steady.measure_apart(rec.steps))
    is_turned = table["run_id"].isin(find_turned_runs(rec.steps))
    loop_ns = table["run_id"].map(loops.astype(float))
    return table.assign(parts=parts, loop_ns=loop_ns, is_turned=is_turned, measured_in=name)[_TIMES]


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
