"""(m) Does a second recording say the same?"""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.answer import Answer, Chart, Claim, Column, Table, assemble
from analysis.metrics import differences, kernel_time, run_grid, timing
from analysis.metrics.differences import Bands
from analysis.pages.columns import case_headings, spread_column
from analysis.pages.facts import bound, extremes, largest, many, noise_of, out_of
from jobs.contract import modes, ranges

SLUG = "second-recording"
TITLE = "Does a second recording say the same?"
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
    "warmup_steps": "warm-up steps",
    "measured_steps": "unprofiled steps",
    "profiled_steps": "profiled steps",
}


def answer(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    kernels: pd.DataFrame,
    memops: pd.DataFrame,
    main: Any,
    bands: Bands | None = None,
) -> Answer:
    """The runs of `main`, the first recording, that a second one has too, side by side.

    Kernel time is the sum over the kernels of a step, the median over profiled steps; the step is timed by Python
    without a profiler: median, minimum and maximum. Changes and ratios are of the second to the first. A kernel is the
    same where its name is launched as often by the same module in the same phase. The spread is that of a run's
    unprofiled steps, the longest over the shortest, less one. A run is launch-bound in a recording where the GPU is
    busy for less than timing.LAUNCH_BOUND_BUSY_SHARE of its unprofiled step; busy_share is the smaller of the two.
    Steps are apart where their minimum-to-maximum intervals do not overlap, which says little: the noise bands of all
    other pages (`bands`) are fitted to these pairs. The host's part differs where steps do by more than a step in which
    the GPU never waits varies. A recording is not held against itself.
    """
    frames = _frames(runs, steps, kernels, memops, main)
    return assemble(_facts(frames, bands), _claims(frames, bands), _tables(frames), _charts(frames))


@dataclass(frozen=True, kw_only=True)
class Frames:
    by: list[str]
    """Columns that name a case."""
    table: pd.DataFrame
    """The runs of both recordings: columns of the first (first_*), of the second (second_*), and how they differ."""
    families: pd.DataFrame
    """Shares of kernel time by family in both."""
    settings: pd.DataFrame
    """Machine and programs of both."""


def _frames(runs: pd.DataFrame, steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame, main: Any) -> Frames:
    by = run_grid.case_columns(runs)
    totals = {FIRST: kernel_time.kernel_totals(main.kernels), SECOND: kernel_time.kernel_totals(kernels)}
    table = differences.repeated_runs(main.runs, runs)[[*by, "mode", "run_id"]]
    table = _with_side(table, FIRST, main.steps, main.kernels, main.memops, totals[FIRST])
    table = _with_side(table, SECOND, steps, kernels, memops, totals[SECOND])
    table = _compared(table).merge(_unlike(*totals.values()), how="left", on="run_id").fillna({"unlike": 0})
    return Frames(
        by=by,
        table=table,
        families=_families(totals).merge(table[[*by, "mode", "run_id"]], on="run_id"),
        settings=_settings(main.runs, runs, table["run_id"]),
    )


def _facts(frames: Frames, bands: Bands | None) -> dict:
    settings = frames.settings
    return {
        "noise": noise_of(bands),
        "num_runs": len(frames.table),
        "launch_bound": timing.LAUNCH_BOUND_BUSY_SHARE,
        "near": NEAR,
        "changed": settings.loc[settings[FIRST] != settings[SECOND], "what"].tolist(),
    }


