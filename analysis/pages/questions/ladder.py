"""(u) What does each optimisation give, one on top of the other?"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import differences, gpu_samples, run_grid, step_clocks, timing, trained_losses
from profiler_job.analysis.metrics.differences import Bands
from profiler_job.analysis.metrics.gpu_samples import SLOW_HOST
from profiler_job.analysis.metrics.steady import find_steady_runs, mark_quotable, prefer_turns
from profiler_job.analysis.metrics.trained_losses import BEFORE, TRAINED
from profiler_job.analysis.metrics.turns import compare_with_base, have_turns, list_rounds
from profiler_job.analysis.pages.case_columns import case_headings
from profiler_job.analysis.pages.extreme_rows import count_all, extremes, noise_of, ratios_of, span
from profiler_job.analysis.pages.question import Inputs, Question, Section
from profiler_job.analysis.pages.questions.ladder_single import (
    CASE,
    COMPARED,
    HUGGING_FACE,
    PADDING,
    add_interval,
    count_best,
    draw_falls,
    select_common,
    tabulate_best,
    take_best,
)
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.plain import PLAIN, TRAINED_STEPS
from profiler_job.jobs.contract.studies import HOST, LADDER
from profiler_job.jobs.contract.studies import TRAINED as AS_TRAINED

STUDY = LADDER
MODE = "train_step"
HOLDS = (AS_TRAINED, STUDY, "precision", "optimizer", "accumulation")
"""Studies that hold rungs, those that measured several of a case by turns first."""
MULTIPLE = 64
"""Of this a padded vocabulary is one."""
VOCABULARY, AS_IS, PADDED = "vocabulary", "as it is", "padded"
AXES = ["precision", "attention", "optimizer", "compile", VOCABULARY]
BASE = "FP32"
EAGER, COMPILED, GRAPHS, TO_64 = "+ fused AdamW", "+ torch.compile", "+ CUDA graphs", "+ padded vocabulary"
WITH_COMPILE = (COMPILED, GRAPHS, TO_64)
"""Rungs that have torch.compile among their changes."""
RUNGS = {
    BASE: ("fp32", "naive", "own", "off", AS_IS),
    "TF32": ("tf32", "naive", "own", "off", AS_IS),
    "BF16": ("bf16", "naive", "own", "off", AS_IS),
    "+ fused attention": ("bf16", "sdpa", "own", "off", AS_IS),
    EAGER: ("bf16", "sdpa", "fused", "off", AS_IS),
    COMPILED: ("bf16", "sdpa", "fused", "default", AS_IS),
    GRAPHS: ("bf16", "sdpa", "fused", "cudagraphs", AS_IS),
    TO_64: ("bf16", "sdpa", "fused", "cudagraphs", PADDED),
}
"""Each has what those before it have; BF16 takes the place of TF32. What it sets of AXES."""
ALONE = {
    "TF32": RUNGS["TF32"],
    "BF16 autocast": RUNGS["BF16"],
    "fused attention": ("fp32", "sdpa", "own", "off", AS_IS),
    "fused AdamW": ("fp32", "naive", "fused", "off", AS_IS),
    PADDING: ("fp32", "naive", "own", "off", PADDED),
}
COMPILED_ALONE = {
    "torch.compile": ("fp32", "naive", "own", "default", AS_IS),
    "CUDA graphs": ("fp32", "naive", "own", "cudagraphs", AS_IS),
}
SINGLE = {**ALONE, **COMPILED_ALONE}
"""What each change sets where it is the only one."""
IN_CHART = {"+ fused attention": "+ attention", EAGER: "+ AdamW", COMPILED: "+ compile", GRAPHS: "+ graphs"}
IN_CHART |= {TO_64: "+ padding"}
"""Rungs as a bar has room to say."""
SMALL_GAIN = 1.25
"""Less than this is called little for all changes together."""
NEAR = 0.1
"""A step that is slower by this than the one before stands out."""
IN_MAP = {BASE: "FP32", "TF32": "TF32", "BF16": "BF16", EAGER: "BF16 with fused attention and fused AdamW"}
"""Rungs that the map of what limits a step shows, as it calls them."""
MEASURED = "measured"
SLOWER_HOST = "measured, on a slower host, which explains it"
CONTEXTS = {"small": 512, "medium": 1024, "xl": 512, "2.7B": 1024}
"""The context at which the ladder of each model is shown; of another the longest of those followed furthest up."""
NOT_PROBED, REFERENCE_LOSS = "not measured", "reference"
"""Of a rung: nothing compares its loss; others are compared with it."""


def answer(given: Inputs) -> Answer:
    """A training step of the main recording with one change after the other, and with each alone.

    `ns` is the unprofiled step, the median over the steps of all processes. `speedup` is the step in FP32 with nothing
    fused over it, `gain` the step before it in the ladder over it; `tokens_per_s` and `joules` are of the same steps.
    Two steps differ measurably, by the noise band of wall times (`bands`), which is as wide as if the GPU
    waited in all phases that the host limits, and only where the host's speed does not explain it: `at_least` and
    `at_most` are the gain where the step grows with the time of a loop of plain Python on its host, which took
    `slower_host` times as long as before. Losses are the run's if it compared them, else of the recording `losses`,
    which may be of the same model without dropout.
    """
    frames = _frames(given.main, given.studies, given.bands, given.losses)
    facts: dict[str, Any] = {"noise": noise_of(given.bands), "slow_host": SLOW_HOST, "rungs": [*RUNGS]}
    facts["took_turns"] = any(have_turns(rec.steps) for rec in (given.main, *given.studies.values()))
    facts["knows_trained"] = bool(frames.rungs["trained_off"].notna().any())
    facts["trained_steps"] = TRAINED_STEPS
    facts["no_dropout"] = _select_without_dropout(pd.concat([frames.rungs, frames.alone]))
    facts["losses"] = given.losses.manifest.get("name", "") if given.losses is not None else ""
    return assemble(facts, _claims(frames), _tables(frames), _charts(frames))


QUESTION = Question(
    letter="u",
    slug="ladder",
    title="What does each optimisation give, one on top of the other?",
    needs=("main", "studies", "bands", "losses"),
    answer=answer,
    section=Section.CHANGE,
    place=1,
    study=STUDY,
    searched=("optimization ladder", "speed up training", "what to change first", "padding", "padded vocabulary"),
)


@dataclass(frozen=True, kw_only=True)
class LadderData:
    rungs: pd.DataFrame
    """One row per case and rung that was measured."""
    alone: pd.DataFrame
    """One row per case and single change that was measured. least, most: the interval of `speedup`, by the noise band
    and what the hosts explain; `gains`: whether all of it is above 1."""

    @property
    def compiled(self) -> pd.DataFrame:
        """The rows of `alone` that are faster for being compiled."""
        return self.alone[self.alone["change"].isin(COMPILED_ALONE) & self.alone["gains"].astype(bool)]

    @property
    def above(self) -> pd.DataFrame:
        """All rungs but the lowest."""
        return self.rungs[self.rungs["rung"] != BASE]

    @property
    def first(self) -> pd.DataFrame:
        """Of each case the change that gives most alone, by its estimate, of those that were measured there."""
        return take_best(self.alone)

    @property
    def shown(self) -> pd.DataFrame:
        """Of each model the case of CONTEXTS, or else the longest of those that were followed furthest up."""
        heights = self.rungs.groupby(CASE, sort=False).size().rename("height").reset_index()
        heights["is_chosen"] = heights["size"].map(CONTEXTS) == heights["context_length"]
        order = heights.sort_values(["is_chosen", "height", "context_length"], kind="stable")
        cases = order.drop_duplicates("size", keep="last")
        return self.rungs.merge(cases[CASE], on=CASE)


def _frames(
    main: Any,
    studies: Mapping[str, Any],
    bands: Bands | None,
    losses: Any,
) -> LadderData:
    measured = _measure_steps([main, *(studies[name] for name in HOLDS if name in studies)])
    measured = trained_losses.join_losses(measured, losses)
    rounds = pd.concat([list_rounds(rec.steps, rec.processes) for rec in (main, *studies.values())], ignore_index=True)
    cases = {*map(tuple, main.runs[[*CASE, "batch_size"]].astype(str).to_numpy())}
    is_case = [
        workload == HUGGING_FACE or tuple(case) in cases
        for workload, case in zip(measured["workload"], measured[[*CASE, "batch_size"]].astype(str).to_numpy())
    ]
    measured = measured[is_case].reset_index(drop=True)
    rungs = _select_settings(measured, RUNGS, "rung")
    base = rungs[rungs["rung"] == BASE].set_index(CASE)
    rungs, alone = (_join_base(rows, base, rounds) for rows in (rungs, _select_settings(measured, SINGLE, "change")))
    first = alone[CASE].merge(base[COMPARED], left_on=CASE, right_index=True, how="left")[COMPARED]
    alone = add_interval(alone, first, bands, (first["host_ratio"] / alone["host_ratio"]).fillna(1.0))
    host = studies.get(HOST)
    if host is not None:
        beside = _list_compiled_alone(host, bands, losses, rounds)
        alone = _sort_single_changes(
            pd.concat([beside[beside.set_index(CASE).index.isin(base.index)], alone], ignore_index=True)
        )
    of_base = rungs[CASE].merge(base[COMPARED], left_on=CASE, right_index=True, how="left")[COMPARED]
    turns = compare_with_base(rungs["run_id"], rungs["base_run_id"], rounds)
    differ = _differ(rungs, of_base, bands).mask(turns["times_as_fast"].notna(), turns["differs"])
    rungs["quotable"] = mark_quotable(differ, rungs["steady"], rungs["base_steady"], turns=turns)
    before = rungs.groupby(CASE, sort=False)[["run_id", *COMPARED]].shift()
    turns = compare_with_base(rungs["run_id"], before.pop("run_id"), rounds)
    is_turned = turns["times_as_fast"].notna()
    gain = prefer_turns(turns, rungs["ns"], before["ns"]) / rungs["ns"]
    rungs["gain"] = gain.where(_is_one_change(rungs))
    of_host = (before["host_ratio"] / rungs["host_ratio"]).fillna(1.0).mask(is_turned, 1.0)
    rungs["slower_host"] = 1 / of_host
    rungs["at_least"] = turns["low"].fillna(rungs["gain"] / of_host.clip(lower=1))
    rungs["at_most"] = turns["high"].fillna(rungs["gain"] / of_host.clip(upper=1))
    of_changes = (rungs["at_least"] > 1) | (rungs["at_most"] < 1)
    rungs["differs"] = (_differ(rungs, before, bands) & of_changes).mask(is_turned, turns["differs"])
    return LadderData(rungs=rungs, alone=alone)


def _is_one_change(rungs: pd.DataFrame) -> pd.Series:
    """Whether each rung sets one axis more than the one before it: where one is missing, they differ by two changes."""
    before = rungs.groupby(CASE, sort=False)[AXES].shift()
    return (rungs[AXES].astype(str) != before.astype(str)).sum(axis=1) == 1


def _is_plain(measured: pd.DataFrame) -> pd.Series:
    """Whether nothing was done to make a step faster, whatever its vocabulary."""
    return (measured[[*PLAIN]].astype(str) == pd.Series(PLAIN)).all(axis=1)


def _list_compiled_alone(rec: Any, bands: Bands | None, losses: Any, rounds: pd.DataFrame) -> pd.DataFrame:
    """The rows of `Frames.alone` whose change is compile: each against the same step without it in `rec`. Both were
    profiled, so it is known how long the GPU waits in them, as a band needs it."""
    measured = trained_losses.join_losses(_measure_steps([rec]), losses)
    waits = differences.times_of_steps(rec.steps, rec.kernels, rec.memops).set_index("run_id")["parts"]
    measured["parts"] = measured["run_id"].map(waits).fillna(measured["parts"])
    base = _select_settings(measured, {BASE: RUNGS[BASE]}, "change").set_index(CASE)
    rows = _join_base(_select_settings(measured, COMPILED_ALONE, "change"), base, rounds)
    first = rows[CASE].merge(base[COMPARED], left_on=CASE, right_index=True, how="left")[COMPARED]
    return add_interval(rows, first, bands, pd.Series(1.0, rows.index))


def _differ(rows: pd.DataFrame, others: pd.DataFrame, bands: Bands | None) -> pd.Series:
    both = rows[COMPARED].add_prefix("now_").join(others.add_prefix("other_"))
    return differences.differ(both, "now", "other", bands.wall if bands else None)


def _measure_steps(recordings: Iterable[Any]) -> pd.DataFrame:
    """Each plain training step of the reference model and of models of Hugging Face that was measured, the first of
    those that have one run id: CASE, AXES, batch_size, workload, run_id, ns, min_ns, max_ns, parts (of this, phases in
    which the CPU issues work until they end) and host_limited, the same as a share, tokens_per_s, peak_bytes, joules,
    host_ratio (a loop of plain Python over the loop of the fastest process on such a CPU), and the losses that the run
    compared itself."""
    tables: dict[str, list[pd.DataFrame]] = {}
    seen: set[str] = set()
    for rec in recordings:
        ok = run_grid.select_measured_runs(rec.runs)
        is_plain = pd.Series([run_grid.is_plain(run) for run in ok.to_dict("records")], index=ok.index, dtype=bool)
        ok = ok[ok["workload"].astype(str).isin([run_grid.REFERENCE, HUGGING_FACE]) & is_plain]
        ok = ok.astype({"run_id": str})[(ok["mode"].astype(str) == MODE) & ~ok["run_id"].astype(str).isin(seen)]
        seen |= {*ok["run_id"]}
        for name in ("runs", "steps", "processes", "telemetry", "figures", "memory"):
            rows = ok if name == "runs" else getattr(rec, name)
            rows = rows[rows["run_id"].astype(str).isin(ok["run_id"])]
            tables.setdefault(name, []).append(rows.astype(dict.fromkeys(rows.select_dtypes("category"), object)))
    runs, steps, processes, states, figures, memory = (pd.concat(parts, ignore_index=True) for parts in tables.values())
    times = timing.host_times(steps, "timer", "step")
    times = times[times["phase"] == ranges.STEP].drop(columns="phase")
    times = times.rename(columns=lambda name: name.removeprefix("step_"))
    machine = gpu_samples.summarise_runs(runs, steps, processes, states)[["run_id", "joules"]]
    by_process = gpu_samples.summarise_processes(processes, states).groupby("run_id")["host_ratio"].median()
    losses = figures.pivot_table(index="run_id", columns="figure", values="value").reindex(columns=[*BEFORE, *TRAINED])
    runs[VOCABULARY] = runs["workload_options"].astype(str).map(_vocabulary)
    names = [*trained_losses.MODEL, *AXES, "num_parameters", "run_id", "gpu_name", "peak_memory_bytes"]
    known = runs[names]
    table = known.merge(times, on="run_id").merge(machine, how="left", on="run_id")
    table["tokens_per_s"] = run_grid.tokens_per_s(table, table["ns"])
    table["parts"] = table["run_id"].map(step_clocks.measure_host_limited(steps))
    table["host_limited"] = (table["parts"] / table["ns"]).clip(upper=1)
    table["host_ratio"] = table["run_id"].map(by_process).astype(float)
    table["steady"] = table["run_id"].isin(find_steady_runs(steps))
    table = table.join(losses, on="run_id")
    table["trained_on"] = table["gpu_name"].astype(object).where(table["loss_trained"].notna())
    table["why_loss"] = pd.Series(NOT_PROBED, table.index).mask(_is_plain(table), REFERENCE_LOSS)
    table["reserved_bytes"] = table["run_id"].map(memory.groupby("run_id")["peak_reserved_bytes"].max().astype(float))
    table["peak_bytes"] = run_grid.peak_bytes(table)
    return table.drop(columns=["gpu_name", "peak_memory_bytes"])


def _vocabulary(options: str) -> str:
    """Whether options of a workload say that its vocabulary is padded."""
    said = re.search(r"\bvocab_size=(\d+)", options)
    return PADDED if said and int(said[1]) % MULTIPLE == 0 else AS_IS


def _select_settings(measured: pd.DataFrame, settings: Mapping[str, tuple[str, ...]], name: str) -> pd.DataFrame:
    """The rows of `measured` that have one of the settings, named in the column `name`, case by case in their order."""
    names = {values: key for key, values in settings.items()}
    rows = measured.assign(**{name: [names.get(tuple(row)) for row in measured[AXES].astype(str).to_numpy()]})
    rows = rows[rows[name].notna()]
    return _sort_by_case(rows, rows[name].map([*settings].index))


def _sort_by_case(rows: pd.DataFrame, place: pd.Series) -> pd.DataFrame:
    order = rows.assign(_place=place).sort_values(["num_parameters", "context_length", "_place"], kind="stable")
    return order.drop(columns="_place").reset_index(drop=True)


def _sort_single_changes(alone: pd.DataFrame) -> pd.DataFrame:
    """Single changes case by case; of one that was measured twice the first."""
    rows = alone.drop_duplicates([*CASE, "change"])
    return _sort_by_case(rows, rows["change"].map([*SINGLE].index))


def _join_base(rows: pd.DataFrame, base: pd.DataFrame, rounds: pd.DataFrame) -> pd.DataFrame:
    """The rows of cases that have a base, with its time, memory and energy, and how many times as fast they are: within
    rounds, with the interval low to high, if both took turns."""
    beside = base[["run_id", "ns", "peak_bytes", "joules", "host_limited", "steady"]].add_prefix("base_")
    table = rows.merge(beside, left_on=CASE, right_index=True).reset_index(drop=True)
    turns = compare_with_base(table["run_id"], table["base_run_id"], rounds)
    table[["low", "high"]] = turns[["low", "high"]]
    table["speedup"] = turns["times_as_fast"].fillna(table["base_ns"] / table["ns"])
    table["less_memory"] = table["base_peak_bytes"] / table["peak_bytes"]
    table["less_energy"] = table["base_joules"] / table["joules"]
    return table


def _select_for_map(rungs: pd.DataFrame) -> pd.DataFrame:
    """The rungs of IN_MAP of the reference model, which has a grid of cases, one after the other."""
    rows = rungs[rungs["rung"].isin(IN_MAP) & (rungs["workload"] != HUGGING_FACE)]
    order = rows["rung"].map([*IN_MAP].index)
    return rows.assign(rung=rows["rung"].map(IN_MAP)).loc[order.sort_values(kind="stable").index].reset_index(drop=True)


def _top(rungs: pd.DataFrame) -> pd.DataFrame:
    """Of each case the highest rung that was measured."""
    return rungs.drop_duplicates(CASE, keep="last")


def _select_faster(rungs: pd.DataFrame) -> pd.DataFrame:
    """Those that take less time than the rung before, beyond noise and what the hosts explain."""
    return rungs[rungs["differs"].astype(bool) & (rungs["gain"] > 1)]


def _are_host_limited(rows: pd.DataFrame) -> bool:
    """Whether the CPU issues work for most of each of these steps, and none was compiled."""
    return bool((rows["host_limited"] > 0.5).all()) and not rows["rung"].isin(WITH_COMPILE).any()


def _select_by_limit(rows: pd.DataFrame, is_host: bool) -> pd.DataFrame:
    """Those in which the CPU issued work for most of the step before the change, or the others."""
    return rows[(rows["base_host_limited"] > 0.5) == is_host]


def _select_slower_by_host(rungs: pd.DataFrame) -> pd.DataFrame:
    """Rungs that take longer than the one before, which the host of their run explains."""
    return rungs[(rungs["gain"] < 1 - NEAR) & (rungs["at_most"] >= 1)]


def _claims(frames: LadderData) -> list[Claim]:
    above, top = frames.above, _top(frames.above)
    quotable = top[top["quotable"]]
    best = take_best(select_common(frames.alone))
    gained = above.dropna(subset=["gain"])
    of_rung = {name: gained[gained["rung"] == name] for name in (EAGER, COMPILED, GRAPHS, TO_64)}
    return [
        Claim("together", _select_complete(quotable), facts=lambda rows: _describe_top(rows, quotable)),
        Claim(
            "short",
            top[top["speedup"] < SMALL_GAIN],
            _are_host_limited,
            facts=count_all(top, extremes("context_length")),
        ),
        Claim("first", best[best["gains"]], facts=lambda rows: count_best(rows, frames.alone)),
        Claim("decided", best[best["gains"]], facts=count_all(best, lambda rows: count_best(rows, frames.alone))),
        Claim("launches", _select_by_limit(frames.compiled, is_host=True), facts=extremes("speedup")),
        Claim("fusion", _select_by_limit(frames.compiled, is_host=False), facts=extremes("speedup")),
        Claim("each", frames.shown[CASE].drop_duplicates().merge(frames.first, on=CASE), facts=_each),
        Claim("compile", of_rung[COMPILED], lambda rows: bool((rows["at_least"] > 1).all()), facts=_span_of_gains),
        Claim("graphs", _select_faster(of_rung[GRAPHS]), facts=count_all(of_rung[GRAPHS], extremes("gain"))),
        Claim("limits", _select_for_map(frames.rungs), facts=_limits),
        Claim("padding", _select_faster(of_rung[TO_64]), facts=extremes("gain")),
        Claim("no_padding", of_rung[TO_64], lambda rows: not rows["differs"].any(), facts=extremes("gain")),
        Claim("by_host", _select_slower_by_host(frames.shown), facts=extremes("slower_host")),
        Claim(
            "gains",
            _select_faster(gained),
            facts=count_all(gained, lambda rows: _count_by_step(rows, gained)),
        ),
        Claim("memory", of_rung[EAGER].dropna(subset=["less_memory"]), facts=extremes("less_memory")),
        Claim("energy", top.dropna(subset=["less_energy"]), facts=extremes("less_energy")),
        Claim("hosts", frames.rungs[frames.rungs["host_ratio"] > SLOW_HOST], facts=count_all(frames.rungs)),
        Claim("trained", above.dropna(subset=["numerics_off"]), facts=_select_trained),
        Claim("formula", _select_by_formula(frames.alone), facts=_formula),
        Claim("loss", above.dropna(subset=["loss_off"]), facts=extremes("loss_off")),
    ]


def _tables(frames: LadderData) -> list[Table]:
    case = case_headings(CASE, linked=False)
    step = Column("ns", "step", "ms", lower="min_ns", upper="max_ns")
    speedup = Column("speedup", "as fast as FP32", "ratio")
    with_interval = Column("speedup", "as fast as FP32", "ratio", lower="least", upper="most")
    gain = Column("gain", "as the rung before", "ratio", absent="n/a")
    costs: tuple[Column, ...] = (
        Column("ns", "step", "ms"),
        Column("tokens_per_s", "tokens/s", "count"),
        Column("peak_bytes", "peak allocated", "bytes", absent="not counted"),
        Column("reserved_bytes", "peak reserved", "bytes", absent="not measured"),
        Column("joules", "J a step", "amount", absent="not read"),
        Column("loss_millionths", "loss off by, millionths", "count", why="why_loss"),
        Column("trained_millionths", "after steps, millionths", "count", why="why_loss"),
        Column("numerics_millionths", "same AdamW, millionths", "count", why="why_loss"),
    )
    if frames.rungs["trained_off"].isna().all():
        costs = costs[:-2]
    hosts = (
        Column("host_limited", "CPU issues work", "share"),
        Column("host_ratio", "host loop", "ratio", absent="not read"),
    )
    rung, change = Column("rung", "rung"), Column("change", "change alone")
    shown = frames.shown
    rest = _drop_shown(frames.rungs, shown)
    return [
        Table(
            "shown",
            "Rung by rung: time, of each model at one context",
            (*case, rung, step, speedup, gain, *hosts),
            shown,
        ),
        Table("costs", "Rung by rung: tokens, memory, energy and loss", (*case, rung, *costs), shown),
        Table(
            "limits",
            "Part of the step in phases in which the CPU issues work until they end, percent",
            (*case, Column("rung", "rung"), Column("host_limited", "CPU issues work", "share")),
            _select_for_map(frames.rungs),
        ),
        Table("rest", "Rung by rung: all other cases", (*case, rung, step, speedup, gain), rest),
        Table(
            "alone",
            "Each change alone: time",
            (*case, change, step, with_interval, hosts[-1]),
            frames.alone,
        ),
        Table(
            "alone_costs",
            "Each change alone: tokens, memory, energy and loss",
            (*case, change, *costs),
            frames.alone,
        ),
        tabulate_best(frames.alone),
    ]


def _drop_shown(rows: pd.DataFrame, shown: pd.DataFrame) -> pd.DataFrame:
    """The rows of other cases."""
    both = rows.merge(shown[CASE].drop_duplicates(), on=CASE, how="left", indicator=True)
    return both[both["_merge"] == "left_only"].drop(columns="_merge")


def _charts(frames: LadderData) -> list[Chart]:
    shown = frames.shown[frames.shown["rung"] != BASE]  # which is 1 by definition
    top = _top(frames.above)
    together = _select_complete(top[top["quotable"]])
    is_by_host = shown["run_id"].isin(_select_slower_by_host(shown)["run_id"])
    series = is_by_host.map({True: SLOWER_HOST, False: MEASURED})
    rows = shown.assign(series=series, value=shown["speedup"])[[*CASE, "rung", "run_id", "series", "value"]]
    title = (
        f"All changes together make a training step {ratios_of(together['speedup'])} as fast, in {len(together)} cases"
    )
    rows["rung"] = rows["rung"].replace(IN_CHART)
    options: dict[str, Any] = {"by": [*CASE, "rung"], "order": [MEASURED], "unit": "times as fast as FP32"}
    options |= {"hollow": SLOWER_HOST, "panels": len(CASE)}
    return [
        Chart(
            "ladder",
            "ratio_bars",
            title if len(together) else "A training step, rung by rung",
            rows,
            options=options,
        ),
        draw_falls(frames.shown),
    ]


# ---------------------------------------------------------------- facts of claims


def _select_complete(top: pd.DataFrame) -> pd.DataFrame:
    """The highest rungs that have all changes, torch.compile among them; of cases that were never compiled, where there
    are no others."""
    compiled = top[top["rung"].isin(WITH_COMPILE)]
    return compiled if len(compiled) else top


def _select_trained(rows: pd.DataFrame) -> dict[str, Any]:
    gpus = {*rows["trained_on"], *rows["formula_on"]}
    return extremes("numerics_off")(rows) | {"gpus": sorted(gpus), "no_dropout": _select_without_dropout(rows)}


def _select_without_dropout(rows: pd.DataFrame) -> list[str]:
    """Models whose losses are of the same model with dropout off."""
    return list(dict.fromkeys(rows.loc[rows["no_dropout"].astype(bool), "size"]))


def _select_by_formula(alone: pd.DataFrame) -> pd.DataFrame:
    """Cases of fused AdamW alone for which it is known what fusing does to the loss, and what the formula."""
    return alone[(alone["optimizer"].astype(str) == "fused") & alone["numerics_off"].notna()]


def _formula(rows: pd.DataFrame) -> dict[str, Any]:
    facts = {"fused_off": rows["numerics_off"].max(), "no_dropout": _select_without_dropout(rows)}
    return extremes("trained_off")(rows) | facts


def _describe_top(rows: pd.DataFrame, top: pd.DataFrame) -> dict[str, Any]:
    """The speed-ups, whether torch.compile is among the changes, and what the `top` of other cases gives without it."""
    others = top[~top["rung"].isin(WITH_COMPILE)].drop(rows.index, errors="ignore")
    without = {"num_without": len(others), "without": span(others["speedup"]) if len(others) else None}
    return extremes("speedup")(rows) | without | {"is_compiled": bool(rows["rung"].isin(WITH_COMPILE).all())}


def _each(rows: pd.DataFrame) -> dict[str, Any]:
    return {"cases": rows.to_dict("records")}


def _count_by_step(rows: pd.DataFrame, every: pd.DataFrame) -> dict[str, Any]:
    """In how many of all cases each rung is among `rows`."""
    counts, all_counts = rows["rung"].value_counts(), every["rung"].value_counts()
    of = [{"rung": name, "num": int(counts.get(name, 0)), "num_all": int(num)} for name, num in all_counts.items()]
    return {"of": sorted(of, key=lambda counted: [*RUNGS].index(counted["rung"]))}


def _span_of_gains(rows: pd.DataFrame) -> dict[str, Any]:
    return {"gain": span(rows["gain"]), "at_least": span(rows["at_least"])}


def _limits(rows: pd.DataFrame) -> dict[str, Any]:
    """In how many cases of each precision the CPU issues work for more than half of the step."""
    rows = rows.assign(by_host=rows["host_limited"] > 0.5)
    counts = rows.groupby("rung", sort=False)["by_host"].agg(["sum", "size"])
    return {"of": [{"rung": name, "num": int(num), "num_all": int(size)} for name, num, size in counts.itertuples()]}
