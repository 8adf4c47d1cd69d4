"""Kernel time by phase, module, family and kernel."""

import re
from typing import Any

import pandas as pd

from profiler_job.analysis.capture.fused_kernels import divide_fused, format_fused, parse_fused, shorten_fused
from profiler_job.analysis.metrics.remembered import remember
from profiler_job.analysis.metrics.timing import select_steps
from profiler_job.analysis.recording.run_table import measure_by_run
from profiler_job.jobs.contract import ranges

OUTSIDE = "(outside modules)"
_BLOCK = re.compile(rf"\b{ranges.BLOCK_PREFIX}\d+\b")
_LISTED = re.compile(r"\.\d+(?=[/ .)[]|$)")


def module_of(path: str) -> str:
    """Module of a range path without the numbers of blocks, and of modules in lists: block_7/attention/softmax ->
    block/attention/softmax, GPT/h.3/mlp -> GPT/h.*/mlp, and in fused kernels, too (see `fused_kernels`):
    GPT/(fused: h.0.norm 50% + h.1.norm 30%) -> GPT/(fused: h.*.norm 80%)."""
    module = _LISTED.sub(".*", _BLOCK.sub("block", path))
    known = parse_fused(module)
    return format_fused(*known) if known else module


@remember
@measure_by_run
def kernel_totals(kernels: pd.DataFrame) -> pd.DataFrame:
    """Kernel time of one step of all ranks, averaged over the measured steps.

    Columns: run_id, phase, module (module_of), family, kernel_name, calls (per step), time_ns (per step): sums over the
    ranks. A run's steps are those in which it launched a kernel.
    """
    rows = select_steps(kernels)
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


@remember
@measure_by_run
def num_profiled_steps(kernels: pd.DataFrame) -> pd.Series:
    """Measured steps with kernels, per run_id: steps of the same number in several ranks are one step."""
    counts = select_steps(kernels).groupby("run_id", observed=True)["step"].nunique()
    counts.index = counts.index.astype(str)
    return counts


@remember
@measure_by_run
def num_steps_of_ranks(kernels: pd.DataFrame) -> pd.Series:
    """Measured steps with kernels, per run_id, each counted in every rank: the divisor of a sum over steps and ranks
    that is compared with the wall time of one rank's step."""
    steps = select_steps(kernels)[["run_id", "rank", "step"]].drop_duplicates()
    counts = steps.groupby("run_id", observed=True).size()
    counts.index = counts.index.astype(str)
    return counts


def share_of(rows: pd.DataFrame, within: list[str], value: str = "time_ns") -> pd.Series:
    """Each row's part of the sum of `value` over the rows with the same `within`: sums to 1 in each group."""
    return rows[value] / rows.groupby(within, observed=True)[value].transform("sum")


def sum_by_family(totals: pd.DataFrame, within: list[str]) -> pd.DataFrame:
    """Time, calls and share of each kernel family: columns within, family, calls, time_ns, share; largest first in each
    group."""
    rows = totals.groupby([*within, "family"], sort=False)[["calls", "time_ns"]].sum().reset_index()
    rows["share"] = share_of(rows, within)
    return rows.sort_values(
        [*within, "time_ns", "family"],
        ascending=[True] * len(within) + [False, True],
        ignore_index=True,
    )


def sum_by_kernel(totals: pd.DataFrame, within: list[str]) -> pd.DataFrame:
    """Time, calls, share and launching modules of each kernel name, largest first: within, kernel_name, family, calls,
    time_ns, share, modules ("a, b": the modules by falling time; of fused kernels the short names)."""
    keys = [*within, "kernel_name", "family"]
    short = {module: shorten_fused(module) for module in totals["module"].unique()}
    parts = (
        totals.assign(module=totals["module"].map(short))
        .groupby([*keys, "module"], sort=False)[["calls", "time_ns"]]
        .sum()
        .reset_index()
    )
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


def top_of_modules(totals: pd.DataFrame) -> pd.DataFrame:
    """The kernel with the most time in each module and phase: run_id, module, phase, kernel_name, family, calls,
    time_ns (of the kernel there), share (of the module's time in that phase), step_share (of the module in the phase).
    Of a fused kernel each module has its part. Modules by falling time in a run, phases in the order in which they
    run."""
    within = ["run_id", "module", "phase"]
    totals = divide_fused(totals, ["time_ns"])
    rows = totals[totals["module"] != ""]
    rows = rows.assign(
        share=share_of(rows, within),
        step_share=rows.groupby(within)["time_ns"].transform("sum")
        / totals.groupby("run_id")["time_ns"].transform("sum"),
        of_module=rows.groupby(["run_id", "module"])["time_ns"].transform("sum"),
        order=rows["phase"].map({phase: i for i, phase in enumerate(ranges.ALL_PHASES)}),
    )
    by = ["run_id", "of_module", "module", "order", "time_ns", "kernel_name"]
    rows = rows.sort_values(by, ascending=[True, False, True, True, False, True]).drop_duplicates(within)
    return rows[[*within, "kernel_name", "family", "calls", "time_ns", "share", "step_share"]].reset_index(drop=True)


