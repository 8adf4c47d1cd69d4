"""(x) H100 or H200: what does a token cost, and how much of the GPU does a step use?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import run_grid, step_limits, timing, utilisation
from profiler_job.analysis.pages import home_cases
from profiler_job.analysis.pages.case_columns import case_headings
from profiler_job.analysis.pages.explore import shorten_names
from profiler_job.analysis.pages.extreme_rows import extremes, give_largest, span
from profiler_job.analysis.pages.question import Inputs, Question, Section
from profiler_job.analysis.recording.run_table import keep_runs
from profiler_job.analysis.recording.store import Recording
from profiler_job.analysis.reference import gpus
from profiler_job.analysis.reference.gpu_prices import find_price
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.analysis.render.text import name_model_of
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.axes import find_default, find_value_label
from profiler_job.jobs.contract.quantities import format_quantity
from profiler_job.jobs.contract.step_limit import COMPUTE, CPU, MEMORY
from profiler_job.jobs.contract.studies import AGAIN, LOSSES, STUDIES
from profiler_job.jobs.contract.words import format_count, name_model

MODE = "train_step"
SAME = ["size", "context_length", "batch_size", "precision", "attention", "optimizer", "compile"]
"""Axes of a step on two GPUs; all others are at their defaults."""
BUDGET = {
    "mfu": "matmuls at peak: MFU",
    "below_peak": "matmuls below peak",
    "other": "other kernels",
    "waits": "waiting",
}
"""The parts of a step by the column of each; they add up to 1."""
COLOURS = ("family-gemm", "below-peak", "family-elementwise", "ici-hatch")
"""Of BUDGET: those of the figure of a step."""
BUDGETS = ("budget", "budget-bf16", "budget-compiled")
"""The charts of them, one of each state."""
RATIOS = ("step", "compute", "memory", "busy")
"""What the ratios of two GPUs are of: the step, its matmuls and attention, its other kernels, and all GPU work."""
DRAWN = {
    "compute": "matmuls and attention",
    "memory": "other kernels",
    "busy": "all GPU work",
}
"""The ratios that the figure of two GPUs has."""
COLOURS_OF_RATIOS = ("family-gemm", "family-elementwise", "quiet")
CASE = ["size", "context_length", "batch_size", "gpu", "state"]


def answer(given: Inputs) -> Answer:
    """What a million tokens of a training step cost at the list price of the GPU, in FP32, in BF16 as people train, and
    compiled; how much of the step is work at the GPU's peak; and the same steps on two kinds of GPU.

    Steps are unprofiled medians of the reference Transformer on one GPU, the batch in one piece. The price is in
    `gpu_prices.toml`; MFU is of the dense peak of the run's precision. What matmuls and attention take of a profiled
    step beyond MFU runs below peak. Two GPUs are compared where all axes of a step are equal.
    """
    others = [rec for study, rec in given.studies.items() if study not in (AGAIN, LOSSES)]
    frames = _frames([given.main, *others])
    return assemble(_facts(frames), _claims(frames), _tables(frames), _charts(frames))


QUESTION = Question(
    letter="x",
    slug="token-cost",
    title="H100 or H200: what does a token cost?",
    needs=("main", "studies"),
    answer=answer,
    section=Section.FIT,
    place=3,
    study="",
    reads=tuple(study for study in STUDIES if study not in (AGAIN, LOSSES)),
    searched=("price", "cost per token", "H100 vs H200", "dollars", "MFU budget", "best MFU"),
)


@dataclass(frozen=True, kw_only=True)
class TokenCostData:
    steps: pd.DataFrame
    """A row per training step of one GPU: step, tokens/s, MFU and cost."""
    states: pd.DataFrame
    """Those of each case and state of the home page, with the parts of BUDGET where the step was profiled."""
    pairs: pd.DataFrame
    """A row per step that two kinds of GPU ran: the time of the step and of its parts RATIOS, and the cost of both
    (`_b`: of the dearer). The step is that of the fastest process on either, as other tables have the fastest process
    of some runs and the median of others."""


def _frames(recordings: Sequence[Recording]) -> TokenCostData:
    steps = [_measure_steps(rec) for rec in recordings]
    every = pd.concat([of.assign(number=number) for number, of in enumerate(steps)], ignore_index=True)
    every["state"] = [home_cases.find_state(run) for run in every.to_dict("records")]
    every["gpu"] = every["gpu_name"].map(shorten_names(sorted(every["gpu_name"].unique())))
    every["model"] = [name_model(*row) for row in zip(every["size"], every["num_parameters"])]
    chosen = pd.DataFrame(
        [
            {"number": number, "run_id": run_id, "others": case.others[state].here if state in case.others else ""}
            for case in home_cases.list_cases(recordings)
            for state, (number, run_id) in case.runs.items()
        ],
        columns=["number", "run_id", "others"],
    )
    states = chosen.merge(every, on=["number", "run_id"])
    num_gpus = every.groupby(SAME, dropna=False)["gpu_name"].transform("nunique")
    return TokenCostData(
        steps=every,
        states=_measure_budget(states, recordings),
        pairs=_pair_gpus(_measure_budget(every[num_gpus > 1].copy(), recordings)),
    )


def _measure_steps(rec: Recording) -> pd.DataFrame:
    """Measure each plain training step of the reference Transformer. fastest_ns: of its fastest process."""
    ok = run_grid.select_known_shapes(run_grid.select_measured_runs(rec.runs))
    ok = ok.astype({name: str for name in ok if ok[name].dtype == "category"} | {"run_id": str})
    for name in ("gpus", "accumulation"):
        ok = ok[ok[name].fillna(1) == 1] if name in ok else ok
    ok = ok.assign(**{name: find_default(name) for name in SAME if name not in ok})
    times = timing.host_times(rec.steps, "timer", "step")
    times = times[times["phase"] == ranges.STEP][["run_id", "step_ns"]].astype({"run_id": str})
    runs = ok[ok["mode"] == MODE].drop(columns="log", errors="ignore").merge(times, on="run_id")  # for no CSV
    prices = [find_price(name) for name in runs["gpu_name"]]
    runs["usd_per_hour"] = pd.Series([price.usd_per_hour if price else None for price in prices], dtype=float)
    fastest = timing.measure_processes(rec.steps).astype({"run_id": str}).set_index("run_id")["shortest_ns"]
    runs["fastest_ns"] = runs["run_id"].map(fastest)
    runs["tokens_per_s"] = run_grid.tokens_per_s(runs, runs["step_ns"])
    runs["mfu"] = [utilisation.mfu(run, run["step_ns"]) for _, run in runs.iterrows()]
    return runs.assign(cost=runs["usd_per_hour"] / 3600 / runs["tokens_per_s"] * 1e6)


def _measure_budget(rows: pd.DataFrame, recordings: Sequence[Recording]) -> pd.DataFrame:
    """Add the parts of BUDGET and the GPU's busy time to steps; NaN of those that were not profiled."""
    parts = []
    for number, of_rec in rows.groupby("number"):
        rec, ids = recordings[number], {*of_rec["run_id"]}
        limits = step_limits.find_limits(*(keep_runs(table, ids) for table in (rec.steps, rec.kernels, rec.memops)))
        parts += [
            {"number": number, "run_id": run_id} | {name: limit.measure_share(name) for name in (COMPUTE, MEMORY, CPU)}
            for run_id, limit in limits.items()
        ]
    rows = rows.merge(pd.DataFrame(parts, columns=["number", "run_id", COMPUTE, MEMORY, CPU]), how="left")
    rows = rows.assign(below_peak=(rows[COMPUTE] - rows["mfu"]).clip(lower=0), waits=rows[CPU])
    rows["other"] = 1 - rows[["mfu", "below_peak", "waits"]].sum(axis=1, skipna=False)
    times = {f"{name}_ns": rows["step_ns"] * rows[name] for name in (COMPUTE, MEMORY)}
    rows = rows.assign(**times, busy_ns=rows["step_ns"] * (1 - rows[CPU]))
    return rows.drop(columns=[COMPUTE, MEMORY, CPU])


