"""(f) What does fused attention save, and from which context on?"""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from profiler_job.analysis.metrics import attention, device_memory, differences, run_grid
from profiler_job.analysis.metrics.attention import NAIVE, TRAIN
from profiler_job.analysis.metrics.differences import Bands
from profiler_job.analysis.metrics.turns import have_turns
from profiler_job.analysis.pages.case_columns import band_column, case_headings, spread_column
from profiler_job.analysis.pages.extreme_rows import (
    extremes,
    find_highest,
    give_largest,
    many,
    name_calibrated_gpu,
    noise_of,
    span,
)
from profiler_job.analysis.pages.question import Inputs, Question, Section
from profiler_job.analysis.pages.questions.fused_attention_data import (
    MODES,
    FusedAttentionData,
    gather_data,
    select_same,
)
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.jobs import memory
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.axes import find_value_label
from profiler_job.jobs.contract.precisions import PRECISIONS
from profiler_job.jobs.contract.words import NOT_MEASURED

STUDY = "attention"


def answer(given: Inputs) -> Answer:
    """Eager attention (`naive`) against the backends of scaled_dot_product_attention, forward and in training.

    A step's time is its GPU busy time, with the unprofiled timer next to it. A backend is faster if its time is shorter
    than `naive`'s by more than the noise band of its kind (`bands`); the crossover is the smallest context from which
    it is so at every longer one that both reached. Memory is peak allocated in a step.

    Attention's kernel time is, in forward, the time of all kernels launched in its ranges; in backward, where kernels
    have no range, the time of the fused kernels, and for `naive` its backward less what the backends' backward takes
    outside the fused kernels (median over backends; lowest and highest next to it).

    FLOPs are counted of matmuls with the T x T scores, all layers. Model FLOPs count every score. What a fused kernel
    executes is inferred, no profile counts it: masked pairs skipped, and one matmul more in backward. Rates are FLOPs
    over attention's kernel time; their share is of the rate of a large matmul, measured on this GPU (`calibration`) or,
    where none was, in its datasheet.
    """
    are_measured = len(given.calibration) > 0
    calibration = given.calibration if are_measured else attention.datasheet_rates(given.runs)
    tables = (given.runs, given.steps, given.processes, given.kernels, given.memops)
    frames = gather_data(*tables, calibration, given.bands)
    facts = _facts(frames, given.runs, calibration, given.bands) | {"are_measured": are_measured}
    facts["took_turns"] = have_turns(given.steps)
    return assemble(facts, _claims(frames, given.runs, given.kernels), _tables(frames, given.runs), _charts(frames))


QUESTION = Question(
    letter="f",
    slug="fused-attention",
    title="What does fused attention save, and from which context on?",
    needs=("runs", "steps", "processes", "kernels", "memops", "calibration", "bands"),
    answer=answer,
    section=Section.CHANGE,
    place=3,
    study=STUDY,
    searched=("flash attention", "FlashAttention", "SDPA", "scaled_dot_product_attention"),
)


def _facts(
    frames: FusedAttentionData, runs: pd.DataFrame, calibration: pd.DataFrame, bands: Bands | None
) -> dict[str, Any]:
    of_reference = runs["run_id"].isin(frames.reference["run_id"])
    return {
        "noise": noise_of(bands),
        "gpu": ", ".join(sorted(runs["gpu_name"].astype(str).unique())),
        "reference": _name_crossover(frames.reference, frames.keys).removeprefix(", "),
        "autocast": bool(runs.loc[of_reference, "precision"].eq("bf16").any()),
        "calibrated_on": name_calibrated_gpu(calibration),
        "num_trained": len(frames.trained),
        "num_compared": len(frames.compared),
        "num_forward_faster": int(frames.compared["faster"].sum()),
        "num_before": int(frames.table[NOT_MEASURED].eq("OOM in build").sum()),
        "sizes": list(dict.fromkeys(frames.table["size"])),
    }


