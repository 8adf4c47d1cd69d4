"""(t) What changes in BF16, with fused attention and a fused optimizer?"""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import differences, kernel_time, run_grid, timing
from profiler_job.analysis.metrics.differences import Bands
from profiler_job.analysis.metrics.steady import MOST_APART, find_steady_runs, mark_quotable
from profiler_job.analysis.metrics.turns import compare_with_base, list_rounds
from profiler_job.analysis.pages.case_columns import case_headings, spread_column
from profiler_job.analysis.pages.extreme_rows import count_all, extremes, format_percent_span, many, noise_of, span
from profiler_job.analysis.pages.question import Inputs, Question, Section
from profiler_job.analysis.recording.store import Recording
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.jobs.contract import modes, ranges
from profiler_job.jobs.contract.studies import TRAINED

STUDY = TRAINED

GEMM = "gemm"
MAIN, FUSED = "main", "bf16"
SIDES = {MAIN: "FP32", FUSED: "BF16"}
COMPILED = "default"
"""The value of `compile` that is advised next."""
CASE = ["size", "context_length"]
SAME = [*CASE, "num_parameters", "batch_size"]
"""What two steps have in common that are compared."""


def answer(given: Inputs) -> Answer:
    """Training steps of `main`, the first recording, against steps of the same model, context and batch as people train
    them today, not compiled.

    Of both sides, by the same functions: the unprofiled step (median over steps), the part of it in which the GPU is
    busy, kernel time by family, and the optimizer's part of it. `speedup` is the step of the main recording over the
    other. Two steps differ measurably, by the noise band of wall times (`bands`); without one, where their ranges over
    steps do not overlap. Compiled steps are compared with the same uncompiled ones within rounds.
    """
    frames = _frames(given.runs, given.steps, given.kernels, given.memops, given.main, given.bands)
    compiled = _compare_compiled(given.studies.get(TRAINED), frames.training["bf16_run_id"])
    gains = Claim(
        "compiled",
        compiled,
        lambda rows: bool((rows["low"] > 1).all()),
        facts=lambda rows: {"speedup": span(rows["speedup"])},
    )
    facts = {"noise": noise_of(given.bands), "sides": SIDES, "most_apart": MOST_APART}
    return assemble(facts, [*_claims(frames), gains], _tables(frames), _charts(frames))


QUESTION = Question(
    letter="t",
    slug="in-bf16",
    title="What changes in BF16, with fused attention and a fused optimizer?",
    needs=("runs", "steps", "kernels", "memops", "main", "bands", "studies"),
    answer=answer,
    section=Section.TIME,
    place=5,
    study=STUDY,
    reads=(TRAINED,),
    searched=("fused BF16", "FP32 against BF16"),
)


@dataclass(frozen=True, kw_only=True)
class Bf16Data:
    training: pd.DataFrame
    """Steps that both have: columns of the main recording (main_*) and of the other (bf16_*), and how they differ."""
    families: pd.DataFrame
    """Share of each family in the kernel time of a training step, on either side (`precision`)."""
    order: list[str]
    """Families by falling kernel time."""


def _frames(
    runs: pd.DataFrame, steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame, main: Any, bands: Bands | None
) -> Bf16Data:
    measured = {MAIN: _measure_runs(main.runs, main.steps, main.kernels, main.memops)}
    measured[FUSED] = _measure_runs(runs, steps, kernels, memops)
    sides = [of.rename(columns={name: f"{side}_{name}" for name in of if name not in SAME})
             for side, of in measured.items()]  # fmt: skip
    training = sides[0].merge(sides[1], on=SAME)
    training["speedup"] = training["main_ns"] / training["bf16_ns"]
    training["gemm_change"] = training["bf16_gemm"] - training["main_gemm"]
    training["differs"] = differences.differ(training, FUSED, MAIN, bands.wall if bands else None)
    training["quotable"] = mark_quotable(training["differs"], training["main_steady"], training["bf16_steady"])
    totals = {MAIN: kernel_time.kernel_totals(main.kernels), FUSED: kernel_time.kernel_totals(kernels)}
    families = pd.concat([_families(training, totals[side], side) for side in SIDES], ignore_index=True)
    order = families.groupby("family")["time_ns"].sum().sort_values(ascending=False).index.tolist()
    return Bf16Data(training=training, families=families, order=order)


