"""What to change first in a recorded run: what `advice` computes of a capture, for one step of a run.

A recording also holds steps that were timed without nsys: they show how long the GPUs wait (`step_limits`). The
profiled steps show what runs, and why a GPU waits.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pandas as pd

from profiler_job.analysis.changes import find_caution, join_code
from profiler_job.analysis.changes.waiting_lines import HELD
from profiler_job.analysis.insight import advice
from profiler_job.analysis.insight.module_times import list_modules
from profiler_job.analysis.insight.run_limit import BUSY, IDLE
from profiler_job.analysis.insight.step_parts import name_module
from profiler_job.analysis.insight.wait_lines import list_part_shares, measure_waiting, scale_waits
from profiler_job.analysis.metrics.steady import MOST_APART
from profiler_job.analysis.metrics.step_clocks import Clock
from profiler_job.analysis.reference import gpus
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.axes import find_default
from profiler_job.jobs.contract.changes import CHANGES, COMPILED, FOREACH, FUSED_ADAMW
from profiler_job.jobs.contract.messages import COMPILE, SAMPLED
from profiler_job.jobs.contract.step_limit import DATA, GAPS, LAUNCHES, NOTHING, SYNCHRONISATION, StepLimit

LEAST_RATIO = 1.05
"""A smaller one is written as 1.0×, which nobody acts on."""
LEAST_BETTER = 1.03
"""Times that a choice must be as fast as one that asks less of a script: CUDA graphs need fixed shapes."""
LITTLE = "measured, and less than 5% faster"
UNCERTAIN = "measured, and not known to be faster: a slow CPU may explain the difference"
"""Why a change is not advised though it was measured: its interval ends below LEAST_RATIO, or it holds 1."""
FORWARD_ATTENTION = r"flash_fprop|flash_fwd|fmha_fwd|fmha_cutlassF"
"""In the names of kernels of fused attention that only a forward pass needs."""


def advise(
    run: Mapping[str, Any],
    elapsed: pd.DataFrame,
    findings: pd.DataFrame,
    totals: pd.DataFrame,
    api: pd.DataFrame,
    timed: Mapping[str, Clock],
    limit: StepLimit | None,
    waits: pd.DataFrame | None = None,
    scalars: Mapping[str, float] = MappingProxyType({}),
    breaks: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Of one step of a run, of its GPUs in the mean, as in `advice.advise`. elapsed, findings: its rows of
    `metrics.elapsed`; totals: of `kernel_totals`; api: names of its calls; timed: its `clocks`; limit: of
    `step_limits.find_limits`, with the causes of `wait_lines.find_causes`; waits: the table of that name, and scalars:
    of the run; breaks: of `broken_lines.list_recorded`. No rows if the run was not timed or profiled."""
    if limit is None or elapsed.empty or totals.empty or ranges.STEP not in timed:
        return advice.make_advice_table([])
    lines = scale_waits(waits, scalars, limit) if waits is not None and len(waits) else pd.DataFrame(columns=_OF_LINES)
    waiting_ns = measure_waiting(lines, limit)
    parts = {name: share * waiting_ns for name, share in list_part_shares(scalars).items()}
    num_gpus = elapsed["gpu"].nunique()
    steps = max(int(run["profiled_steps"]), 1) * num_gpus
    totals = totals.assign(calls=totals["calls"] / num_gpus, time_ns=totals["time_ns"] / num_gpus)
    kernels = totals.groupby(["kernel_name", "family"], as_index=False)[["calls", "time_ns"]].sum()
    families = totals.groupby("family", as_index=False)[["calls", "time_ns"]].sum()
    phases = totals.groupby("phase", as_index=False)["time_ns"].sum()
    sections = {
        "verdict": _summarise_waiting(elapsed, limit, is_sampled=bool(len(lines))),
        "lines": lines,
        "waits": lines,
        "wait_parts": pd.DataFrame(list(parts.items()), columns=["part", "wait_ns"]),
        "verdict_phases": pd.DataFrame([(name, clock.wall_ns) for name, clock in timed.items()], columns=_OF_PHASES),
        "findings": findings.assign(
            time_ns=findings["time_ns"] / steps,
            launching_ns=findings["launching_ns"] / steps,
            count=findings["count"] // steps,
        ),
        "kernels": kernels.rename(columns={"kernel_name": "name", "time_ns": "total_ns"}),
        "families": families.rename(columns={"time_ns": "total_ns"}),
        "phases": phases.rename(columns={"time_ns": "kernel_ns"}).assign(inferred_share=0.0),
        "modules": list_modules(totals if is_compiled(run, scalars) else totals.head(0)),
        "api": api,
        "gpus": pd.DataFrame({"name": [str(run["gpu_name"])]}),
    } | ({} if breaks is None else {"breaks": breaks})
    facts: dict[str, Any] = {"num_kernels": totals["calls"].sum(), "num_graph_executions": 0, "is_slowed": False}
    facts |= {"recomputed": _measure_recomputed(totals), "attention_matmuls_ns": _sum_attention_matmuls(totals)}
    facts["attention_ns"] = _sum_attention(totals)
    idle_ns = float(elapsed[[name for name in IDLE if name in elapsed]].sum().sum()) / num_gpus
    facts |= {"is_compiled": is_compiled(run, scalars), "captured_waiting_ns": idle_ns}
    facts |= {"memory_used": _measure_memory_used(run), "limit": limit}
    facts |= {"sampled_share": scalars.get(f"{SAMPLED}covered"), "own_python_ns": _find_own(scalars) * waiting_ns}
    return advice.advise(facts | dict.fromkeys(("work_start_ns", "work_end_ns", "loading_end_ns")), sections)