def _claims(frames: FusedAttentionData, runs: pd.DataFrame, kernels: pd.DataFrame) -> list[Claim]:
    return [
        *_claims_of_time(frames),
        *_claims_of_memory(frames, runs),
        *_claims_of_kernels(frames, runs, kernels),
        *_claims_of_rates(frames),
    ]


def _claims_of_time(frames: FusedAttentionData) -> list[Claim]:
    trained, compared = frames.trained, frames.compared
    fastest = _find_fastest(trained, frames.keys, frames.bands)
    gains = lambda rows: _gains(rows) | _find_timed_from(frames.crossovers, rows)  # noqa: E731
    return [
        Claim("always", trained, lambda rows: rows["faster"].all(), facts=gains),
        Claim("partly", trained, lambda rows: _are_faster(rows) and not rows["faster"].all(), facts=gains),
        Claim("never", trained, lambda rows: not _are_faster(rows), facts=gains),
        Claim("forward_only", compared[compared["faster"]], lambda rows: trained.empty, facts=give_largest("speedup")),
        Claim("gain", trained[trained["faster"]], many(trained), facts=give_largest("speedup")),
        Claim("unseen", compared, lambda rows: many(rows)(rows[_unseen(rows)]), facts=_unseen_facts),
        Claim("fastest", fastest, lambda rows: many(rows)(rows[rows["leads"]]), facts=_find_leader),
        Claim(
            "fastest_timed",
            fastest,
            lambda rows: rows["leads"].any() and _find_timed(rows)["num_other"] > 0,
            facts=_find_timed,
        ),
    ]


def _claims_of_memory(frames: FusedAttentionData, runs: pd.DataFrame) -> list[Claim]:
    smaller = frames.trained[frames.trained["memory_ratio"] > 1]
    return [
        Claim("memory", smaller, facts=_find_smallest),
        Claim("fits", _select_only_fused(frames.table), facts=_describe_fitting),
        Claim(
            "before",
            _list_predicted_failures(frames.table, runs),
            lambda rows: (rows["predicted_bytes"] > rows["gpu_memory_bytes"]).all(),
            facts=give_largest("predicted_bytes"),
        ),
    ]


def _claims_of_kernels(frames: FusedAttentionData, runs: pd.DataFrame, kernels: pd.DataFrame) -> list[Claim]:
    reference, forward, parts = frames.reference, frames.forward, frames.parts
    at_reference = parts[parts["train_run_id"].isin(reference["run_id"])]
    gone = attention.count_matmuls_gone(frames.compared, kernels, runs)
    return [
        Claim(
            "replaced", forward[(forward["attention"] == NAIVE) & forward["per_layer"].notna()], facts=_count_replaced
        ),
        Claim(
            "matmuls_memory",
            frames.matmuls.dropna(subset="time_ns"),
            lambda rows: (rows["memory_ns"] > rows["compute_ns"]).all(),
            facts=lambda rows: {"of": rows.to_dict("records")},
        ),
        Claim(
            "below_gemms",
            at_reference,
            lambda rows: (rows["forward_ns"] < rows["naive_gemms_ns"]).all(),
            facts=extremes("forward_ns"),
        ),
        Claim("inside", gone, lambda rows: rows["as_expected"].all(), facts=_gone),
        Claim(
            "backward",
            at_reference,
            lambda rows: (rows["backward_ns"] < rows["naive_backward_low_ns"]).all(),
            facts=extremes("backward_ns"),
        ),
        Claim(
            "launches", reference, lambda rows: (rows["launches"] < rows["naive_launches"]).all(), facts=_find_fewest
        ),
        Claim("cut", _select_cut(frames.table), facts=lambda rows: {"low": rows.iloc[0], "high": rows.iloc[-1]}),
    ]


def _claims_of_rates(frames: FusedAttentionData) -> list[Claim]:
    parts = frames.parts
    fused = parts[(parts["attention"] != NAIVE) & parts["naive_forward_of_peak"].notna()]
    return [
        Claim("skips", parts[parts["full_of_any_peak"] > 1], facts=give_largest("full_of_any_peak")),
        Claim("rate", fused, lambda rows: rows["forward_of_peak"].notna().any(), facts=give_largest("forward_of_peak")),
    ]


