"""What every operation does and what the machine allows: FLOPs, bytes and kernel time under the roofs."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import pandas as pd

from profiler_job.analysis.metrics import kernel_time, run_grid, timing
from profiler_job.analysis.metrics.ordering import place, sort_stably
from profiler_job.analysis.reference import flops
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.precisions import PRECISIONS
from profiler_job.jobs.contract.quantities import format_quantity
from profiler_job.jobs.contract.step_limit import COMPUTE, MEMORY
from profiler_job.jobs.contract.words import NOT_MEASURED

LINEAR, ATTENTION, SOFTMAX, OTHER = "linear layers", "QKᵀ and AV", "softmax", "other kernels"
GEMM = ("gemm",)
REST = ("elementwise", "reduce", "copy", "index")
KEY = ["run_id", "phase", "module", "family"]


class Operation(NamedTuple):
    """Kernels of one phase that are one operation of the model: their innermost ranges and their families."""

    label: str
    series: str
    modules: tuple[str, ...]
    families: tuple[str, ...]
    phase: str = ranges.FORWARD


OPERATIONS = (
    Operation("Q, K and V projections", LINEAR, (ranges.QKV_PROJ,), GEMM),
    Operation("RoPE", OTHER, (ranges.ROPE,), REST),
    Operation("QKᵀ", ATTENTION, (ranges.ATTENTION_SCORES,), GEMM),
    Operation("scale and mask", OTHER, (ranges.ATTENTION_SCORES,), REST),
    Operation("softmax", SOFTMAX, (ranges.SOFTMAX,), REST),
    Operation("AV", ATTENTION, (ranges.ATTENTION_OUTPUT,), GEMM),
    Operation("copies around AV", OTHER, (ranges.ATTENTION_OUTPUT, ranges.O_PROJ), REST),
    Operation("output projection", LINEAR, (ranges.O_PROJ,), GEMM),
    Operation("feed-forward matmuls", LINEAR, (ranges.FFN,), GEMM),
    Operation("SwiGLU gate", OTHER, (ranges.FFN,), REST),
    Operation("norms", OTHER, (ranges.NORM,), REST),
    Operation("residual additions", OTHER, ("block",), REST),
    Operation("embedding", OTHER, (ranges.EMBEDDING,), REST),
    Operation("head", LINEAR, (ranges.LM_HEAD,), GEMM),
    Operation("all matmuls of backward", LINEAR, ("",), GEMM, ranges.BACKWARD),
    Operation("AdamW", OTHER, ("",), REST, ranges.OPTIMIZER),
)


LINEAR_RANGES = tuple(
    name
    for operation in OPERATIONS
    if operation.series == LINEAR and operation.phase == ranges.FORWARD
    for name in operation.modules
)


def sum_by_range(totals: pd.DataFrame) -> pd.DataFrame:
    """Kernel time by phase, innermost range and family: KEY, time_ns. Backward and optimizer are taken as a whole, as
    their formulas are, whether or not modules were followed there."""
    inner = totals["module"].str.rsplit("/", n=1).str[-1].where(totals["phase"] == ranges.FORWARD, "")
    inner = totals.assign(module=inner)
    return inner.groupby(KEY, sort=False)["time_ns"].sum().reset_index()


def costs_of(runs: pd.DataFrame, peaks: Mapping[str, float]) -> pd.DataFrame:
    """What the kernels of each run do, and the roofs over them: KEY, flops, bytes, peak_flops, peak_bytes (NaN where
    not measured)."""
    rows = []
    for run in runs.to_dict("records"):
        if not has_formula(run):
            continue
        roofs = {"peak_flops": peaks.get(f"gemm_{run['precision']}"), "peak_bytes": peaks.get("copy")}
        for (phase, module, family), cost in costs_of_run(run).items():
            key = {"run_id": str(run["run_id"]), "phase": phase, "module": module, "family": family}
            rows.append(key | asdict(cost) | roofs)
    columns = [*KEY, "flops", "bytes", "peak_flops", "peak_bytes"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[4:], float))


def has_formula(run: Mapping[str, Any]) -> bool:
    """Whether the kernels of a run are those that `flops.kernel_costs` counts, each once over the whole batch."""
    as_written = run["attention"] == "naive" and run.get("compile", "off") == "off"
    as_written &= run_grid.micro_batches_of(run) == 1 and run_grid.checkpointing_of(run) == "off"
    if not as_written or not run_grid.has_known_shape(run):
        return False
    return not PRECISIONS[str(run["precision"])].autocast


def costs_of_run(run: Mapping[str, Any]) -> dict[tuple[str, str, str], flops.Cost]:
    """Costs of one step by phase, innermost range and family, as far as there is a formula."""
    shape = run_grid.shape_of(run)
    forward = flops.kernel_costs(shape)
    gemms = sum((cost for (_, family), cost in forward.items() if family in GEMM), flops.Cost(0, 0))
    costs = {(ranges.FORWARD, *key): cost for key, cost in forward.items()}
    costs[ranges.BACKWARD, "", "gemm"] = gemms * 2
    if run.get("optimizer", "own") == "own":
        costs[ranges.OPTIMIZER, "", "elementwise"] = flops.adamw_unfused(flops.num_parameters(shape))
    return costs


def name_operations() -> pd.DataFrame:
    """The operations by phase, module and family."""
    return pd.DataFrame(
        [
            {
                "operation": operation.label,
                "series": operation.series,
                "phase": operation.phase,
                "module": module,
                "family": family,
            }
            for operation in OPERATIONS
            for module in operation.modules
            for family in operation.families
        ]
    )


def select_own_mode(rows: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Rows of forward from runs of mode `forward`, all others from training steps."""
    mode = rows["run_id"].map(dict(zip(runs["run_id"].astype(str), runs["mode"].astype(str), strict=True)))
    wanted = rows["phase"].map(lambda phase: "forward" if phase == ranges.FORWARD else "train_step")
    return rows[mode == wanted]