def is_compiled(run: Mapping[str, Any], scalars: Mapping[str, float]) -> bool:
    """Whether torch.compile compiled something of a run: its model, or a part, as each block by itself."""
    value = run.get("compile")
    is_model = value is not None and not pd.isna(value) and str(value) != find_default("compile")
    return is_model or bool(scalars.get(f"{COMPILE}graphs") or scalars.get(f"{COMPILE}cached_graphs"))


def rank_changes(advised: pd.DataFrame, measured: pd.DataFrame) -> list[dict[str, Any]]:
    """Rank what to change first: measured gains by the low end of their interval, then what is not measured and could
    save at most a ceiling, then what is not advised. Of torch.compile and CUDA graphs one is ranked (`select_choices`).

    Each has changes (names), do, reason (empty where it is advised), step_ns (as it is) and gain_ns (None where it was
    not measured). Where it was measured: measured_in, the speed-up times_as_fast with its range low to high,
    on_slow_host (`measure_gains`), and apart: how far the processes are apart if they are too far for a ratio
    (`metrics.steady`), or else None. Where it was not:
    ceiling_ns, time_ns and sure.
    """
    evident = {row["change"]: row for row in advised.to_dict("records")}
    gains, others = _list_measured(measured)
    known = set(measured["changes"]) if len(measured) else set()
    is_fused = (FUSED_ADAMW,) in known or evident.get(FUSED_ADAMW, {}).get("reason") == ""
    for name, row in evident.items():
        if name == FOREACH and is_fused:
            continue  # another choice for the same kernels, and the lesser
        if (name,) not in known:
            others.append(row | {"changes": (name,), "gain_ns": None, "step_ns": None})
    gains.sort(key=rank_gain)
    ranked = [*gains, *sorted(others, key=_rank_unmeasured)]
    compiling = [entry for entry in ranked if not entry["reason"] and entry["changes"][0] in COMPILED]
    lesser = {entry["changes"] for entry in compiling} - {entry["changes"] for entry in select_choices(compiling)}
    return [entry for entry in ranked if entry["reason"] or entry["changes"] not in lesser]


def rank_gain(gain: Mapping[str, Any]) -> tuple[float, float]:
    """Return what measured gains are sorted by: what they give at least, and then their ratio."""
    return -gain["low"], -gain.get("times_as_fast", gain.get("ratio", 0.0))


