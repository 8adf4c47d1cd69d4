"""What the page of the host is made of: runs, pairs of them and cases, from the tables of a recording."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import differences, kernel_time, per_rank, queue, run_grid, timing, waiting
from profiler_job.analysis.metrics.differences import Bands
from profiler_job.analysis.metrics.ordering import place, rank_first_seen, sort_stably
from profiler_job.analysis.metrics.queue import CAUSES
from profiler_job.analysis.metrics.steady import find_steady_runs, mark_quotable, prefer_turns, prefer_turns_band
from profiler_job.analysis.metrics.turns import compare_with_base, list_rounds
from profiler_job.analysis.pages.cuda_calls import calls_of_steps
from profiler_job.analysis.recording.run_table import keep_runs
from profiler_job.jobs.contract import modes, ranges
from profiler_job.jobs.contract.words import NOT_MEASURED

OFF, DEFAULT, GRAPHS = "off", "default", "cudagraphs"
SERIES = (OFF, DEFAULT, GRAPHS)

TRAIN = "train_step"

FUSED = {"precision": "bf16", "attention": "sdpa", "optimizer": "fused"}
"""The settings that people train with, which compile comes on top of."""

BASE = "the step without compile"
"""What bars are parts of, where there is one in each case."""


@dataclass(frozen=True, kw_only=True)
class HostData:
    by: list[str]
    """Columns that name a case, without `compile`."""
    operations: tuple[Any, Any]
    """Kernels, and copies and fills."""
    table: pd.DataFrame
    """Every run: see `_summarise_runs`."""
    measured: pd.DataFrame
    """The runs with a time of the unprofiled step."""
    captured: pd.DataFrame
    """The ones that have steps under nsys, too."""
    pairs: pd.DataFrame
    """Each variant next to the run of the same case without compile."""
    over_default: pd.DataFrame
    """CUDA graphs next to compile without them."""
    phases: pd.DataFrame
    """Phases of the training steps."""
    grid_by: list[str]
    grid: pd.DataFrame
    """The training steps of the main recording, and the columns that name a case there."""
    main_shares: pd.Series
    """How much of a step the GPU waits for the CPU in the main recording, by run_id."""


def gather_data(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    processes: pd.DataFrame,
    kernels: pd.DataFrame,
    memops: pd.DataFrame,
    api: pd.DataFrame,
    main: Any,
    bands: Bands | None,
) -> HostData:
    by, table = _measure_cases(runs, steps, kernels, api, memops)
    measured = _select_timed(table)
    captured = measured[measured["wall_ns"].notna()]
    return HostData(
        by=by,
        operations=(kernels, memops),
        table=table,
        measured=measured,
        captured=captured,
        pairs=_pairs(measured, [*by, "mode"], OFF, bands, list_rounds(steps, processes)),
        over_default=_compare_with_default(measured, _list_compiled(steps, kernels, memops), [*by, "mode"], bands),
        phases=_phases(captured, steps, kernels, memops, by),
        grid_by=_case_columns(main),
        grid=_grid(main),
        main_shares=_measure_main_shares(runs, main),
    )


def measure_steps(
    runs: pd.DataFrame, steps: pd.DataFrame, kernels: pd.DataFrame, api: pd.DataFrame, memops: pd.DataFrame
) -> tuple[list[str], pd.DataFrame]:
    """Return `by` and `measured` of HostData, of these runs of a recording."""
    known = set(runs["run_id"].astype(str))
    by, table = _measure_cases(runs, *(keep_runs(rows, known) for rows in (steps, kernels, api, memops)))
    return by, _select_timed(table)


def compare_graphs(recordings: Iterable[Any]) -> pd.DataFrame:
    """Compare training steps in BF16 with fused attention and AdamW, in CUDA graphs, with the same steps compiled
    without: CASE of a run, run_id, base_run_id, speedup (of medians over processes' steps), and least, of the fastest
    process without over the slowest with them. Of pairs in several recordings the first counts."""
    parts = []
    for rec in recordings:
        runs = run_grid.select_measured_runs(rec.runs).astype({"run_id": str})
        if not {*FUSED, "compile"} <= {*runs}:
            continue
        is_fused = (runs[[*FUSED]].astype(str) == pd.Series(FUSED)).all(axis=1)
        runs = runs[is_fused & (runs["mode"].astype(str) == TRAIN)]
        same = [name for name in (*run_grid.CASE_AXES, "batch_size", "workload", *run_grid.VARIANT_AXES)
                if name in runs and name != "compile"]  # fmt: skip
        runs = runs.merge(timing.measure_processes(rec.steps), on="run_id")
        medians = timing.host_times(rec.steps, "timer", "timer")
        runs = runs.merge(medians[medians["phase"] == ranges.STEP][["run_id", "timer_ns"]], on="run_id")
        clock = ["run_id", "timer_ns", "shortest_ns", "longest_ns"]
        graphs, default = (runs.loc[runs["compile"].astype(str) == name, [*dict.fromkeys([*same, *clock])]]
                           for name in (GRAPHS, DEFAULT))  # fmt: skip
        parts.append(graphs.merge(default.rename(columns={name: f"base_{name}" for name in clock}), on=same))
    if not parts:
        return pd.DataFrame(columns=["run_id", "base_run_id", "speedup", "least"])
    rows = pd.concat(parts, ignore_index=True).drop_duplicates("run_id", ignore_index=True)
    speedup = rows["base_timer_ns"] / rows["timer_ns"]
    return rows.assign(speedup=speedup, least=rows["base_shortest_ns"] / rows["longest_ns"])


def _measure_cases(
    runs: pd.DataFrame, steps: pd.DataFrame, kernels: pd.DataFrame, api: pd.DataFrame, memops: pd.DataFrame
) -> tuple[list[str], pd.DataFrame]:
    by = [name for name in run_grid.case_columns(runs) if name != "compile"]
    table = _every_mode(runs, by)
    return by, table.merge(_summarise_runs(runs, steps, kernels, api, memops), how="left", on="run_id")


def _select_timed(table: pd.DataFrame) -> pd.DataFrame:
    return table[(table[NOT_MEASURED] == "") & table["timer_ns"].notna()]


def _every_mode(runs: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The cases (`by`) of every mode that there are runs of, each with every value of compile: forward first, by size
    and context, then by compile."""
    measured = [mode for mode in modes.MODES if (runs["mode"].astype(str) == mode).any()]
    cases = pd.concat([run_grid.cases(runs, mode).assign(mode=mode) for mode in measured], ignore_index=True)
    cases = cases if "compile" in cases else cases.assign(compile=str(runs["compile"].iloc[0]))
    cases = cases[cases.assign(is_run=cases["run_id"] != "").groupby([*by, "mode"])["is_run"].transform("any")]
    return sort_stably(
        cases, rank_first_seen(cases, ["mode", "size", "context_length"]), place(cases["compile"], SERIES)
    )


def _summarise_runs(
    runs: pd.DataFrame, steps: pd.DataFrame, kernels: pd.DataFrame, api: pd.DataFrame, memops: pd.DataFrame
) -> pd.DataFrame:
    """One row per run: timer_ns with its spread, steady, `causes`, calls and host time per step of a rank."""
    timer = timing.host_times(steps, "timer", "timer")
    table = timer[timer["phase"] == ranges.STEP].drop(columns="phase")
    table = table.merge(queue.measure_causes(kernels, memops, steps), how="left", on="run_id")
    num_steps = kernel_time.num_steps_of_ranks(kernels)
    calls = calls_of_steps(api)
    for group, number, time in (("launch", "calls", "calling_ns"), ("synchronisation", "waits", "wait_ns")):
        sums = calls[calls["group"] == group].groupby("run_id")[["calls", "total_ns"]].sum()
        sums = sums.rename(columns={"calls": number, "total_ns": time}).div(num_steps, axis=0)
        table = table.merge(sums, how="left", left_on="run_id", right_index=True)
    table["busy_ns"] = table["busy_captured_ns"]
    table["idle_ns"] = table["timer_ns"] - table["busy_ns"]
    # How long the GPU waits is not known of a run that was only timed: then it may be all of the step.
    table["timer_parts"] = table["idle_ns"].clip(lower=0).fillna(table["timer_ns"])
    table["idle_share"] = table["run_id"].map(waiting.measure_step_shares(steps, kernels, memops))
    table["steady"] = table["run_id"].isin(find_steady_runs(steps))
    table["rate_ns"] = table["timer_ns"] / table["calls"]
    table["host_ns"] = (table["wall_ns"] - table["wait_ns"]) / table["calls"]
    table["call_ns"] = table["calling_ns"] / table["calls"]
    table["profiler_ratio"] = table["wall_ns"] / table["timer_ns"]
    return table


def _pairs(measured: pd.DataFrame, by: list[str], base: str, bands: Bands | None, rounds: pd.DataFrame) -> pd.DataFrame:
    """Each variant next to the run of the same case with compile `base`: saved_ns and its two parts, ratio, differs
    (both within rounds if they took turns; base_timer_ns is then what that makes of timer_ns),
    base_launch_part (of the base's idle time under nsys, how much waits for a launch), base_launch_wait (part of the
    base's unprofiled step, see `metrics.waiting`) and base_waits (whether that is more than noise)."""
    clock = ["timer_ns", "timer_min_ns", "timer_max_ns", "timer_parts"]
    columns = [*by, "run_id", *clock, "steady", "busy_ns", "idle_ns", "idle_share"]
    columns += [f"{cause}_share" for cause in CAUSES]
    other = measured[measured["compile"] == base][columns]
    other = other.rename(columns={name: f"base_{name}" for name in columns if name not in by})
    rows = measured[(measured["compile"] != base) & (measured["compile"] != OFF)].merge(other, on=by)
    turns = compare_with_base(rows["run_id"], rows["base_run_id"], rounds)
    rows["base_timer_ns"] = prefer_turns(turns, rows["timer_ns"], rows["base_timer_ns"])
    rows["ratio"] = rows["timer_ns"] / rows["base_timer_ns"]
    rows["speedup"] = 1 / rows["ratio"]
    half_band = differences.half_band_ns(rows, "timer", "base_timer", bands.wall if bands else None)
    rows["band_ns"] = prefer_turns_band(turns, rows["timer_ns"], half_band)
    differ = differences.differ(rows, "timer", "base_timer", bands.wall if bands else None)
    rows["differs"] = differ.mask(turns["times_as_fast"].notna(), turns["differs"])
    rows["quotable"] = mark_quotable(rows["differs"], rows["steady"], rows["base_steady"], turns=turns)
    rows["base_launch_part"] = rows["base_launch_share"] / (1 - rows["base_busy_share"])
    rows["base_launch_wait"] = rows["base_idle_share"] * rows["base_launch_part"]
    rows["base_launch_wait_ns"] = rows["base_launch_wait"] * rows["base_timer_ns"]
    rows["base_waits"] = waiting.is_beyond_noise(rows, bands.wall if bands else None, "base_")
    for part in ("timer", "busy", "idle"):
        saved = "saved_ns" if part == "timer" else f"saved_{part}_ns"
        rows[saved] = rows[f"base_{part}_ns"] - rows[f"{part}_ns"]
    return rows


def _list_compiled(steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame) -> pd.DataFrame:
    """Spread over unprofiled steps of forward and backward together, per run: run_id, timer_ns, _min_ns, _max_ns, and
    timer_parts, how long the GPU waits in them."""
    rows = steps[steps["collector"].astype(str) == "timer"].astype({"run_id": str, "phase": str})
    rows = rows[rows["phase"].isin((ranges.FORWARD, ranges.BACKWARD))]
    rows = rows.groupby(["run_id", "rank", "process", "step"], sort=False)["wall_ns"].sum().reset_index()
    rows = per_rank.take_largest_rank(rows, ["wall_ns"])
    table = timing.spread(rows, ["run_id"], "wall_ns", "timer").drop(columns="timer_n")
    gpu = timing.gpu_times(kernels, memops)
    gpu = gpu[gpu["phase"].isin((ranges.FORWARD, ranges.BACKWARD))].groupby(["run_id", "phase"])["busy_ns"].median()
    busy = gpu.groupby("run_id").sum() / timing.num_devices(kernels)
    waits = table["timer_ns"] - busy.reindex(table["run_id"]).to_numpy()
    return table.assign(timer_parts=waits.clip(lower=0).fillna(table["timer_ns"]))


def _compare_with_default(
    measured: pd.DataFrame, compiled: pd.DataFrame, by: list[str], bands: Bands | None
) -> pd.DataFrame:
    """CUDA graphs next to compile without them, by the time of what is compiled."""
    clock = [name for name in compiled if name != "run_id"]
    rows = measured.drop(columns=clock).merge(compiled, on="run_id")[["run_id", *by, "compile", *clock]]
    off = rows[rows["compile"] == DEFAULT].drop(columns=["run_id", "compile"])
    rows = rows[rows["compile"] == GRAPHS].merge(off.rename(columns={name: f"base_{name}" for name in clock}), on=by)
    rows["ratio"] = rows["timer_ns"] / rows["base_timer_ns"]
    differs = differences.differ(rows, "timer", "base_timer", bands.wall if bands else None)
    return rows.assign(speedup=1 / rows["ratio"], differs=differs)


def _phases(
    captured: pd.DataFrame, steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame, by: list[str]
) -> pd.DataFrame:
    """Phases of the training steps: timer_ns, busy_ns, idle_ns (of all devices of a rank), launches (kernels
    per step)."""
    rows = captured[captured["mode"] == TRAIN][["run_id", *by, "compile"]]
    timer = timing.host_times(steps, "timer", "timer")
    gpu = timing.gpu_times(kernels, memops).groupby(["run_id", "phase"])[["busy_ns", "launches"]].median().reset_index()
    rows = rows.merge(timer[timer["phase"] != ranges.STEP], on="run_id").merge(gpu, how="left", on=["run_id", "phase"])
    rows = sort_stably(rows, rank_first_seen(rows, ["run_id"]), place(rows["phase"], ranges.PHASES))
    num_devices = timing.num_devices(kernels).reindex(rows["run_id"]).to_numpy()
    return rows.assign(idle_ns=rows["timer_ns"] * num_devices - rows["busy_ns"])


def _measure_main_shares(runs: pd.DataFrame, main: Any) -> pd.Series:
    """Measure `waiting.measure_step_shares` of the same runs in the main recording."""
    same = set(differences.select_repeated_runs(runs, main.runs)["run_id"].astype(str))
    return waiting.measure_step_shares(*(keep_runs(rows, same) for rows in (main.steps, main.kernels, main.memops)))


def _case_columns(main: Any) -> list[str]:
    return run_grid.case_columns(main.runs) if len(main.runs) else ["size", "context_length"]


def _grid(main: Any) -> pd.DataFrame:
    """Every training step of the main recording with `causes`; waits_share: a launch or the next phase is awaited."""
    by = _case_columns(main)
    table = run_grid.cases(main.runs, TRAIN) if len(main.runs) else pd.DataFrame(columns=[*by, "run_id", NOT_MEASURED])
    train = set(table["run_id"])
    causes = queue.measure_causes(keep_runs(main.kernels, train), keep_runs(main.memops, train), main.steps)
    table = table.merge(causes.astype({"run_id": str}), how="left", on="run_id")
    return table.assign(waits_share=table["launch_share"] + table["boundary_share"])