def _tables(frames: FusedAttentionData, runs: pd.DataFrame) -> list[Table]:
    one_size = runs["size"].nunique() == 1
    shown = [*frames.keys[2:], *([] if one_size else ["size"]), "context_length", "attention"]
    case = case_headings(shown, linked=False)
    return [
        _tabulate_crossover(frames.crossovers, case),
        *(_tabulate_mode(mode, label, frames.table, case) for mode, label in MODES.items()),
        *_kernel_tables(frames),
        _work_table(attention.work_of(runs), case),
        _rate_table(frames.parts, case),
    ]


def _tabulate_crossover(rows: pd.DataFrame, case: tuple[Column, ...]) -> Table:
    columns = (
        *(column for column in case if column.key != "context_length"),
        Column("mode", "mode"),
        Column("busy_from", "by GPU busy time", "count", absent="never"),
        Column("timer_from", "by the timer", "count", absent="never"),
        Column("context_length", "longest compared", "count"),
        Column("speedup", "GPU busy there, eager ÷ fused", "ratio"),
        Column("timer_speedup", "timer there, eager ÷ fused", "ratio"),
        Column("memory_ratio", "peak allocated there, eager ÷ fused", "ratio"),
    )
    title = "The smallest context from which a backend is faster than eager attention"
    return Table("crossover", title, columns, rows)


def _kernel_tables(frames: FusedAttentionData) -> list[Table]:
    where = _name_crossover(frames.reference, frames.keys)
    forms = [name.removesuffix("_ns") for name in frames.families if name.endswith("_ns")]
    labels = {form: find_value_label("attention", form) for form in forms}
    return [
        Table(
            "forward_kernels",
            f"Attention's kernels in forward{where}",
            (
                Column("attention", "attention"),
                Column("range", "range", "code"),
                Column("kernel_name", "kernel", "kernel"),
                Column("per_layer", "launches a layer", "count", absent="n/a"),
                Column("time_ns", "time a step", "ms"),
                Column("share", "of attention", "share", bar=True),
            ),
            frames.forward,
        ),
        Table(
            "matmuls",
            f"The two matmuls of eager attention, in one layer of forward{where}",
            (
                Column("operation", "matmul"),
                Column("time_ns", "kernel time", "us"),
                Column("memory_ns", "its bytes need", "us"),
                Column("compute_ns", "its FLOPs need", "us"),
            ),
            frames.matmuls.assign(**{NOT_MEASURED: ""}),
        ),
        Table(
            "families",
            f"Kernels of backward by family{where}",
            (
                Column("family", "family", "family"),
                *(Column(f"{form}_calls", f"{label}, launches", "count") for form, label in labels.items()),
                *(Column(f"{form}_ns", label, "ms") for form, label in labels.items()),
            ),
            frames.families,
        ),
        Table(
            "backward_kernels",
            f"Backward kernels whose number changes{where}: eager attention against the fastest backend",
            (
                Column("kernel_name", "kernel", "kernel"),
                Column("naive_calls", "eager, launches", "count"),
                Column("fused_calls", "fused, launches", "count"),
                Column("naive_ns", "eager", "ms"),
                Column("fused_ns", "fused", "ms"),
                Column("saved_ns", "saved", "ms"),
            ),
            frames.backward,
        ),
    ]


def _work_table(work: pd.DataFrame, case: tuple[Column, ...]) -> Table:
    columns = (
        *(column for column in case if column.key in ("size", "context_length", "batch_size")),
        Column("model_flops", "model", "gflop"),
        Column("of_step", "of the step's matmuls", "share", bar=True),
        Column("naive_flops", "executed, eager", "gflop"),
        Column("fused_flops", "executed, fused (inferred)", "gflop"),
        Column("executed_ratio", "fused ÷ model", "ratio"),
    )
    return Table("work", "FLOPs of attention's matmuls in one training step", columns, work)


