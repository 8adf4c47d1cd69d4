"""(h) What bounds a step: launches, arithmetic or memory?"""

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from analysis import metrics
from analysis.answer import NOT_MEASURED, Answer, Chart, Claim, Column, Table, assemble
from analysis.columns import case_headings, spread_column
from analysis.facts import extremes, highest, out_of, span
from analysis.knowledge import flops
from jobs import ranges

SLUG = "bounds"
TITLE = "What bounds a step: launches, arithmetic or memory?"
STUDY = ""

LAUNCHES, ARITHMETIC, MEMORY = "launches", "arithmetic", "memory"
LINEAR, ATTENTION, SOFTMAX, OTHER = "linear layers", "QKᵀ and AV", "softmax", "other kernels"
UNKNOWN = "no peak or no formula"

_PRODUCT = ("gemm",)
_REST = ("elementwise", "reduce", "copy", "index")
_KEY = ["run_id", "phase", "module", "family"]


class Operation(NamedTuple):
    """Kernels of one phase that are one operation of the model: their innermost ranges and their families."""

    label: str
    series: str
    modules: tuple[str, ...]
    families: tuple[str, ...]
    phase: str = ranges.FORWARD


OPERATIONS = (
    Operation("Q, K and V projections", LINEAR, (ranges.QKV_PROJ,), _PRODUCT),
    Operation("RoPE", OTHER, (ranges.ROPE,), _REST),
    Operation("QKᵀ", ATTENTION, (ranges.ATTENTION_SCORES,), _PRODUCT),
    Operation("scale and mask", OTHER, (ranges.ATTENTION_SCORES,), _REST),
    Operation("softmax", SOFTMAX, (ranges.SOFTMAX,), _REST),
    Operation("AV", ATTENTION, (ranges.ATTENTION_OUTPUT,), _PRODUCT),
    Operation("copies around AV", OTHER, (ranges.ATTENTION_OUTPUT, ranges.O_PROJ), _REST),
    Operation("output projection", LINEAR, (ranges.O_PROJ,), _PRODUCT),
    Operation("feed-forward products", LINEAR, (ranges.FFN,), _PRODUCT),
    Operation("SwiGLU gate", OTHER, (ranges.FFN,), _REST),
    Operation("norms", OTHER, (ranges.NORM,), _REST),
    Operation("residual additions", OTHER, ("block",), _REST),
    Operation("embedding", OTHER, (ranges.EMBEDDING,), _REST),
    Operation("head", LINEAR, (ranges.LM_HEAD,), _PRODUCT),
    Operation("all products of backward", LINEAR, ("",), _PRODUCT, ranges.BACKWARD),
    Operation("AdamW", OTHER, ("",), _REST, ranges.OPTIMIZER),
)