def rate_groups(rows: pd.DataFrame, by: list[str], runs: pd.DataFrame) -> pd.DataFrame:
    """Rates of each group in each run, with its case: flop_rate (TFLOP/s), byte_rate (GB/s), intensity (FLOP/byte),
    ridge, limit, reached; runs in model order, groups in the order of OPERATIONS."""
    keep = {"peak_flops": "first", "peak_bytes": "first"}
    sums = rows.groupby([*by, "run_id"], sort=False).agg(dict.fromkeys(("time_ns", "flops", "bytes"), "sum") | keep)
    sums = sums.reset_index()
    seconds = sums["time_ns"] / 1e9
    sums["flop_rate"] = sums["flops"] / seconds / 1e12
    sums["byte_rate"] = sums["bytes"] / seconds / 1e9
    sums["intensity"] = sums["flops"] / sums["bytes"]
    sums["ridge"] = sums["peak_flops"] / sums["peak_bytes"]
    sums["limit"] = limit(sums)
    allowed = pd.concat([sums["flops"] / sums["peak_flops"], sums["bytes"] / sums["peak_bytes"]], axis=1).max(axis=1)
    sums["reached"] = (allowed / seconds).where(sums["ridge"].notna())
    ordered = run_grid.sort_runs(runs).astype({"run_id": str})[["run_id", *run_grid.case_columns(runs)]]
    ordered = ordered.astype({name: str for name in ordered if isinstance(ordered[name].dtype, pd.CategoricalDtype)})
    rates = ordered.merge(sums, on="run_id")
    labels = [operation.label for operation in OPERATIONS]
    order = place(rates["operation"], labels) if "operation" in by else place(rates["phase"], ranges.PHASES)
    return sort_stably(rates, order).assign(**{NOT_MEASURED: ""})


def limit(rows: pd.DataFrame) -> pd.Series:
    """`compute` above the ridge point, `memory` below it, None where it is not known."""
    above = rows["flops"] / rows["bytes"] > rows["peak_flops"] / rows["peak_bytes"]
    words = above.map({True: COMPUTE, False: MEMORY}).astype(object)
    return words.where(rows["peak_flops"].notna() & rows["peak_bytes"].notna(), None)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """Rates over all cases, by operation or family: num_runs, intensity_low and _high, median flop_rate and byte_rate,
    limit, reached (median), reached_low and _high."""
    by = [name for name in ("operation", "phase", "family") if name in rows]
    table = rows.groupby(by, sort=False).agg(
        num_runs=("run_id", "nunique"),
        intensity_low=("intensity", "min"),
        intensity_high=("intensity", "max"),
        flop_rate=("flop_rate", "median"),
        byte_rate=("byte_rate", "median"),
        limit=("limit", lambda words: " or ".join(dict.fromkeys(words.dropna())) or None),
        reached_low=("reached", "min"),
        reached=("reached", "median"),
        reached_high=("reached", "max"),
    )
    return table.reset_index().assign(**{NOT_MEASURED: ""})