def _rate_table(parts: pd.DataFrame, case: tuple[Column, ...]) -> Table:
    columns = (
        *case,
        Column("forward_ns", "forward", "ms"),
        Column("full_rate", "full rate", "tflops", absent="n/a"),
        Column("forward_rate", "rate", "tflops", absent="n/a"),
        Column("forward_of_peak", "of peak", "share", absent="n/a"),
        Column("backward_ns", "backward", "ms", absent="n/a"),
        Column("backward_rate", "rate", "tflops", absent="n/a"),
        Column("backward_of_peak", "of peak", "share", absent="n/a"),
    )
    title = "Kernel time of attention and the rate that it reaches: in a forward pass, and in the backward of a step"
    return Table("rates", title, columns, parts)


def _tabulate_mode(mode: str, label: str, table: pd.DataFrame, case: tuple[Column, ...]) -> Table:
    columns = (
        *case,
        spread_column("busy", "GPU busy"),
        Column("speedup", "eager ÷ fused", "ratio", absent="no eager time"),
        band_column("busy_band_ns"),
        spread_column("timer", "Python timer"),
        band_column("timer_band_ns"),
        Column("launch_wait", "waits for launches", "share")
        if mode == TRAIN
        else Column("launches", "kernel launches", "count"),
        Column("peak_memory_bytes", "peak allocated", "bytes"),
    )
    rows = table[table["mode"] == mode].reset_index(drop=True)
    return Table(mode, label, columns, rows)


def _charts(frames: FusedAttentionData) -> list[Chart]:
    table, keys = frames.table, frames.keys
    drawn = table[(table["mode"] == TRAIN) & select_same(table, frames.reference, keys[2:], ["size"])]
    where = _name_crossover(frames.reference, keys[2:])
    return [
        *_chart_times(frames),
        _lines("peak", _title_of_peaks(drawn, where), drawn, "peak_memory_bytes", "GiB"),
    ]


def _chart_times(frames: FusedAttentionData) -> list[Chart]:
    """The steps of the reference's model and other settings: a chart of each precision, that of the reference first."""
    keys, reference = frames.keys[2:], frames.reference
    steps = frames.table[frames.table["mode"] == TRAIN]
    states = {"": reference}
    if "precision" in keys and len(reference):
        first = str(reference["precision"].iloc[0])
        states = {first: reference}
        states |= {
            name: reference.assign(precision=name) for name in sorted({*steps["precision"].astype(str)} - {first})
        }
    named = keys if len(states) < 2 else [name for name in keys if name != "precision"]
    charts = []
    for number, (precision, like) in enumerate(states.items()):
        drawn = steps[select_same(steps, like, keys, ["size"])]
        title = f"GPU busy time of a training step{_name_crossover(like, named)}"
        chart = _lines(f"time-{precision}" if number else "time", title, drawn, "busy_ns", "ms")
        charts.append(replace(chart, state=precision.upper()))
    return charts


def _title_of_peaks(drawn: pd.DataFrame, where: str) -> str:
    context, eager, fused = _find_longest(drawn, "peak_memory_bytes")
    if not context:
        return f"Peak allocated memory of a training step{where}"
    part = f"{fused / eager:.0%} of the peak with eager attention"
    return f"At {context:,} tokens the peak allocated with fused attention is {part}{where}"


def _find_longest(drawn: pd.DataFrame, value: str) -> tuple[int, float, float]:
    """The longest context at which eager attention finished, `value` there with it, and the least with a fused
    backend; the context is 0 where no such pair was measured."""
    known = drawn.dropna(subset=[value]).pivot_table(index="context_length", columns="attention", values=value)
    both = known.dropna(subset=["naive"]).dropna(how="all", axis=1) if "naive" in known else known.head(0)
    if not len(both) or both.shape[1] < 2:
        return 0, float("nan"), float("nan")
    last = both.iloc[-1]
    return int(both.index[-1]), last["naive"], last.drop("naive").min()


