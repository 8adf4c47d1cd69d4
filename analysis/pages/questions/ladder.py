"""(u) What does each optimisation give, one on top of the other?"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import differences, gpu_samples, run_grid, step_clocks, timing, trained_losses
from profiler_job.analysis.metrics.differences import Bands
from profiler_job.analysis.metrics.steady import MOST_APART, find_steady_runs, mark_quotable, prefer_turns
from profiler_job.analysis.metrics.trained_losses import BEFORE, TRAINED
from profiler_job.analysis.metrics.turns import compare_with_base, have_turns, list_rounds
from profiler_job.analysis.pages.case_columns import case_headings
from profiler_job.analysis.pages.extreme_rows import count_all, extremes, noise_of, span
from profiler_job.analysis.pages.question import Inputs, Question, Section
from profiler_job.analysis.pages.questions.ladder_single import (
    CASE,
    COMPARED,
    HUGGING_FACE,
    PADDING,
    add_interval,
    count_best,
    draw_falls,
    join_gains,
    select_common,
    select_gains,
    tabulate_best,
    take_best,
)
from profiler_job.analysis.prediction.measured import measure_gains
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.changes import BF16, COMPILE, CUDA_GRAPHS, FUSED_ADAMW, FUSED_ATTENTION, TF32
from profiler_job.jobs.contract.plain import PLAIN, TRAINED_STEPS
from profiler_job.jobs.contract.slow_processes import SLOW_HOST
from profiler_job.jobs.contract.studies import AGAIN, HOST, LADDER, LOSSES
from profiler_job.jobs.contract.studies import TRAINED as AS_TRAINED

STUDY = LADDER
MODE = "train_step"
HOLDS = (AS_TRAINED, STUDY, "precision", "optimizer", "accumulation")
"""Studies that hold steps of the ladder, those that measured several of a case by turns first."""
MULTIPLE = 64
"""Of this a padded vocabulary is one."""
VOCABULARY, AS_IS, PADDED = "vocabulary", "as it is", "padded"
AXES = ["precision", "attention", "optimizer", "compile", VOCABULARY]
BASE = "FP32"
EAGER, COMPILED, GRAPHS, TO_64 = "+ fused AdamW", "+ torch.compile", "+ CUDA graphs", "+ padded vocabulary"
WITH_COMPILE = (COMPILED, GRAPHS, TO_64)
"""Steps of the ladder that have torch.compile among their changes."""
LADDER_STEPS = {
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
    "TF32": LADDER_STEPS["TF32"],
    "BF16 autocast": LADDER_STEPS["BF16"],
    "fused attention": ("fp32", "sdpa", "own", "off", AS_IS),
    "fused AdamW": ("fp32", "naive", "fused", "off", AS_IS),
    PADDING: ("fp32", "naive", "own", "off", PADDED),
}
COMPILED_ALONE = {
    "torch.compile": ("fp32", "naive", "own", "default", AS_IS),
    "CUDA graphs": ("fp32", "naive", "own", "cudagraphs", AS_IS),
}
SETS = {
    "TF32": (TF32,),
    "BF16": (BF16,),
    "+ fused attention": (BF16, FUSED_ATTENTION),
    EAGER: (BF16, FUSED_ATTENTION, FUSED_ADAMW),
    COMPILED: (BF16, FUSED_ATTENTION, FUSED_ADAMW, COMPILE),
    GRAPHS: (BF16, FUSED_ATTENTION, FUSED_ADAMW, CUDA_GRAPHS),
}
"""The changes of each step of the ladder, the last one last, as `prediction.measured` names them."""
SINGLE = {**ALONE, **COMPILED_ALONE}
"""What each change sets where it is the only one."""
IN_CHART = {"+ fused attention": "+ attention", EAGER: "+ AdamW", COMPILED: "+ compile", GRAPHS: "+ graphs"}
IN_CHART |= {TO_64: "+ padding"}
"""Steps of the ladder as a bar has room to say."""
SMALL_GAIN = 1.25
"""Less than this is called little for all changes together."""
NEAR = 0.1
"""A step that is slower by this than the one before stands out."""
IN_MAP = {BASE: "FP32", "TF32": "TF32", "BF16": "BF16", EAGER: "BF16 with fused attention and fused AdamW"}
"""Steps of the ladder that the map of what limits a step shows, as it calls them."""
AGREED, OF_HOST = "processes agree, or took turns", "processes differ: the CPU's speed is part of it"
"""Series of the bars: filled, and outlined."""
CONTEXTS = {"small": 512, "medium": 1024, "xl": 512, "2.7B": 1024}
"""The context at which the ladder of each model is shown; of another the longest of those followed furthest up."""
NOT_PROBED, REFERENCE_LOSS = "not measured", "reference"
"""Of a step of the ladder: nothing compares its loss; others are compared with it."""


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
    facts: dict[str, Any] = {"noise": noise_of(given.bands), "slow_host": SLOW_HOST, "ladder_steps": [*LADDER_STEPS]}
    facts["took_turns"] = any(have_turns(rec.steps) for rec in (given.main, *given.studies.values()))
    facts["knows_trained"] = bool(frames.ladder_steps["trained_off"].notna().any())
    facts["trained_steps"] = TRAINED_STEPS
    facts["most_apart"] = MOST_APART
    facts["no_dropout"] = _select_without_dropout(pd.concat([frames.ladder_steps, frames.alone]))
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
    reads=(*HOLDS, HOST),
    searched=("optimization ladder", "speed up training", "what to change first", "padding the vocabulary"),
)


@dataclass(frozen=True, kw_only=True)
class LadderData:
    ladder_steps: pd.DataFrame
    """One row per case and step of the ladder that was measured."""
    alone: pd.DataFrame
    """One row per case and single change that was measured. least, most: the interval of `speedup`, as cards
    have it; `gains`: whether all of it is above 1; recording: that both steps are of."""

    @property
    def compiled(self) -> pd.DataFrame:
        """The rows of `alone` that are faster for being compiled."""
        return self.alone[self.alone["change"].isin(COMPILED_ALONE) & self.alone["gains"].astype(bool)]

    @property
    def above(self) -> pd.DataFrame:
        """All steps of the ladder but the lowest."""
        return self.ladder_steps[self.ladder_steps["ladder_step"] != BASE]

    @property
    def first(self) -> pd.DataFrame:
        """Of each case the change that gives most alone, by its estimate, of those that were measured there."""
        return take_best(self.alone)

    @property
    def shown(self) -> pd.DataFrame:
        """Of each model the case of CONTEXTS, or else the longest of those that were followed furthest up."""
        heights = self.ladder_steps.groupby(CASE, sort=False).size().rename("height").reset_index()
        heights["is_chosen"] = heights["size"].map(CONTEXTS) == heights["context_length"]
        order = heights.sort_values(["is_chosen", "height", "context_length"], kind="stable")
        cases = order.drop_duplicates("size", keep="last")
        return self.ladder_steps.merge(cases[CASE], on=CASE)


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
    ladder_steps = _select_settings(measured, LADDER_STEPS, "ladder_step")
    base = ladder_steps[ladder_steps["ladder_step"] == BASE].set_index(CASE)
    ladder_steps, alone = (
        _join_base(rows, base, rounds) for rows in (ladder_steps, _select_settings(measured, SINGLE, "change"))
    )
    first = alone[CASE].merge(base[COMPARED], left_on=CASE, right_index=True, how="left")[COMPARED]
    alone = add_interval(alone, first, bands)
    host = studies.get(HOST)
    if host is not None:
        beside = _list_compiled_alone(host, bands, losses, rounds)
        alone = _sort_single_changes(
            pd.concat([beside[beside.set_index(CASE).index.isin(base.index)], alone], ignore_index=True)
        )
    others = {name: rec for name, rec in studies.items() if name not in (AGAIN, LOSSES)}
    gains = measure_gains({"main": main, **others}, bands.wall if bands else None)
    gains = gains[gains["gpu_name"].isin(main.runs["gpu_name"].astype(str))]
    alone = join_gains(alone, gains)
    of_base = ladder_steps[CASE].merge(base[COMPARED], left_on=CASE, right_index=True, how="left")[COMPARED]
    turns = compare_with_base(ladder_steps["run_id"], ladder_steps["base_run_id"], rounds)
    differ = _differ(ladder_steps, of_base, bands).mask(turns["times_as_fast"].notna(), turns["differs"])
    ladder_steps["quotable"] = mark_quotable(differ, ladder_steps["steady"], ladder_steps["base_steady"], turns=turns)
    ladder_steps = _join_gains_from_base(ladder_steps, gains)
    before = ladder_steps.groupby(CASE, sort=False)[["run_id", *COMPARED]].shift()
    turns = compare_with_base(ladder_steps["run_id"], before.pop("run_id"), rounds)
    is_turned = turns["times_as_fast"].notna()
    gain = prefer_turns(turns, ladder_steps["ns"], before["ns"]) / ladder_steps["ns"]
    ladder_steps["gain"] = gain.where(_is_one_change(ladder_steps))
    of_host = (before["host_ratio"] / ladder_steps["host_ratio"]).fillna(1.0).mask(is_turned, 1.0)
    ladder_steps["slower_host"] = 1 / of_host
    ladder_steps["at_least"] = turns["low"].fillna(ladder_steps["gain"] / of_host.clip(lower=1))
    ladder_steps["at_most"] = turns["high"].fillna(ladder_steps["gain"] / of_host.clip(upper=1))
    of_changes = (ladder_steps["at_least"] > 1) | (ladder_steps["at_most"] < 1)
    ladder_steps["differs"] = (_differ(ladder_steps, before, bands) & of_changes).mask(is_turned, turns["differs"])
    ladder_steps = _join_gains_from_step_before(ladder_steps, gains)
    return LadderData(ladder_steps=ladder_steps, alone=alone)


def _join_gains_from_base(ladder_steps: pd.DataFrame, gains: pd.DataFrame) -> pd.DataFrame:
    """Take speedup, its base and, of steps that took turns, its interval from `select_gains`, and whether it may be
    quoted; recording: where both steps were measured."""
    known = select_gains(gains, ladder_steps["base_run_id"], ladder_steps["ladder_step"].map(SETS))
    is_known, is_turned = known["apart"].notna(), known["apart"] == 0
    measured = {"speedup": "times_as_fast", "base_ns": "before_ns"}
    joined = {name: known[given].where(is_known, ladder_steps[name]) for name, given in measured.items()}
    joined |= {name: known[name].where(is_turned).where(is_known, ladder_steps[name]) for name in ("low", "high")}
    differs = known["gains"].eq(True) | (known["high"] < 1)
    quotable = (differs & (known["apart"] <= MOST_APART)).where(is_known, ladder_steps["quotable"]).astype(bool)
    return ladder_steps.assign(**joined, quotable=quotable, recording=known["measured_in"])


def _join_gains_from_step_before(ladder_steps: pd.DataFrame, gains: pd.DataFrame) -> pd.DataFrame:
    """Take gain and its interval from `select_gains`, and whether the two steps differ."""
    last = ladder_steps["ladder_step"].map({name: changes[-1:] for name, changes in SETS.items()})
    before = ladder_steps.groupby(CASE, sort=False)["run_id"].shift()
    known = select_gains(gains, before.where(ladder_steps["gain"].notna()), last)
    measured = {"gain": "times_as_fast", "at_least": "low", "at_most": "high"}
    joined = {name: known[given].fillna(ladder_steps[name]) for name, given in measured.items()}
    differs = (known["gains"].eq(True) | (known["high"] < 1)).where(known["apart"].notna(), ladder_steps["differs"])
    return ladder_steps.assign(**joined, differs=differs.astype(bool))


def _is_one_change(ladder_steps: pd.DataFrame) -> pd.Series:
    """Whether each step of the ladder sets one axis more than the last: where one is missing, two changes differ."""
    before = ladder_steps.groupby(CASE, sort=False)[AXES].shift()
    return (ladder_steps[AXES].astype(str) != before.astype(str)).sum(axis=1) == 1


def _is_plain(measured: pd.DataFrame) -> pd.Series:
    """Whether nothing was done to make a step faster, whatever its vocabulary."""
    return (measured[[*PLAIN]].astype(str) == pd.Series(PLAIN)).all(axis=1)


def _list_compiled_alone(rec: Any, bands: Bands | None, losses: Any, rounds: pd.DataFrame) -> pd.DataFrame:
    """The rows of `Frames.alone` whose change is compile: each against the same step without it in `rec`. Both were
    profiled, so it is known how long the GPU waits in them, as a band needs it."""
    measured = trained_losses.join_losses(_measure_steps([rec]), losses)
    waits = differences.times_of_steps(rec.steps, rec.kernels, rec.memops).set_index("run_id")["parts"]
    measured["parts"] = measured["run_id"].map(waits).fillna(measured["parts"])
    base = _select_settings(measured, {BASE: LADDER_STEPS[BASE]}, "change").set_index(CASE)
    rows = _join_base(_select_settings(measured, COMPILED_ALONE, "change"), base, rounds)
    first = rows[CASE].merge(base[COMPARED], left_on=CASE, right_index=True, how="left")[COMPARED]
    return add_interval(rows, first, bands)


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


def _select_for_map(ladder_steps: pd.DataFrame) -> pd.DataFrame:
    """The steps of IN_MAP of the reference model, which has a grid of cases, one after the other."""
    rows = ladder_steps[ladder_steps["ladder_step"].isin(IN_MAP) & (ladder_steps["workload"] != HUGGING_FACE)]
    order = rows["ladder_step"].map([*IN_MAP].index)
    return (
        rows.assign(ladder_step=rows["ladder_step"].map(IN_MAP))
        .loc[order.sort_values(kind="stable").index]
        .reset_index(drop=True)
    )


def _top(ladder_steps: pd.DataFrame) -> pd.DataFrame:
    """Of each case the highest step of the ladder that was measured."""
    return ladder_steps.drop_duplicates(CASE, keep="last")


def _select_faster(ladder_steps: pd.DataFrame) -> pd.DataFrame:
    """Those that take less time than the step of the ladder before, beyond noise and what the hosts explain."""
    return ladder_steps[ladder_steps["differs"].astype(bool) & (ladder_steps["gain"] > 1)]


def _are_host_limited(rows: pd.DataFrame) -> bool:
    """Whether the CPU issues work for most of each of these steps, and none was compiled."""
    return bool((rows["host_limited"] > 0.5).all()) and not rows["ladder_step"].isin(WITH_COMPILE).any()


def _select_by_limit(rows: pd.DataFrame, is_host: bool) -> pd.DataFrame:
    """Those in which the CPU issued work for most of the step before the change, or the others."""
    return rows[(rows["base_host_limited"] > 0.5) == is_host]


def _select_slower_by_host(ladder_steps: pd.DataFrame) -> pd.DataFrame:
    """Steps of the ladder that take longer than the one before, which the host of their run explains."""
    return ladder_steps[(ladder_steps["gain"] < 1 - NEAR) & (ladder_steps["at_most"] >= 1)]


def _claims(frames: LadderData) -> list[Claim]:
    above, top = frames.above, _top(frames.above)
    quotable = top[top["quotable"]]
    best = take_best(select_common(frames.alone))
    gained = above.dropna(subset=["gain"])
    of_ladder_step = {name: gained[gained["ladder_step"] == name] for name in (EAGER, COMPILED, GRAPHS, TO_64)}
    return [
        Claim(
            "together",
            _select_agreed(frames.shown),
            facts=lambda rows: _describe_top(rows, quotable),
        ),
        Claim(
            "short",
            top[top["speedup"] < SMALL_GAIN],
            _are_host_limited,
            facts=count_all(top, extremes("context_length")),
        ),
        Claim("first", best[best["gains"]], facts=count_all(best, lambda rows: count_best(rows, frames.alone))),
        Claim("decided", best[best["gains"]], facts=count_all(best, lambda rows: count_best(rows, frames.alone))),
        Claim("launches", _select_by_limit(frames.compiled, is_host=True), facts=extremes("speedup")),
        Claim("fusion", _select_by_limit(frames.compiled, is_host=False), facts=extremes("speedup")),
        Claim("each", frames.shown[CASE].drop_duplicates().merge(frames.first, on=CASE), facts=_each),
        Claim(
            "compile", of_ladder_step[COMPILED], lambda rows: bool((rows["at_least"] > 1).all()), facts=_span_of_gains
        ),
        Claim(
            "graphs", _select_faster(of_ladder_step[GRAPHS]), facts=count_all(of_ladder_step[GRAPHS], extremes("gain"))
        ),
        Claim("limits", _select_for_map(frames.ladder_steps), facts=_limits),
        Claim("padded", _select_faster(of_ladder_step[TO_64]), facts=extremes("gain")),
        Claim("no_padding", of_ladder_step[TO_64], lambda rows: not rows["differs"].any(), facts=extremes("gain")),
        Claim("by_host", _select_slower_by_host(frames.shown), facts=extremes("slower_host")),
        Claim(
            "gains",
            _select_faster(gained),
            facts=count_all(gained, lambda rows: _count_by_step(rows, gained)),
        ),
        Claim("memory", of_ladder_step[EAGER].dropna(subset=["less_memory"]), facts=extremes("less_memory")),
        Claim("energy", top.dropna(subset=["less_energy"]), facts=extremes("less_energy")),
        Claim(
            "hosts",
            frames.ladder_steps[frames.ladder_steps["host_ratio"] > SLOW_HOST],
            facts=count_all(frames.ladder_steps),
        ),
        Claim("trained", above.dropna(subset=["numerics_off"]), facts=_select_trained),
        Claim("formula", _select_by_formula(frames.alone), facts=_formula),
        Claim("loss", above.dropna(subset=["loss_off"]), facts=extremes("loss_off")),
    ]


def _tables(frames: LadderData) -> list[Table]:
    case = case_headings(CASE, linked=False)
    step = Column("ns", "step", "ms", lower="min_ns", upper="max_ns")
    speedup = Column("speedup", "as fast as FP32", "ratio", lower="low", upper="high")
    with_interval = Column("speedup", "as fast as FP32", "ratio", lower="least", upper="most")
    gain = Column("gain", "as the step before", "ratio", absent="n/a")
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
    if frames.ladder_steps["trained_off"].isna().all():
        costs = costs[:-2]
    hosts = (
        Column("host_limited", "CPU issues work", "share"),
        Column("host_ratio", "host loop", "ratio", absent="not read"),
    )
    recording = Column("recording", "recording", absent="n/a")
    ladder_step, change = Column("ladder_step", "change"), Column("change", "change alone")
    shown = frames.shown
    rest = _drop_shown(frames.ladder_steps, shown)
    return [
        Table(
            "shown",
            "Change by change: time, of each model at one context",
            (*case, ladder_step, step, speedup, gain, *hosts, recording),
            shown,
        ),
        Table("costs", "Change by change: tokens, memory, energy and loss", (*case, ladder_step, *costs), shown),
        Table(
            "limits",
            "Part of the step in phases in which the CPU issues work until they end, percent",
            (*case, Column("ladder_step", "change"), Column("host_limited", "CPU issues work", "share")),
            _select_for_map(frames.ladder_steps),
        ),
        Table("rest", "Change by change: all other cases", (*case, ladder_step, step, speedup, gain, recording), rest),
        Table(
            "alone",
            "Each change alone: time",
            (*case, change, step, with_interval, hosts[-1], replace(recording, absent="several")),
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
    shown = frames.shown[frames.shown["ladder_step"] != BASE]  # which is 1 by definition
    is_of_host = _is_of_host(shown) | shown["run_id"].isin(_select_slower_by_host(shown)["run_id"])
    names = [*CASE, "ladder_step", "run_id", "series", "value", "low", "high"]
    rows = shown.assign(series=is_of_host.map({True: OF_HOST, False: AGREED}), value=shown["speedup"])[names]
    rows["ladder_step"] = rows["ladder_step"].replace(IN_CHART)
    options: dict[str, Any] = {"by": [*CASE, "ladder_step"], "unit": "times as fast as FP32"}
    options |= {"order": [AGREED] if is_of_host.any() else [], "hollow": OF_HOST, "panels": len(CASE)}
    bars = Chart("ladder", "ratio_bars", "A training step, change by change", rows, options=options)
    return [bars, draw_falls(frames.shown)]


# ---------------------------------------------------------------- facts of claims


def _select_complete(top: pd.DataFrame) -> pd.DataFrame:
    """The highest steps of the ladder that have all changes, torch.compile among them; of cases that were never
    compiled, where there are no others."""
    compiled = top[top["ladder_step"].isin(WITH_COMPILE)]
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


def _select_agreed(shown: pd.DataFrame) -> pd.DataFrame:
    """Of each model that is shown all changes together, if its processes agree or took turns."""
    tops = _select_complete(_top(shown[shown["ladder_step"] != BASE]))
    return tops[tops["quotable"]]


def _describe_top(rows: pd.DataFrame, quotable: pd.DataFrame) -> dict[str, Any]:
    """The speed-ups and contexts, whether torch.compile is among the changes, and what the `quotable` of other cases
    give without."""
    others = quotable[~quotable["ladder_step"].isin(WITH_COMPILE)].drop(rows.index, errors="ignore")
    without = {"num_without": len(others), "without": span(others["speedup"]) if len(others) else None}
    is_compiled = bool(rows["ladder_step"].isin(WITH_COMPILE).all())
    return extremes("speedup")(rows) | without | {"is_compiled": is_compiled, "contexts": span(rows["context_length"])}


def _is_of_host(rows: pd.DataFrame) -> pd.Series:
    """Whether the CPU's speed is part of the speed-up of each: processes differ, and did not take turns."""
    return ~(rows["steady"].astype(bool) & rows["base_steady"].astype(bool)) & rows["low"].isna()


def _each(rows: pd.DataFrame) -> dict[str, Any]:
    return {"cases": rows.to_dict("records")}


def _count_by_step(rows: pd.DataFrame, every: pd.DataFrame) -> dict[str, Any]:
    """In how many of all cases each step of the ladder is among `rows`."""
    counts, all_counts = rows["ladder_step"].value_counts(), every["ladder_step"].value_counts()
    of = [
        {"ladder_step": name, "num": int(counts.get(name, 0)), "num_all": int(num)} for name, num in all_counts.items()
    ]
    return {"of": sorted(of, key=lambda counted: [*LADDER_STEPS].index(counted["ladder_step"]))}


def _span_of_gains(rows: pd.DataFrame) -> dict[str, Any]:
    return {"gain": span(rows["gain"]), "at_least": span(rows["at_least"])}


def _limits(rows: pd.DataFrame) -> dict[str, Any]:
    """In how many cases of each precision the CPU issues work for more than half of the step."""
    rows = rows.assign(by_host=rows["host_limited"] > 0.5)
    counts = rows.groupby("ladder_step", sort=False)["by_host"].agg(["sum", "size"])
    return {
        "of": [{"ladder_step": name, "num": int(num), "num_all": int(size)} for name, num, size in counts.itertuples()]
    }
