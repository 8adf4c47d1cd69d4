"""A training step in several precisions: its time by part, its math paths, and how its numbers differ."""

import numpy as np
import pandas as pd

from profiler_job.analysis.metrics import differences, kernel_time, run_grid, timing, utilisation
from profiler_job.analysis.metrics.differences import Band
from profiler_job.analysis.recording.run_table import measure_by_run
from profiler_job.analysis.reference import element_types, flops, gemm_names, kernel_families
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.precisions import BASE_PRECISION, PRECISIONS

MODE = "train_step"
BASE = BASE_PRECISION
SLOWER = dict(zip([*PRECISIONS][1:], PRECISIONS))
"""The precision before each, which is slower."""
PHASES = (ranges.FORWARD, ranges.BACKWARD, ranges.OPTIMIZER)
FRACTION_BITS = {name: record.fraction_bits for name, record in PRECISIONS.items()}
"""Bits stored after the point: each bit less doubles the step between neighbouring numbers."""
UNCHANGED = 1.05
"""A speed-up below this is none."""
OPTIMIZER_BUSY = "optimizer_busy"
GEMM = "gemm"
DEVICE_COPY = "memcpy Device-to-Device"
NUMERICS = ["loss", "loss_fp32", "logits_rms_fp32", "logits_rms_difference", "logits_max_difference"]
ELEMENTS = ("fp32", "bf16", "mixed")


def phase_times(steps: pd.DataFrame) -> pd.DataFrame:
    """Unprofiled time of each run: step_ns with _min_ns and _max_ns, {phase}_ns."""
    times = timing.host_times(steps, "timer", "step")
    phases = times.pivot(index="run_id", columns="phase", values="step_ns").reindex(columns=PHASES).add_suffix("_ns")
    return times[times["phase"] == ranges.STEP].drop(columns="phase").merge(phases.reset_index(), on="run_id")


