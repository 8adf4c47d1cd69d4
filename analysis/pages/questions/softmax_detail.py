"""(s) How near is the softmax of eager attention to the memory's bandwidth?"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from profiler_job.analysis.metrics import differences, kernel_time, run_grid, timing
from profiler_job.analysis.metrics.differences import Band, Bands
from profiler_job.analysis.pages.case_columns import case_headings
from profiler_job.analysis.pages.extreme_rows import extremes, find_highest, many, name_calibrated_gpu, noise_of, span
from profiler_job.analysis.pages.question import Inputs, Question, Section
from profiler_job.analysis.recording.run_table import measure_by_run
from profiler_job.analysis.reference import flops, gpus
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.words import NOT_MEASURED

KERNELS = ("max", "subtract", "exp", "sum", "divide")
READING = ("max", "sum")
"""They write one number a row: they are compared with the bandwidth of reading, the others with the bandwidth of
copying."""
PRECISIONS = ("fp32", "tf32")
NO_PEAK = "no measured bandwidth"


def answer(given: Inputs) -> Answer:
    """The five kernels inside the range `softmax` of forward (mode `forward`, eager attention, FP32 or TF32), told
    apart by the order of their launches: bytes by flops.softmax_kernels, time, rate, and rate over the bandwidth that
    `calibration` measured (read for max and sum, copy for the others).

    Time is the median over layers and steps, with minimum and maximum. A rate is faster than memory where it exceeds
    every bandwidth measured: some of those bytes came from the L2 cache. The chain is all five. The bound is what
    reading and writing the scores once would take at the median copy bandwidth; nobody measured a kernel that does. The
    verdict is of scores that the L2 cache of the GPU cannot hold (`gpus`). Two kernels differ where the times of all
    their launches in a step are more different than the noise band of kernel times (`bands`).
    """
    frames = _frames(given.runs, given.kernels, given.calibration)
    return assemble(
        _facts(frames, given.calibration, given.bands), _claims(frames, given.bands), _tables(frames), _charts(frames)
    )


QUESTION = Question(
    letter="s",
    slug="softmax-detail",
    title="Is softmax as fast as memory allows?",
    needs=("runs", "kernels", "calibration", "bands"),
    answer=answer,
    section=Section.LIMIT,
    place=4,
    study="",
    searched=("softmax", "memory-bound softmax"),
)


@dataclass(frozen=True, kw_only=True)
class SoftmaxDetailData:
    """`every`: one row per case and kernel; `cases`: one row per case with the five kernels side by side. `by` names a
    case. `l2_bytes`: the L2 cache of the GPU, None where it is not listed."""

    by: list[str]
    every: pd.DataFrame
    cases: pd.DataFrame
    gpu_name: str
    l2_bytes: float | None

    @property
    def judged(self) -> pd.DataFrame:
        """Kernels whose rate has a measured bandwidth next to it."""
        return self.every[self.every["share"].notna()]

    @property
    def measured(self) -> pd.DataFrame:
        """Cases whose five kernels were found."""
        return self.cases[(self.cases[NOT_MEASURED] == "") & self.cases["chain_ns"].notna()]


def _frames(runs: pd.DataFrame, kernels: pd.DataFrame, calibration: pd.DataFrame) -> SoftmaxDetailData:
    peaks = calibration[calibration["figure"].isin(("read", "copy"))]
    bandwidth = peaks.set_index("figure")["value"].reindex(["read", "copy"]).astype(float)
    work, single = _work(runs), _single(kernels)
    single = single[single["run_id"].isin(work["run_id"])]
    grid = run_grid.cases(runs, "forward").merge(work, how="left", on="run_id")
    unknown = (grid[NOT_MEASURED] == "") & ~grid["run_id"].isin(single["run_id"])
    grid.loc[unknown, NOT_MEASURED] = "not these five kernels"
    every = grid.merge(single, on="run_id")
    every["bytes"] = [row[f"{row['kernel']}_bytes"] for row in every.to_dict("records")]
    every["peak"] = every["kernel"].map(lambda name: "read" if name in READING else "copy")
    every["rate"] = every["bytes"].astype(float) / every["time_ns"].astype(float)
    every["share"] = every["rate"] * 1e9 / every["peak"].map(bandwidth).astype(float)
    every["faster_than_memory"] = every["rate"] * 1e9 > peaks["high"].astype(float).max()
    gpu_name = ", ".join(sorted(set(runs["gpu_name"].astype(str))))
    gpu = gpus.lookup(gpu_name)
    return SoftmaxDetailData(
        by=run_grid.case_columns(runs),
        every=every,
        cases=_wide(grid, every, bandwidth["copy"]),
        gpu_name=gpu_name,
        l2_bytes=gpu.l2_bytes if gpu else None,
    )


def _facts(frames: SoftmaxDetailData, calibration: pd.DataFrame, bands: Bands | None) -> dict[str, Any]:
    return {
        "noise": noise_of(bands),
        "known": len(frames.measured) > 0,
        "l2_bytes": frames.l2_bytes,
        "gpu": frames.gpu_name,
        "calibrated_on": name_calibrated_gpu(calibration),
        "peaks": {row["figure"]: row for row in calibration.to_dict("records")},
        "kernels": list(KERNELS),
    }


def _claims(frames: SoftmaxDetailData, bands: Bands | None) -> list[Claim]:
    judged, measured, l2_bytes = frames.judged, frames.measured, frames.l2_bytes
    bound = measured.dropna(subset="over_bound")
    return [
        Claim("largest", _find_largest(judged), facts=extremes("share")),
        Claim("smallest", _find_smallest(judged), facts=extremes("share")),
        Claim("cache", judged[judged["faster_than_memory"]], facts=_count_cached(len(judged))),
        Claim("no_cache", judged, lambda rows: not rows["faster_than_memory"].any(), facts=extremes("share")),
        Claim(
            "vectorised",
            _compare_operations(frames.every, bands.kernel if bands else None),
            _exp_is_faster,
            facts=_find_vectorised,
        ),
        Claim("beyond_cache", bound[bound["score_bytes"] > (l2_bytes or math.inf)], facts=extremes("over_bound")),
        Claim("small_only", bound, _is_all_in(l2_bytes), facts=extremes("over_bound")),
        Claim("cache_unknown", bound, lambda rows: l2_bytes is None, facts=extremes("over_bound")),
        Claim("bound", bound, facts=extremes("over_bound")),
        Claim("no_peaks", measured, lambda rows: rows["over_bound"].isna().all(), facts=_rates),
        Claim("traffic", measured, facts=extremes("times_least")),
    ]


def _tables(frames: SoftmaxDetailData) -> list[Table]:
    headings = case_headings(frames.by)
    return [
        Table(
            "kernels",
            "Each kernel's share of the measured bandwidth",
            (
                *headings,
                Column("score_bytes", "scores, one layer", "mib"),
                *(Column(f"{name}_share", name, "share", absent=NO_PEAK) for name in KERNELS),
                Column("chain_rate", "all five", "gbps"),
            ),
            frames.cases,
        ),
        Table(
            "bound",
            "Softmax of one forward pass, and the least for one pass over memory: a bound, not a measurement",
            (
                *headings,
                Column("chain_bytes", "moved", "bytes"),
                Column("least_bytes", "read and written once", "bytes"),
                Column("chain_ns", "five kernels", "ms"),
                Column("bound_ns", "one pass, bound", "ms", absent=NO_PEAK),
                Column("over_bound", "measured ÷ bound", "ratio", absent=NO_PEAK),
            ),
            frames.cases,
        ),
        Table(
            "every",
            "Every kernel of every case",
            (
                *headings,
                Column("kernel", "kernel"),
                Column("bytes", "moved", "mib"),
                Column("time_ns", "time", "us", lower="time_min_ns", upper="time_max_ns"),
                Column("rate", "rate", "gbps"),
                Column("share", "of measured bandwidth", "share", absent=NO_PEAK),
                Column("kernel_name", "name", "kernel"),
            ),
            frames.every.drop(columns=[f"{name}_bytes" for name in KERNELS]),
        ),
    ]


def _charts(frames: SoftmaxDetailData) -> list[Chart]:
    """The five kernels of the largest model, one mark a context."""
    judged, title = frames.judged, "Share of the measured bandwidth"
    of = judged[judged["score_bytes"] == judged["score_bytes"].max()].tail(1)
    judged = judged[judged["size"].isin(of["size"])]
    rows = judged.assign(scope=[f"{context:,} tokens" for context in judged["context_length"]])
    if len(rows):
        longest = rows[rows["run_id"].isin(of["run_id"])].set_index("kernel")["share"]
        fast, slow = longest.idxmax(), longest.idxmin()
        case = f"{of['size'].iloc[0]} at {of['context_length'].iloc[0]:,} tokens"
        title = f"{case}: {fast} reaches {longest[fast]:.0%} of the measured bandwidth, {slow} {longest[slow]:.0%}"
    options = {
        "order": list(dict.fromkeys(rows["scope"])),
        "by": ["kernel"],
        "unit": "% of measured bandwidth",
        "zero": False,
    }
    return [Chart("shares", "grouped_bars", title, rows, options=options)]


def _work(runs: pd.DataFrame) -> pd.DataFrame:
    """Bytes of one layer's scores and of each kernel, and layers, of the runs that the formulas are for: run_id,
    num_layers, score_bytes, {kernel}_bytes."""
    rows = []
    for run in run_grid.select_known_shapes(run_grid.select_measured_runs(runs)).to_dict("records"):
        if run["attention"] == "naive" and run["precision"] in PRECISIONS:
            shape = run_grid.shape_of(run)
            costs = flops.softmax_kernels(shape)
            row = {"run_id": str(run["run_id"]), "num_layers": shape.num_layers}
            row |= {"score_bytes": shape.num_scores * flops.FP32_BYTES}
            rows.append(row | {f"{name}_bytes": costs[name].bytes for name in KERNELS})
    return pd.DataFrame(rows, columns=["run_id", "num_layers", "score_bytes", *(f"{name}_bytes" for name in KERNELS)])


@measure_by_run
def _single(kernels: pd.DataFrame) -> pd.DataFrame:
    """Time of one launch of each of the five kernels over layers and steps: run_id, kernel, kernel_name, time_ns,
    time_min_ns, time_max_ns, launches. Runs whose softmax ranges do not all hold five kernels are left out."""
    rows = timing.select_steps(kernels)
    rows = rows[rows["phase"].astype(str) == ranges.FORWARD]
    modules = rows["module"].astype("category")
    inside = [name for name in modules.cat.categories if name.rsplit("/", 1)[-1] == ranges.SOFTMAX]
    rows = rows[modules.isin(inside)].astype({"run_id": str, "module": str, "kernel_name": str})
    of_range = ["run_id", "rank", "step", "module"]
    rows = rows.sort_values([*of_range, "launch_ns"], kind="stable")
    instance = rows.groupby(of_range, sort=False)["launch_ns"]
    rows = rows.assign(position=instance.cumcount(), number=instance.transform("size"))
    five = rows.groupby("run_id")["number"].transform(lambda numbers: (numbers == len(KERNELS)).all())
    rows = rows[five.astype(bool)]
    rows = rows.assign(kernel=rows["position"].map(dict(enumerate(KERNELS))), time_ns=rows["end_ns"] - rows["start_ns"])
    table = rows.groupby(["run_id", "position", "kernel"], sort=False).agg(
        kernel_name=("kernel_name", "first"),
        median=("time_ns", "median"),
        time_min_ns=("time_ns", "min"),
        time_max_ns=("time_ns", "max"),
        total=("time_ns", "sum"),
        launches=("time_ns", "size"),
    )
    table = table.rename(columns={"median": "time_ns"}).reset_index()
    steps = kernel_time.num_steps_of_ranks(kernels).reindex(table["run_id"]).to_numpy()
    return table.assign(total=table["total"] / steps).drop(columns="position")


def _wide(grid: pd.DataFrame, long: pd.DataFrame, copy: float) -> pd.DataFrame:
    """One row per case: {kernel}_share, {kernel}_rate, and of one forward pass chain_ns, chain_bytes, chain_rate,
    least_bytes, times_least, bound_ns, over_bound."""
    parts = [long.pivot(index="run_id", columns="kernel", values=v).add_suffix(f"_{v}") for v in ("share", "rate")]
    table = grid.merge(pd.concat(parts, axis=1).reset_index(), how="left", on="run_id")
    for name in KERNELS:
        table[f"{name}_share"] = table.get(f"{name}_share")
    layers = table["num_layers"].astype(float)
    table["chain_ns"] = table["run_id"].map(long.groupby("run_id")["total"].sum()).astype(float)
    table["chain_bytes"] = layers * table[[f"{name}_bytes" for name in KERNELS]].sum(axis=1, min_count=1)
    table["chain_rate"] = table["chain_bytes"] / table["chain_ns"]
    table["least_bytes"] = layers * 2 * table["score_bytes"]
    table["times_least"] = table["chain_bytes"] / table["least_bytes"]
    table["bound_ns"] = table["least_bytes"] / copy * 1e9
    table["over_bound"] = table["chain_ns"] / table["bound_ns"]
    return table


# ---------------------------------------------------------------- facts of the claims


def _rates(rows: pd.DataFrame) -> dict[str, Any]:
    return {"rate": span(rows["chain_rate"] * 1e9)}


def _is_all_in(l2_bytes: float | None) -> Callable[[pd.DataFrame], bool]:
    return lambda rows: l2_bytes is not None and rows["score_bytes"].max() <= l2_bytes


def _find_largest(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["score_bytes"] == rows["score_bytes"].max()]


def _find_smallest(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["score_bytes"] == rows["score_bytes"].min()]


def _count_cached(num_all: int) -> Callable[[pd.DataFrame], dict[str, Any]]:
    def facts(rows: pd.DataFrame) -> dict[str, Any]:
        return {
            "num_all": num_all,
            "kernels": [name for name in KERNELS if name in set(rows["kernel"])],
            "largest_scores": rows["score_bytes"].max(),
            "high": find_highest(rows, "share"),
        }

    return facts


def _compare_operations(long: pd.DataFrame, band: Band | None) -> pd.DataFrame:
    """exp next to subtract and divide, which move as much: one row per case with the three times and their spread."""
    parts = long[long["kernel"].isin(("subtract", "exp", "divide"))]
    if not len(parts):
        return parts
    values = ["time_ns", "time_min_ns", "time_max_ns", "step_ns", "vectorised"]
    parts = parts.rename(columns={"total": "step_ns"})
    parts = parts.assign(vectorised=parts["kernel_name"].str.contains("vectorized_elementwise_kernel", regex=False))
    table = parts.pivot(index="run_id", columns="kernel", values=values)
    table.columns = [f"{kernel}_{value}" for value, kernel in table.columns]
    cases = parts.drop_duplicates("run_id")[
        ["run_id", "num_layers", *[c for c in ("size", "context_length") if c in parts]]
    ]
    table = cases.merge(table.reset_index(), on="run_id")
    table["slower"] = table[["subtract_time_ns", "divide_time_ns"]].max(axis=1) / table["exp_time_ns"]
    apart = pd.Series(True, index=table.index)
    for other in ("subtract", "divide"):
        times = pd.DataFrame()
        for kernel in ("exp", other):
            source = "step" if band else "time"
            for end in ("ns", "min_ns", "max_ns") if band is None else ("ns",):
                times[f"{kernel}_{end}"] = table[f"{kernel}_{source}_{end}"].astype(float)
            times[f"{kernel}_parts"] = np.sqrt(table["num_layers"].astype(float))
        longer = table[f"{other}_time_ns"] > table["exp_time_ns"]
        apart &= longer & differences.differ(times, "exp", other, band)
    return table.assign(apart=apart)


def _exp_is_faster(rows: pd.DataFrame) -> bool:
    vectorised = (
        rows["exp_vectorised"] & ~rows["subtract_vectorised"].astype(bool) & ~rows["divide_vectorised"].astype(bool)
    )
    return bool(vectorised.all() and many(rows)(rows[rows["apart"]]) and (rows["slower"] > 1).all())


def _find_vectorised(rows: pd.DataFrame) -> dict[str, Any]:
    apart = rows[rows["apart"]]
    return {"num_apart": len(apart), **extremes("slower")(apart)}