def _pair_gpus(rows: pd.DataFrame) -> pd.DataFrame:
    """Pair the same step on the cheaper and the dearer kind of GPU, the first recording of each, the fastest process of
    both."""
    first = rows.dropna(subset=["busy_ns", "cost"]).drop_duplicates([*SAME, "gpu_name"])
    gain = first["step_ns"] / first["fastest_ns"]
    costs = {"tokens_per_s": first["tokens_per_s"] * gain, "cost": first["cost"] / gain}
    first = first.assign(step_ns=first["fastest_ns"], **costs)
    names = first.sort_values("usd_per_hour", kind="stable")["gpu_name"].unique()
    if len(names) < 2:
        return first.head(0)
    times = [f"{name}_ns" for name in RATIOS]
    shown = first[[*SAME, "num_parameters", "gpu_name", *times, "tokens_per_s", "cost", "usd_per_hour"]]
    cheap, dear = (shown[shown["gpu_name"] == name] for name in (names[0], names[-1]))
    pairs = cheap.merge(dear.drop(columns="num_parameters"), on=SAME, suffixes=("", "_b"))
    ratios = {f"{name}_ratio": pairs[f"{name}_ns"] / pairs[f"{name}_ns_b"] for name in RATIOS}
    return pairs.assign(**ratios, cost_ratio=pairs["cost_b"] / pairs["cost"])