def select_choices(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Select one of single changes that are one choice, such as TF32 and BF16, of advised entries of `rank_changes`:
    the later in CHANGES, which asks more of a script, if its interval is above the other's gain by LEAST_BETTER, if it
    was measured to be so much faster than the other, if it alone was measured, or if it is about the line that holds
    the waiting. Sets of changes, and gains below LEAST_RATIO, stay as they are."""
    chosen: dict[str, Mapping[str, Any]] = {}
    kept = []
    for entry in sorted(entries, key=lambda entry: [*CHANGES].index(entry["changes"][0])):
        is_measured = "measured_in" in entry
        if len(entry["changes"]) > 1 or (is_measured and entry["times_as_fast"] < LEAST_RATIO):
            kept.append(entry)
            continue
        choice = CHANGES[entry["changes"][0]].axis or entry["changes"][0]
        other = chosen.get(choice)
        if other is None or _is_better_choice(entry, other):
            chosen[choice] = entry
    kept += chosen.values()
    return [entry for entry in entries if any(entry is other for other in kept)]


def _is_better_choice(entry: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    is_measured, was_measured = ("measured_in" in each for each in (entry, other))
    if is_measured != was_measured:
        return is_measured
    if entry.get("line_share", 0.0) >= HELD:
        return True
    is_faster = is_measured and entry["low"] > LEAST_BETTER * other["times_as_fast"]
    return is_faster or (is_measured and entry.get("low_over_compile", 0.0) > LEAST_BETTER)


def _rank_unmeasured(row: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    is_risky = any(map(find_caution, row["changes"]))
    return row["reason"] != "", is_risky, not row.get("fits_limit", False)


def _list_measured(measured: pd.DataFrame) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What was measured: changes that make a step faster, and single ones that do not, or may not."""
    gains, others = [], []
    for row in measured.to_dict("records"):
        entry = {"changes": row["changes"], "do": join_code(row["changes"], is_recorded=True), "reason": ""}
        entry |= {
            "step_ns": row["before_ns"],
            "gain_ns": row["before_ns"] - row["after_ns"],
            **{name: row[name] for name in ("times_as_fast", "low", "high", "measured_in", "on_slow_host")},
            "low_over_compile": row.get("low_over_compile", math.nan),
            "apart": row["apart"] if row["apart"] > MOST_APART else None,
        }
        if row["gains"]:
            gains.append(entry)
        elif len(row["changes"]) == 1:
            others.append(entry | {"reason": LITTLE if row["high"] < LEAST_RATIO else UNCERTAIN})
    return gains, others


def _measure_memory_used(run: Mapping[str, Any]) -> float | None:
    gpu, peak = gpus.lookup(str(run["gpu_name"])), run.get("peak_memory_bytes")
    return None if gpu is None or peak is None or pd.isna(peak) else float(peak) / gpu.memory_bytes


def _measure_recomputed(totals: pd.DataFrame) -> float:
    """Measure how often backward launches fused attention of forward, for each launch in forward; 0 without any."""
    of_forward = totals[totals["kernel_name"].astype(str).str.contains(FORWARD_ATTENTION)]
    calls = of_forward.groupby(of_forward["phase"].astype(str))["calls"].sum()
    return float(calls.get(ranges.BACKWARD, 0) / calls[ranges.FORWARD]) if ranges.FORWARD in calls else 0.0


def _sum_attention_matmuls(totals: pd.DataFrame) -> float | None:
    """Sum the matmuls of attention and those of no known module; None if no module is called as in the reference
    Transformer."""
    gemms = totals[totals["family"].astype(str) == "gemm"]
    leaf = gemms["module"].astype(str).str.rsplit("/", n=1).str[-1]
    is_attention = leaf.isin([ranges.ATTENTION_SCORES, ranges.ATTENTION_OUTPUT])
    return float(gemms.loc[is_attention | (leaf == ""), "time_ns"].sum()) if is_attention.any() else None


def _sum_attention(totals: pd.DataFrame) -> float | None:
    """Sum the kernels of attention as the first screen shows them, and matmuls of no known module, which may be
    attention's; None as for `_sum_attention_matmuls`."""
    if _sum_attention_matmuls(totals) is None:
        return None
    modules = totals["module"].astype(str)
    names = [name_module(str(phase), path) for phase, path in zip(totals["phase"], modules)]
    is_attention = pd.Series(names, totals.index) == ranges.ATTENTION
    is_unknown = (totals["family"].astype(str) == "gemm") & (modules == "")
    return float(totals.loc[is_attention | is_unknown, "time_ns"].sum())


_OF_PHASES = ["phase", "elapsed_ns"]
_OF_LINES = ["where", "function", "share", "sync_ns", "copies_ns", "below", "do", "wait_ns", "ceiling_ns"]


def _find_own(scalars: Mapping[str, float]) -> float:
    """Find the share of the waiting that is for own code which launches nothing; 0 if it is not known."""
    return scalars.get(f"{SAMPLED}own_share", 0.0)


def _summarise_waiting(elapsed: pd.DataFrame, limit: StepLimit, is_sampled: bool) -> pd.DataFrame:
    """One row: what runs in a step of a GPU, of the profiled steps, and how long it waits, of the unprofiled ones. The
    synchronisations that `step_limits` knows are made by the timer, at the end of each phase: no change of the model
    removes them, and so they are no `sync_ns`. Those that samples show (is_sampled) are the script's."""
    num_gpus = elapsed["gpu"].nunique()
    busy = elapsed[[name for name in (*BUSY, "compute_ns") if name in elapsed]].sum() / num_gpus
    causes = {name: limit.causes.get(name, 0.0) for name in (LAUNCHES, DATA, NOTHING, GAPS, SYNCHRONISATION)}
    sync_ns = causes[SYNCHRONISATION] if is_sampled else 0.0
    waits = {
        "late_launch_ns": causes[LAUNCHES] + causes[DATA] + causes[NOTHING],
        "data_ns": causes[DATA],
        "nothing_ns": causes[NOTHING],
        "sync_ns": sync_ns,
        "between_ns": causes[GAPS] + causes[SYNCHRONISATION] - sync_ns,
    }
    return pd.DataFrame([dict(busy) | waits])
