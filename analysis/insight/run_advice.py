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
from profiler_job.jobs.contract.changes import CHANGES, COMPILED, FOREACH, FUSED_ADAMW, LARGER_BATCH
from profiler_job.jobs.contract.messages import COMPILE, SAMPLED
from profiler_job.jobs.contract.step_limit import DATA, GAPS, LAUNCHES, NOTHING, SYNCHRONISATION, StepLimit

LEAST_RATIO = 1.05
"""A smaller one is written as 1.0×, which nobody acts on."""
LEAST_BETTER = 1.03
"""Times that a choice must be as fast as one that asks less of a script: CUDA graphs need fixed shapes."""
MOST_CARDS = 3
"""Single changes that a screen has room for."""
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
    advised = advice.advise(facts | dict.fromkeys(("work_start_ns", "work_end_ns", "loading_end_ns")), sections)
    return _bound_by_half(advised, limit.step_ns)


def _bound_by_half(advised: pd.DataFrame, step_ns: float) -> pd.DataFrame:
    """Bound what a larger batch saves by half of the step: kernels that run at the same time are longer together."""
    is_batch = advised["change"] == LARGER_BATCH
    half = {name: advised[name].clip(upper=round(step_ns / 2)) for name in ("time_ns", "ceiling_ns")}
    return advised.assign(**{name: advised[name].mask(is_batch, half[name]) for name in half})


def is_compiled(run: Mapping[str, Any], scalars: Mapping[str, float]) -> bool:
    """Whether torch.compile compiled something of a run: its model, or a part, as each block by itself."""
    value = run.get("compile")
    is_model = value is not None and not pd.isna(value) and str(value) != find_default("compile")
    return is_model or bool(scalars.get(f"{COMPILE}graphs") or scalars.get(f"{COMPILE}cached_graphs"))