def _find_sheets(pair: pd.Series) -> list[gpus.Gpu]:
    """The data sheets of the cheaper and the dearer GPU of a pair; none if one is not known."""
    sheets = [gpus.lookup(pair[name]) for name in ("gpu_name", "gpu_name_b")]
    return [sheet for sheet in sheets if sheet is not None and None not in sheets]


def _divide_peaks(sheets: Sequence[gpus.Gpu], precision: str) -> float:
    cheap, dear = (sheet.peak_flops(precision) or float("nan") for sheet in sheets)
    return dear / cheap


def _tabulate_sheets(pairs: pd.DataFrame) -> pd.DataFrame:
    """What the dearer GPU has of the cheaper one's: `low` to `high` in the pairs, next to the data sheets and the list
    prices."""
    names = ["what", "low", "high", "sheet", "sheet_of"]
    sheets = _find_sheets(pairs.iloc[0]) if len(pairs) else []
    if not sheets:
        return pd.DataFrame(columns=names)
    cheap, dear = sheets
    rows: list[tuple[Any, ...]] = []
    for precision in pairs["precision"].unique():
        of = pairs.loc[pairs["precision"] == precision, "compute_ratio"]
        label = f"matmuls and attention, {precision.upper()}"
        rows.append((label, *span(of), _divide_peaks(sheets, precision), "dense peak"))
    bandwidth = dear.memory_bandwidth / cheap.memory_bandwidth
    price = pairs["usd_per_hour_b"].iloc[0] / pairs["usd_per_hour"].iloc[0]
    rows += [
        ("other kernels", *span(pairs["memory_ratio"]), bandwidth, "memory bandwidth"),
        ("all GPU work", *span(pairs["busy_ratio"]), None, ""),
        ("the step, with waiting", *span(pairs["step_ratio"]), None, ""),
        ("price of an hour", None, None, price, "list price"),
        ("memory", None, None, dear.memory_bytes / cheap.memory_bytes, f"{cheap.memory_gb} and {dear.memory_gb} GB"),
    ]
    return pd.DataFrame(rows, columns=names).astype({"low": float, "high": float, "sheet": float})


def _facts(frames: TokenCostData) -> dict[str, Any]:
    known = dict(zip(frames.states["gpu_name"], frames.states["gpu"]))
    described = [f"{gpu}: {price.describe()}" for name, gpu in known.items() if (price := find_price(name))]
    usual = _select_usual_batch(frames.states)["batch_size"]
    return {
        "prices": described,
        "num_states": len(frames.states),
        "usual_batch": int(usual.iloc[0]) if len(usual) else 0,
    }


def _claims(frames: TokenCostData) -> list[Claim]:
    case = ["model", *CASE, "run_id"]
    pairs = frames.pairs if len(frames.pairs) else pd.DataFrame(columns=["gpu_name"])
    return [
        Claim("gpus", pairs, facts=lambda rows: _compare_gpus(rows) | {"has_larger": _has_larger(rows, frames.steps)}),
        Claim("prices", _select_prices(frames)[[*case, "cost", "tokens_per_s"]], facts=extremes("cost")),
        *(
            Claim(f"best_{name}", _rank_models(frames, name)[[*case, "mfu"]], facts=give_largest("mfu"))
            for name in ("bf16", "fp32")
        ),
        Claim("budget", _select_budget(frames)[[*case, *BUDGET]], facts=_sum_budget),
    ]


