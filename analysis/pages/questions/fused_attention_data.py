"""What the page of fused attention is made of: steps by backend, next to eager attention."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from profiler_job.analysis.metrics import attention, differences, kernel_time, run_grid, timing, waiting
from profiler_job.analysis.metrics.attention import NAIVE, TRAIN
from profiler_job.analysis.metrics.differences import Bands
from profiler_job.analysis.metrics.ordering import rank_first_seen, sort_stably
from profiler_job.analysis.metrics.steady import find_steady_runs, mark_quotable, prefer_turns, prefer_turns_band
from profiler_job.analysis.metrics.turns import compare_with_base, list_rounds
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.words import NOT_MEASURED

MODES = {"forward": "A forward pass", TRAIN: "A training step"}

COMPARED = [
    *(f"{clock}_{end}" for clock in ("busy", "timer") for end in ("ns", "min_ns", "max_ns", "parts")),
    "launches",
    "peak_memory_bytes",
    "steady",
]


@dataclass(frozen=True, kw_only=True)
class FusedAttentionData:
    keys: list[str]
    """Columns that name a case, without `attention`."""
    bands: Bands | None
    table: pd.DataFrame
    """Every case and mode, each attention: see `_steps`."""
    compared: pd.DataFrame
    """The rows of backends that have a step of `naive` next to them."""
    trained: pd.DataFrame
    """The training steps among them."""
    crossovers: pd.DataFrame
    reference: pd.DataFrame
    """The backends at the case that is looked at kernel by kernel."""
    parts: pd.DataFrame
    """Attention's kernel times and rates."""
    forward: pd.DataFrame
    """Attention's kernels in forward, at the reference."""
    matmuls: pd.DataFrame
    """The two matmuls of eager attention in forward, at the reference, and what limits them."""
    families: pd.DataFrame
    """Families of backward, at the reference."""
    backward: pd.DataFrame
    """Kernels of backward whose number changes, at the reference."""


def gather_data(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    processes: pd.DataFrame,
    kernels: pd.DataFrame,
    memops: pd.DataFrame,
    calibration: pd.DataFrame,
    bands: Bands | None,
) -> FusedAttentionData:
    keys = [name for name in run_grid.case_columns(runs) if name != "attention"]
    totals = kernel_time.kernel_totals(kernels)
    table = _join_naive(_steps(runs, steps, kernels, memops, bands), keys, bands, list_rounds(steps, processes))
    compared = table[(table["attention"] != NAIVE) & table["speedup"].notna()]
    trained = compared[compared["mode"] == TRAIN]
    reference = _reference(trained, keys)
    return FusedAttentionData(
        keys=keys,
        bands=bands,
        table=table,
        compared=compared,
        trained=trained,
        crossovers=_crossovers(compared, [name for name in keys if name != "context_length"]),
        reference=reference,
        parts=attention.parts_of(table, totals, runs, calibration, keys),
        forward=attention.forward_kernels(reference, totals, runs),
        matmuls=attention.matmul_limits(reference, totals, runs, calibration),
        families=attention.backward_families(reference, totals),
        backward=attention.backward_kernels(reference, totals),
    )


def _steps(
    runs: pd.DataFrame, steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame, bands: Bands | None
) -> pd.DataFrame:
    """Every case and mode: busy, timer and phase times with their parts for a noise band, launches, memory, and how
    long the GPU waits for launches (`metrics.waiting`)."""
    gpu = timing.gpu_times(kernels, memops)
    busy = timing.spread(gpu, ["run_id", "phase"], "busy_ns", "busy")
    timer = timing.host_times(steps, "timer", "timer")
    phases = busy.pivot(index="run_id", columns="phase", values="busy_ns")
    phases = phases.reindex(columns=[ranges.FORWARD, ranges.BACKWARD]).add_suffix("_ns").reset_index()
    launches = gpu[gpu["phase"] == ranges.STEP].groupby("run_id")["launches"].median().rename("launches").reset_index()
    memory = runs[["run_id", "peak_memory_bytes", "gpu_memory_bytes"]].astype({"run_id": str})
    late = waiting.launch_waits(steps, kernels, memops, bands.wall if bands else None)
    late = late[late["phase"] == ranges.STEP][["run_id", "launch_wait", "waits"]]
    parts = []
    for mode in MODES:
        table = run_grid.cases(runs, mode).assign(mode=mode)
        if "attention" not in table:
            table["attention"] = str(runs["attention"].iloc[0])
        for times in (busy, timer):
            table = table.merge(times[times["phase"] == ranges.STEP].drop(columns="phase"), how="left", on="run_id")
        for more in (phases, launches, memory, late):
            table = table.merge(more, how="left", on="run_id")
        parts.append(table)
    table = pd.concat(parts, ignore_index=True)
    share = timing.busy_share(table, kernels)
    waits = (table["timer_ns"] * (1 - share)).clip(lower=0)
    return table.assign(
        steady=table["run_id"].isin(find_steady_runs(steps)),
        busy_parts=np.sqrt(table["launches"].astype(float)),
        timer_parts=waits.fillna(table["timer_ns"]),
    )


