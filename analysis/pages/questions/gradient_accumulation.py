"""(v) What does gradient accumulation cost, and how much memory does it save?"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from profiler_job.analysis.metrics import differences, run_grid, step_limits, timing, waiting
from profiler_job.analysis.metrics import gpu_samples as machine
from profiler_job.analysis.metrics.differences import Bands
from profiler_job.analysis.metrics.steady import find_steady_runs, mark_quotable, measure_apart
from profiler_job.analysis.pages.case_columns import band_column, case_headings, spread_column
from profiler_job.analysis.pages.extreme_rows import count_all, extremes, give_largest, many, noise_of, span
from profiler_job.analysis.pages.question import Inputs, Question, Section
from profiler_job.analysis.pages.telemetry import rounded
from profiler_job.analysis.recording.store import Recording
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.axes import find_default
from profiler_job.jobs.contract.studies import TRAINED
from profiler_job.jobs.contract.words import NOT_MEASURED

STUDY = "accumulation"

MODE = "train_step"
AXIS = "accumulation"
WHOLE = find_default(AXIS)
"""A batch that is not cut."""
CLOCKS = ("step", "busy")
SEPARATE = ("step_ns", "alone_ns", "separate_ns", "one_optimizer_ns")
"""Times of a step in micro-batches and of as many steps of one micro-batch each."""


def answer(given: Inputs) -> Answer:
    """A training step whose batch is cut into micro-batches, whose gradients add up before the optimizer's step,
    against the same batch in one piece.

    Batch, tokens and FLOPs of a step are the same, however it is cut. The step is timed by Python without a profiler,
    GPU busy is of its capture; a ratio is that time over the one of the whole batch, and they differ measurably, by the
    noise band (`bands`). How long the GPU waits for launches is what `metrics.waiting` says, memory is the peak of the
    allocator, energy is read from the GPU's counter. Steps in micro-batches of the study TRAINED are compared with as
    many steps that have the batch of one micro-batch.
    """
    frames = _frames(
        given.runs, given.steps, given.kernels, given.memops, given.processes, given.telemetry, given.bands
    )
    separate = _compare_separate(given.studies.get(TRAINED))
    free = separate[separate["step_ns"] <= separate["separate_ns"]]
    claims = [*_claims(frames), Claim("free", free, facts=give_largest("step_ns"))]
    facts = {"noise": noise_of(given.bands), "condition": _describe_condition(frames.cut)}
    return assemble(facts, claims, [*_tables(frames), _tabulate_separate(separate)], _charts(frames))


QUESTION = Question(
    letter="v",
    slug="gradient-accumulation",
    title="What does gradient accumulation cost, and how much memory does it save?",
    needs=("runs", "steps", "kernels", "memops", "processes", "telemetry", "bands", "studies"),
    answer=answer,
    section=Section.FIT,
    place=2,
    study=STUDY,
    reads=(TRAINED,),
    searched=("micro-batch", "accumulate gradients", "gradient_accumulation_steps", "batch size"),
)


@dataclass(frozen=True, kw_only=True)
class GradientAccumulationData:
    cases: pd.DataFrame
    """One row per case and number of micro-batches, with the whole batch next to it ({column}_1)."""

    @property
    def measured(self) -> pd.DataFrame:
        return self.cases[(self.cases[NOT_MEASURED] == "") & self.cases["step_ns"].notna()]

    @property
    def cut(self) -> pd.DataFrame:
        """Cases that were cut and measured as a whole, too."""
        return self.measured[(self.measured[AXIS] > WHOLE) & self.measured["step_ratio"].notna()]

    @property
    def most(self) -> pd.DataFrame:
        """Of each case the one cut into most micro-batches."""
        others = [name for name in run_grid.CASE_AXES if name in self.cut]
        return self.cut.sort_values(AXIS, kind="stable").drop_duplicates(others, keep="last").sort_index()


def _frames(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    kernels: pd.DataFrame,
    memops: pd.DataFrame,
    processes: pd.DataFrame,
    state: pd.DataFrame,
    bands: Bands | None,
) -> GradientAccumulationData:
    cases = run_grid.cases_along(runs, MODE, AXIS, sorted(runs[AXIS].unique())).astype({AXIS: int})
    waits = waiting.launch_waits(steps, kernels, memops, bands.wall if bands else None)
    waits = waits[waits["phase"] == ranges.STEP][["run_id", "busy_share", "launch_wait"]]
    of_run = runs[["run_id", *sorted({"batch_size", "peak_memory_bytes"} - {*cases})]].astype({"run_id": str})
    energy = machine.summarise_runs(runs, steps, processes, state)[["run_id", "joules_per_1k"]]
    for part in (of_run, _measure_steps(steps), _measure_gpu(kernels, memops), waits, energy):
        cases = cases.merge(part, how="left", on="run_id")
    limits = step_limits.find_limits(steps, kernels, memops)
    cases["limit"] = cases["run_id"].map({run_id: limit.name for run_id, limit in limits.items()})
    cases["steady"] = cases["run_id"].isin(find_steady_runs(steps))
    cases["tokens_per_s"] = run_grid.tokens_per_s(cases, cases["step_ns"])
    cases["step_parts"] = (cases["step_ns"] * (1 - cases["busy_share"])).clip(lower=0)
    cases["busy_parts"] = np.sqrt(cases["launches"])
    cases["apart"] = cases["run_id"].map(measure_apart(steps))
    return GradientAccumulationData(cases=_join_whole(cases, bands))


def _measure_steps(steps: pd.DataFrame) -> pd.DataFrame:
    times = timing.host_times(steps, "timer", "step")
    return times[times["phase"] == ranges.STEP].drop(columns="phase")


def _measure_gpu(kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    gpu = timing.gpu_times(kernels, memops)
    of_step = gpu[gpu["phase"] == ranges.STEP]
    launches = of_step.groupby("run_id")["launches"].median().reset_index()
    return timing.spread(of_step, ["run_id"], "busy_ns", "busy").merge(launches, on="run_id")


def _join_whole(cases: pd.DataFrame, bands: Bands | None) -> pd.DataFrame:
    ends = ("ns", "min_ns", "max_ns", "parts")
    others = ["launches", "peak_memory_bytes", "steady", "apart"]
    table = run_grid.join_base(
        cases, AXIS, str(WHOLE), [*(f"{clock}_{end}" for clock in CLOCKS for end in ends), *others]
    )
    is_cut = table[AXIS] > WHOLE
    for clock in CLOCKS:
        renamed = table.rename(columns={f"{clock}_{end}_{WHOLE}": f"whole_{end}" for end in ends})
        band = (bands.wall if clock == "step" else bands.kernel) if bands else None
        table[f"{clock}_ratio"] = (table[f"{clock}_ns"] / renamed["whole_ns"]).where(is_cut)
        table[f"{clock}_band_ns"] = differences.half_band_ns(renamed, clock, "whole", band).where(is_cut)
        table[f"{clock}_apart"] = differences.differ(renamed, clock, "whole", band) & is_cut
    table["quotable"] = mark_quotable(table["step_apart"], table["steady"], table[f"steady_{WHOLE}"])
    table["more_launches"] = (table["launches"] / table[f"launches_{WHOLE}"]).where(is_cut)
    table["memory_ratio"] = (table["peak_memory_bytes"] / table[f"peak_memory_bytes_{WHOLE}"]).where(is_cut)
    table["memory_saved"] = 1 - table["memory_ratio"]
    return table


def _claims(frames: GradientAccumulationData) -> list[Claim]:
    cut, most = frames.cut, frames.most
    shown = (f"step_ns_{WHOLE}", "step_ns", "step_ratio", "step_band_ns", "launch_wait")
    parts = (*shown, "busy_ratio", "memory_ratio")
    slower = cut[cut["step_apart"] & (cut["step_ratio"] > 1)]
    busier = cut[cut["busy_apart"] & (cut["busy_ratio"] > 1)]
    return [
        Claim("costs", run_grid.only(most, *shown, "busy_ratio", "memory_ratio"), facts=_costs),
        Claim("quoted", run_grid.only(most[most["quotable"]], *parts), facts=_costs),
        Claim(
            "rough",
            run_grid.only(most, *parts, "apart", f"apart_{WHOLE}"),
            lambda rows: not most["quotable"].any(),
            facts=_costs,
        ),
        Claim(
            "slower", run_grid.only(slower, *shown, "limit"), many(cut), facts=count_all(cut, extremes("step_ratio"))
        ),
        Claim(
            "not_slower", run_grid.only(cut, *shown), lambda rows: not many(cut)(slower), facts=extremes("step_ratio")
        ),
        Claim(
            "busier",
            run_grid.only(busier, f"busy_ns_{WHOLE}", "busy_ns", "busy_ratio", "busy_band_ns"),
            many(cut),
            facts=count_all(cut, extremes("busy_ratio")),
        ),
        Claim("launches", run_grid.only(cut, "launches", "more_launches"), facts=extremes("more_launches")),
        Claim(
            "memory",
            run_grid.only(most, f"peak_memory_bytes_{WHOLE}", "peak_memory_bytes", "memory_ratio", "memory_saved"),
            lambda rows: (rows["memory_ratio"] < 1).all(),
            facts=extremes("memory_ratio"),
        ),
        Claim(
            "more_memory",
            run_grid.only(
                cut[cut["memory_ratio"] > 1], f"peak_memory_bytes_{WHOLE}", "peak_memory_bytes", "memory_ratio"
            ),
            facts=extremes("memory_ratio"),
        ),
        Claim("waits", run_grid.only(frames.measured, "launch_wait"), facts=extremes("launch_wait")),
    ]


def _costs(rows: pd.DataFrame) -> dict[str, Any]:
    of: dict[str, Any] = {name: span(rows[f"{name}_ratio"]) for name in ("step", "busy", "memory")}
    least, most = of["memory"]
    if "apart" in rows:  # None if one process timed each step
        apart = rows[["apart", f"apart_{WHOLE}"]].replace(math.inf, math.nan).max(axis=None)
        of["apart"] = None if pd.isna(apart) else float(apart)
    return of | {"most": int(rows[AXIS].max()), "saved": (1 - most, 1 - least)}


def _describe_condition(cut: pd.DataFrame) -> str:
    """`At 512 tokens, uncompiled`: what the steps in micro-batches have in common; "" if there are none."""
    if not len(cut):
        return ""
    contexts = " and ".join(f"{number:,}" for number in sorted(cut["context_length"].astype(int).unique()))
    is_off = "compile" not in cut or (cut["compile"].astype(str) == find_default("compile")).all()
    return f"At {contexts} tokens{', uncompiled' if is_off else ''}"


def _compare_separate(trained: Recording | None) -> pd.DataFrame:
    """Compare steps in micro-batches with as many steps of one micro-batch each: their case, run_id, step_ns,
    alone_ns (one such step), separate_ns (all of them), and one_optimizer_ns (all of them with one optimizer step)."""
    columns = [*run_grid.CASE_AXES, "batch_size", AXIS, "compile", "run_id", *SEPARATE]
    if trained is None or AXIS not in trained.runs:
        return pd.DataFrame(columns=columns)
    runs = trained.runs[trained.runs["mode"].astype(str) == MODE]
    runs = runs.assign(compile=runs.get("compile", find_default("compile")))
    same = [name for name in (*run_grid.CASE_AXES, *run_grid.VARIANT_AXES) if name in runs]
    runs = runs[["run_id", *same]].astype({"run_id": str}).merge(_measure_steps(trained.steps), on="run_id")
    runs["parts"] = runs[AXIS].fillna(WHOLE).astype(int)
    uncut = runs[runs["parts"] == WHOLE].drop(columns=["parts", AXIS])
    cut = runs[runs["parts"] > WHOLE]
    cut = cut.assign(whole_batch=cut["batch_size"], batch_size=cut["batch_size"].astype(int) // cut["parts"])
    on = [name for name in same if name != AXIS]
    times = timing.host_times(trained.steps, "timer", "optimizer")
    times = times.loc[times["phase"] == ranges.OPTIMIZER, ["run_id", "optimizer_ns"]]
    alone = uncut.merge(times, how="left", on="run_id").rename(columns={"step_ns": "alone_ns"})
    pairs = cut.merge(alone[[*on, "alone_ns", "optimizer_ns"]], on=on)
    separate_ns = pairs["parts"] * pairs["alone_ns"]
    one_optimizer_ns = separate_ns - (pairs["parts"] - 1) * pairs["optimizer_ns"]
    pairs = pairs.assign(
        batch_size=pairs["whole_batch"],
        separate_ns=separate_ns,
        one_optimizer_ns=one_optimizer_ns,
        **{NOT_MEASURED: ""},
    )
    return pairs[[*columns, NOT_MEASURED]]


def _tabulate_separate(rows: pd.DataFrame) -> Table:
    columns = (
        *case_headings(["size", "context_length", AXIS], linked=False),
        Column("batch_size", "batch", "count"),
        Column("compile", "compile"),
        Column("step_ns", "step in micro-batches", "ms"),
        Column("alone_ns", "a step of one micro-batch", "ms"),
        Column("separate_ns", "as many separate steps", "ms"),
        Column("one_optimizer_ns", "of these, one optimizer step", "ms", absent="n/a"),
    )
    return Table("separate", "A step in micro-batches, and as many steps of one micro-batch", columns, rows)


def _tables(frames: GradientAccumulationData) -> list[Table]:
    case = case_headings(["size", "context_length", AXIS], linked=False)
    return [
        Table(
            "steps",
            "A training step by number of micro-batches",
            (
                *case,
                spread_column("step", "step, unprofiled"),
                Column("step_ratio", "÷ whole batch", "ratio", absent="base"),
                band_column("step_band_ns"),
                Column("tokens_per_s", "tokens/s", "count"),
                Column("joules_per_1k", "J per 1,000 tokens", "amount", absent="n/a"),
                Column("peak_memory_bytes", "peak allocated", "bytes"),
                Column("memory_ratio", "÷ whole batch", "ratio", absent="base"),
            ),
            rounded(frames.cases),
        ),
        Table(
            "gpu",
            "What the GPU does in it",
            (
                *case,
                spread_column("busy", "GPU busy"),
                Column("busy_ratio", "÷ whole batch", "ratio", absent="base"),
                band_column("busy_band_ns"),
                Column("launches", "kernels", "count"),
                Column("more_launches", "÷ whole batch", "ratio", absent="base"),
                Column("limit", "limited by"),
                Column("busy_share", "GPU busy ÷ step", "share", bar=True),
                Column("launch_wait", "waits for launches", "share", bar=True),
            ),
            frames.cases,
        ),
    ]


def _charts(frames: GradientAccumulationData) -> list[Chart]:
    cut = frames.cut
    rows = pd.concat(
        [
            cut.assign(scope=name, share=cut[f"{clock}_ratio"])
            for clock, name in (("step", "step, unprofiled"), ("busy", "GPU busy"), ("memory", "peak allocated"))
        ]
    )
    options = {
        "order": list(dict.fromkeys(rows["scope"])),
        "by": ["size", "context_length", AXIS],
        "unit": "% of the whole batch",
    }
    title = "Micro-batches: time and peak allocated, as parts of the whole batch's"
    return [Chart("ratios", "grouped_bars", title if len(cut) else "Not measured", rows, options=options)]
