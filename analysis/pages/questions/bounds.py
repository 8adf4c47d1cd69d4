"""(h) What limits a step: compute, memory or the CPU?"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import kernel_time, regimes, roofline, run_grid, step_limits, waiting
from profiler_job.analysis.metrics.differences import Band, Bands
from profiler_job.analysis.metrics.roofline import ATTENTION, LINEAR, OTHER, SOFTMAX
from profiler_job.analysis.pages import environment
from profiler_job.analysis.pages.case_columns import case_headings, spread_column
from profiler_job.analysis.pages.extreme_rows import (
    count_all,
    extremes,
    find_highest,
    format_percent_span,
    name_calibrated_gpu,
    noise_of,
    ratios_of,
    span,
)
from profiler_job.analysis.pages.home_cases import COMPILED, select_state
from profiler_job.analysis.pages.question import Inputs, Question, Section
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.analysis.render.regime_map import name_attention
from profiler_job.jobs.contract import modes, ranges
from profiler_job.jobs.contract.axes import find_default
from profiler_job.jobs.contract.step_limit import COMPUTE, CPU, MEMORY
from profiler_job.jobs.contract.studies import AGAIN, GPUS, HOST, LADDER, PRECISION, TRAINED
from profiler_job.jobs.contract.words import NOT_MEASURED

UNKNOWN = "no peak or no formula"
EITHER = "either"
IN_MAP = (TRAINED, GPUS, PRECISION, LADDER)
"""Studies that add cases to the map of the main recording. Of a case the first counts: those that nsys captured."""


def answer(given: Inputs) -> Answer:
    """Roofline of every operation and kernel family, and what limits each run.

    FLOPs and bytes are counted from the kernels as the model is written, in FP32 (flops.kernel_costs; backward does the
    matmuls of forward twice; AdamW is flops.adamw_unfused). Runs in another precision, with fused attention or compiled
    have none. The roofs are `calibration`: the matmul in the run's precision, and the copy. An operation with more
    FLOPs a byte than their ratio, the ridge point, is limited by compute, with fewer by memory; `reached` is the time
    that this roof allows over the kernel time. Operations of forward come from mode `forward`, the others from
    `train_step`.

    What limits a run is the largest part of its unprofiled step (`jobs.contract.step_limit`): compute, memory,
    communication or the CPU. So is each phase of a training step. Without a formula or a peak, all matmuls count as
    compute. Other recordings (`studies`) of the same runs say in how many of them the CPU limits a run; their shares of
    kernel time are taken to be these. Backward to forward is within training steps.
    run_pages: as in `run_grid.page_by_id`.
    """
    frames = _frames(
        given.runs,
        given.steps,
        given.kernels,
        given.memops,
        given.calibration,
        given.bands,
        given.studies,
        given.run_pages,
    )
    facts, claims = _facts(given.runs, given.calibration, given.bands), _claims(frames, given.runs, given.calibration)
    known = frames.regimes[frames.regimes["limit"].notna()]
    facts["num_over"] = int((frames.runs["busy_share"] > 1).sum())
    facts["in_map"] = _describe_map(known, given) if len(known) else {}
    return assemble(facts, claims, _tables(frames), _charts(frames, _peaks(given.calibration)))


def _describe_map(known: pd.DataFrame, given: Inputs) -> dict[str, Any]:
    """Describe what the runs of the map were measured in, which are of several recordings: part of the conditions."""
    recorded = [
        given.runs,
        *(given.studies[name].runs for name in IN_MAP if name in given.studies),
    ]
    runs = pd.concat([rows[rows["run_id"].astype(str).isin(known["run_id"])] for rows in recorded], ignore_index=True)
    if "compile" in runs:
        runs = runs.assign(compile=runs["compile"].astype(object).fillna(find_default("compile")))
    conditions = environment.conditions(runs)
    names = ("precision", "attention", "compile", "optimizer", "dates")
    return {name: conditions[name] for name in names if name in conditions}


QUESTION = Question(
    letter="h",
    slug="bounds",
    title="What limits a step: compute, memory or the CPU?",
    needs=("runs", "steps", "kernels", "memops", "calibration", "bands", "studies", "run_pages"),
    answer=answer,
    section=Section.LIMIT,
    place=1,
    study="",
    reads=(TRAINED, GPUS, PRECISION, LADDER, AGAIN, HOST, "attention"),
    searched=("roofline", "compute-bound", "memory-bound", "launch-bound", "arithmetic intensity", "bottleneck"),
)


@dataclass(frozen=True, kw_only=True)
class LimitData:
    by: list[str]
    """Columns that name a case."""
    operations: pd.DataFrame
    """Rates of each operation in each case; kernel_ns: of all kernels of its run."""
    families: pd.DataFrame
    """Rates of each kernel family in each case, phase by phase."""
    runs: pd.DataFrame
    """What limits each run."""
    phases: pd.DataFrame
    """What limits each phase of each training step."""
    ratios: pd.DataFrame
    """Backward to forward, of each training step."""
    regimes: pd.DataFrame
    """What limits each training step, in each precision that was recorded."""
    in_bf16: pd.DataFrame
    """Where the linear layers lie under the roofs in BF16, forward and backward."""


def _frames(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    kernels: pd.DataFrame,
    memops: pd.DataFrame,
    calibration: pd.DataFrame,
    bands: Bands | None,
    studies: Mapping[str, Any],
    run_pages: Mapping[tuple[str, str], str],
) -> LimitData:
    band = bands.wall if bands else None
    totals = roofline.sum_by_range(kernel_time.kernel_totals(kernels))
    costs = roofline.costs_of(run_grid.select_measured_runs(runs), _peaks(calibration))
    timed = roofline.select_own_mode(totals.merge(costs, on=roofline.KEY), runs)
    named = timed.merge(roofline.name_operations(), on=roofline.KEY[1:])
    operations = roofline.rate_groups(named, ["operation", "series", "phase"], runs)
    kernel_ns = operations["run_id"].map(totals.groupby("run_id")["time_ns"].sum())
    judged = step_limits.measure_limits(steps, kernels, memops, costs, band)
    judged = judged.assign(cpu_share=judged["cpu_ns"] / judged["timer_ns"])
    of_steps = judged[judged["phase"] == ranges.STEP]
    of_steps = of_steps.merge(_count_recordings(of_steps, runs, studies, costs, band), how="left", on="run_id")
    in_phases = judged[judged["phase"].isin((ranges.FORWARD, ranges.BACKWARD, ranges.OPTIMIZER))]
    grid = pd.concat([run_grid.cases(runs, mode).assign(mode=mode) for mode in modes.MODES])
    training = run_grid.cases(runs, "train_step")
    main = _Main(runs=runs, steps=steps, kernels=kernels, memops=memops)
    return LimitData(
        by=run_grid.case_columns(runs),
        operations=operations.assign(kernel_ns=kernel_ns),
        families=roofline.rate_groups(timed, ["phase", "family"], runs),
        runs=grid.merge(of_steps, how="left", on="run_id"),
        phases=training.merge(in_phases, how="left", on="run_id"),
        ratios=training.merge(roofline.backward_ratio(steps, totals), how="left", on="run_id"),
        regimes=_regimes(main, _peaks(calibration), band, studies, run_pages),
        in_bf16=_place_in_bf16(studies, _peaks(calibration)),
    )


def _place_in_bf16(studies: Mapping[str, Any], peaks: Mapping[str, float]) -> pd.DataFrame:
    if TRAINED not in studies:
        return pd.DataFrame(columns=["label"])
    return roofline.place_linear_layers(studies[TRAINED].runs, studies[TRAINED].kernels, peaks)


@dataclass(frozen=True, kw_only=True)
class _Main:
    """The tables of the main recording that `regimes` reads."""

    runs: pd.DataFrame
    steps: pd.DataFrame
    kernels: pd.DataFrame
    memops: pd.DataFrame


def _regimes(
    main: _Main,
    peaks: dict[str, float],
    band: Band | None,
    studies: Mapping[str, Any],
    run_pages: Mapping[tuple[str, str], str],
) -> pd.DataFrame:
    """`regimes.regimes_of` the main recording and those that have its cases in another precision or compiled; leads_to:
    the page of the run, "" where it has none."""
    recorded = [main]
    for study in IN_MAP:
        if study in studies:
            recorded.append(_select_batch(studies[study], main))
            if study == TRAINED:
                recorded.append(select_state(studies[study], COMPILED, main.runs["batch_size"]))
    rows = regimes.regimes_of(recorded, peaks, band)
    return rows.assign(leads_to=rows["run_id"].map(run_grid.page_by_id(recorded, run_pages)))


def _select_batch(rec: Any, main: _Main) -> Any:
    """The recording `rec` with its eager runs of the batch of `main`."""
    runs = run_grid.select_eager(rec.runs)
    return replace(rec, runs=runs[runs["batch_size"].isin(main.runs["batch_size"])])


def _count_recordings(
    judged: pd.DataFrame, runs: pd.DataFrame, studies: Mapping[str, Any], costs: pd.DataFrame, band: Band | None
) -> pd.DataFrame:
    """In how many recordings of each run the CPU limits its step: run_id, num_recordings, num_claimed, wait_low and
    wait_high (the part of the step in which the GPU waits for launches), cpu_limits_in."""

    def measure(steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
        return step_limits.measure_limits(steps, kernels, memops, costs, band)

    others = waiting.compute_other_waits(runs, studies.values(), band, measure)
    if len(others):
        others = others.assign(is_limited=others["limit"] == CPU)
    table = waiting.count_recordings(judged.assign(is_limited=judged["limit"] == CPU), others, "is_limited")
    words = [f"{num} of {num_all}" for num, num_all in zip(table["num_claimed"], table["num_recordings"])]
    return table.assign(cpu_limits_in=words).drop(columns="phase")


def _peaks(calibration: pd.DataFrame) -> dict[str, float]:
    return dict(zip(calibration["figure"], calibration["value"], strict=True))


def _list_precisions(runs: pd.DataFrame) -> list[str]:
    return sorted(set(run_grid.select_measured_runs(runs)["precision"].astype(str)))


def _facts(runs: pd.DataFrame, calibration: pd.DataFrame, bands: Bands | None) -> dict[str, Any]:
    ridges = roofline.ridges(runs, _peaks(calibration))
    return {
        "precisions": _list_precisions(runs),
        "noise": noise_of(bands),
        "peaks": roofline.list_measured_peaks(runs, calibration),
        "calibrated_on": name_calibrated_gpu(calibration),
        "ridges": [{"precision": name, "ridge": point} for name, point in ridges.items()],
    }


def _claims(frames: LimitData, runs: pd.DataFrame, calibration: pd.DataFrame) -> list[Claim]:
    return [
        *_claims_of_runs(frames.runs, _count_in_bf16(frames.regimes, _list_precisions(runs))),
        *_claims_of_phases(frames.phases),
        *_claims_of_operations(frames.operations, calibration),
        *_claims_of_ratio(frames.ratios, frames.phases, frames.by),
        Claim("unfused", roofline.traffic(runs), facts=extremes("times_least")),
    ]


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
    Column("cpu_share", "the GPU waits for the CPU", "share"),
    Column("launch_wait", "of it, launches", "share"),
    Column("above", "kernel time above the ridge", "share", absent=UNKNOWN),
    Column("below", "below it", "share", absent=UNKNOWN),
    Column("limit", "limited by", absent=UNKNOWN),
)
_RECORDED = (Column("cpu_limits_in", "the CPU limits it in recordings"),)
_RATIOS = (
    Column("timer_ratio", "Python timer", "ratio"),
    Column("kernel_ratio", "kernel time", "ratio"),
    Column("gemm_ratio", "GEMM kernel time", "ratio"),
    Column("rest_ratio", "kernel time of all others", "ratio"),
)


def _tables(frames: LimitData) -> list[Table]:
    case = case_headings(frames.by)
    return [
        Table(
            "operations",
            "Operations under the roofs: median, and minimum–maximum over all cases",
            (*_OPERATION, *_SUMMARY),
            roofline.summary(frames.operations),
        ),
        Table(
            "families",
            "Kernel families under the roofs: median, and minimum–maximum over all cases",
            (Column("phase", "phase"), Column("family", "family", "family"), *_SUMMARY),
            roofline.summary(frames.families),
        ),
        Table("every", "Every operation of every case", (*case, *_OPERATION, *_RATES), frames.operations),
        Table("runs", "What limits each run", (*case, Column("mode", "mode"), *_JUDGED, *_RECORDED), frames.runs),
        Table(
            "phases",
            "What limits each phase of a training step",
            (*case, Column("phase", "phase"), *_JUDGED),
            frames.phases,
        ),
        Table("ratio", "Backward ÷ forward in a training step", (*case, *_RATIOS), frames.ratios),
        Table("regimes", "What limits a training step", (), frames.regimes),
    ]


def _charts(frames: LimitData, peaks: Mapping[str, float]) -> list[Chart]:
    points = pd.concat([roofline.medians(frames.operations), frames.in_bf16], ignore_index=True)
    roofs = roofline.draw_roofs(frames.operations, points, peaks)
    clocks = {"gemm_ratio": "GEMM kernel time", "kernel_ratio": "kernel time", "timer_ratio": "Python timer"}
    known = frames.ratios[frames.ratios["kernel_ratio"].notna()]
    long = known.melt([*frames.by, "run_id"], list(clocks), "clock", "value")
    return [
        Chart(
            "roofline",
            "roofline",
            _title_of_roofline(roofline.medians(frames.operations), frames.in_bf16),
            points if len(roofs) else points.head(0),
            options={"order": [LINEAR, ATTENTION, SOFTMAX, OTHER], "roofs": roofs.to_dict("records")},
        ),
        Chart(
            "ratio",
            "dumbbell",
            _title_of_ratio(known["kernel_ratio"]),
            long.assign(clock=long["clock"].map(clocks)).dropna(subset="value"),
            options={"order": list(clocks.values()), "by": frames.by, "unit": "backward ÷ forward", "value": "value"},
        ),
    ]


def _title_of_ratio(ratios: pd.Series) -> str:
    return f"Kernels take {ratios_of(ratios)} as long in backward as in forward" if len(ratios) else "Not measured"


def _title_of_roofline(points: pd.DataFrame, in_bf16: pd.DataFrame) -> str:
    """What matmuls of linear layers and all other operations below the ridge reach of their roofs."""
    known = points.dropna(subset="reached")
    said = [
        f"{words} reach {format_percent_span(of['reached'])} of the {roof} roof"
        for words, roof, of in (
            ("Matmuls of linear layers", "compute", known[known["series"] == LINEAR]),
            ("operations below the ridge", "memory", known[known["limit"] == MEMORY]),
        )
        if len(of)
    ]
    if len(in_bf16) and in_bf16["reached"].notna().all():
        said.insert(1, f"in BF16 {format_percent_span(in_bf16['reached'])}")
    return "; ".join(said) or "Rate reached against FLOPs per byte"


# ---------------------------------------------------------------- claims


def _count_in_bf16(regimes: pd.DataFrame, precisions: list[str]) -> dict[str, Any]:
    """Count what limits the map's training steps in BF16, not compiled (`bf16`) and compiled, if the main recording is
    in other precisions alone; None if there are none. A reader who trains in BF16 would take its counts for his."""
    rows = regimes[(regimes["precision"] == "bf16") & ("bf16" not in precisions)]
    is_eager = rows["compile"] == find_default("compile")
    return {"bf16": _count_most(rows[is_eager]), "compiled": _count_most(rows[~is_eager])}


def _count_most(rows: pd.DataFrame) -> dict[str, Any] | None:
    """Count the limit that most steps have: limit, num of num_all, and their attention. None if no limit is known."""
    judged = rows[rows["limit"].fillna("") != ""]
    known = judged[judged["limit"].isin((COMPUTE, MEMORY, CPU))]
    if not len(known):
        return None
    limit = known["limit"].value_counts().index[0]
    attention = name_attention(str(judged["attention"].iloc[0])) if "attention" in judged else ""
    number = {"num": int((known["limit"] == limit).sum()), "num_all": len(judged)}
    return {"limit": f"the {CPU}" if limit == CPU else limit.lower(), "attention": attention} | number


def _claims_of_runs(runs: pd.DataFrame, in_bf16: Mapping[str, Any]) -> list[Claim]:
    timed = runs[(runs[NOT_MEASURED] == "") & runs["busy_share"].notna()]
    counts: dict[str, Any] = {name.lower(): int((timed["limit"] == name).sum()) for name in (COMPUTE, MEMORY, CPU)}
    counts |= {"either": int(timed["limit"].astype(str).str.startswith(EITHER).sum()), "num_all": len(timed)}
    counts |= {**in_bf16, "most": _count_most(timed)}
    with_ridge = timed[timed["above"].notna()]

    def make_claim(name: str, value: str, rows: pd.DataFrame) -> Claim:
        return Claim(name.lower(), rows[rows["limit"] == name], facts=lambda rows: extremes(value)(rows) | counts)

    compared = with_ridge[with_ridge["limit"].isin((COMPUTE, MEMORY))]
    return [
        Claim("counts", timed, facts=lambda rows: counts),
        Claim("without_ridge", timed[timed["above"].isna()], facts=count_all(timed)),
        make_claim(CPU, "cpu_share", timed),
        Claim("waits", timed, facts=_waits),
        Claim("recordings", timed[timed["num_recordings"] > 1], facts=_recordings),
        make_claim(COMPUTE, "above", with_ridge),
        make_claim(MEMORY, "below", with_ridge),
        Claim("never_memory", compared, lambda rows: (rows["limit"] != MEMORY).all(), facts=extremes("below")),
    ]


def _waits(rows: pd.DataFrame) -> dict[str, Any]:
    """Also the step of the longest mode, a training step if there is any, in which the GPU waits most for the CPU
    (of_step)."""
    of_longest = rows[rows["mode"] == max(rows["mode"].astype(str), key=modes.MODES.index)]
    return {
        **extremes("launch_wait")(rows),
        "num_waiting": int(rows["waits"].sum()),
        "of_step": find_highest(of_longest, "cpu_share"),
    }


def _recordings(rows: pd.DataFrame) -> dict[str, Any]:
    """Of runs that several recordings have: how many the CPU limits in one of them or more, how many in all, and the
    one whose GPU waits for launches most differently."""
    return {
        "num_ever": int((rows["num_claimed"] > 0).sum()),
        "num_always": int((rows["num_claimed"] == rows["num_recordings"]).sum()),
        "widest": find_highest(rows.assign(width=rows["wait_high"] - rows["wait_low"]), "width"),
    }


def _claims_of_phases(phases: pd.DataFrame) -> list[Claim]:
    optimizer = phases[(phases["phase"] == ranges.OPTIMIZER) & phases["busy_share"].notna()]
    bound = optimizer[optimizer["limit"].isin((COMPUTE, MEMORY))]
    return [
        Claim(
            "optimizer_memory",
            bound,
            lambda rows: (rows["limit"] == MEMORY).all(),
            facts=count_all(optimizer),
        ),
        Claim("optimizer_waits", optimizer, facts=extremes("launch_wait")),
    ]


def _claims_of_operations(operations: pd.DataFrame, calibration: pd.DataFrame) -> list[Claim]:
    known = operations[operations["reached"].notna()]
    forward = known[known["phase"] == ranges.FORWARD]
    below = known[known["limit"] == MEMORY]
    limit = calibration[calibration["figure"].isin(("read", "copy"))]["high"].astype(float).max() / 1e9
    return [
        Claim("linear", forward[forward["series"] == LINEAR], _describe_all_above, facts=extremes("reached")),
        Claim("attention", forward[forward["series"] == ATTENTION], _describe_all_above, facts=extremes("reached")),
        Claim(
            "from_cache",
            below[below["byte_rate"] > limit],
            facts=lambda rows: {
                "operations": list(dict.fromkeys(rows["operation"])),
                "num_all": len(below),
                "high": find_highest(rows, "byte_rate"),
            },
        ),
        Claim("adamw", known[known["operation"] == "AdamW"], facts=extremes("reached")),
    ]


def _describe_all_above(rows: pd.DataFrame) -> bool:
    return bool((rows["limit"] == COMPUTE).all())


def _claims_of_ratio(ratios: pd.DataFrame, phases: pd.DataFrame, by: list[str]) -> list[Claim]:
    known = ratios[(ratios[NOT_MEASURED] == "") & ratios["kernel_ratio"].notna()]
    late = phases[(phases["phase"] == ranges.FORWARD) & (phases["waits"] == True)]["run_id"]  # noqa: E712 (or missing)
    hidden = known[known["run_id"].isin(late) & (known["timer_ratio_max"] < known["kernel_ratio"])]
    return [
        Claim("ratio", known, facts=_ratios),
        Claim("timer_ratio", hidden, facts=extremes("timer_ratio")),
        *(_trend(known, by, axis) for axis in ("context_length", "size")),
    ]


def _ratios(rows: pd.DataFrame) -> dict[str, Any]:
    spans = {name: span(rows[f"{name}_ratio"]) for name in ("gemm", "rest")}
    return extremes("kernel_ratio")(rows) | spans


def _trend(known: pd.DataFrame, by: list[str], axis: str) -> Claim:
    """Holds where the ratio has no direction along `axis`: from its first to its last value it rises for some of the
    others and falls for some."""
    others = [name for name in by if name != axis]
    ends = known.groupby(others, sort=False)["kernel_ratio"].agg(
        first_ratio="first", last_ratio="last", num_runs="size"
    )
    ends = ends[ends["num_runs"] > 1].reset_index()

    def facts(rows: pd.DataFrame) -> dict[str, Any]:
        change = rows["last_ratio"] - rows["first_ratio"]
        return {"rise": rows.loc[change.idxmax()].to_dict(), "fall": rows.loc[change.idxmin()].to_dict()}

    def find_mixed(rows: pd.DataFrame) -> bool:
        return all(((rows["last_ratio"] > rows["first_ratio"]).any(), (rows["last_ratio"] < rows["first_ratio"]).any()))

    return Claim(f"no_trend_{axis}", ends, find_mixed, facts=facts)