def answer(runs: pd.DataFrame, steps: pd.DataFrame, kernels: pd.DataFrame, calibration: pd.DataFrame) -> Answer:
    """Roofline of every operation and kernel family, and what bounds each run.

    FLOPs and bytes are those of the kernels as the model is written, in float32 (flops.kernel_costs; backward does the
    products of forward twice; AdamW is flops.adamw_unfused): runs in another precision, with fused attention or
    compiled have none. The roofs are `calibration`: the product in the run's precision, and the copy. An operation with
    more FLOPs a byte than their ratio, the ridge point, is limited by arithmetic, with fewer by memory; `reached` is
    the time that this roof allows over the kernel time. Operations of forward are those of mode `forward`, the others
    those of `train_step`.

    A run is bound by launches where the GPU is busy for less than metrics.LAUNCH_BOUND_BUSY_SHARE of its unprofiled
    step; otherwise by arithmetic where products above the ridge take more than half of its kernel time, and else by
    memory: all other kernels do a few operations for each element. So is each phase of a training step.
    Backward to forward is within training steps.
    """
    by = metrics.case_columns(runs)
    peaks = dict(zip(calibration["figure"], calibration["value"], strict=True))
    totals = _by_range(metrics.kernel_totals(kernels))
    costs = _costs(metrics.measured_runs(runs), peaks)
    timed = _in_its_mode(totals.merge(costs, on=_KEY), runs)
    operations = _rated(timed.merge(_named(), on=_KEY[1:]), ["operation", "series", "phase"], runs)
    families = _rated(timed, ["phase", "family"], runs)
    judged = _judged(steps, kernels, totals, costs)
    grid = pd.concat([metrics.cases(runs, mode).assign(mode=mode) for mode in metrics.MODES])
    whole = grid.merge(judged[judged["phase"] == metrics.STEP], how="left", on="run_id")
    training = metrics.cases(runs, "train_step")
    shown = judged[judged["phase"].isin((ranges.FORWARD, ranges.BACKWARD, ranges.OPTIMIZER))]
    phases = training.merge(shown, how="left", on="run_id")
    ratios = training.merge(_backward(steps, totals), how="left", on="run_id")
    roofs = _roofs(operations)
    facts = {
        "launch_bound": metrics.LAUNCH_BOUND_BUSY_SHARE,
        "peaks": _peaks(runs, calibration),
        "ridges": [{"precision": name, "ridge": point} for name, point in _ridges(runs, peaks).items()],
    }
    claims = [
        *_claims_of_runs(whole),
        *_claims_of_phases(phases),
        *_claims_of_operations(operations, calibration),
        *_claims_of_ratio(ratios, phases, by),
        Claim("unfused", _traffic(runs), facts=extremes("times_least")),
    ]
    tables = [
        Table(
            "operations",
            "Operations under the roofs: median, and minimum–maximum over all cases",
            (*_OPERATION, *_SUMMARY),
            _summary(operations),
        ),
        Table(
            "families",
            "Kernel families under the roofs: median, and minimum–maximum over all cases",
            (Column("phase", "phase"), Column("family", "family", "family"), *_SUMMARY),
            _summary(families),
        ),
        Table("every", "Every operation of every case", (*case_headings(by), *_OPERATION, *_RATES), operations),
        Table("runs", "What bounds each run", (*case_headings(by), Column("mode", "mode"), *_JUDGED), whole),
        Table(
            "phases",
            "What bounds each phase of a training step",
            (*case_headings(by), Column("phase", "phase"), *_JUDGED),
            phases,
        ),
        Table(
            "ratio",
            "Backward ÷ forward in a training step",
            (
                *case_headings(by),
                Column("timer_ratio", "Python timer", "ratio"),
                Column("kernel_ratio", "kernel time", "ratio"),
                Column("product_ratio", "kernel time of products", "ratio"),
                Column("rest_ratio", "of all other kernels", "ratio"),
            ),
            ratios,
        ),
    ]
    ends = operations.groupby("size", sort=False)["context_length"].agg(["min", "max"])
    at_an_end = pd.concat([operations["size"].map(ends[end]) == operations["context_length"] for end in ends], axis=1)
    points = operations[(operations["flops"] > 0) & at_an_end.any(axis=1)]
    cases = [" · ".join(map(str, case)) for case in points[by].itertuples(index=False)]
    points = points.assign(label=[f"{name}, {case}" for name, case in zip(points["operation"], cases, strict=True)])
    clocks = {"product_ratio": "kernel time of products", "kernel_ratio": "kernel time", "timer_ratio": "Python timer"}
    long = ratios[ratios["kernel_ratio"].notna()].melt([*by, "run_id"], list(clocks), "clock", "value")
    charts = [
        Chart(
            "roofline",
            "roofline",
            "Rate reached against FLOPs per byte: each operation at the shortest and the longest context of each model",
            points if len(roofs) else points.head(0),
            {"order": [LINEAR, ATTENTION, SOFTMAX, OTHER], "roofs": roofs.to_dict("records")},
        ),
        Chart(
            "ratio",
            "dumbbell",
            "Backward against forward",
            long.assign(clock=long["clock"].map(clocks)).dropna(subset="value"),
            {"order": list(clocks.values()), "by": by, "unit": "backward ÷ forward", "value": "value"},
        ),
    ]
    return assemble(facts, claims, tables, charts)