def _lines(key: str, title: str, table: pd.DataFrame, value: str, unit: str) -> Chart:
    """Lines over context; where the next longer context ran out of memory in a step, the line says so at its end."""
    rows = table.sort_values("context_length", kind="stable").rename(columns={"attention": "clock"})
    then = _is_out_of_memory(rows[NOT_MEASURED]).groupby(rows["clock"]).shift(-1, fill_value=False)
    rows = rows[["context_length", "clock", "size", value]].assign(note=then.map({True: ", then OOM", False: ""}))
    rows["clock"] = [find_value_label("attention", name) for name in rows["clock"]]
    order = list(dict.fromkeys(rows["clock"]))
    return Chart(
        key,
        "lines",
        title,
        rows.dropna(subset=[value]),
        options={"order": order, "value": value, "unit": f"{unit} (log scale)"},
    )


def _is_out_of_memory(why: pd.Series) -> pd.Series:
    """True where memory ran out in a phase of the step. What ended before, in building, says nothing of a step."""
    return why.isin([f"OOM in {phase}" for phase in ranges.PHASES])


def _name_crossover(rows: pd.DataFrame, keys: list[str]) -> str:
    return (
        ", " + " · ".join(str(find_value_label(name, rows.iloc[0][name])) for name in keys)
        if keys and len(rows)
        else ""
    )


def _gains(rows: pd.DataFrame) -> dict[str, Any]:
    return give_largest("speedup")(rows) | {
        "num_faster": int(rows["faster"].sum()),
        "num_timer_faster": int(rows["timer_faster"].sum()),
    }


def _find_timed_from(crossovers: pd.DataFrame, rows: pd.DataFrame) -> dict[str, Any]:
    """Find from which contexts on the unprofiled training step is faster, in the precision of the largest gain:
    timed, a list of `from` and `attentions`, and timed_in, the precision, "" if there is one only."""
    of_steps = crossovers[(crossovers["mode"] == TRAIN) & crossovers["timer_from"].notna()]
    timed_in = ""
    if "precision" in rows and rows["precision"].nunique() > 1:
        precision = find_highest(rows, "speedup")["precision"]
        of_steps, timed_in = of_steps[of_steps["precision"] == precision], PRECISIONS[str(precision)].label
    timed = [
        {"from": context, "attentions": sorted(part["attention"].astype(str))}
        for context, part in of_steps.groupby("timer_from")
    ]
    return {"timed": timed, "timed_in": timed_in}


def _find_smallest(rows: pd.DataFrame) -> dict[str, Any]:
    row = find_highest(rows, "memory_ratio")
    return row | {"memory_saved": 1 - 1 / row["memory_ratio"]}


def _select_only_fused(table: pd.DataFrame) -> pd.DataFrame:
    """Finished steps of a backend where eager attention ran out of memory in a phase of the step."""
    stopped = _is_out_of_memory(table["naive_not_measured"])
    return table[(table[NOT_MEASURED] == "") & (table["mode"] == TRAIN) & stopped]


def _describe_fitting(rows: pd.DataFrame) -> dict[str, Any]:
    holds = {"contexts": sorted(rows["context_length"].unique()), "gpu_memory_bytes": rows["gpu_memory_bytes"].min()}
    return holds | extremes("peak_memory_bytes")(rows)


