"""Attention's kernels, time, arithmetic and rates, eager and fused."""

import math
from collections import defaultdict

import pandas as pd

from profiler_job.analysis.metrics import kernel_time, run_grid
from profiler_job.analysis.reference import flops, gpus, kernel_families
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.precisions import PRECISIONS
from profiler_job.jobs.contract.words import NOT_MEASURED

NAIVE = "naive"
TRAIN = "train_step"
FUSED = "attention"
"""Family of the fused kernels and of their helpers."""
RANGES = (ranges.ATTENTION_SCORES, ranges.SOFTMAX, ranges.ATTENTION_OUTPUT, ranges.FUSED_ATTENTION)
BACKWARD = {NAIVE: 4 / 2, "fused": 5 / 2}
"""Matmuls of backward over the two of forward, QK^T and AV: two gradients of each, and QK^T again where its result
was not kept."""


def join_naive(table: pd.DataFrame, values: list[str], keys: list[str]) -> pd.DataFrame:
    """`table` with the `values` of the same case under naive attention as naive_*."""
    naive = table[table["attention"] == NAIVE][[*keys, *values]].rename(
        columns={name: f"naive_{name}" for name in values}
    )
    return table.merge(naive, how="left", on=keys)


def runs_of(reference: pd.DataFrame) -> dict[str, str]:
    """Attention by run_id, naive first."""
    fused = dict(zip(reference["run_id"], reference["attention"], strict=True))
    return dict.fromkeys(reference["naive_run_id"], NAIVE) | fused


def forward_kernels(reference: pd.DataFrame, totals: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Kernels launched in attention's ranges: attention, range, kernel_name, family, per_layer (NaN where the layers
    are not known), time_ns, share."""
    forms = runs_of(reference)
    rows = inside_attention(totals[totals["run_id"].isin(forms)])
    layers = layers_of(runs)
    rows = rows.assign(
        attention=rows["run_id"].map(forms),
        per_layer=rows["calls"] / rows["run_id"].map(layers).astype(float),
        share=kernel_time.share_of(rows, ["run_id"]),
        _run=rows["run_id"].map({run: rank for rank, run in enumerate(forms)}),
        _range=rows["range"].map(RANGES.index),
    )
    rows = rows.sort_values(["_run", "_range", "time_ns"], ascending=[True, True, False], ignore_index=True)
    return rows[["attention", "range", "kernel_name", "family", "per_layer", "time_ns", "share"]]


def datasheet_rates(runs: pd.DataFrame) -> pd.DataFrame:
    """What the datasheet of the GPU of `runs` says, named as the rates are that are measured: figure, value (FLOP/s,
    bytes/s), gpu_name. No rows where the runs are of several GPUs or of one that is not listed."""
    names = runs["gpu_name"].astype(str).unique()
    gpu = gpus.lookup(names[0]) if len(names) == 1 else None
    if gpu is None:
        return pd.DataFrame({"figure": [], "value": [], "gpu_name": []}).astype({"figure": str, "gpu_name": str})
    rates = {f"gemm_{name}": gpu.peak_flops(record.peak) for name, record in PRECISIONS.items()} | {
        "copy": gpu.memory_bandwidth
    }
    return pd.DataFrame({"figure": [*rates], "value": [*rates.values()], "gpu_name": names[0]}).dropna(subset="value")


def matmul_limits(
    reference: pd.DataFrame, totals: pd.DataFrame, runs: pd.DataFrame, calibration: pd.DataFrame
) -> pd.DataFrame:
    """The two matmuls of eager attention in a forward pass of the reference, one layer: operation, run_id, time_ns,
    memory_ns and compute_ns, what their bytes need at the rate of a copy and their FLOPs at the rate of a large matmul
    (`calibration`, measured or of the datasheet). No rows where shape or rates are not known.

    Each reads its operands once and writes its result once, in the run's precision.
    """
    rates = calibration.set_index("figure")["value"].astype(float)
    wanted = set(reference["naive_run_id"]) if len(reference) else set()
    rows = []
    for run in run_grid.select_known_shapes(runs).to_dict("records"):
        peak, run_id = f"gemm_{run['precision']}", str(run["run_id"])
        if run_id not in wanted or peak not in rates or "copy" not in rates:
            continue
        shape = run_grid.shape_of(run)
        element_bytes = PRECISIONS[str(run["precision"])].element_bytes
        costs = {
            ranges.ATTENTION_SCORES: ("QKᵀ", flops.query_key(shape, element_bytes)),
            ranges.ATTENTION_OUTPUT: ("AV", flops.attention_value(shape, element_bytes)),
        }
        gemms = inside_attention(totals[(totals["run_id"] == run_id) & (totals["family"] == "gemm")])
        times = gemms.groupby("range", sort=False)["time_ns"].sum()
        for name, (operation, cost) in costs.items():
            needs = {"memory_ns": 1e9 * cost.bytes / rates["copy"], "compute_ns": 1e9 * cost.flops / rates[peak]}
            time_ns = times.get(name, math.nan) / shape.num_layers
            rows.append({"operation": operation, "run_id": run_id, "time_ns": time_ns} | needs)
    columns = ["operation", "run_id", "time_ns", "memory_ns", "compute_ns"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[2:], float))


def layers_of(runs: pd.DataFrame) -> pd.Series:
    """Number of layers by run_id, of the runs whose workload says it."""
    return run_grid.select_known_shapes(runs).astype({"run_id": str}).set_index("run_id")["num_layers"]


def inside_attention(totals: pd.DataFrame) -> pd.DataFrame:
    """Kernels that forward launches inside attention's ranges, with their innermost range."""
    rows = totals[totals["phase"] == ranges.FORWARD]
    rows = rows.assign(range=rows["module"].str.rsplit("/", n=1).str[-1])
    return rows[rows["range"].isin(RANGES)]