def _claims(frames: Frames, bands: Bands | None) -> list[Claim]:
    table = frames.table
    waits = table["busy_share"] < timing.LAUNCH_BOUND_BUSY_SHARE
    launched, steady = table[waits], table[~waits]
    apart = timing.differ(table.rename(columns=_intervals), FIRST, SECOND)
    sides = table.rename(columns=_intervals).rename(columns=lambda name: name.replace("_step_ns", "_ns"))
    never_waits = {f"{side}_parts": 0.0 for side in (FIRST, SECOND)}
    moved = differences.differ(sides.assign(**never_waits), FIRST, SECOND, bands.wall if bands else None)
    ratios = out_of(table, extremes("step_ratio"))
    same_top = table["same_top"]
    return [
        Claim("same", table, _alike, _at_most("kernel_apart")),
        Claim("not_same", table, lambda rows: not _alike(rows), _not_alike),
        Claim("host_differs", launched, lambda rows: many(rows)(rows[moved[rows.index]]), ratios),
        Claim("host_same", launched, lambda rows: not many(rows)(rows[moved[rows.index]]), ratios),
        Claim("steady", steady, facts=ratios),
        Claim("bound_counts", launched, _bound_in_one, _times_bound),
        Claim("top", table[same_top], facts=out_of(table)),
        Claim("top_differs", table[~same_top], facts=out_of(table, lambda rows: rows.iloc[0].to_dict())),
        Claim("gemm", table[table["gemm_apart"].notna()], facts=_at_most("gemm_apart")),
        Claim("families", frames.families, facts=largest("share_apart")),
        Claim("apart", table[apart], facts=out_of(table)),
        Claim("spread", table, facts=lambda rows: {side: largest(f"{side}_spread")(rows) for side in (FIRST, SECOND)}),
    ]