def _join_naive(table: pd.DataFrame, keys: list[str], bands: Bands | None, rounds: pd.DataFrame) -> pd.DataFrame:
    """`_steps`, naive first, with the values of `naive` next to them (naive_*), and how many times as long `naive`
    takes: of the unprofiled step within rounds if both took turns."""
    table = attention.join_naive(table, [*COMPARED, "run_id", NOT_MEASURED], [*keys, "mode"])
    turns = compare_with_base(table["run_id"], table["naive_run_id"], rounds)
    table["naive_timer_ns"] = prefer_turns(turns, table["timer_ns"], table["naive_timer_ns"])
    for ratio, value in (("speedup", "busy_ns"), ("timer_speedup", "timer_ns"), ("memory_ratio", "peak_memory_bytes")):
        table[ratio] = table[f"naive_{value}"] / table[value]
    fused = table["attention"] != NAIVE
    for clock, band, faster, speedup in (
        ("busy", bands.kernel if bands else None, "faster", "speedup"),
        ("timer", bands.wall if bands else None, "timer_faster", "timer_speedup"),
    ):
        half_band = differences.half_band_ns(table, clock, f"naive_{clock}", band)
        if clock == "timer":
            half_band = prefer_turns_band(turns, table["timer_ns"], half_band)
        table[f"{clock}_band_ns"] = half_band.where(fused)
        table[faster] = differences.differ(table, clock, f"naive_{clock}", band) & (table[speedup] > 1)
    is_faster = turns["differs"] & (turns["times_as_fast"] > 1)
    table["timer_faster"] = table["timer_faster"].mask(turns["times_as_fast"].notna(), is_faster)
    table["quotable"] = mark_quotable(table["timer_faster"], table["steady"], table["naive_steady"], turns=turns)
    variant = [table[key] for key in keys[2:]]
    return sort_stably(
        table, *variant, rank_first_seen(table, ["size"]), table["context_length"], fused, table["attention"]
    )


def _crossovers(compared: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """A row for each backend and mode: the contexts from which it is faster by either clock (NaN: never), and the row
    of the longest context."""
    rows = []
    for _, group in compared.groupby([*keys, "mode", "attention"], sort=False):
        group = group.sort_values("context_length")
        contexts = {
            clock: _find_faster_from(group, flag) for clock, flag in (("busy", "faster"), ("timer", "timer_faster"))
        }
        rows.append(group.iloc[-1].to_dict() | {"busy_from": contexts["busy"], "timer_from": contexts["timer"]})
    columns = [*compared.columns, "busy_from", "timer_from"]
    return pd.DataFrame(rows, columns=columns).sort_values("mode", kind="stable", ignore_index=True)


def _find_faster_from(group: pd.DataFrame, flag: str) -> float:
    slower = group.loc[~group[flag], "context_length"].max()
    rest = group if pd.isna(slower) else group[group["context_length"] > slower]
    return float(rest["context_length"].min())


def _reference(trained: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """The backends at one case, to be looked at kernel by kernel: of those with most backends, the longest context."""
    if trained.empty:
        return trained
    number = trained.groupby(keys)["run_id"].transform("size")
    best = trained[number == number.max()].sort_values("context_length", kind="stable").tail(1)
    return trained[select_same(trained, best, keys)]


def select_same(table: pd.DataFrame, rows: pd.DataFrame, *columns: list[str]) -> pd.Series:
    """True for the rows that equal the first of `rows` in the columns; nowhere if there is none."""
    names = [name for part in columns for name in part]
    if rows.empty:
        return pd.Series(False, index=table.index)
    return (table[names] == rows.iloc[0][names]).all(axis=1)
