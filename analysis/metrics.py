"""Definitions that two or more questions use. Times are nanoseconds; a frame is always sorted in model order.

Four clocks, from the outside in:

- timer: Python's clock around a phase, without a profiler, the device synchronised at both ends (`steps`, collector
  `timer`);
- host range: the NVTX range of that phase under nsys, on the host (`steps`, collector `nsys`);
- projected time: on the GPU, from the start of the phase's first kernel to the end of its last;
- busy time: on the GPU, the union of the phase's kernels, so that gaps do not count and overlap counts once.

Kernel time is the sum of kernel durations; without overlap it equals busy time.
"""

import dataclasses
import re

import numpy as np
import pandas as pd

from analysis.answer import NOT_MEASURED
from analysis.knowledge import flops, gpus
from analysis.ordering import place, seen, sorted_by
from jobs import ranges

LAUNCH_BOUND_BUSY_SHARE = 0.8
"""A phase is called launch-bound where the GPU is busy for less than this share of its unprofiled wall time."""

STEP = ranges.STEP
PHASES = ranges.PHASES
MODES = ("forward", "forward_backward", "train_step")
MODE_PHASES = {
    "forward": (ranges.FORWARD,),
    "forward_backward": (ranges.FORWARD, ranges.LOSS, ranges.BACKWARD),
    "train_step": PHASES,
}
VARIANT_AXES = (
    "precision",
    "attention",
    "compile",
    "optimizer",
    "memory_limit_gib",
    "repeat",
    "batch_size",
    "gpu_name",
)

_BLOCK = re.compile(rf"\b{ranges.BLOCK_PREFIX}\d+\b")


# ---------------------------------------------------------------- runs and the grid