_OPERATION = (Column("operation", "operation"), Column("phase", "phase"))
_RATES = (
    Column("time_ns", "kernel time", "ms"),
    Column("intensity", "intensity", "intensity"),
    Column("flop_rate", "rate", "tflops"),
    Column("byte_rate", "traffic", "gbps"),
    Column("limit", "limited by", absent=UNKNOWN),
    Column("reached", "of that limit", "share", absent=UNKNOWN),
)
_SUMMARY = (
    Column("intensity_low", "intensity, least", "intensity"),
    Column("intensity_high", "most", "intensity"),
    Column("flop_rate", "median rate", "tflops"),
    Column("byte_rate", "median traffic", "gbps"),
    Column("limit", "limited by", absent=UNKNOWN),
    Column("reached", "of that limit", "share", lower="reached_low", upper="reached_high", absent=UNKNOWN),
)
_JUDGED = (
    spread_column("timer", "unprofiled"),
    Column("busy_share", "GPU busy", "share", bar=True),
    Column("above", "kernel time above the ridge", "share", absent=UNKNOWN),
    Column("below", "below it", "share", absent=UNKNOWN),
    Column("bound", "bound by", absent=UNKNOWN),
)


# ---------------------------------------------------------------- FLOPs, bytes and kernel time


def _by_range(totals: pd.DataFrame) -> pd.DataFrame:
    """Kernel time by phase, innermost range and family: _KEY, time_ns."""
    inner = totals.assign(module=totals["module"].str.rsplit("/", n=1).str[-1])
    return inner.groupby(_KEY, sort=False)["time_ns"].sum().reset_index()


def _costs(runs: pd.DataFrame, peaks: Mapping[str, float]) -> pd.DataFrame:
    """What the kernels of each run do, and the roofs over them: _KEY, flops, bytes, peak_flops, peak_bytes (NaN where
    not measured)."""
    rows = []
    for run in runs.to_dict("records"):
        if not _has_formula(run):
            continue
        roofs = {"peak_flops": peaks.get(f"gemm_{run['precision']}"), "peak_bytes": peaks.get("copy")}
        for (phase, module, family), cost in _costs_of(run).items():
            key = {"run_id": str(run["run_id"]), "phase": phase, "module": module, "family": family}
            rows.append(key | cost._asdict() | roofs)
    columns = [*_KEY, "flops", "bytes", "peak_flops", "peak_bytes"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[4:], float))


def _has_formula(run: Mapping) -> bool:
    """Whether the kernels of a run are those that `flops.kernel_costs` counts."""
    return run["attention"] == "naive" and run["precision"] in ("fp32", "tf32") and run.get("compile", "off") == "off"


def _costs_of(run: Mapping) -> dict[tuple[str, str, str], flops.Cost]:
    """Costs of one step by phase, innermost range and family, as far as there is a formula."""
    shape = metrics.shape_of(run)
    forward = flops.kernel_costs(shape)
    products = sum((cost for (_, family), cost in forward.items() if family in _PRODUCT), flops.Cost(0, 0))
    costs = {(ranges.FORWARD, *key): cost for key, cost in forward.items()}
    costs[ranges.BACKWARD, "", "gemm"] = products * 2
    if run.get("optimizer", "own") == "own":
        costs[ranges.OPTIMIZER, "", "elementwise"] = flops.adamw_unfused(flops.num_parameters(shape))
    return costs


def _named() -> pd.DataFrame:
    """The operations by phase, module and family."""
    return pd.DataFrame(
        [
            {"operation": one.label, "series": one.series, "phase": one.phase, "module": module, "family": family}
            for one in OPERATIONS
            for module in one.modules
            for family in one.families
        ]
    )