def backward_families(reference: pd.DataFrame, totals: pd.DataFrame) -> pd.DataFrame:
    """Launches and time of each family in backward, by attention: family, {attention}_calls, {attention}_ns."""
    forms = runs_of(reference)
    rows = backward_of(totals, forms)
    sums = kernel_time.sum_by_family(rows, ["attention"]).pivot(
        index="family", columns="attention", values=["calls", "time_ns"]
    )
    table = pd.DataFrame(index=sums.index)
    for suffix, value in (("calls", "calls"), ("ns", "time_ns")):
        for form in forms.values():
            table[f"{form}_{suffix}"] = sums[(value, form)].fillna(0.0)
    if forms:
        table = table.sort_values(f"{NAIVE}_ns", ascending=False, kind="stable")
    return table.reset_index()


def backward_kernels(reference: pd.DataFrame, totals: pd.DataFrame) -> pd.DataFrame:
    """Kernels that naive and the fastest backend launch a different number of times in backward, by the time saved."""
    fastest = reference.sort_values("busy_ns", kind="stable").head(1)
    forms = runs_of(fastest)
    rows = backward_of(totals, forms).groupby(["kernel_name", "family", "attention"])[["calls", "time_ns"]].sum()
    table = pd.DataFrame(index=rows.index.droplevel("attention").unique())
    for prefix, form in zip(("naive", "fused"), forms.values()):
        of_form = rows.xs(form, level="attention")
        table[f"{prefix}_calls"], table[f"{prefix}_ns"] = of_form["calls"], of_form["time_ns"]
    table = table.reindex(columns=["naive_calls", "fused_calls", "naive_ns", "fused_ns"]).fillna(0.0)
    table["saved_ns"] = table["naive_ns"] - table["fused_ns"]
    changed = table[table["naive_calls"] != table["fused_calls"]]
    return changed.sort_values("saved_ns", ascending=False, kind="stable").reset_index()


def backward_of(totals: pd.DataFrame, forms: dict[str, str]) -> pd.DataFrame:
    """Kernel totals of the backward of the runs in `forms` (attention by run_id), with their `attention`."""
    rows = totals[totals["run_id"].isin(forms) & (totals["phase"] == ranges.BACKWARD)]
    return rows.assign(attention=rows["run_id"].map(forms))


def parts_of(
    table: pd.DataFrame, totals: pd.DataFrame, runs: pd.DataFrame, calibration: pd.DataFrame, keys: list[str]
) -> pd.DataFrame:
    """Attention alone, a row for each case: kernel time in a forward pass and in the backward of a training step, the
    matmuls' part of the former, FLOPs over time, and what `naive` has of them (naive_*)."""
    inside = inside_attention(totals)
    forward = pd.DataFrame(
        {
            "forward_ns": inside.groupby("run_id")["time_ns"].sum(),
            "gemms_ns": inside[inside["family"] == "gemm"].groupby("run_id")["time_ns"].sum(),
        }
    )
    backward = totals[totals["phase"] == ranges.BACKWARD]
    fused = backward["family"] == FUSED
    backward = pd.DataFrame(
        {
            "backward_ns": backward[fused].groupby("run_id")["time_ns"].sum(),
            "outside_ns": backward[~fused].groupby("run_id")["time_ns"].sum(),
        }
    )
    by = [*keys, "attention"]
    parts = table.loc[table["mode"] == "forward", [*by, "run_id"]].merge(forward.reset_index(), how="left", on="run_id")
    trained = table.loc[table["mode"] == TRAIN, [*by, "run_id", NOT_MEASURED]].merge(
        backward.reset_index(), how="left", on="run_id"
    )
    parts = trained.rename(columns={"run_id": "train_run_id"}).merge(parts, how="left", on=by)
    parts = rates_of(
        naive_backward(parts[(parts["train_run_id"] != "") | (parts["run_id"] != "")], keys), runs, calibration
    )
    values = ["forward_ns", "gemms_ns", "backward_ns", "backward_low_ns", "backward_high_ns", "forward_of_peak"]
    return join_naive(parts, values, keys)