def gpu_times(kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    """GPU busy and launches of a step of one rank, median over steps and ranks: run_id, busy_ns, launches,
    {OPTIMIZER_BUSY}_ns."""
    times = timing.gpu_times(kernels, memops).groupby(["phase", "run_id"], sort=False)[["busy_ns", "launches"]].median()
    times = times.reset_index()
    step, optimizer = (times[times["phase"] == name] for name in (ranges.STEP, ranges.OPTIMIZER))
    optimizer = optimizer[["run_id", "busy_ns"]].rename(columns={"busy_ns": f"{OPTIMIZER_BUSY}_ns"})
    return step.drop(columns="phase").merge(optimizer, how="left", on="run_id")


def contents(totals: pd.DataFrame, memops: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """What the kernels of one step are, per run_id.

    gemms_ns, rest_ns: kernel time of GEMMs and of all others. {fp32, bf16, mixed}_elements_ns: elementwise
    kernels outside the optimizer by the type in their name, {}_elements_share of all of these. casts, cast_ns and
    cast_share of kernel time. optimizer_fp32: every kernel of the optimizer says FP32. copied_bytes: by copies from
    device to device.
    """
    rows = totals.assign(
        element=totals["kernel_name"].map(element_types.parse_element_type),
        cast=totals["kernel_name"].map(element_types.is_cast),
    )

    def time(of: pd.Series) -> pd.Series:
        return rows["time_ns"].where(of, 0).groupby(rows["run_id"]).sum()

    gemms, optimizer = rows["family"] == GEMM, rows["phase"] == ranges.OPTIMIZER
    elementwise = (rows["family"] == "elementwise") & ~optimizer
    columns = {"gemms_ns": time(gemms), "rest_ns": time(~gemms), "cast_ns": time(rows["cast"])}
    for key in ELEMENTS:
        columns[f"{key}_elements_ns"] = time(elementwise & (rows["element"] == key))
        columns[f"{key}_elements_share"] = columns[f"{key}_elements_ns"] / time(elementwise)
    columns["cast_share"] = columns["cast_ns"] / time(gemms | ~gemms)
    columns["casts"] = rows["calls"].where(rows["cast"], 0).groupby(rows["run_id"]).sum()
    columns["optimizer_fp32"] = (~optimizer | (rows["element"] == BASE)).groupby(rows["run_id"]).all()
    copied = _sum_device_copies(memops) / kernel_time.num_profiled_steps(kernels)
    return pd.DataFrame(columns | {"copied_bytes": copied}).rename_axis("run_id").reset_index()


@measure_by_run
def _sum_device_copies(memops: pd.DataFrame) -> pd.Series:
    """Bytes of copies from device to device in the measured steps, by run_id."""
    copied = memops[(memops["step"] >= 0) & (memops["operation"].astype(str) == DEVICE_COPY)]
    return copied.groupby(copied["run_id"].astype(str))["bytes"].sum()


def use_of(runs: pd.DataFrame, table: pd.DataFrame, calibration: pd.DataFrame) -> pd.DataFrame:
    """How much of what the machine can multiply is used, per run_id: step_rate (model TFLOP/s), gemm_rate (TFLOP/s of
    eager matmuls, masked scores included), mfu_measured, mfu_sheet, gemm_use (shares), over_slower_peak (the GEMMs'
    rate over the measured one of SLOWER) and peak_memory_bytes. NaN where a peak or the FLOPs of the workload are not
    known."""
    peaks = calibration.set_index("figure")["value"]
    of_run = runs.astype({"run_id": str}).set_index("run_id")
    rows = []
    for row in table[table["step_ns"].notna()].to_dict("records"):
        run = of_run.loc[row["run_id"]]
        known = run_grid.has_known_shape(run)
        needed, executed = (
            flops.step_flops(run_grid.shape_of(run), MODE, skip_masked) if known else float("nan")
            for skip_masked in (True, False)
        )
        peak = peaks.get(f"gemm_{run['precision']}", float("nan"))
        step, gemms = needed / row["step_ns"], executed / row["gemms_ns"] if row["gemms_ns"] else float("nan")
        rows.append(
            {
                "run_id": row["run_id"],
                "step_rate": step / 1e3,
                "gemm_rate": gemms / 1e3,
                "mfu_measured": step * 1e9 / peak,
                "mfu_sheet": utilisation.mfu(run, row["step_ns"]),
                "gemm_use": gemms * 1e9 / peak,
                "over_slower_peak": gemms * 1e9 / peaks.get(f"gemm_{SLOWER.get(run['precision'])}", float("nan")),
                "peak_memory_bytes": run["peak_memory_bytes"],
            }
        )
    names = ["step_rate", "gemm_rate", "mfu_measured", "mfu_sheet", "gemm_use", "over_slower_peak"]
    names.append("peak_memory_bytes")
    return pd.DataFrame(rows, columns=["run_id", *names])


def families_of(totals: pd.DataFrame, kernels: pd.DataFrame, cases: pd.DataFrame) -> pd.DataFrame:
    """Kernel time of a step by family, the precisions side by side: size, context_length, family, {precision}_ns with
    _min_ns and _max_ns over the profiled steps, {precision}_parts, {precision}_speedup."""
    means = kernel_time.sum_by_family(totals, ["run_id"]).astype({"family": str})
    rows = cases.merge(means, on="run_id").merge(family_spread(kernels), how="left", on=["run_id", "family"])
    case = ["size", "context_length"]
    ends = {"time_ns": "ns", "time_min_ns": "min_ns", "time_max_ns": "max_ns", "parts": "parts"}
    wide = rows.pivot_table(index=[*case, "family"], columns="precision", values=list(ends), observed=True)
    wide = wide.reindex(columns=pd.MultiIndex.from_product([list(ends), FRACTION_BITS]))
    wide.columns = [f"{precision}_{ends[end]}" for end, precision in wide.columns]
    wide = wide.reset_index()
    for precision in FRACTION_BITS:
        wide[f"{precision}_speedup"] = wide[f"{BASE}_ns"] / wide[f"{precision}_ns"]
    order = cases[case].drop_duplicates().reset_index(drop=True).rename_axis("_case").reset_index()
    wide = wide.merge(order, on=case)
    return wide.sort_values(["_case", f"{BASE}_ns"], ascending=[True, False], ignore_index=True).drop(columns="_case")


@measure_by_run
def family_spread(kernels: pd.DataFrame) -> pd.DataFrame:
    """Spread over the profiled steps of the kernel time of each family, of all ranks: run_id, family, time_min_ns,
    time_max_ns, parts (the square root of the number of kernels in a step)."""
    rows = timing.select_steps(kernels)[["run_id", "step", "family", "start_ns", "end_ns"]]
    rows = rows.assign(time_ns=rows["end_ns"] - rows["start_ns"])
    each = rows.groupby(["run_id", "step", "family"], observed=True)["time_ns"].agg(["sum", "size"]).reset_index()
    each = each.rename(columns={"sum": "time_ns"}).astype({"run_id": str, "family": str})
    spread = timing.spread(each, ["run_id", "family"], "time_ns", "time")
    parts = np.sqrt(each.groupby(["run_id", "family"])["size"].median()).rename("parts").reset_index()
    spread = spread.merge(parts, on=["run_id", "family"])
    return spread.drop(columns=["time_ns", "time_n"])


def compare_other_families(families: pd.DataFrame, cases: pd.DataFrame, band: Band | None) -> pd.DataFrame:
    """Families other than GEMMs in a lower precision, one row each: columns of cases, family, speedup, time_ns and
    base_ns with _min_ns, _max_ns and _parts; apart: they differ by more than the noise band, of half width band_ns;
    gains, loses: by more than UNCHANGED."""
    parts, ends = [], ("ns", "min_ns", "max_ns", "parts")
    for precision in FRACTION_BITS:
        names = {f"{precision}_{end}": f"time_{end}" for end in ends}
        names |= {f"{precision}_speedup": "speedup"}
        base = {f"base_{end}": families[f"{BASE}_{end}"] for end in ends}
        part = families[["size", "context_length", "family", *names]].rename(columns=names)
        parts.append(part.assign(precision=precision, **base))
    rows = cases.merge(pd.concat(parts), on=["size", "context_length", "precision"])
    rows = rows[(rows["precision"] != BASE) & (rows["family"] != GEMM)]
    apart = differences.differ(rows, "time", "base", band)
    rows = rows.assign(band_ns=differences.half_band_ns(rows, "time", "base", band))
    return rows.assign(apart=apart, gains=rows["speedup"] > UNCHANGED, loses=rows["speedup"] < 1 / UNCHANGED)


def paths_of(totals: pd.DataFrame, cases: pd.DataFrame) -> pd.DataFrame:
    """Math paths of the GEMMs of each run, the most time first.

    Columns: the case's, path (key of gemm_names.MATH_PATHS, "" not said), math_path (its label), gemms, helpers
    (launches that add up the parts of a GEMM), inferred_share (of the launches, where no documentation backs the
    name), time_ns, share of the time of all GEMMs.
    """
    rows = totals[totals["family"] == GEMM]
    names = rows["kernel_name"].map(gemm_names.parse)
    main = rows["kernel_name"].map(kernel_families.is_main_gemm).astype(bool)
    rows = rows.assign(
        path=[(name and name.math_path) or "" for name in names],
        inferred_calls=rows["calls"].where([bool(name and "math_path" in name.inferred) for name in names], 0),
        gemms=rows["calls"].where(main, 0),
        helpers=rows["calls"].where(~main, 0),
    )
    paths = rows.groupby(["run_id", "path"])[["gemms", "helpers", "inferred_calls", "time_ns", "calls"]].sum()
    paths = paths.sort_values("time_ns", ascending=False).reset_index()
    paths["share"] = kernel_time.share_of(paths, ["run_id"])
    paths["inferred_share"] = (paths["inferred_calls"] / paths["calls"]).where(paths["path"] != "")
    paths["math_path"] = paths["path"].map(gemm_names.MATH_PATHS).fillna("not in the name")
    return cases.merge(paths.drop(columns=["inferred_calls", "calls"]), how="left", on="run_id")


def numerics_of(figures: pd.DataFrame, cases: pd.DataFrame) -> pd.DataFrame:
    """Differences from FP32 at the same weights, of rank 0: columns of cases, loss, loss_fp32, loss_ratio, logits_ratio
    (of root mean squares), loss_millionths, logits_millionths, logits_max_millionths (over the root mean square of
    FP32)."""
    wide = figures[figures["rank"] == 0].astype({"run_id": str, "figure": str})
    wide = wide.pivot(index="run_id", columns="figure", values="value")
    wide = wide.reindex(columns=NUMERICS)
    wide["loss_ratio"] = (wide["loss"] - wide["loss_fp32"]).abs() / wide["loss_fp32"]
    wide["loss_millionths"] = 1e6 * wide["loss_ratio"]
    wide["logits_ratio"] = wide["logits_rms_difference"] / wide["logits_rms_fp32"]
    wide["logits_millionths"] = 1e6 * wide["logits_ratio"]
    wide["logits_max_millionths"] = 1e6 * wide["logits_max_difference"] / wide["logits_rms_fp32"]
    return cases[cases["precision"] != BASE].merge(wide.reset_index(), how="left", on="run_id")


def compare_rounding(numerics: pd.DataFrame) -> pd.DataFrame:
    """BF16's difference of the logits over TF32's: columns of numerics, times."""
    pairs = run_grid.join_base(numerics, "precision", "tf32", ["logits_ratio"])
    pairs = pairs[(pairs["precision"] == "bf16") & pairs["logits_ratio_tf32"].notna()]
    return pairs.assign(times=pairs["logits_ratio"] / pairs["logits_ratio_tf32"])


def find_slower_autocast(lower: pd.DataFrame, least_wait: float) -> pd.DataFrame:
    """Find steps in BF16 whose GPU waits at least this part of the step, and which take longer than in TF32.

    lower: cases in TF32 and BF16, with step_ns and launch_wait. Adds over_tf32, in times of TF32's step.
    """
    case = [name for name in run_grid.CASE_AXES if name in lower]
    tf32 = lower.loc[lower["precision"] == "tf32", [*case, "step_ns"]]
    rows = lower.loc[lower["precision"] == "bf16", [*case, "run_id", "precision", "step_ns", "launch_wait"]]
    rows = rows.merge(tf32, on=case, suffixes=("", "_tf32"))
    rows = rows.assign(over_tf32=rows["step_ns"] / rows["step_ns_tf32"])
    return rows[(rows["over_tf32"] > 1) & (rows["launch_wait"] >= least_wait)]
