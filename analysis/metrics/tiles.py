"""Tiles and alignment of matmuls: what the names of the kernels that a library chose show, and how fast they are."""

from collections.abc import Iterable

import pandas as pd

from profiler_job.analysis.metrics import kernel_time, run_grid
from profiler_job.analysis.metrics.ordering import place, sort_stably
from profiler_job.analysis.reference import flops, gemm_names, kernel_families
from profiler_job.jobs.contract import ranges

PASSES = {ranges.FORWARD: 1, ranges.BACKWARD: 2}
"""Phases with matmuls, and how many of them there are for each matmul of the forward pass, all of the same cost."""
BY = ["run_id", "phase", "tile", "alignment"]


def list_matmul_tiles(runs: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """GEMM kernels of forward and backward by what their names say, of one step: BY (tile as `128x64`, M by N;
    alignment as `align4`, the elements that loads of operands are aligned to; each "" where the name does not say),
    layouts ("nn, nt"), calls, time_ns, share (of the GEMM time of that phase), flops (NaN where not known),
    flop_rate (TFLOP/s).

    Kernels that only add the parts of a split matmul are rows without a tile. FLOPs are known of the reference
    Transformer where the module of every matmul is and the module has as many as it should.
    """
    totals = kernel_time.kernel_totals(kernels)
    rows = totals[(totals["family"] == "gemm") & totals["phase"].isin(list(PASSES))]
    rows = rows.assign(**_parse_names(rows["kernel_name"]), flops=_flops(runs, rows))
    table = rows.groupby(BY, sort=False).agg(
        layouts=("layout", _join_names),
        calls=("calls", "sum"),
        time_ns=("time_ns", "sum"),
        flops=("flops", lambda values: values.sum(skipna=False)),
    )
    numbers = ("calls", "time_ns", "flops")  # of no rows they would be text
    table = table.reset_index().astype(dict.fromkeys(numbers, float))
    table["share"] = kernel_time.share_of(table, ["run_id", "phase"])
    rate = table["flops"] / (table["time_ns"] / 1e9) / 1e12
    return table.assign(flop_rate=rate.where(table["flops"] > 0))


def sum_over_runs(rows: pd.DataFrame) -> pd.DataFrame:
    """`list_matmul_tiles` over all its runs, by phase: phase, tile, alignment, layouts, num_runs, share (mean of all
    runs that have the phase), rate_low, rate and rate_high (TFLOP/s: lowest, median and highest run), the largest share
    first."""
    num_runs = rows.groupby("phase")["run_id"].nunique()
    table = rows.groupby(["phase", "tile", "alignment"], sort=False).agg(
        layouts=("layouts", lambda names: _join_names(layout for name in names for layout in name.split(", "))),
        num_runs=("run_id", "nunique"),
        share=("share", "sum"),
        rate_low=("flop_rate", "min"),
        rate=("flop_rate", "median"),
        rate_high=("flop_rate", "max"),
    ).reset_index()  # fmt: skip
    table["share"] /= table["phase"].map(num_runs).astype(float)
    return sort_stably(table, place(table["phase"], list(PASSES)), -table["share"])


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names) - {""}))


def select_leading(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of `list_matmul_tiles` with the largest share of each run and phase."""
    return rows.sort_values("share", ascending=False, kind="stable").drop_duplicates(["run_id", "phase"]).sort_index()


def ends(rows: pd.DataFrame, least: float) -> pd.DataFrame:
    """The smallest and the largest tile, of those that take `least` of the GEMM time or more, of each run and phase
    with two or more: run_id, phase, small, large, small_rate, large_rate (TFLOP/s of all kernels with that tile), ratio
    (small over large)."""
    known = rows[(rows["tile"] != "") & rows["flops"].notna()]
    sums = known.groupby(["run_id", "phase", "tile"], sort=False)[["flops", "time_ns", "share"]].sum().reset_index()
    sums = sums[sums["share"] >= least]
    area = sums["tile"].map({tile: int(tile.split("x")[0]) * int(tile.split("x")[1]) for tile in sums["tile"].unique()})
    area = area.astype(float)
    sums = sums.assign(area=area, rate=sums["flops"] / sums["time_ns"] / 1e3).sort_values("area", kind="stable")
    table = sums.groupby(["run_id", "phase"], sort=False).agg(
        small=("tile", "first"),
        large=("tile", "last"),
        small_area=("area", "first"),
        large_area=("area", "last"),
        small_rate=("rate", "first"),
        large_rate=("rate", "last"),
    ).reset_index()  # fmt: skip
    table = table[table["small_area"] < table["large_area"]].drop(columns=["small_area", "large_area"])
    return table.assign(ratio=table["small_rate"] / table["large_rate"])


def _parse_names(names: pd.Series) -> dict[str, pd.Series]:
    read = {name: gemm_names.parse(name) for name in names.unique()}
    elements = {name: gemm_names.parse_alignment(name) for name in read}
    tiles = {name: f"{gemm.tile[0]}x{gemm.tile[1]}" if gemm and gemm.tile else "" for name, gemm in read.items()}
    aligned = {name: f"align{number}" if number else "" for name, number in elements.items()}
    layouts = {name: (gemm.layout if gemm else "") or "" for name, gemm in read.items()}
    return {"tile": names.map(tiles), "alignment": names.map(aligned), "layout": names.map(layouts)}


def _flops(runs: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    """FLOPs of one step in each row of kernel totals; NaN where they are not known."""
    costs = {
        (str(run["run_id"]), module): (cost.flops, number * run_grid.micro_batches_of(run))
        for run in run_grid.select_known_shapes(run_grid.select_measured_runs(runs)).to_dict("records")
        for module, (cost, number) in flops.matmul_costs(run_grid.micro_batch_of(run)).items()
    }
    is_main = rows["kernel_name"].map(kernel_families.is_main_gemm).astype(bool)
    inner = rows["module"].str.rsplit("/", n=1).str[-1]
    calls = rows["calls"].where(is_main, 0.0)
    launched = calls.groupby([rows["run_id"], rows["phase"], inner]).transform("sum")
    known = [costs.get(key, (float("nan"), 0)) for key in zip(rows["run_id"], inner, strict=True)]
    wanted = [number * PASSES[phase] for (_, number), phase in zip(known, rows["phase"], strict=True)]
    each = pd.Series([flops for flops, _ in known], index=rows.index, dtype=float)
    return (each * calls).where((launched == wanted) | ~is_main)
