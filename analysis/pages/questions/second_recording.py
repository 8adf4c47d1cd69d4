"""(m) Does a second recording say the same?"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from profiler_job.analysis.comparison.align import Case, align
from profiler_job.analysis.comparison.errors import NotComparableError
from profiler_job.analysis.comparison.judge import WITHIN, judge, measure
from profiler_job.analysis.comparison.noise import SHIPPED, Noise
from profiler_job.analysis.comparison.sides import Side, make_tables_side
from profiler_job.analysis.comparison.totals import KERNEL, MeasuredCase, Totals, match_modules
from profiler_job.analysis.metrics import kernel_time, run_grid, timing
from profiler_job.analysis.metrics.differences import Bands
from profiler_job.analysis.pages.case_columns import band_column, case_headings, spread_column
from profiler_job.analysis.pages.extreme_rows import bound, count_all, extremes, give_largest, many, noise_of
from profiler_job.analysis.pages.question import Inputs, Question, Section
from profiler_job.analysis.render.answer import Answer, Chart, Claim, Column, Table, assemble
from profiler_job.jobs.contract import modes, ranges
from profiler_job.jobs.contract.axes import find_value_words

STUDY = "again"

GEMM = "gemm"
FIRST, SECOND = "first", "second"
NEAR = 0.02
"""Kernel times are called the same within this part of them: what two GPUs of one instance may differ by."""
RECORDED = {
    "gpu_name": "GPU",
    "driver": "driver",
    "cuda": "CUDA",
    "torch": "torch",
    "nsys": "nsys",
    "python": "Python",
    "commit": "commit of this program",
    "float32_matmul_precision": "float32 matmul precision",
    "autograd_multithreading": "autograd multithreading",
    "protocol_version": "version of the protocol",
    "processes": "processes that timed a run",
    "warmup_steps": "warm-up steps",
    "measured_steps": "unprofiled steps",
    "profiled_steps": "profiled steps",
}


def answer(given: Inputs) -> Answer:
    """The runs of `main`, the first recording, that a second one has too, side by side, as `compare` compares them:
    aligned, measured and judged by `analysis.comparison`.

    Kernel time is the sum over the kernels of a step, the median over profiled steps; the step is timed by Python
    without a profiler: median, minimum and maximum. Changes and ratios are of the second to the first. A kernel is the
    same where its name is launched as often by the same module in the same phase; modules of a phase are not compared
    with each other where only one recording followed them. The spread is of a run's unprofiled steps, the longest over
    the shortest, less one. Steps are apart where their minimum-to-maximum intervals do not overlap, which says little:
    the noise bands of all other pages (`bands`) are fitted to these pairs. So a step has moved where it differs by more
    than one in which the GPU never waits varies; without bands, where they are apart. A recording is not compared with
    itself.
    """
    frames = _frames(given.runs, given.steps, given.kernels, given.memops, given.main, given.bands)
    facts = _facts(frames, given.bands) | {
        "precisions": sorted(given.runs["precision"].astype(str).str.upper().unique()),
        "processors": {FIRST: _processors(given.main.processes), SECOND: _processors(given.processes)},
    }
    return assemble(facts, _claims(frames, given.bands), _tables(frames), _charts(frames))


QUESTION = Question(
    letter="m",
    slug="second-recording",
    title="Does a second recording say the same?",
    needs=("runs", "steps", "kernels", "memops", "processes", "main", "bands"),
    answer=answer,
    section=Section.TRUST,
    place=2,
    study=STUDY,
    searched=("noise band", "reproducibility", "variance"),
)


@dataclass(frozen=True, kw_only=True)
class SecondRecordingData:
    by: list[str]
    """Columns that name a case."""
    table: pd.DataFrame
    """The runs of both recordings: columns of the first (first_*), of the second (second_*), and how they differ."""
    families: pd.DataFrame
    """Shares of kernel time by family in both."""
    settings: pd.DataFrame
    """Machine and programs of both."""


def _frames(
    runs: pd.DataFrame, steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame, main: Any, bands: Bands | None
) -> SecondRecordingData:
    first = _measure_side(FIRST, main.runs, main.steps, main.kernels, main.memops)
    second = _measure_side(SECOND, runs, steps, kernels, memops)
    second.runs = second.runs[~second.runs["started_at"].astype(str).isin(set(first.runs["started_at"].astype(str)))]
    pairs = _pairs(first, second)
    noise = _noise(bands, pairs) if bands and pairs else None
    totals = {
        FIRST: _totals([(case, of.totals) for case, of, _ in pairs]),
        SECOND: _totals([(case, of.totals) for case, _, of in pairs]),
    }
    by = run_grid.case_columns(runs)
    table = pd.DataFrame([_row(case, a, b, noise) for case, a, b in pairs], columns=_COLUMNS)
    table = run_grid.sort_runs(runs)[[*by, "mode", "run_id"]].astype({"run_id": str}).merge(table, on="run_id")
    for name, side in ((FIRST, first), (SECOND, second)):
        table = table.merge(_spread(side, name), on="run_id").merge(_kernels_of(totals[name], name), on="run_id")
    return SecondRecordingData(
        by=by,
        table=_compare_sides(table, bands),
        families=_families(totals).merge(table[[*by, "mode", "run_id"]], on="run_id"),
        settings=_settings(main.runs, runs, table["run_id"]),
    )


def _facts(frames: SecondRecordingData, bands: Bands | None) -> dict[str, Any]:
    settings = frames.settings
    return {
        "noise": noise_of(bands),
        "num_runs": len(frames.table),
        "mode_of_furthest": _name_furthest(frames.table),
        "near": NEAR,
        "changed": settings.loc[settings[FIRST] != settings[SECOND], "what"].tolist(),
    }


def _name_furthest(table: pd.DataFrame) -> str:
    """Name the mode of the run whose step differs most."""
    if table.empty:
        return ""
    furthest = (table["step_ratio"] - 1).abs().idxmax()
    return find_value_words("mode", str(table.at[furthest, "mode"])) or str(table.at[furthest, "mode"])


def _processors(processes: pd.DataFrame) -> list[str]:
    """Facts of the hosts, as far as the recording knows; one older than telemetry does not."""
    return sorted({*processes["cpu_model"].dropna().astype(str)} - {""})


def _claims(frames: SecondRecordingData, bands: Bands | None) -> list[Claim]:
    table = frames.table
    moved, same_top = table[table["moved"]], table["same_top"]
    differs = many(table)(moved)
    furthest = (table["step_ratio"] - 1).abs()
    ratios = count_all(
        table,
        lambda rows: (
            {"num_moved": len(moved), "furthest": furthest.max(), **extremes("step_ratio")(rows)}
            | {"of": rows.loc[furthest.idxmax()].to_dict()}
        ),
    )
    return [
        Claim("same", table, _alike, facts=_give_largest("kernel_apart")),
        Claim("not_same", table, lambda rows: not _alike(rows), facts=_not_alike),
        Claim("step_differs", table, lambda rows: differs, facts=ratios),
        Claim("step_same", table, lambda rows: not differs, facts=ratios),
        Claim("idle", table, lambda rows: differs, facts=give_largest("step_apart")),
        Claim("top", table[same_top], facts=count_all(table)),
        Claim("top_differs", table[~same_top], facts=count_all(table, lambda rows: rows.iloc[0].to_dict())),
        Claim("gemm", table[table["gemm_apart"].notna()], facts=_give_largest("gemm_apart")),
        Claim("families", frames.families, facts=give_largest("share_apart")),
        Claim("judged", table, lambda rows: bands is not None, facts=_num_judged),
        Claim("apart", table[table["apart"]], facts=count_all(table)),
        Claim(
            "spread", table, facts=lambda rows: {side: give_largest(f"{side}_spread")(rows) for side in (FIRST, SECOND)}
        ),
    ]


def _tables(frames: SecondRecordingData) -> list[Table]:
    case = (*case_headings(frames.by, linked=False), Column("mode", "mode"))
    return [
        Table(
            "gpu",
            "What the GPU does in a step",
            (
                *case,
                Column("unlike", "kernels in one only", "count"),
                Column("first_kernel_ns", "kernel time, first", "ms"),
                Column("second_kernel_ns", "second", "ms"),
                Column("kernel_change", "change", "share"),
                band_column("kernel_band_ns"),
                Column("kernel_verdict", "verdict", absent="n/a"),
                Column("first_gemm", "GEMM, first", "share"),
                Column("second_gemm", "second", "share"),
            ),
            frames.table,
        ),
        Table(
            "host",
            "What the host sets: the unprofiled step",
            (
                *case,
                spread_column("first_step", "step, first"),
                spread_column("second_step", "second"),
                Column("step_ratio", "second ÷ first", "ratio"),
                band_column("step_band_ns"),
                Column("step_verdict", "verdict", absent="n/a"),
                Column("first_busy_share", "GPU busy, first", "share", bar=True),
                Column("second_busy_share", "second", "share", bar=True),
            ),
            frames.table,
        ),
        Table(
            "settings",
            "The two recordings",
            (Column("what", "what"), Column(FIRST, "first"), Column(SECOND, "second")),
            frames.settings,
        ),
    ]


def _charts(frames: SecondRecordingData) -> list[Chart]:
    clocks = {"kernel_ratio": "kernel time", "step_ratio": "step, unprofiled"}
    rows = frames.table.assign(kernel_ratio=frames.table["kernel_change"] + 1)
    steps = rows[rows["mode"] == modes.MODES[-1]]
    title = "A training step in the second recording against the first"
    if len(steps):
        kernels, training = ((steps[name] - 1).abs().max() for name in ("kernel_ratio", "step_ratio"))
        title = f"Training steps alone: kernel times differ by up to {kernels:.1%}, step times by {training:.0%}"
    rows = steps.melt([*frames.by, "run_id"], list(clocks), "clock", "value")
    return [
        Chart(
            "ratios",
            "dumbbell",
            title,
            rows.assign(clock=rows["clock"].map(clocks)),
            options={
                "order": list(clocks.values()),
                "by": frames.by,
                "unit": "second ÷ first (log scale)",
                "value": "value",
            },
        )
    ]


# ---------------------------------------------------------------- frames


def _measure_side(
    label: str, runs: pd.DataFrame, steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame
) -> Side:
    """A recording's finished runs that were timed and profiled."""
    side = make_tables_side(label, runs, steps, kernels, memops)
    timed = (steps["collector"].astype(str) == "timer") & (steps["phase"].astype(str) == ranges.STEP)
    both = {*steps.loc[timed, "run_id"].astype(str)} & {*kernel_time.num_profiled_steps(kernels).index}
    side.runs = side.runs[side.runs["run_id"].isin(both)]
    return side