def ridges(runs: pd.DataFrame, peaks: Mapping[str, float]) -> dict[str, float]:
    """FLOP/byte at the ridge point, by precision of the runs."""
    known = [str(name) for name in runs["precision"].unique() if f"gemm_{name}" in peaks and "copy" in peaks]
    return {name: peaks[f"gemm_{name}"] / peaks["copy"] for name in known}


def list_measured_peaks(runs: pd.DataFrame, calibration: pd.DataFrame) -> list[dict[str, Any]]:
    """The measured rates behind the roofs: label, value, unit."""
    labels = {
        f"gemm_{name}": f"a large matmul in {name.upper()}" for name in sorted(runs["precision"].astype(str).unique())
    }
    labels |= {"copy": "copying", "read": "reading"}
    known = calibration[calibration["figure"].isin(labels)].to_dict("records")
    return [{"label": labels[row["figure"]], "value": row["value"], "unit": row["unit"]} for row in known]


def medians(rows: pd.DataFrame) -> pd.DataFrame:
    """Each operation that has FLOPs once, by the medians over its cases: label, series, limit, intensity (FLOP/byte),
    flop_rate (TFLOP/s), reached, and time_share, its part of the kernel time of its run (kernel_ns)."""
    rows = rows[rows["flops"] > 0]
    share = rows["time_ns"] / rows["kernel_ns"]
    values = {name: (name, "median") for name in ("intensity", "flop_rate", "reached", "time_share")}
    firsts = {name: (name, "first") for name in ("series", "limit")}
    table = rows.assign(time_share=share).groupby("operation", sort=False).agg(**firsts, **values)
    return table.rename_axis("label").reset_index()


def place_linear_layers(runs: pd.DataFrame, kernels: pd.DataFrame, peaks: Mapping[str, float]) -> pd.DataFrame:
    """The linear layers' matmuls of runs under autocast, forward and backward, by the medians over the runs, with the
    columns of `medians`. FLOPs are from the formulas, bytes from the size of an element in that precision. No rows
    where no run is as the model is written but for its precision, fused attention and optimizer."""
    by_id = {str(run["run_id"]): run for run in run_grid.select_measured_runs(runs).to_dict("records")}
    plain = {name: run for name, run in by_id.items() if _has_plain_matmuls(run)}
    totals = sum_by_range(kernel_time.kernel_totals(kernels[kernels["run_id"].astype(str).isin(plain)]))
    rows = select_own_mode(totals[totals["family"].isin(GEMM)], runs)
    is_linear = rows["module"].isin(LINEAR_RANGES) | (rows["phase"] == ranges.BACKWARD)
    spent = rows[is_linear].groupby(["run_id", "phase"])["time_ns"].sum()
    kernel_ns = totals.groupby("run_id")["time_ns"].sum()
    points = []
    for (run_id, phase), time_ns in spent.items():
        precision = str(plain[run_id]["precision"])
        costs = flops.matmul_costs(run_grid.shape_of(plain[run_id]), PRECISIONS[precision].element_bytes)
        cost = sum((costs[name][0] * costs[name][1] for name in LINEAR_RANGES), flops.Cost(0, 0))
        cost *= 1 if phase == ranges.FORWARD else 2
        point = {"label": f"linear layers, {phase}, {precision.upper()}", "time_ns": time_ns, **asdict(cost)}
        point |= {"peak_flops": peaks.get(f"gemm_{precision}"), "peak_bytes": peaks.get("copy")}
        points.append(point | {"run_id": run_id, "kernel_ns": kernel_ns[run_id]})
    if not points:
        return pd.DataFrame(columns=["label"])
    table = pd.DataFrame(points).astype({"peak_flops": float, "peak_bytes": float})
    table = table.assign(
        operation=table["label"],
        series=LINEAR,
        limit=limit(table),
        intensity=table["flops"] / table["bytes"],
        flop_rate=table["flops"] / table["time_ns"] / 1e3,
        reached=table["flops"] / table["peak_flops"] / (table["time_ns"] / 1e9),
    )
    return medians(table)


def _has_plain_matmuls(run: Mapping[str, Any]) -> bool:
    """Whether the matmuls of a run under autocast are its linear layers alone, each once over the whole batch: eager
    attention has some in backward, too."""
    is_fused = str(run["attention"]) != "naive" and bool(PRECISIONS[str(run["precision"])].autocast)
    return is_fused and run_grid.is_eager(run)