def _compare_gpus(rows: pd.DataFrame) -> dict[str, Any]:
    """The ratios of the pairs; median_busy: of GPU work; work: the cost of the same GPU work on the dearer GPU over the
    cheaper one; better: the GPU with the cheaper work in all of them, or ""; memory_gb: of the dearer GPU, and
    sheet_compute and sheet_memory: its peak and its bandwidth over the other's, None if the data sheets are not
    known."""
    first = rows.iloc[0]
    names = shorten_names(sorted({first["gpu_name"], first["gpu_name_b"]}))
    cheap, dear = (names[first[name]] for name in ("gpu_name", "gpu_name_b"))
    spans = {name: span(rows[f"{name}_ratio"]) for name in (*RATIOS, "cost")}
    of_price = first["usd_per_hour_b"] / first["usd_per_hour"]
    work = span(of_price / rows["busy_ratio"])
    models, sheets = rows.drop_duplicates("size"), _find_sheets(first)
    peaks = [_divide_peaks(sheets, precision) for precision in rows["precision"].unique()] if sheets else []
    return spans | {
        "cheap": cheap,
        "dear": dear,
        "price": of_price,
        "median_busy": float(rows["busy_ratio"].median()),
        "work": work,
        "better": cheap if work[0] > 1 else dear if work[1] < 1 else "",
        "memory_gb": sheets[1].memory_gb if sheets else None,
        "sheet_compute": (min(peaks), max(peaks)) if peaks else None,
        "sheet_memory": sheets[1].memory_bandwidth / sheets[0].memory_bandwidth if sheets else None,
        "models": [name_model_of(run) for run in models.to_dict("records")],
    }


def _has_larger(pairs: pd.DataFrame, steps: pd.DataFrame) -> bool:
    """Return whether models that are larger than those of the pairs were not measured on the cheaper GPU."""
    on_cheaper = steps.loc[steps["gpu_name"].isin(pairs["gpu_name"]), "size"]
    larger = steps["num_parameters"] > pairs["num_parameters"].max()
    return bool((larger & ~steps["size"].isin(on_cheaper)).any())


def _select_usual_batch(states: pd.DataFrame) -> pd.DataFrame:
    """Select the rows of the batch that most cases have, so that a figure has one row for each case and state."""
    return states[states["batch_size"] == states["batch_size"].mode().iloc[0]] if len(states) else states


def _select_budget(frames: TokenCostData) -> pd.DataFrame:
    """The profiled steps at the longest context of those that most models have, on the GPU with most steps, by
    state."""
    rows = _select_usual_batch(frames.states).dropna(subset=[*BUDGET])
    rows = rows[rows["gpu"] == rows["gpu"].mode().iloc[0]] if len(rows) else rows
    num_models = rows.groupby("context_length")["size"].transform("nunique")
    rows = rows[num_models == num_models.max()]
    return rows[rows["context_length"] == rows["context_length"].max()]


def _select_longest(frames: TokenCostData) -> pd.DataFrame:
    """The priced steps at the context of the budget, on the GPU with most steps."""
    rows = _select_usual_batch(frames.states).dropna(subset=["cost"])
    rows = rows[rows["context_length"] == _select_budget(frames)["context_length"].max()]
    return rows[rows["gpu"] == rows["gpu"].mode().iloc[0]] if len(rows) else rows


def _select_prices(frames: TokenCostData) -> pd.DataFrame:
    """Those in the fastest state that several models have."""
    rows = _select_longest(frames)
    shared = rows.groupby("state")["size"].nunique().loc[lambda number: number > 1].index
    fastest = [state for state in home_cases.STATES if state in shared][-1:]
    return rows[rows["state"].isin(fastest)]


def _rank_models(frames: TokenCostData, precision: str) -> pd.DataFrame:
    """Of each model the step of a precision with the highest MFU, the highest first."""
    rows = frames.steps[frames.steps["precision"] == precision].dropna(subset=["mfu"])
    return rows.sort_values("mfu", ascending=False, kind="stable").drop_duplicates("size", ignore_index=True)


def _sum_budget(rows: pd.DataFrame) -> dict[str, Any]:
    """The step that the rows have in common: context, batch and gpu; their states, and the least and most of each
    part."""
    same = rows.iloc[0] if len(rows) else pd.Series({"context_length": 0, "batch_size": 0, "gpu": ""})
    case = {"context": int(same["context_length"]), "batch": int(same["batch_size"]), "gpu": str(same["gpu"])}
    states = [*dict.fromkeys(rows["state"])] if len(rows) else []
    return case | {"states": states} | {name: span(rows[name]) for name in BUDGET}