def _pairs(first: Side, second: Side) -> list[tuple[Case, MeasuredCase, MeasuredCase]]:
    """The runs that both have, as each measured them; none where there is no such run."""
    try:
        alignment = align(first, second)
    except NotComparableError:
        return []
    if alignment.differences:
        return []
    firsts = measure(first, [case.first for case in alignment.cases])
    seconds = measure(second, [case.second for case in alignment.cases])
    return [*zip(alignment.cases, firsts, seconds, strict=True)]


_JUDGED = ("kernel", "busy", "step", "idle")
_COLUMNS = (
    "run_id",
    *(f"{side}_{metric}_ns" for metric in _JUDGED for side in (FIRST, SECOND)),
    *(f"{metric}_{what}" for metric in _JUDGED for what in ("band_ns", "verdict")),
    *(f"{side}_{what}" for side in (FIRST, SECOND) for what in ("launches", "busy_share")),
    "unlike",
    "never_waits_ns",
)


def _row(case: Case, first: MeasuredCase, second: MeasuredCase, noise: Noise | None) -> dict[str, Any]:
    """_COLUMNS of a pair: what `compare` prints of its metrics; launches of a step, the part of it in which the GPU is
    busy, and `unlike`, the launches that only one side has; never_waits_ns, half the noise band of a step in which the
    GPU never waits."""
    row: dict[str, Any] = {"run_id": case.second[0], "unlike": _unlike(first.totals, second.totals)}
    for side, of in ((FIRST, first), (SECOND, second)):
        step = of.clocks["timer"]
        row |= {f"{side}_launches": of.totals.kernels["calls"].sum() / of.totals.num}
        row |= {f"{side}_busy_share": of.busy_ns / (step * of.num_devices)}
    for judged in judge(first, second, "timer", noise or SHIPPED, has_capture=False):
        if judged.metric in _JUDGED:
            row |= {f"{FIRST}_{judged.metric}_ns": judged.first, f"{SECOND}_{judged.metric}_ns": judged.second}
            row[f"{judged.metric}_band_ns"] = judged.band if noise else None
            row[f"{judged.metric}_verdict"] = judged.verdict if noise else None
    processes = first.num_processes, second.num_processes
    mean = (row[f"{FIRST}_step_ns"] + row[f"{SECOND}_step_ns"]) / 2
    return row | {"never_waits_ns": noise.width("wall", mean, 0.0, processes) if noise else None}