def _claims(frames: Bf16Data) -> list[Claim]:
    training = frames.training
    faster = training[training["differs"] & (training["speedup"] > 1)]
    of_both = training[["main_gemm", "bf16_gemm"]].notna().all(axis=1)
    return [
        Claim("speedup", training, facts=extremes("speedup")),
        Claim("faster", faster, many(training), facts=count_all(training)),
        Claim("quoted", faster[faster["quotable"]], facts=extremes("speedup")),
        Claim("not_faster", training, lambda rows: not many(training)(faster), facts=extremes("speedup")),
        Claim("gemm", training[of_both], facts=_gemm),
        Claim("leader", frames.families, facts=_leaders),
        Claim("optimizer", training, facts=lambda rows: {side: span(rows[f"{side}_in_optimizer"]) for side in SIDES}),
        Claim("busy", training, facts=lambda rows: {side: extremes(f"{side}_busy_share")(rows) for side in SIDES}),
    ]


def _tables(frames: Bf16Data) -> list[Table]:
    case = case_headings(CASE, linked=False)
    columns = (
        spread_column(MAIN, "step, FP32"),
        spread_column(FUSED, "BF16"),
        Column("speedup", "FP32 ÷ BF16", "ratio"),
        Column("main_gemm", "GEMM, FP32", "share", bar=True),
        Column("bf16_gemm", "BF16", "share", bar=True),
        Column("main_in_optimizer", "optimizer, FP32", "share"),
        Column("bf16_in_optimizer", "BF16", "share"),
        Column("main_busy_share", "GPU busy, FP32", "share"),
        Column("bf16_busy_share", "BF16", "share"),
    )
    return [
        Table("training", "A training step, FP32 against BF16", (*case, *columns), frames.training),
        *_table_of_processes(frames.training),
    ]


def _table_of_processes(training: pd.DataFrame) -> list[Table]:
    """The medians of the processes of both sides with their intervals, where both have such."""
    known = training.dropna(subset=[f"{side}_of_processes_ns" for side in SIDES])
    columns = [*CASE, "run_id", *(f"{side}_{name}" for side in SIDES for name in _INTERVAL)]
    shown = [
        column
        for side, label in SIDES.items()
        for column in (
            Column(
                f"{side}_of_processes_ns",
                f"step, {label}",
                "ms",
                lower=f"{side}_of_processes_low_ns",
                upper=f"{side}_of_processes_high_ns",
            ),
            Column(f"{side}_num_processes", "n", "count"),
        )
    ]
    title = "A training step: median of n processes, with its 95% interval"
    rows = known.assign(run_id=known["bf16_run_id"])[columns]
    return [Table("processes", title, (*case_headings(CASE, linked=False), *shown), rows)]


_INTERVAL = ("of_processes_ns", "of_processes_low_ns", "of_processes_high_ns", "num_processes")


def _charts(frames: Bf16Data) -> list[Chart]:
    options = {"order": frames.order, "row": "precision"}
    longest = frames.families.merge(_select_longest(frames.training)[CASE], on=CASE)
    title = _title_of(frames.families)
    return [
        Chart("families", "stacked_shares", title, frames.families, options={"by": CASE, **options}),
        Chart(
            "longest",
            "stacked_times",
            "Kernel time of a training step at the longest context",
            longest,
            options={"by": CASE, **options},
        ),
    ]


def _title_of(families: pd.DataFrame) -> str:
    of_side = families[families["family"] == GEMM].groupby("precision")["share"]
    parts = [
        f"{format_percent_span(of_side.get_group(name))} in {name}" for name in SIDES.values() if name in of_side.groups
    ]
    return f"GEMMs take {' and '.join(parts) or 'nothing'} of a training step's kernel time"


# ---------------------------------------------------------------- frames