def draw_roofs(rows: pd.DataFrame, points: pd.DataFrame, peaks: Mapping[str, float]) -> pd.DataFrame:
    """Corners of the roofs over `rows` and the `points` of their drawing: roof, intensity (FLOP/byte), flop_rate
    (TFLOP/s), label (or ""). One of memory, and one of matmuls in each precision that `peaks` has (`gemm_bf16` ...,
    FLOP/s); none without a rate of memory."""
    known = rows[rows["ridge"].notna() & (rows["flops"] > 0)]
    if not len(known):
        return pd.DataFrame(columns=["roof"])
    low, high = known["intensity"].min() / 1.5, max(known["intensity"].max(), points["intensity"].max()) * 6
    width = peaks["copy"]
    tops = sorted((peak, name) for name, peak in peaks.items() if name.startswith("gemm_"))
    highest = tops[-1][0] / width
    corners = [("memory", low, low * width, ""), ("memory", min(highest, high), min(highest, high) * width, "")]
    corners.insert(1, ("memory", tops[0][0] / width, tops[0][0], f"memory {format_quantity('bytes/s', width)}"))
    for number, (peak, name) in enumerate(tops):
        words = f"{name.removeprefix('gemm_').upper()} {format_quantity('FLOP/s', peak)}"
        named = (words, "") if number == 0 else ("", words)  # marks lie below the end of the lowest
        corners += (
            [(name, ridge, peak, named[0]), (name, high, peak, named[1])] if (ridge := peak / width) < high else []
        )
    table = pd.DataFrame(corners, columns=["roof", "intensity", "flop_rate", "label"])
    return table.assign(flop_rate=table["flop_rate"] / 1e12)


def traffic(runs: pd.DataFrame) -> pd.DataFrame:
    """Bytes of forward outside matmuls, as written and with each operation in one kernel, by the shapes alone:
    case columns, run_id, moved_bytes, least_bytes, times_least."""
    shape_of = {
        str(run["run_id"]): run_grid.shape_of(run)
        for run in run_grid.select_measured_runs(runs).to_dict("records")
        if has_formula(run)
    }
    rows = run_grid.cases(runs, "forward")
    rows = rows[rows["run_id"].isin(shape_of)].reset_index(drop=True)
    shapes = [shape_of[run_id] for run_id in rows["run_id"]]
    costs = [flops.kernel_costs(shape) for shape in shapes]
    moved = [sum(c.bytes for (_, family), c in cost.items() if family not in GEMM) for cost in costs]
    table = rows.assign(moved_bytes=moved, least_bytes=[count_least_bytes(shape) for shape in shapes])
    return table.assign(times_least=table["moved_bytes"] / table["least_bytes"])


def count_least_bytes(shape: flops.StepShape) -> int:
    """Traffic of a forward pass outside matmuls if each operation went through memory once."""
    n, d = shape.num_tokens, shape.d_model
    layer = flops.softmax(shape) + flops.rope(shape) + flops.swiglu_gate(n, shape.d_ff) + flops.residual(n, d) * 2
    norms = flops.rms_norm(n, d) * (2 * shape.num_layers + 1)
    return (layer * shape.num_layers + norms + flops.embedding(n, d)).bytes


def backward_ratio(steps: pd.DataFrame, totals: pd.DataFrame) -> pd.DataFrame:
    """Backward over forward per run: run_id, timer_ratio with timer_ratio_min and _max over the spread of both phases,
    kernel_ratio, gemm_ratio, rest_ratio."""
    timer = timing.host_times(steps, "timer", "timer").set_index("run_id")
    forward, backward = (timer[timer["phase"] == phase] for phase in (ranges.FORWARD, ranges.BACKWARD))
    table = pd.DataFrame(
        {
            "timer_ratio": backward["timer_ns"] / forward["timer_ns"],
            "timer_ratio_min": backward["timer_min_ns"] / forward["timer_max_ns"],
            "timer_ratio_max": backward["timer_max_ns"] / forward["timer_min_ns"],
        }
    ).dropna()
    gemms = totals["family"].isin(GEMM)
    for name, rows in (("kernel", totals), ("gemm", totals[gemms]), ("rest", totals[~gemms])):
        of_phase = {p: rows[rows["phase"] == p].groupby("run_id")["time_ns"].sum() for p in ranges.PHASES}
        table[f"{name}_ratio"] = of_phase[ranges.BACKWARD] / of_phase[ranges.FORWARD]
    return table.rename_axis("run_id").reset_index()