def _in_its_mode(rows: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Rows of forward from runs of mode `forward`, all others from training steps."""
    mode = rows["run_id"].map(dict(zip(runs["run_id"].astype(str), runs["mode"].astype(str), strict=True)))
    wanted = rows["phase"].map(lambda phase: "forward" if phase == ranges.FORWARD else "train_step")
    return rows[mode == wanted]


def _rated(rows: pd.DataFrame, by: list[str], runs: pd.DataFrame) -> pd.DataFrame:
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
    sums["limit"] = _limit(sums)
    allowed = pd.concat([sums["flops"] / sums["peak_flops"], sums["bytes"] / sums["peak_bytes"]], axis=1).max(axis=1)
    sums["reached"] = (allowed / seconds).where(sums["ridge"].notna())
    ordered = metrics.in_model_order(runs).astype({"run_id": str})[["run_id", *metrics.case_columns(runs)]]
    ordered = ordered.astype({name: str for name in ordered if isinstance(ordered[name].dtype, pd.CategoricalDtype)})
    found = ordered.merge(sums, on="run_id")
    rank = {one.label: position for position, one in enumerate(OPERATIONS)}
    column = "operation" if "operation" in by else "phase"
    order = found[column].map(rank if column == "operation" else {p: i for i, p in enumerate(metrics.PHASES)})
    found = found.assign(_rank=order).sort_values("_rank", kind="stable", ignore_index=True)
    return found.drop(columns="_rank").assign(**{NOT_MEASURED: ""})


def _limit(rows: pd.DataFrame) -> pd.Series:
    """`arithmetic` above the ridge point, `memory` below it, None where it is not known."""
    above = rows["flops"] / rows["bytes"] > rows["peak_flops"] / rows["peak_bytes"]
    words = above.map({True: ARITHMETIC, False: MEMORY}).astype(object)
    return words.where(rows["peak_flops"].notna() & rows["peak_bytes"].notna(), None)


def _summary(rows: pd.DataFrame) -> pd.DataFrame:
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


def _ridges(runs: pd.DataFrame, peaks: Mapping[str, float]) -> dict[str, float]:
    """FLOP/byte at the ridge point, by precision of the runs."""
    known = [str(name) for name in runs["precision"].unique() if f"gemm_{name}" in peaks and "copy" in peaks]
    return {name: peaks[f"gemm_{name}"] / peaks["copy"] for name in known}


def _peaks(runs: pd.DataFrame, calibration: pd.DataFrame) -> list[dict]:
    """The measured rates behind the roofs: label, value, unit."""
    labels = {f"gemm_{name}": f"a large product in {name}" for name in sorted(runs["precision"].astype(str).unique())}
    labels |= {"copy": "copying", "read": "reading"}
    known = calibration[calibration["figure"].isin(labels)].to_dict("records")
    return [{"label": labels[row["figure"]], "value": row["value"], "unit": row["unit"]} for row in known]


def _roofs(rows: pd.DataFrame) -> pd.DataFrame:
    """Corners of the roofs over `rows`: roof, intensity (FLOP/byte), flop_rate (TFLOP/s), label (or "")."""
    known = rows[rows["ridge"].notna() & (rows["flops"] > 0)]
    low, high = known["intensity"].min() / 1.5, known["intensity"].max() * 1.5
    parts = []
    for peak, width in known[["peak_flops", "peak_bytes"]].drop_duplicates().itertuples(index=False):
        top, ridge = peak / 1e12, peak / width
        middle = (low * ridge) ** 0.5
        parts.append(
            pd.DataFrame(
                {
                    "roof": str(len(parts)),
                    "intensity": [low, middle, ridge, high],
                    "flop_rate": [low * width / 1e12, middle * width / 1e12, top, top],
                    "label": ["", f"memory {width / 1e9:,.0f} GB/s", "", f"arithmetic {top:,.1f} TFLOP/s"],
                }
            )
        )
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["roof"])


def _traffic(runs: pd.DataFrame) -> pd.DataFrame:
    """Bytes of forward outside matrix products, as written and with each operation in one kernel, by the shapes alone:
    case columns, run_id, moved_bytes, least_bytes, times_least."""
    shape_of = {
        str(run["run_id"]): metrics.shape_of(run)
        for run in metrics.measured_runs(runs).to_dict("records")
        if _has_formula(run)
    }
    rows = metrics.cases(runs, "forward")
    rows = rows[rows["run_id"].isin(shape_of)].reset_index(drop=True)
    shapes = [shape_of[run_id] for run_id in rows["run_id"]]
    costs = [flops.kernel_costs(shape) for shape in shapes]
    moved = [sum(c.bytes for (_, family), c in cost.items() if family not in _PRODUCT) for cost in costs]
    table = rows.assign(moved_bytes=moved, least_bytes=[_least_bytes(shape) for shape in shapes])
    return table.assign(times_least=table["moved_bytes"] / table["least_bytes"])


def _least_bytes(shape: flops.Shape) -> int:
    """Traffic of a forward pass outside matrix products if each operation went through memory once."""
    n, d = shape.num_tokens, shape.d_model
    layer = flops.softmax(shape) + flops.rope(shape) + flops.swiglu_gate(n, shape.d_ff) + flops.residual(n, d) * 2
    norms = flops.rms_norm(n, d) * (2 * shape.num_layers + 1)
    return (layer * shape.num_layers + norms + flops.embedding(n, d)).bytes


# ---------------------------------------------------------------- what bounds a run, and backward against forward


def _judged(steps: pd.DataFrame, kernels: pd.DataFrame, totals: pd.DataFrame, costs: pd.DataFrame) -> pd.DataFrame:
    """Each phase of each run, and its whole step (phase `step`): run_id, phase, timer_ns with its spread, busy_ns,
    busy_share, above and below (shares of kernel time), bound."""
    busy = metrics.spread(metrics.gpu_times(kernels), ["run_id", "phase"], "busy_ns", "busy")
    table = metrics.host_times(steps, "timer", "timer").merge(busy, on=["run_id", "phase"])
    table["busy_share"] = table["busy_ns"] / table["timer_ns"]
    parts = totals.merge(costs.assign(limit=_limit(costs)), how="left", on=_KEY)
    parts["above_ns"] = parts["time_ns"].where(parts["limit"] == ARITHMETIC, 0.0)
    parts = pd.concat([parts, parts.assign(phase=metrics.STEP)])
    sums = parts.groupby(["run_id", "phase"], sort=False)[["time_ns", "above_ns"]].sum()
    known = costs[costs["peak_flops"].notna() & costs["peak_bytes"].notna()]["run_id"].unique()
    share = (sums["above_ns"] / sums["time_ns"]).rename("above").reset_index()
    share["above"] = share["above"].where(share["run_id"].isin(known))
    table = table.merge(share, how="left", on=["run_id", "phase"])
    table["below"] = 1 - table["above"]
    return table.assign(bound=[_bound(row) for row in table.to_dict("records")])


def _bound(row: Mapping) -> str | None:
    if row["busy_share"] < metrics.LAUNCH_BOUND_BUSY_SHARE:
        return LAUNCHES
    if pd.isna(row["above"]):
        return None
    return ARITHMETIC if row["above"] > 0.5 else MEMORY


def _backward(steps: pd.DataFrame, totals: pd.DataFrame) -> pd.DataFrame:
    """Backward over forward per run: run_id, timer_ratio with timer_ratio_min and _max over the spread of both phases,
    kernel_ratio, product_ratio, rest_ratio."""
    timer = metrics.host_times(steps, "timer", "timer").set_index("run_id")
    forward, backward = (timer[timer["phase"] == phase] for phase in (ranges.FORWARD, ranges.BACKWARD))
    table = pd.DataFrame(
        {
            "timer_ratio": backward["timer_ns"] / forward["timer_ns"],
            "timer_ratio_min": backward["timer_min_ns"] / forward["timer_max_ns"],
            "timer_ratio_max": backward["timer_max_ns"] / forward["timer_min_ns"],
        }
    ).dropna()
    products = totals["family"].isin(_PRODUCT)
    for name, rows in (("kernel", totals), ("product", totals[products]), ("rest", totals[~products])):
        of_phase = {p: rows[rows["phase"] == p].groupby("run_id")["time_ns"].sum() for p in metrics.PHASES}
        table[f"{name}_ratio"] = of_phase[ranges.BACKWARD] / of_phase[ranges.FORWARD]
    return table.rename_axis("run_id").reset_index()


# ---------------------------------------------------------------- claims


def _claims_of_runs(whole: pd.DataFrame) -> list[Claim]:
    timed = whole[(whole[NOT_MEASURED] == "") & whole["busy_share"].notna()]
    counts = {bound: int((timed["bound"] == bound).sum()) for bound in (ARITHMETIC, MEMORY, LAUNCHES)}
    known = sum(counts.values())
    counts |= {"num_known": known, "num_all": len(timed)}

    def of(bound: str, value: str) -> Claim:
        rows = timed[timed["bound"] == bound]
        return Claim(bound, rows, facts=lambda rows: extremes(value)(rows) | counts)

    compared = timed[timed["bound"].isin((ARITHMETIC, MEMORY))]
    return [
        Claim("counts", timed, lambda rows: known == len(rows), lambda rows: counts),
        Claim("counts_of_some", timed, lambda rows: known < len(rows), lambda rows: counts),
        of(LAUNCHES, "busy_share"),
        of(ARITHMETIC, "above"),
        of(MEMORY, "below"),
        Claim("never_memory", compared, lambda rows: (rows["bound"] != MEMORY).all(), extremes("below")),
    ]


def _claims_of_phases(phases: pd.DataFrame) -> list[Claim]:
    optimizer = phases[(phases["phase"] == ranges.OPTIMIZER) & phases["busy_share"].notna()]
    bound = optimizer[optimizer["bound"].isin((ARITHMETIC, MEMORY))]
    return [
        Claim(
            "optimizer_memory",
            bound,
            lambda rows: (rows["bound"] == MEMORY).all(),
            out_of(optimizer),
        ),
        Claim(
            "optimizer_launches",
            optimizer[optimizer["bound"] == LAUNCHES],
            facts=lambda rows: extremes("busy_share")(rows) | {"num_all": len(optimizer)},
        ),
    ]


def _claims_of_operations(operations: pd.DataFrame, calibration: pd.DataFrame) -> list[Claim]:
    known = operations[operations["reached"].notna()]
    forward = known[known["phase"] == ranges.FORWARD]
    below = known[known["limit"] == MEMORY]
    limit = calibration[calibration["figure"].isin(("read", "copy"))]["high"].astype(float).max() / 1e9
    return [
        Claim("linear", forward[forward["series"] == LINEAR], _all_above, extremes("reached")),
        Claim("attention", forward[forward["series"] == ATTENTION], _all_above, extremes("reached")),
        Claim(
            "from_cache",
            below[below["byte_rate"] > limit],
            facts=lambda rows: {
                "operations": list(dict.fromkeys(rows["operation"])),
                "num_all": len(below),
                "high": highest(rows, "byte_rate"),
            },
        ),
        Claim("adamw", known[known["operation"] == "AdamW"], facts=extremes("reached")),
    ]


def _all_above(rows: pd.DataFrame) -> bool:
    return bool((rows["limit"] == ARITHMETIC).all())


def _claims_of_ratio(ratios: pd.DataFrame, phases: pd.DataFrame, by: list[str]) -> list[Claim]:
    known = ratios[(ratios[NOT_MEASURED] == "") & ratios["kernel_ratio"].notna()]
    waiting = phases[(phases["phase"] == ranges.FORWARD) & (phases["bound"] == LAUNCHES)]["run_id"]
    hidden = known[known["run_id"].isin(waiting) & (known["timer_ratio_max"] < known["kernel_ratio"])]
    return [
        Claim("ratio", known, facts=_ratios),
        Claim("timer_ratio", hidden, facts=extremes("timer_ratio")),
        *(_trend(known, by, axis) for axis in ("context_length", "size")),
    ]


def _ratios(rows: pd.DataFrame) -> dict:
    spans = {name: span(rows[f"{name}_ratio"]) for name in ("product", "rest")}
    return extremes("kernel_ratio")(rows) | spans


def _trend(known: pd.DataFrame, by: list[str], axis: str) -> Claim:
    """Holds where the ratio has no direction along `axis`: from its first to its last value it rises for some of the
    others and falls for some."""
    others = [name for name in by if name != axis]
    ends = known.groupby(others, sort=False)["kernel_ratio"].agg(
        first_ratio="first", last_ratio="last", num_runs="size"
    )
    ends = ends[ends["num_runs"] > 1].reset_index()

    def facts(rows: pd.DataFrame) -> dict:
        change = rows["last_ratio"] - rows["first_ratio"]
        return {"rise": rows.loc[change.idxmax()].to_dict(), "fall": rows.loc[change.idxmin()].to_dict()}

    def mixed(rows: pd.DataFrame) -> bool:
        return all(((rows["last_ratio"] > rows["first_ratio"]).any(), (rows["last_ratio"] < rows["first_ratio"]).any()))

    return Claim(f"no_trend_{axis}", ends, mixed, facts)