def _noise(bands: Bands, pairs: list[tuple[Case, MeasuredCase, MeasuredCase]]) -> Noise:
    """The bands for runs that as many processes timed as these."""
    _, first, second = pairs[0]
    num_timed = first.num_processes, second.num_processes
    return Noise(kernel=bands.kernel, wall=bands.wall, memory_share=0.0, source="", num_timed=num_timed)


def _unlike(first: Totals, second: Totals) -> float:
    """Launches of a step that only one of the two has, by phase, module where both know it, and kernel name."""
    kernels = match_modules(first.kernels, second.kernels)
    calls = [of.set_index(KERNEL)["calls"] / num for of, num in zip(kernels, (first.num, second.num))]
    return float(calls[0].sub(calls[1], fill_value=0).abs().sum())


def _totals(cases: list[tuple[Case, Totals]]) -> pd.DataFrame:
    """Kernels of a step of each case, as `kernel_time.kernel_totals` has them."""
    columns = ["run_id", *KERNEL, "calls", "time_ns"]
    parts = [
        of.kernels.assign(
            run_id=case.second[0], calls=of.kernels["calls"] / of.num, time_ns=of.kernels["time_ns"] / of.num
        )
        for case, of in cases
    ]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def _compare_sides(table: pd.DataFrame, bands: Bands | None) -> pd.DataFrame:
    change = table["second_kernel_ns"] / table["first_kernel_ns"] - 1
    off = table["second_step_ns"] - table["first_step_ns"]
    apart = timing.differ(table.rename(columns=_intervals), FIRST, SECOND)
    return table.assign(
        kernel_change=change,
        kernel_apart=change.abs(),
        busy_apart=(table["second_busy_ns"] / table["first_busy_ns"] - 1).abs(),
        gemm_apart=(table["second_gemm"] - table["first_gemm"]).abs(),
        step_ratio=table["second_step_ns"] / table["first_step_ns"],
        step_apart=off.abs(),
        idle_off=table["second_idle_ns"] - table["first_idle_ns"],
        same_top=table["first_top"] == table["second_top"],
        apart=apart,
        moved=off.abs() > table["never_waits_ns"] if bands else apart,
    )


