"""Kernel time by phase, module, family and kernel."""

import re

import pandas as pd

from analysis.metrics.timing import in_steps
from jobs.contract import ranges

_BLOCK = re.compile(rf"\b{ranges.BLOCK_PREFIX}\d+\b")


def module_of(path: str) -> str:
    """Module of a range path without its block number: block_7/attention/softmax -> block/attention/softmax."""
    return _BLOCK.sub("block", path)


def kernel_totals(kernels: pd.DataFrame) -> pd.DataFrame:
    """Kernel time of one step of all ranks, averaged over the measured steps.

    Columns: run_id, phase, module (module_of), family, kernel_name, calls (per step), time_ns (per step): sums over the
    ranks. A run's steps are those in which it launched a kernel.
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
    """Measured steps with kernels, per run_id: steps of the same number in several ranks are one step."""
    counts = in_steps(kernels).groupby("run_id", observed=True)["step"].nunique()
    counts.index = counts.index.astype(str)
    return counts


def num_steps_of_ranks(kernels: pd.DataFrame) -> pd.Series:
    """Measured steps with kernels, per run_id, each counted in every rank: what divides a sum over steps and ranks
    that is held against the wall time of one rank's step."""
    steps = in_steps(kernels)[["run_id", "rank", "step"]].drop_duplicates()
    counts = steps.groupby("run_id", observed=True).size()
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


def count_gemms(kernels: pd.DataFrame, is_main_gemm) -> pd.DataFrame:
    """GEMMs launched by each phase of each step of each rank: run_id, rank, step, phase, products.

    `is_main_gemm(kernel_name)` is true for the main kernel of a GEMM and false for its split-K and epilogue
    parts.
    """
    rows = in_steps(kernels)
    names = rows["kernel_name"].astype("category")
    main = {name: bool(is_main_gemm(name)) for name in names.cat.categories}
    by = ["run_id", "rank", "step", "phase"]
    counted = rows[by].assign(products=names.map(main).astype(int))
    counts = counted.groupby(by, sort=False, observed=True)["products"].sum().reset_index()
    return counts.astype({"run_id": str, "phase": str})