@measure_by_run
def count_gemms(kernels: pd.DataFrame, is_main_gemm: Any) -> pd.DataFrame:
    """GEMMs launched by each phase of each step of each rank: run_id, rank, step, phase, gemms.

    `is_main_gemm(kernel_name)` is true for the main kernel of a GEMM and false for its split-K and epilogue
    parts.
    """
    rows = select_steps(kernels)
    names = rows["kernel_name"].astype("category")
    main = {name: bool(is_main_gemm(name)) for name in names.cat.categories}
    by = ["run_id", "rank", "step", "phase"]
    counted = rows[by].assign(gemms=names.map(main).astype(int))
    counts = counted.groupby(by, sort=False, observed=True)["gemms"].sum().reset_index()
    return counts.astype({"run_id": str, "phase": str})


def sum_alone(totals: pd.DataFrame) -> pd.DataFrame:
    """Kernel time of each module without what is inside it, so that all rows sum to the kernel time: `totals` with a
    fused kernel's time in the rows of its modules, and a name for what is outside every module (`OUTSIDE`)."""
    rows = divide_fused(totals, ["time_ns"])
    top = rows["phase"].map({ranges.LOSS: ranges.LOSS_MODULE}).fillna(OUTSIDE)
    return rows.assign(module=rows["module"].where(rows["module"] != "", top))


def sum_by_module(totals: pd.DataFrame) -> pd.DataFrame:
    """Kernel time of each module, what is inside it included, by phase: run_id, module, depth (0 outermost), {phase}_ns
    for each phase, other_ns (outside phases), total_ns, step_share, ratio (backward over forward; NaN where forward has
    none), is_leaf (nothing is inside it), is_fused.

    A module comes before those inside it, the largest first, fused kernels last. What backward computes again, and what
    no module launches, have names in brackets; kernels outside every module are `OUTSIDE`. A fused kernel's time is in
    the rows of its modules, and again in a row of its own (is_fused) below the module around all of them.
    """
    table = _sum_by_phase(divide_fused(totals, ["time_ns"])).assign(is_fused=False)
    known = {"forward_ns", "backward_ns"} <= set(table)
    ratio = table["backward_ns"] / table["forward_ns"].where(table["forward_ns"] > 0) if known else float("nan")
    table["ratio"] = ratio
    outer = {(run_id, path.rpartition("/")[0]) for run_id, path in zip(table["run_id"], table["module"])}
    table["is_leaf"] = [key not in outer for key in zip(table["run_id"], table["module"])]
    fused = totals[[parse_fused(module) is not None for module in totals["module"]]]
    if len(fused):
        lines = _sum_by_phase(fused.assign(module=fused["module"].map(shorten_fused)))
        lines = lines[[parse_fused(module) is not None for module in lines["module"]]]
        table = pd.concat([table, lines.assign(is_fused=True, is_leaf=False)], ignore_index=True)
        times = [name for name in table if str(name).endswith("_ns")]
        table[times] = table[times].fillna(0.0)
    table["step_share"] = table["total_ns"] / table["run_id"].map(totals.groupby("run_id")["time_ns"].sum())
    return table.iloc[_sort_as_tree(table)].reset_index(drop=True)


def _sum_by_phase(totals: pd.DataFrame) -> pd.DataFrame:
    """Sum kernels by module, and all that is inside it: run_id, module, depth, {phase}_ns, total_ns."""
    phases = [phase for phase in (*ranges.ALL_PHASES, "") if phase in set(totals["phase"])]
    table = _sum_inside(totals).pivot_table(
        index=["run_id", "module", "depth"], columns="phase", values="time_ns", aggfunc="sum", fill_value=0.0
    )
    table = table.reindex(columns=phases, fill_value=0.0).rename(columns=lambda phase: f"{phase or 'other'}_ns")
    table["total_ns"] = table.sum(axis=1)
    table = table.reset_index()
    table.columns.name = None
    return table


def _sum_inside(totals: pd.DataFrame) -> pd.DataFrame:
    """Sum kernels by module, once for it and for each module around it: run_id, module, depth, phase, time_ns."""
    rows = totals.groupby(["run_id", "module", "phase"], sort=False)["time_ns"].sum().reset_index()
    top = rows["phase"].map({ranges.LOSS: ranges.LOSS_MODULE}).fillna(OUTSIDE)
    parts = [path.split("/") for path in rows["module"].where(rows["module"] != "", top)]
    return pd.DataFrame(
        [
            (run_id, "/".join(names[: depth + 1]), depth, phase, time_ns)
            for run_id, names, phase, time_ns in zip(rows["run_id"], parts, rows["phase"], rows["time_ns"])
            for depth in range(len(names))
        ],
        columns=["run_id", "module", "depth", "phase", "time_ns"],
    )


def _sort_as_tree(table: pd.DataFrame) -> list[int]:
    """Rows so that each module is followed by those inside it, siblings by falling time, fused kernels after them."""
    time = {(run, path): ns for run, path, ns in zip(table["run_id"], table["module"], table["total_ns"])}
    order = {run_id: i for i, run_id in enumerate(dict.fromkeys(table["run_id"]))}

    def key(row: int) -> list[Any]:
        run, names = table["run_id"].iat[row], table["module"].iat[row].split("/")
        above = ["/".join(names[: i + 1]) for i in range(len(names))]
        return [order[run], *((parse_fused(path) is not None, -time[run, path], path) for path in above)]

    return sorted(range(len(table)), key=key)