def naive_backward(parts: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Attention's backward if no kernel shows it: all of it less what other forms of attention leave outside."""
    outside = parts[parts["attention"] != NAIVE].groupby(keys)["outside_ns"].agg(["median", "min", "max"]).reset_index()
    parts = parts.merge(outside, how="left", on=keys)
    naive = parts["attention"] == NAIVE
    parts["backward_ns"] = parts["backward_ns"].where(~naive, parts["outside_ns"] - parts["median"])
    parts["backward_low_ns"] = (parts["outside_ns"] - parts["max"]).where(naive)
    parts["backward_high_ns"] = (parts["outside_ns"] - parts["min"]).where(naive)
    return parts.drop(columns=["median", "min", "max"])


def rates_of(parts: pd.DataFrame, runs: pd.DataFrame, calibration: pd.DataFrame) -> pd.DataFrame:
    """TFLOP/s of attention and their share of the rate of a large matmul in `calibration`, NaN where it has none.

    Kernels fused in fp32 have no share: no name tells whether they multiply on tensor cores. Runs whose shape is not
    known have neither.
    """
    measured = calibration.set_index("figure")["value"].astype(float) / 1e12
    of_run = {str(run["run_id"]): run for run in runs.to_dict("records")}
    rows = []
    for part in parts.to_dict("records"):
        run = pd.Series(of_run[part["train_run_id"] or part["run_id"]])
        form = NAIVE if part["attention"] == NAIVE else "fused"
        known = run_grid.has_known_shape(run)
        work = attention_flops(run_grid.shape_of(run)) if known else defaultdict(lambda: float("nan"))
        has_peak = form == NAIVE or run["precision"] != "fp32"
        peak = measured.get(f"gemm_{run['precision']}", float("nan")) if has_peak else float("nan")
        rates = {
            "full_rate": work[(NAIVE, "forward")] / part["forward_ns"] / 1e3,
            "forward_rate": work[(form, "forward")] / part["forward_ns"] / 1e3,
            "backward_rate": work[(form, "backward")] / part["backward_ns"] / 1e3,
        }
        shares = {f"{phase}_of_peak": rates[f"{phase}_rate"] / peak for phase in ("forward", "backward")}
        rows.append(rates | shares)
    columns = ["full_rate", "forward_rate", "backward_rate", "forward_of_peak", "backward_of_peak"]
    any_peak = measured[measured.index.str.startswith("gemm_")].max()
    parts = parts.join(pd.DataFrame(rows, index=parts.index, columns=columns))
    return parts.assign(full_of_any_peak=parts["full_rate"] / any_peak)


def attention_flops(shape: flops.StepShape) -> dict[tuple[str, str], float]:
    """FLOPs of attention's matmuls, all layers, by form and phase; inferred for a fused kernel."""
    forward = {
        form: shape.num_layers * flops.fused_attention(shape, skip_masked=form != NAIVE).flops for form in BACKWARD
    }
    return {(form, "forward"): forward[form] for form in BACKWARD} | {
        (form, "backward"): forward[form] * BACKWARD[form] for form in BACKWARD
    }


def work_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Model FLOPs of attention in one training step against those executed, for every shape that is known."""
    known = run_grid.select_known_shapes(runs)
    shapes = run_grid.sort_runs(known[known["mode"].astype(str) == TRAIN])
    rows = []
    for run in shapes.drop_duplicates(["size", "context_length", "batch_size"]).to_dict("records"):
        shape = run_grid.shape_of(pd.Series(run))
        done = {form: sum(n for (name, _), n in attention_flops(shape).items() if name == form) for form in BACKWARD}
        rows.append(
            {
                **{name: run[name] for name in ("size", "context_length", "batch_size")},
                "model_flops": done[NAIVE],
                "of_step": done[NAIVE] / flops.step_flops(shape, TRAIN),
                "naive_flops": done[NAIVE],
                "fused_flops": done["fused"],
                "executed_ratio": done["fused"] / done[NAIVE],
            }
        )
    columns = ["size", "context_length", "batch_size", "model_flops", "of_step"]
    return pd.DataFrame(rows, columns=[*columns, "naive_flops", "fused_flops", "executed_ratio"])


def count_matmuls_gone(compared: pd.DataFrame, kernels: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Matmuls that naive launches and a backend does not: forward_gone and backward_gone, per layer. Without
    the runs whose layers are not known."""
    counts = kernel_time.count_gemms(kernels, kernel_families.is_main_gemm)
    counts = counts.groupby(["run_id", "phase"])["gemms"].median().unstack()
    layers = layers_of(runs)
    rows = compared[(compared["mode"] == TRAIN) & compared["run_id"].isin(layers.index)]
    rows = rows[[name for name in rows if not name.endswith("_ns")]]
    for phase in (ranges.FORWARD, ranges.BACKWARD):
        count = counts[phase] if phase in counts else pd.Series(dtype=float)
        naive, fused, per_layer = (
            rows[run].map(known).astype(float)
            for run, known in (("naive_run_id", count), ("run_id", count), ("run_id", layers))
        )
        rows = rows.assign(**{f"{phase}_gone": (naive - fused) / per_layer})
    return rows.assign(as_expected=(rows["forward_gone"] == 2) & (rows["backward_gone"] == 4))