def _list_predicted_failures(table: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Runs that ended before their first step: predicted_bytes, what a step would need at its peak, and what the GPU
    has."""
    known = run_grid.select_known_shapes(device_memory.plain_runs(runs))
    of_run = {str(run.run_id): run for run in known.itertuples()}
    rows = table[table[NOT_MEASURED].eq("OOM in build") & table["run_id"].isin(of_run)]
    cases = [of_run[run_id] for run_id in rows["run_id"]]
    predicted = np.array([memory.predict_memory_bytes(run) for run in cases], float)  # NaN: not predicted
    return rows.assign(predicted_bytes=predicted, gpu_memory_bytes=[float(run.gpu_memory_bytes) for run in cases])


def _unseen(rows: pd.DataFrame) -> pd.Series:
    return rows["faster"] & ~rows["timer_faster"]


def _unseen_facts(rows: pd.DataFrame) -> dict[str, Any]:
    hidden = rows[_unseen(rows)]
    return {
        "num_hidden": len(hidden),
        "num_waiting": int((hidden["waits"] == True).sum()),  # noqa: E712 (missing without a capture)
        "launch_wait": span(hidden["launch_wait"]),
        "longest": hidden["context_length"].max(),
    }


def _count_replaced(rows: pd.DataFrame) -> dict[str, Any]:
    share = rows.groupby("family")["share"].sum()
    return {
        "launches": rows["per_layer"].sum(),
        "time_ns": rows["time_ns"].sum(),
        "gemms": share.get("gemm", 0.0),
        "copies": share.get("copy", 0.0),
    }


def _gone(rows: pd.DataFrame) -> dict[str, Any]:
    return {"forward": rows["forward_gone"].iloc[0], "backward": rows["backward_gone"].iloc[0]}


def _find_fewest(rows: pd.DataFrame) -> dict[str, Any]:
    least, most = rows["launches"].min(), rows["launches"].max()
    return {"naive": rows["naive_launches"].iloc[0], "low": least, "high": most}


def _select_cut(table: pd.DataFrame) -> pd.DataFrame:
    """Forward passes of eager attention whose launches grow with the context, shortest and longest."""
    rows = table[(table["mode"] == "forward") & (table["attention"] == NAIVE) & table["launches"].notna()]
    rows = rows[select_same(rows, rows, [name for name in run_grid.VARIANT_AXES if name in rows], ["size"])]
    rows = rows.sort_values("context_length")
    return rows.iloc[[0, -1]] if len(rows) and rows["launches"].iloc[-1] > rows["launches"].iloc[0] else rows.head(0)


def _are_faster(rows: pd.DataFrame) -> bool:
    return many(rows)(rows[rows["faster"]])


def _find_fastest(trained: pd.DataFrame, keys: list[str], bands: Bands | None) -> pd.DataFrame:
    """The backend with the least GPU busy of each case that several finished; it `leads` where it differs from all
    others. timer_first: the one whose unprofiled step is shortest; timer_leads: by more than the noise band."""
    rows = []
    for _, group in trained.groupby(keys, sort=False):
        if len(group) < 2:
            continue
        first, others = _compare_with_first(group, "busy")
        timed, rest = _compare_with_first(group, "timer")
        row = first | {"timer_first": timed["attention"], "timer_first_ns": timed["timer_ns"]}
        row["leads"] = bool(differences.differ(others, "busy", "first_busy", bands.kernel if bands else None).all())
        row["timer_leads"] = bool(differences.differ(rest, "timer", "first_timer", bands.wall if bands else None).all())
        rows.append(row)
    columns = [*trained.columns, "timer_first", "timer_first_ns", "leads", "timer_leads"]
    return pd.DataFrame(rows, columns=columns).astype({"leads": bool, "timer_leads": bool})


def _compare_with_first(group: pd.DataFrame, clock: str) -> tuple[dict[str, Any], pd.DataFrame]:
    """The backend with the shortest time by `clock`, and the others with its times as first_{clock}_*."""
    ordered = group.sort_values(f"{clock}_ns", kind="stable")
    first = ordered.iloc[0].to_dict()
    times = {f"first_{clock}_{end}": first[f"{clock}_{end}"] for end in ("ns", "min_ns", "max_ns", "parts")}
    return first, ordered.iloc[1:].assign(**times)


def _find_leader(rows: pd.DataFrame) -> dict[str, Any]:
    counts = rows.loc[rows["leads"], "attention"].value_counts()
    return {"attention": counts.index[0], "num_cases": int(counts.iloc[0])}


def _find_timed(rows: pd.DataFrame) -> dict[str, Any]:
    """If another backend than `_find_leader` names has the shortest unprofiled step."""
    leader = _find_leader(rows)["attention"]
    other = rows[rows["timer_first"] != leader]
    return {
        "attention": leader,
        "num_other": len(other),
        "contexts": sorted(other["context_length"].unique()),
        "winners": list(dict.fromkeys(other["timer_first"])),
        "num_apart": int(other["timer_leads"].sum()),
    }