def _tables(frames: Frames) -> list[Table]:
    case = (*case_headings(frames.by, linked=False), Column("mode", "mode"))
    return [
        Table(
            "gpu",
            "What the GPU does in a step",
            (
                *case,
                Column("first_launches", "kernels", "count"),
                Column("unlike", "launched otherwise in the second", "count"),
                Column("first_kernel_ns", "kernel time, first", "ms"),
                Column("second_kernel_ns", "second", "ms"),
                Column("kernel_change", "change", "share"),
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


def _charts(frames: Frames) -> list[Chart]:
    clocks = {"kernel_ratio": "kernel time", "step_ratio": "step, unprofiled"}
    rows = frames.table.assign(kernel_ratio=frames.table["kernel_change"] + 1)
    rows = rows[rows["mode"] == modes.MODES[-1]].melt([*frames.by, "run_id"], list(clocks), "clock", "value")
    return [
        Chart(
            "ratios",
            "dumbbell",
            "A training step in the second recording against the first",
            rows.assign(clock=rows["clock"].map(clocks)),
            {"order": list(clocks.values()), "by": frames.by, "unit": "second ÷ first (log scale)", "value": "value"},
        )
    ]


# ---------------------------------------------------------------- frames


def _with_side(
    table: pd.DataFrame,
    side: str,
    steps: pd.DataFrame,
    kernels: pd.DataFrame,
    memops: pd.DataFrame,
    totals: pd.DataFrame,
) -> pd.DataFrame:
    """`table` with what one recording measured of its runs."""
    for part in (_timed(steps), _on_gpu(kernels, memops), _kernels_of(totals)):
        part = part.rename(columns={name: f"{side}_{name}" for name in part if name != "run_id"})
        table = table.merge(part, how="inner", on="run_id")
    table[f"{side}_busy_share"] = timing.busy_share(table, kernels, f"{side}_busy_ns", f"{side}_step_ns")
    table[f"{side}_spread"] = table[f"{side}_step_max_ns"] / table[f"{side}_step_min_ns"] - 1
    return table


def _compared(table: pd.DataFrame) -> pd.DataFrame:
    change = table["second_kernel_ns"] / table["first_kernel_ns"] - 1
    return table.assign(
        kernel_change=change,
        kernel_apart=change.abs(),
        gemm_apart=(table["second_gemm"] - table["first_gemm"]).abs(),
        step_ratio=table["second_step_ns"] / table["first_step_ns"],
        busy_share=table[["first_busy_share", "second_busy_share"]].min(axis=1),
        same_top=table["first_top"] == table["second_top"],
    )


def _timed(steps: pd.DataFrame) -> pd.DataFrame:
    """run_id, step_ns with _min_ns and _max_ns: the unprofiled step."""
    times = timing.host_times(steps, "timer", "step")
    return times[times["phase"] == ranges.STEP].drop(columns=["phase", "step_n"])


def _on_gpu(kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    """run_id, kernel_ns, busy_ns and launches of a step of one rank, the median over steps and ranks."""
    times = timing.gpu_times(kernels, memops)
    steps = times[times["phase"] == ranges.STEP]
    return steps.groupby("run_id")[["kernel_ns", "busy_ns", "launches"]].median().reset_index()


def _kernels_of(totals: pd.DataFrame) -> pd.DataFrame:
    """run_id, top (the kernel that takes most time) and gemm, the share of GEMMs in kernel time."""
    top = kernel_time.by_kernel(totals, ["run_id"]).drop_duplicates("run_id")[["run_id", "kernel_name"]]
    shares = kernel_time.by_family(totals, ["run_id"])
    gemm = shares.loc[shares["family"] == GEMM, ["run_id", "share"]]
    return top.merge(gemm, how="left", on="run_id").rename(columns={"kernel_name": "top", "share": "gemm"})


def _unlike(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """run_id, unlike: launches of a step that only one of the recordings has, by phase, module and kernel name."""
    by = ["run_id", "phase", "module", "kernel_name"]
    calls = [totals.groupby(by)["calls"].sum() for totals in (first, second)]
    apart = calls[0].sub(calls[1], fill_value=0).abs()
    return apart.groupby("run_id").sum().rename("unlike").reset_index()


def _families(totals: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """run_id, family, share of kernel time in the first and the second recording, and how far these are apart."""
    first, second = (kernel_time.by_family(frame, ["run_id"]) for frame in totals.values())
    shares = first.merge(second, how="outer", on=["run_id", "family"], suffixes=("_first", "_second"))
    shares = shares[["run_id", "family", "share_first", "share_second"]].fillna({"share_first": 0, "share_second": 0})
    return shares.assign(share_apart=(shares["share_second"] - shares["share_first"]).abs())


def _settings(first: pd.DataFrame, second: pd.DataFrame, run_ids: pd.Series) -> pd.DataFrame:
    """What the runs of both recordings say of their machine and programs: what, first, second."""
    sides = [runs[runs["run_id"].astype(str).isin(run_ids)] for runs in (first, second)]
    rows = [{"what": "day", **_said(sides, lambda runs: runs["started_at"].astype(str).str[:10])}]
    rows += [
        {"what": label, **_said(sides, lambda runs, name=name: runs[name].astype(str))}
        for name, label in RECORDED.items()
        if all(name in runs for runs in sides)
    ]
    return pd.DataFrame(rows)


def _said(sides: list[pd.DataFrame], values) -> dict[str, str]:
    return {side: ", ".join(sorted(set(values(runs)))) for side, runs in zip((FIRST, SECOND), sides, strict=True)}


# ---------------------------------------------------------------- facts of the claims


def _intervals(name: str) -> str:
    return name.replace("_step_", "_") if name.endswith(("_min_ns", "_max_ns")) else name


def _alike(rows: pd.DataFrame) -> bool:
    return bool((rows["unlike"] == 0).all() and (rows["kernel_apart"] <= NEAR).all())


def _at_most(value: str):
    """Facts of a claim: the row with the largest `value`, and `at_most`, that value rounded up to what is printed."""
    return lambda rows: {"at_most": bound(rows[value].max(), 1e-3), **largest(value)(rows)}


def _not_alike(rows: pd.DataFrame) -> dict:
    return {"num_unlike": int((rows["unlike"] > 0).sum()), **_at_most("kernel_apart")(rows)}


def _bound_in_one(rows: pd.DataFrame) -> bool:
    times = _times_bound(rows)
    return not times[FIRST] == times[SECOND] == times["both"]


def _times_bound(rows: pd.DataFrame) -> dict:
    first, second = (rows[f"{side}_busy_share"] < timing.LAUNCH_BOUND_BUSY_SHARE for side in (FIRST, SECOND))
    return {FIRST: int(first.sum()), SECOND: int(second.sum()), "both": int((first & second).sum())}
