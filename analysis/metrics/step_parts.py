"""A training step cut into parts that add up to it: phases, their modules, and the families of their kernels."""

from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import kernel_time, run_grid, timing
from profiler_job.analysis.recording.run_table import keep_runs
from profiler_job.jobs.contract import modes, ranges
from profiler_job.jobs.contract.axes import find_value_label

CASE = ["size", "context_length"]
WAITING = "no kernel runs"
"""Phase of what is left of a step without its kernels."""
REST = "other modules"
LEAST = 0.01
"""Modules with a smaller part of the step are taken together, phase by phase."""
COLUMNS = ["run_id", *CASE, "variant", "step_ns", "phase", "module", "family", "time_ns"]


def parts_of_steps(recordings: list[Any]) -> pd.DataFrame:
    """COLUMNS of every training step of `recordings` with known times, in model order: step_ns is the unprofiled step
    (median), time_ns the kernel time of a part, and of the last part what no kernel takes. Where kernels of several
    GPUs or streams run at once, there is no such cut, and the run is left out.

    variant: what tells runs of one case apart, in words: precision, and each other axis that varies.
    """
    named = _variants([run_grid.select_measured_runs(rec.runs) for rec in recordings])
    parts = [_parts(rec, runs) for rec, runs in zip(recordings, named)]
    parts = [part for part in parts if len(part)]
    if not parts:
        return pd.DataFrame(columns=COLUMNS)
    return pd.concat(parts, ignore_index=True)[COLUMNS]


def _variants(recorded: list[pd.DataFrame]) -> list[pd.DataFrame]:
    """The training steps of each recording, with their `variant`."""
    runs = pd.concat([of.astype({name: str for name in of if of[name].dtype == "category"}) for of in recorded])
    axes = [name for name in run_grid.VARIANT_AXES if name in runs]
    telling = [name for name in axes if name == "precision" or runs[name].nunique(dropna=False) > 1]
    words = []
    for values in runs[telling].itertuples(index=False):
        labels = zip(telling, values)
        words.append(" · ".join(_word(name, value) for name, value in labels if not pd.isna(value)))
    runs = runs.assign(variant=words)
    ends = pd.Series([len(of) for of in recorded]).cumsum()
    sides = [runs.iloc[end - len(of) : end] for of, end in zip(recorded, ends)]
    return [side[side["mode"] == modes.MODES[-1]] for side in sides]


def _word(name: str, value: object) -> str:
    label = str(find_value_label(name, value))
    if name == "precision":
        return label.upper()
    label = {"sdpa": "fused"}.get(label, label)
    return f"{label} {name}" if name in ("attention", "optimizer") else label


def _parts(rec: Any, runs: pd.DataFrame) -> pd.DataFrame:
    times = timing.host_times(rec.steps, "timer", "step")
    times = times[times["phase"] == ranges.STEP][["run_id", "step_ns"]].astype({"run_id": str})
    runs = runs[["run_id", *CASE, "variant"]].merge(times, on="run_id")
    totals = kernel_time.kernel_totals(keep_runs(rec.kernels, {*runs["run_id"]}))
    totals["module"] = [_module(*of) for of in zip(totals["phase"], totals["module"])]
    rows = runs.merge(totals, on="run_id")
    of_module = rows.groupby(["run_id", "phase", "module"])["time_ns"].transform("sum")
    rows.loc[(of_module < LEAST * rows["step_ns"]) & (rows["module"] != ""), "module"] = REST
    keys = [*COLUMNS[:5], "phase", "module", "family"]
    rows = rows.groupby(keys, sort=False)["time_ns"].sum().reset_index()
    left = rows.groupby(COLUMNS[:5], sort=False)["time_ns"].sum().reset_index()
    left["time_ns"] = left["step_ns"] - left["time_ns"]
    # A little less than nothing is left if the profiled kernels took longer than the kernels of the timed steps.
    at_once = left.loc[left["time_ns"] < -0.05 * left["step_ns"], "run_id"]
    left = left[left["time_ns"] > 0].assign(phase=WAITING, module="", family="")
    rows = pd.concat([rows, left], ignore_index=True)
    rows = rows[~rows["run_id"].isin(at_once)]
    rows["time_ns"] = rows["time_ns"].round()
    place = {run_id: i for i, run_id in enumerate(runs["run_id"])}
    phases = {phase: i for i, phase in enumerate((*ranges.ALL_PHASES, "", WAITING))}
    of_module = rows.groupby(["run_id", "phase", "module"])["time_ns"].transform("sum")
    order = rows.assign(
        _run=rows["run_id"].map(place),
        _phase=rows["phase"].map(phases),
        _rest=rows["module"] == REST,
        _size=-of_module,
        _time=-rows["time_ns"],
    )
    by = ["_run", "_phase", "_rest", "_size", "module", "_time", "family"]
    return order.sort_values(by, ignore_index=True).drop(columns=[name for name in by if name.startswith("_")])


def _module(phase: str, path: str) -> str:
    """The outer two modules of a path, blocks not counted; loss and optimizer are one part each."""
    if phase in (ranges.LOSS, ranges.OPTIMIZER):
        return ""
    names = [name for name in path.split("/") if name]
    names = names[1:] if len(names) > 1 and names[0] == "block" else names
    return " · ".join(names[:2]) or "outside modules"


def find_longest_part(rows: pd.DataFrame) -> pd.Series:
    """Of one step the module of a phase in which kernels run longest: phase, module, time_ns, share (of the step)."""
    sums = rows.groupby(["phase", "module", "step_ns"], sort=False)["time_ns"].sum().reset_index()
    longest = sums.loc[sums["time_ns"].idxmax()]
    return pd.concat([longest, pd.Series({"share": longest["time_ns"] / longest["step_ns"]})])