def in_model_order(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs from the smallest model to the largest, then by context length, variant and mode."""
    by = ["num_parameters", "context_length", *(axis for axis in VARIANT_AXES if axis in runs)]
    keys = [runs[name].astype(str) if runs[name].dtype == "category" else runs[name] for name in by]
    return sorted_by(runs, *keys, place(runs["mode"], MODES), runs["run_id"].astype(str))


def case_columns(runs: pd.DataFrame) -> list[str]:
    """The axes that tell two runs of one mode apart: size and context length, and each variant axis that varies."""
    return [
        "size",
        "context_length",
        *[a for a in VARIANT_AXES if a in runs and runs[a].nunique() > 1],
    ]


def why_not_measured(run: pd.Series) -> str:
    """Why a run has no numbers: "" for a finished one, otherwise its status and the phase that it reached."""
    status = run.get("status")
    if not isinstance(status, str):
        return "not measured"
    words = {
        "ok": "",
        "oom": "OOM",
        "timeout": "timed out",
        "failed": "failed",
        "no_kernels": "no kernels captured",
    }[status]
    phase = run.get("status_phase")
    return f"{words} in {phase}" if words and isinstance(phase, str) and phase else words


def cases(runs: pd.DataFrame, mode: str) -> pd.DataFrame:
    """The whole grid of one mode: for each variant, every size x context length that its runs have, in any mode.

    Columns: case_columns, run_id ("" where there was no such run), not_measured ("" where the run finished).
    """
    by = case_columns(runs)
    ordered = in_model_order(runs).astype({column: str for column in by if runs[column].dtype == "category"})
    parts = [_product(part) for _, part in ordered.groupby(by[2:], sort=False)] if by[2:] else [_product(ordered)]
    grid = pd.concat(parts, ignore_index=True)[by]
    grid = sorted_by(grid, place(grid["size"], ordered["size"].drop_duplicates()), grid["context_length"])
    found = ordered[ordered["mode"].astype(str) == mode].astype({"run_id": str, "status": str, "status_phase": str})
    found = found.drop_duplicates(by)[[*by, "run_id", "status", "status_phase"]]
    grid = grid.merge(found, how="left", on=by)
    grid[NOT_MEASURED] = [why_not_measured(row) for _, row in grid.iterrows()]
    grid["run_id"] = grid["run_id"].fillna("")
    return grid[[*by, "run_id", NOT_MEASURED]]


def _product(runs: pd.DataFrame) -> pd.DataFrame:
    """Every size with every context length that runs of one variant have."""
    contexts = runs[["context_length"]].drop_duplicates()
    variant = runs[[axis for axis in VARIANT_AXES if axis in runs]].head(1)
    return runs[["size"]].drop_duplicates().merge(contexts, how="cross").merge(variant, how="cross")


def cases_along(runs: pd.DataFrame, mode: str, axis: str, order: list[str]) -> pd.DataFrame:
    """`cases` with a column `axis` even where it does not vary, the rows of one case in the `order` of its values."""
    table = cases(runs, mode)
    if axis not in table:
        table[axis] = str(runs[axis].iloc[0])
    others = [name for name in ("size", "context_length", *VARIANT_AXES) if name in table and name != axis]
    return sorted_by(table, seen(table, others), place(table[axis], order))


def against(rows: pd.DataFrame, axis: str, base: str, values: list[str]) -> pd.DataFrame:
    """`rows` with the `values` of the same case at `base` on `axis` beside them, as {value}_{base}; NaN where there
    are none."""
    by = [name for name in ("size", "context_length", *VARIANT_AXES) if name in rows and name != axis]
    found = rows[rows[axis].astype(str) == base][[*by, *values]]
    found = found.rename(columns={value: f"{value}_{base}" for value in values})
    return rows.merge(found, how="left", on=by, validate="m:1")


def only(rows: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Rows behind a claim without what it does not speak of: their case, run_id and the columns `names`."""
    case = [name for name in ("size", "context_length", *VARIANT_AXES, "run_id") if name in rows]
    return rows[[*case, *names]]


def measured_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Finished runs only: a run that ran out of memory shows no derived number, even for the phases it reached."""
    return in_model_order(runs[runs["status"].astype(str) == "ok"])


def shape_of(run: pd.Series) -> flops.Shape:
    """The sizes of a run's model and batch, for the formulas."""
    return flops.Shape(**{name.name: int(run[name.name]) for name in dataclasses.fields(flops.Shape)})


# ---------------------------------------------------------------- host clocks


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


def host_times(steps: pd.DataFrame, collector: str, prefix: str) -> pd.DataFrame:
    """Spread of wall time over steps, per run and phase (`step` is a phase here), by `timer` or `nsys` (ranges)."""
    rows = steps[steps["collector"].astype(str) == collector].astype({"run_id": str, "phase": str})
    return spread(rows, ["run_id", "phase"], "wall_ns", prefix)


def differ(rows: pd.DataFrame, first: str, second: str) -> pd.Series:
    """True where two times differ by more than their spread: their minimum-to-maximum intervals do not overlap."""
    return (rows[f"{first}_min_ns"] > rows[f"{second}_max_ns"]) | (rows[f"{second}_min_ns"] > rows[f"{first}_max_ns"])


# ---------------------------------------------------------------- GPU clocks


def in_steps(kernels: pd.DataFrame) -> pd.DataFrame:
    """Kernels launched inside a measured step."""
    return kernels[kernels["step"] >= 0]


def gpu_times(kernels: pd.DataFrame) -> pd.DataFrame:
    """GPU time of each phase of each step, and of the whole step (phase `step`).

    Columns: run_id, step, phase, launches, kernel_ns, busy_ns, projected_ns.
    """
    rows = in_steps(kernels)[["run_id", "step", "phase", "start_ns", "end_ns"]]
    whole = rows.assign(phase=pd.Categorical.from_codes(np.zeros(len(rows), int), [STEP]))
    return pd.concat([_gpu_times(rows[rows["phase"] != ""]), _gpu_times(whole)], ignore_index=True)


def _gpu_times(rows: pd.DataFrame) -> pd.DataFrame:
    by = ["run_id", "step", "phase"]
    group = rows.groupby(by, observed=True, sort=False).ngroup().to_numpy()
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    order = np.lexsort((start, group))
    group, start, end = group[order], start[order], end[order]
    by_group = pd.Series(end).groupby(group)
    covered_until = by_group.cummax().groupby(group).shift(1).fillna(0).to_numpy(np.int64)
    first = np.r_[True, group[1:] != group[:-1]] if len(group) else np.zeros(0, bool)
    covered_until = np.where(first, start, covered_until)
    busy = np.maximum(0, end - np.maximum(start, covered_until))
    timed = pd.DataFrame({"start_ns": start, "end_ns": end, "kernel_ns": end - start, "busy_ns": busy})
    totals = timed.groupby(group).agg(
        launches=("kernel_ns", "size"),
        kernel_ns=("kernel_ns", "sum"),
        busy_ns=("busy_ns", "sum"),
        first=("start_ns", "min"),
        last=("end_ns", "max"),
    )
    # Names become text only here: there are a thousand times as many kernels as phases.
    keys = rows.iloc[order[first]][by].reset_index(drop=True).astype({"run_id": str, "phase": str})
    totals["projected_ns"] = totals["last"] - totals["first"]
    return keys.join(totals[["launches", "kernel_ns", "busy_ns", "projected_ns"]])


# ---------------------------------------------------------------- kernel totals


def module_of(path: str) -> str:
    """Module of a range path without its block number: block_7/attention/softmax -> block/attention/softmax."""
    return _BLOCK.sub("block", path)


def kernel_totals(kernels: pd.DataFrame) -> pd.DataFrame:
    """Kernel time of one step, averaged over the measured steps.

    Columns: run_id, phase, module (module_of), family, kernel_name, calls (per step), time_ns (per step). A run's steps
    are those in which it launched a kernel.
    """
    rows = in_steps(kernels)
    modules = {name: module_of(name) for name in rows["module"].astype("category").cat.categories}
    flat = pd.DataFrame(
        {
            "run_id": rows["run_id"].astype("category"),
            "phase": rows["phase"].astype("category"),
            "module": rows["module"].astype("category").map(modules).astype("category"),
            "family": rows["family"].astype("category"),
            "kernel_name": rows["kernel_name"].astype("category"),
            "time_ns": rows["end_ns"] - rows["start_ns"],
        }
    )
    by = ["run_id", "phase", "module", "family", "kernel_name"]
    totals = flat.groupby(by, observed=True, sort=True)["time_ns"].agg(["size", "sum"]).reset_index()
    totals = totals.astype({column: str for column in by})
    num_steps = num_profiled_steps(kernels).reindex(totals["run_id"]).to_numpy()
    return totals[by].assign(calls=totals["size"] / num_steps, time_ns=totals["sum"] / num_steps)


def num_profiled_steps(kernels: pd.DataFrame) -> pd.Series:
    """Measured steps with kernels, per run_id."""
    counts = in_steps(kernels).groupby("run_id", observed=True)["step"].nunique()
    counts.index = counts.index.astype(str)
    return counts


def share_of(rows: pd.DataFrame, within: list[str], value: str = "time_ns") -> pd.Series:
    """Each row's part of the sum of `value` over the rows with the same `within`: sums to 1 in each group."""
    return rows[value] / rows.groupby(within, observed=True)[value].transform("sum")


def by_family(totals: pd.DataFrame, within: list[str]) -> pd.DataFrame:
    """Time, calls and share of each kernel family: columns within, family, calls, time_ns, share; largest first in each
    group."""
    rows = totals.groupby([*within, "family"], sort=False)[["calls", "time_ns"]].sum().reset_index()
    rows["share"] = share_of(rows, within)
    return rows.sort_values(
        [*within, "time_ns", "family"],
        ascending=[True] * len(within) + [False, True],
        ignore_index=True,
    )


def by_kernel(totals: pd.DataFrame, within: list[str]) -> pd.DataFrame:
    """Time, calls, share and launching modules of each kernel name, largest first: within, kernel_name, family, calls,
    time_ns, share, modules ("a, b": the modules by falling time)."""
    keys = [*within, "kernel_name", "family"]
    parts = totals.groupby([*keys, "module"], sort=False)[["calls", "time_ns"]].sum().reset_index()
    parts = parts.sort_values([*keys, "time_ns", "module"], ascending=[True] * len(keys) + [False, True])
    rows = parts.groupby(keys, sort=False).agg(
        calls=("calls", "sum"),
        time_ns=("time_ns", "sum"),
        modules=("module", lambda m: ", ".join(x for x in m if x)),
    )
    rows = rows.reset_index()
    rows["share"] = share_of(rows, within)
    order = [*within, "time_ns", "kernel_name"]
    return rows.sort_values(order, ascending=[True] * len(within) + [False, True], ignore_index=True)


def mfu(run: pd.Series, wall_ns: float) -> float:
    """Model FLOPs utilisation: matrix-product FLOPs of the step over its wall time, over the GPU's dense peak for the
    run's precision.

    NaN where the GPU is not in knowledge/gpus.py.
    """
    gpu = gpus.lookup(str(run["gpu_name"]))
    peak = gpu.peak_flops(str(run["precision"])) if gpu else None
    reached = flops.utilisation(flops.step_flops(shape_of(run), str(run["mode"])), wall_ns / 1e9, peak)
    return float("nan") if reached is None else reached


def matrix_products(kernels: pd.DataFrame, is_matrix_product) -> pd.DataFrame:
    """Matrix products launched by each phase of each step: run_id, step, phase, products.

    `is_matrix_product(kernel_name)` is true for the main kernel of a product and false for its split-K and epilogue
    parts.
    """
    rows = in_steps(kernels)
    names = rows["kernel_name"].astype("category")
    main = {name: bool(is_matrix_product(name)) for name in names.cat.categories}
    counted = rows[["run_id", "step", "phase"]].assign(products=names.map(main).astype(int))
    counts = counted.groupby(["run_id", "step", "phase"], sort=False, observed=True)["products"].sum().reset_index()
    return counts.astype({"run_id": str, "phase": str})


def clock_lead(kernels: pd.DataFrame) -> dict[str, float]:
    """How far the GPU's times are too early against the host's, as far as it shows: a kernel cannot begin before its
    launch.

    share: of the kernels that seem to; lead_ns: by how much at most; drift_ns: the largest change of a step's lead
    within one run.
    """
    lead = kernels["launch_ns"] - kernels["start_ns"]
    of_step = lead.groupby([kernels["run_id"].astype(str), kernels["step"]]).max().groupby(level=0)
    drift = of_step.max() - of_step.min()
    found = {"share": (lead > 0).mean(), "lead_ns": lead.max(), "drift_ns": drift.max()}
    return {name: float(value) if len(kernels) else 0.0 for name, value in found.items()}