def _measure_runs(runs: pd.DataFrame, steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    """Measure each finished training step of a recording that is not compiled: SAME, run_id, the
    unprofiled step (ns, min_ns, max_ns, n, and `parts`, how long the GPU waits in it; of_processes_ns with its
    interval; steady: whether its processes agree), busy_share, kernel_ns, and of this the shares of GEMMs (gemm) and of
    the optimizer (in_optimizer)."""
    ok = run_grid.select_eager(run_grid.select_measured_runs(runs))
    ok = ok[ok["mode"].astype(str) == modes.MODES[-1]].astype({"run_id": str, "size": str})[["run_id", *SAME]]
    times = timing.host_times(steps, "timer", "step")
    times = times[times["phase"] == ranges.STEP].drop(columns="phase")
    times = times.rename(columns=lambda name: name.removeprefix("step_"))
    waits = differences.times_of_steps(steps, kernels, memops)[["run_id", "parts"]]
    intervals = differences.process_intervals(steps)
    intervals = intervals[intervals["phase"] == ranges.STEP].drop(columns="phase")
    totals = kernel_time.kernel_totals(kernels)
    table = ok.merge(times, on="run_id").merge(waits, how="left", on="run_id")
    table = table.merge(intervals, how="left", on="run_id")
    table["steady"] = table["run_id"].isin(find_steady_runs(steps))
    table["busy_share"] = 1 - table["parts"] / table["ns"]
    table["kernel_ns"] = table["run_id"].map(totals.groupby("run_id")["time_ns"].sum())
    for name, rows in (("gemm", totals["family"] == GEMM), ("in_optimizer", totals["phase"] == ranges.OPTIMIZER)):
        part = table["run_id"].map(totals[rows].groupby("run_id")["time_ns"].sum()).fillna(0.0)
        table[name] = part / table["kernel_ns"]
    return table


def _compare_compiled(trained: Recording | None, steps: pd.Series) -> pd.DataFrame:
    """Compare the `steps` as they are compiled with them as they are not, within the rounds of both: of each pair that
    took turns SAME, run_id, base_run_id, speedup, low and high. steps: run ids."""
    if trained is None or "compile" not in trained.runs:
        return pd.DataFrame(columns=[*SAME, "run_id", "base_run_id", "speedup", "low", "high"])
    runs = run_grid.select_measured_runs(trained.runs).astype({"run_id": str})
    same = [
        name for name in dict.fromkeys([*SAME, "mode", *run_grid.VARIANT_AXES]) if name in runs and name != "compile"
    ]
    bases = runs.loc[runs["run_id"].isin(steps), [*same, "run_id"]]
    compiled = runs.loc[runs["compile"].astype(str) == COMPILED, [*same, "run_id"]]
    pairs = compiled.merge(bases.rename(columns={"run_id": "base_run_id"}), on=same)
    turns = compare_with_base(pairs["run_id"], pairs["base_run_id"], list_rounds(trained.steps, trained.processes))
    rows = pairs[[*SAME, "run_id", "base_run_id"]].join(turns[["low", "high"]]).assign(speedup=turns["times_as_fast"])
    return rows.dropna(subset=["speedup"]).reset_index(drop=True)


def _families(training: pd.DataFrame, totals: pd.DataFrame, side: str) -> pd.DataFrame:
    cases = training[[*CASE, f"{side}_run_id"]].rename(columns={f"{side}_run_id": "run_id"})
    return cases.assign(precision=SIDES[side]).merge(kernel_time.sum_by_family(totals, ["run_id"]), on="run_id")


def _select_longest(training: pd.DataFrame) -> pd.DataFrame:
    """Of each model the training step at its longest context."""
    longest = training.groupby("size")["context_length"].transform("max")
    return training[training["context_length"] == longest].reset_index(drop=True)


# ---------------------------------------------------------------- facts of claims


def _gemm(rows: pd.DataFrame) -> dict[str, Any]:
    return {side: span(rows[f"{side}_gemm"]) for side in SIDES} | {"num_falls": int((rows["gemm_change"] < 0).sum())}


def _leaders(rows: pd.DataFrame) -> dict[str, Any]:
    """On either side the family that takes most time in most training steps, and in how many."""
    leaders = {}
    for side, name in SIDES.items():
        top = rows[rows["precision"] == name].sort_values("time_ns", ascending=False).drop_duplicates("run_id")
        counts = top["family"].value_counts()
        leaders[side] = {"family": counts.index[0], "num": int(counts.iloc[0]), "num_all": len(top)}
    return leaders