def _spread(side: Side, name: str) -> pd.DataFrame:
    """run_id, shortest and longest unprofiled step (_step_min_ns, _step_max_ns), and how far these are apart."""
    times = timing.host_times(side.steps, "timer", f"{name}_step")
    times = times[times["phase"] == ranges.STEP]
    ends = [f"{name}_step_min_ns", f"{name}_step_max_ns"]
    return times[["run_id", *ends]].assign(**{f"{name}_spread": times[ends[1]] / times[ends[0]] - 1})


def _kernels_of(totals: pd.DataFrame, side: str) -> pd.DataFrame:
    """run_id, top (the kernel that takes most time) and gemm, the share of GEMMs in kernel time."""
    top = kernel_time.sum_by_kernel(totals, ["run_id"]).drop_duplicates("run_id")[["run_id", "kernel_name"]]
    shares = kernel_time.sum_by_family(totals, ["run_id"])
    gemm = shares.loc[shares["family"] == GEMM, ["run_id", "share"]]
    named = top.merge(gemm, how="left", on="run_id")
    return named.rename(columns={"kernel_name": f"{side}_top", "share": f"{side}_gemm"})


def _families(totals: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """run_id, family, share of kernel time in the first and the second recording, and how far these are apart."""
    first, second = (kernel_time.sum_by_family(frame, ["run_id"]) for frame in totals.values())
    shares = first.merge(second, how="outer", on=["run_id", "family"], suffixes=("_first", "_second"))
    shares = shares[["run_id", "family", "share_first", "share_second"]].fillna({"share_first": 0, "share_second": 0})
    return shares.assign(share_apart=(shares["share_second"] - shares["share_first"]).abs())


def _settings(first: pd.DataFrame, second: pd.DataFrame, run_ids: pd.Series) -> pd.DataFrame:
    """The machine and programs of the runs of both recordings: what, first, second."""
    sides = [runs[runs["run_id"].astype(str).isin(run_ids)] for runs in (first, second)]
    rows = [{"what": "day", **_word_values(sides, lambda runs: runs["started_at"].astype(str).str[:10])}]
    rows += [
        {"what": label, **_word_values(sides, lambda runs, name=name: runs[name].astype(str))}
        for name, label in RECORDED.items()
        if all(name in runs for runs in sides)
    ]
    return pd.DataFrame(rows)


def _word_values(sides: list[pd.DataFrame], values: Any) -> dict[str, str]:
    return {side: ", ".join(sorted(set(values(runs)))) for side, runs in zip((FIRST, SECOND), sides, strict=True)}


# ---------------------------------------------------------------- facts of the claims


def _intervals(name: str) -> str:
    return name.replace("_step_", "_") if name.endswith(("_min_ns", "_max_ns")) else name


def _alike(rows: pd.DataFrame) -> bool:
    return bool((rows["unlike"] == 0).all() and (rows["kernel_apart"] <= NEAR).all())


def _give_largest(value: str) -> Callable[[pd.DataFrame], dict[str, Any]]:
    """Facts of a claim: the row with the largest `value`, and `at_most`, that value rounded up to what is printed."""
    return lambda rows: {"at_most": bound(rows[value].max(), 1e-3), **give_largest(value)(rows)}


def _not_alike(rows: pd.DataFrame) -> dict[str, Any]:
    return {"num_unlike": int((rows["unlike"] > 0).sum()), **_give_largest("kernel_apart")(rows)}


def _num_judged(rows: pd.DataFrame) -> dict[str, Any]:
    """Of how many runs `compare` calls kernel time and step different."""
    return {f"num_{metric}": int((rows[f"{metric}_verdict"] != WITHIN).sum()) for metric in ("kernel", "step")}