def _tables(frames: TokenCostData) -> list[Table]:
    case = (
        Column("model", "model"),
        *case_headings(CASE[1:3], linked=False),
        Column("gpu", "GPU"),
        Column("state", "state"),
    )
    others = [Column("others", "other than usual", "words", absent="none")] * int(frames.states["others"].ne("").any())
    parts = (Column(name, label, "share", absent="not profiled") for name, label in BUDGET.items() if name != "mfu")
    return [
        Table(
            "costs_of_states",
            "What a million tokens cost",
            (
                *case,
                *others,
                Column("step_ns", "step", "ms"),
                Column("tokens_per_s", "tokens/s", "count"),
                Column("cost", "USD per 1M tokens", "number", absent="no price"),
                Column("mfu", "MFU of the sheet peak", "share", absent="n/a"),
                *parts,
            ),
            frames.states,
        ),
        Table(
            "gpus",
            "The same step on two kinds of GPU, in the fastest process of each",
            (
                *case_headings(SAME, linked=False),
                *(
                    Column(f"{name}{suffix}", f"{label}, {side}", kind)
                    for name, label, kind in (
                        ("step_ns", "step", "ms"),
                        ("compute_ns", "compute", "ms"),
                        ("memory_ns", "other kernels", "ms"),
                        ("cost", "USD per 1M", "number"),
                    )
                    for suffix, side in (("", "cheaper"), ("_b", "dearer"))
                ),
                Column("step_ratio", "step, times as fast", "ratio"),
                Column("busy_ratio", "GPU work, times as fast", "ratio"),
            ),
            frames.pairs,
        ),
        Table(
            "sheets",
            f"{_name_pair(frames.pairs)}: measured, and by data sheet",
            (
                Column("what", "of"),
                Column("low", "measured, least", "ratio", absent="n/a"),
                Column("high", "measured, most", "ratio", absent="n/a"),
                Column("sheet", "by sheet or list", "ratio", absent="n/a"),
                Column("sheet_of", "which is"),
            ),
            _tabulate_sheets(frames.pairs),
        ),
    ]


def _name_pair(pairs: pd.DataFrame) -> str:
    """`H200 over H100`: the dearer GPU and the cheaper one."""
    kinds = [str(name) for name in pairs.head(1)[["gpu_name_b", "gpu_name"]].to_numpy().ravel()] if len(pairs) else []
    names = shorten_names(sorted(kinds))
    return " over ".join(names[kind] for kind in kinds)


def _charts(frames: TokenCostData) -> list[Chart]:
    budget = _select_budget(frames)
    parts = pd.concat([budget.assign(scope=label, part=budget[name]) for name, label in BUDGET.items()])
    context = budget["context_length"].max()
    title = "Where a step goes: MFU is work at peak" if len(budget) else "MFU budget"
    step = f"the step at {context:,} tokens" if len(budget) else "the step"
    options = {"order": [*BUDGET.values()], "by": ["model"], "value": "part", "part_of": step, "colours": COLOURS}
    charts = [
        Chart(key, "stacked_parts", title, parts[parts["state"] == state], options=options, state=state)
        for key, state in zip(BUDGETS, home_cases.STATES)
    ]
    charts.append(_draw_gpus(frames.pairs))
    longest = _select_longest(frames)
    case = _name_first(longest, "; {context_length:,} tokens, batch {batch_size}, {gpu}")
    by_size = ("millions", f"million parameters (log{case})")
    charts.append(_draw_lines("cost_by_size", "cost", "Price of tokens, by parameters", longest, *by_size))
    usual = _select_usual_batch(frames.states)
    middle = usual[usual["size"] == _choose_middle(usual)]
    title = f"Tokens a second, by context{_name_first(middle, ' of {model}')}"
    charts.append(_draw_lines("tokens_by_context", "tokens_per_s", title, middle))
    batches = _select_batches(frames.states)
    title = f"Tokens a second, by batch{_name_first(batches, ' of {model} at {context_length:,} tokens')}"
    by_batch = ("batch_size", "batch (log scale)")
    return [*charts, _draw_lines("tokens_by_batch", "tokens_per_s", title, batches, *by_batch)]