def rank_changes(
    advised: pd.DataFrame,
    measured: pd.DataFrame,
    elsewhere: Mapping[tuple[str, ...], Mapping[str, Any]] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Rank what to change first: single changes, then sets of them, then what is not advised. Measured gains come
    first, by the low end of their interval, then what is not measured and could save at most a ceiling. Of
    torch.compile and CUDA graphs one is ranked (`select_choices`).

    Each has changes (names), do, reason (empty where it is advised), step_ns (as it is) and gain_ns (None where it was
    not measured). Where it was measured: measured_in, the speed-up times_as_fast with its range low to high,
    on_slow_host (`measure_gains`), and apart: how far the processes are apart if they are too far for a ratio
    (`metrics.steady`), or else None. Where it was not:
    ceiling_ns, time_ns, sure, and what `elsewhere` has of these changes, None if nothing: what they gave on another GPU
    or with other settings, which is no gain of this run.
    """
    evident = {row["change"]: row for row in advised.to_dict("records")}
    gains, others = _list_measured(measured)
    known = set(measured["changes"]) if len(measured) else set()
    is_fused = (FUSED_ADAMW,) in known or evident.get(FUSED_ADAMW, {}).get("reason") == ""
    for name, row in evident.items():
        if name == FOREACH and is_fused:
            continue  # another choice for the same kernels, and the lesser
        if (name,) not in known:
            unmeasured = {"changes": (name,), "gain_ns": None, "step_ns": None, "elsewhere": elsewhere.get((name,))}
            others.append(row | unmeasured)
    ranked = sorted([*gains, *others], key=_rank)
    compiling = [entry for entry in ranked if not entry["reason"] and entry["changes"][0] in COMPILED]
    lesser = {entry["changes"] for entry in compiling} - {entry["changes"] for entry in select_choices(compiling)}
    return [entry for entry in ranked if entry["reason"] or entry["changes"] not in lesser]


def _rank(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what `rank_changes` sorts by; what is equal keeps its order."""
    if entry["reason"]:
        return (True,)
    is_set = len(entry["changes"]) > 1
    if is_measured(entry):
        return False, is_set, False, *rank_gain(entry)
    elsewhere = entry.get("elsewhere")
    of_elsewhere = rank_gain(elsewhere) if elsewhere and elsewhere["gains"] else (0.0, 0.0)
    order = (is_untried_risk(entry), *of_elsewhere, not entry.get("fits_limit", False))
    return False, is_set, True, *order, entry.get("line_share", 0.0) < HELD


def rank_gain(gain: Mapping[str, Any]) -> tuple[float, float]:
    """Return what measured gains are sorted by: what they give at least, and then their ratio."""
    return -gain["low"], -gain.get("times_as_fast", gain.get("ratio", 0.0))


def is_measured(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry of `rank_changes` was measured in its run."""
    return "measured_in" in entry


def is_untried_risk(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry of `rank_changes` has a caution, and was not measured."""
    return not is_measured(entry) and any(map(find_caution, entry["changes"]))


def select_first(entries: Sequence[Mapping[str, Any]], step_ns: float | None) -> list[Mapping[str, Any]]:
    """Select what to do first, in the order of cards and of lines: MOST_CARDS single changes, then sets of changes,
    then the other single ones. entries: as `rank_changes` gives them, in any order. step_ns: of the run, None if it is
    not known. Of changes that are one choice one counts (`select_choices`), and nothing that gives less than
    LEAST_RATIO. What has a caution and was not measured is never the first, and only there if it fits the limit."""
    advised = sorted((entry for entry in entries if not entry["reason"]), key=_rank)
    chosen = select_choices([entry for entry in advised if _is_worth_it(entry, step_ns)])
    singles = [entry for entry in chosen if len(entry["changes"]) == 1]
    safe = [
        entry
        for entry in singles
        if not is_untried_risk(entry) or (entry is not singles[0] and entry.get("fits_limit", False))
    ]
    sets = [entry for entry in chosen if len(entry["changes"]) > 1]
    return [*safe[:MOST_CARDS], *sets, *safe[MOST_CARDS:]]


def _is_worth_it(entry: Mapping[str, Any], step_ns: float | None) -> bool:
    """Return whether an advised entry gives LEAST_RATIO, or may, or if it is not known whether it does. What was
    measured elsewhere alone, and gave less or nothing there, is not."""
    if is_measured(entry):
        return bool(entry["times_as_fast"] >= LEAST_RATIO)
    elsewhere = entry.get("elsewhere")
    if elsewhere and (not elsewhere["gains"] or elsewhere["times_as_fast"] < LEAST_RATIO):
        return False
    now = entry["step_ns"] or step_ns
    return now is None or (entry["ceiling_ns"] < now and now / (now - entry["ceiling_ns"]) >= LEAST_RATIO)


def select_choices(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Select one of changes that are one choice, such as TF32 and BF16, of advised entries of `rank_changes`, or of
    sets that differ in such a choice alone: the later in CHANGES, which asks more of a script, if its interval is above
    the other's gain by LEAST_BETTER, if it was measured to be so much faster than the other, if it alone was measured,
    or if it is about the line that holds the waiting. Gains below LEAST_RATIO stay as they are."""
    chosen: dict[tuple[str, ...], Mapping[str, Any]] = {}
    kept = []
    for entry in sorted(entries, key=lambda entry: [[*CHANGES].index(name) for name in entry["changes"]]):
        if is_measured(entry) and entry["times_as_fast"] < LEAST_RATIO:
            kept.append(entry)
            continue
        choice = tuple(CHANGES[name].axis or name for name in entry["changes"])
        other = chosen.get(choice)
        if other is None or _is_better_choice(entry, other):
            chosen[choice] = entry
    kept += chosen.values()
    return [entry for entry in entries if any(entry is other for other in kept)]


def _is_better_choice(entry: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    is_known, was_known = is_measured(entry), is_measured(other)
    if is_known != was_known:
        return is_known
    if entry.get("line_share", 0.0) >= HELD:
        return True
    is_faster = is_known and entry["low"] > LEAST_BETTER * other["times_as_fast"]
    return is_faster or (is_known and entry.get("low_over_compile", 0.0) > LEAST_BETTER)


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