def _draw_gpus(pairs: pd.DataFrame) -> Chart:
    """Draw how many times as fast the dearer GPU is in each step that both ran, next to what its data sheet and its
    price have of the other's. No rows if no step ran on two kinds of GPU."""
    names = ["step", "clock", "ratio", "note"]
    if not len(pairs):
        return Chart("gpu_ratios", "dumbbell", "The same step on two GPUs", pd.DataFrame(columns=names))
    labels = pd.Series([_label_step(pair, pairs) for pair in pairs.to_dict("records")], index=pairs.index, dtype=str)
    ratios = [
        pairs.assign(step=labels, clock=label, ratio=pairs[f"{name}_ratio"], note="") for name, label in DRAWN.items()
    ]
    rows = pd.concat(ratios, ignore_index=True)[[*SAME, *names]]
    models = " and ".join(dict.fromkeys(name_model_of(pair) for pair in pairs.to_dict("records")))
    batches = ", ".join(str(batch) for batch in sorted(pairs["batch_size"].unique()))
    unit = f"times as fast ({format_count(len(pairs), 'step')}: {models}, batch {batches})"
    options: dict[str, Any] = {"order": [*DRAWN.values()], "by": ["step"], "value": "ratio", "log": False}
    options |= {"unit": unit, "limits": _list_limits(pairs), "colours": COLOURS_OF_RATIOS}
    is_less = pairs["compute_ratio"].median() < pairs["memory_ratio"].median()
    title = f"{_name_pair(pairs)}: matmuls gain {'less' if is_less else 'more'} than other kernels"
    return Chart("gpu_ratios", "dumbbell", title, rows, options=options)


def _label_step(pair: Mapping[str, Any], pairs: pd.DataFrame) -> str:
    """Label a step by what differs among the pairs: `1,024 · BF16 · flash`."""
    varying = [name for name in SAME if pairs[name].nunique() > 1 and name != "size"] or ["context_length"]
    words = {name: str(find_value_label(name, pair[name])) for name in varying}
    known = {"context_length": f"{pair['context_length']:,}", "precision": str(pair["precision"]).upper()}
    words |= {name: word for name, word in known.items() if name in words}
    return " · ".join([str(pair["size"])] * (pairs["size"].nunique() > 1) + [*words.values()])


def _list_limits(pairs: pd.DataFrame) -> dict[str, float]:
    """List what the data sheets and the prices of two GPUs give for the steps on them, by names with the ratio."""
    limits = {"list price": pairs["usd_per_hour_b"].iloc[0] / pairs["usd_per_hour"].iloc[0]}
    if sheets := _find_sheets(pairs.iloc[0]):
        peaks = {_divide_peaks(sheets, precision) for precision in pairs["precision"].unique()}
        if len(peaks) == 1:
            limits["sheet peak"] = peaks.pop()
        limits["sheet bandwidth"] = sheets[1].memory_bandwidth / sheets[0].memory_bandwidth
    ordered = sorted(limits.items(), key=lambda limit: limit[1])
    return {f"{name} {format_quantity('ratio', value)}": value for name, value in ordered}


def _name_first(rows: pd.DataFrame, name: str) -> str:
    """Name what all rows have in common, for a title; "" if there is no row. name: a format of columns."""
    return name.format(**rows.iloc[0]) if len(rows) else ""


def _select_batches(states: pd.DataFrame) -> pd.DataFrame:
    """Select the rows of the model and context with most batches; none if that is one batch."""
    case = ["gpu", "size", "context_length"]
    num_batches = states.groupby(case)["batch_size"].transform("nunique")
    rows = states[(num_batches == num_batches.max()) & (num_batches > 1)]
    return rows[(rows[case] == rows[case].iloc[0]).all(axis=1)] if len(rows) else rows


def _choose_middle(states: pd.DataFrame) -> str:
    """Choose the model in the middle of those with most contexts, on the GPU with most steps; "" if there are none."""
    states = states[states["gpu"] == states["gpu"].mode().iloc[0]] if len(states) else states
    num_contexts = states.groupby("size", sort=False)["context_length"].transform("nunique")
    sizes = [*states.loc[num_contexts == num_contexts.max(), "size"].unique()]
    return str(sizes[len(sizes) // 2]) if sizes else ""


def _draw_lines(
    key: str, value: str, title: str, rows: pd.DataFrame, x: str = "context_length", x_title: str = ""
) -> Chart:
    """One line per state, on the GPU with most steps, over the column x. x_title: "" for the usual one, of contexts."""
    rows = rows[rows["gpu"] == rows["gpu"].mode().iloc[0]] if len(rows) else rows
    rows = rows.assign(clock=rows["state"], millions=(rows["num_parameters"] / 1e6).round(), note="")
    rows = rows[rows[x] > 0].drop_duplicates(["state", "size", "context_length", x])
    unit = "USD per 1M tokens (log scale)" if value == "cost" else "tokens/s (log scale)"
    order = [state for state in home_cases.STATES if state in set(rows["clock"])]
    along = {"x": x, "x_title": x_title} if x_title else {}
    return Chart(key, "lines", title, rows, options={"order": order, "value": value, "unit": unit} | along)
