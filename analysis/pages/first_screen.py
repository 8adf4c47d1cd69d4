"""The first screen of a run: the parts of its step, what limits it, its key numbers, and what to do next."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from profiler_job.analysis.changes import find_caution, load_change
from profiler_job.analysis.insight import step_parts
from profiler_job.analysis.insight.limit_lines import describe_headline, describe_nothing_more
from profiler_job.analysis.insight.run_advice import (
    LEAST_RATIO,
    LITTLE,
    MOST_CARDS,
    UNCERTAIN,
    is_measured,
    select_first,
)
from profiler_job.analysis.pages.titles import name_setting
from profiler_job.jobs.contract import modes
from profiler_job.jobs.contract.axes import find_default
from profiler_job.jobs.contract.changes import CHANGES, SCRIPT_LINE, WHOLE_GRAPHS
from profiler_job.jobs.contract.ranges import OPTIMIZER
from profiler_job.jobs.contract.step_limit import COMMUNICATION, COMPUTE, CPU, MEMORY, StepLimit

NOT_PROFILED = "This run was timed, not profiled"
MEASURED, AT_MOST = "measured", "at most"
SETTINGS = ("precision", "attention", "optimizer", "compile")
OF_LINES = (SCRIPT_LINE, WHOLE_GRAPHS)
"""Changes with no code that fits all scripts: what to do depends on the line."""
LIMITS = {COMPUTE: "compute", MEMORY: "memory", CPU: "CPU", COMMUNICATION: "communication"}
"""The limits in the order of the legend, with their names."""


def describe_screen(
    run: Mapping[str, Any],
    parts: pd.DataFrame,
    limit: StepLimit | None,
    first: Sequence[Mapping[str, Any]],
    numbers: Mapping[str, Any],
) -> dict[str, Any]:
    """Describe the first screen of a run. parts: its rows of `step_parts.measure_step_parts`; first: as
    `run_advice.rank_changes` gives it; numbers: step_ns, tokens_per_s, mfu, peak_bytes and cost (of a million tokens),
    each None if not known; phases: its unprofiled phases in ns by name; currency and price, of that cost; and of the
    timed processes num_steps, num_processes, shortest_ns, longest_ns and num_slow, and whether the run took turns
    (is_by_turns)."""
    kinds = step_parts.sum_by_kind(parts)
    cards = choose_cards(first, numbers["step_ns"], numbers["tokens_per_s"])
    has_updates = OPTIMIZER in kinds or bool((parts["phase"] == OPTIMIZER).any())  # some are elementwise by name
    if kinds and not has_updates:  # cautions are about updates
        cards = [card | {"cautions": []} for card in cards]
    shares = limit.format_shares(0) if limit is not None else {}
    without = list_without_gain(first)
    return {
        "run": run,
        "settings": describe_settings(run),
        "parts": parts,
        "phases": list(dict.fromkeys(parts["phase"])),
        "kinds": kinds,
        "limits": [
            {
                "name": label,
                "share": shares[name],
                "kinds": [kind for kind in kinds if step_parts.KINDS[kind] == name],
            }
            for name, label in LIMITS.items()
            if limit.parts.get(name)
        ]
        if limit is not None
        else [],
        "headline": NOT_PROFILED if limit is None else describe_headline(limit, kinds),
        "cards": cards,
        "nothing_more": describe_nothing_more(limit, len(cards), *without, numbers.get("mfu"))
        if len(cards) < MOST_CARDS
        else "",
        "nothing_else": describe_nothing_more(limit, 1, *without),  # if a card is added
        "numbers": numbers,
    }


def describe_settings(run: Mapping[str, Any]) -> str:
    """Describe what a state sets: `BF16 autocast, fused attention, fused AdamW`. Fused attention without more is
    PyTorch's choice."""
    known = [(name, str(run[name])) for name in SETTINGS if run.get(name) and not pd.isna(run[name])]
    is_training = str(run.get("mode")) == modes.MODES[-1]
    return ", ".join(
        name_setting(name, value).removesuffix(" (PyTorch's choice)")
        for name, value in known
        if (name, value) != ("compile", find_default("compile")) and (name != "optimizer" or is_training)
    )


def choose_cards(
    first: Sequence[Mapping[str, Any]], step_ns: float | None, tokens_per_s: float | None = None
) -> list[dict[str, Any]]:
    """Choose at most MOST_CARDS changes of `run_advice.rank_changes`, in the order of `run_advice.select_first`. Sets
    of changes come only if no single change helps. tokens: of the step, None if not known."""
    tokens = tokens_per_s * step_ns / 1e9 if tokens_per_s and step_ns else None
    chosen = select_first(first, step_ns)
    chosen = [entry for entry in chosen if len(entry["changes"]) == 1] or chosen
    described = [_describe_card(entry, step_ns) | {"tokens": tokens} for entry in chosen[:MOST_CARDS]]
    return [card for card in described if card["ratio"] is not None]


def list_without_gain(first: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """List the actions of single changes that were measured to give less than LEAST_RATIO, and of those that are not
    known to give anything. first: as `run_advice.rank_changes` gives it."""
    little: list[str] = []
    uncertain: list[str] = []
    for entry in first:
        if not is_measured(entry) or len(entry["changes"]) > 1:
            continue
        is_little = entry["reason"] == LITTLE or (not entry["reason"] and entry["times_as_fast"] < LEAST_RATIO)
        group = little if is_little else uncertain if entry["reason"] == UNCERTAIN else []
        group.append(load_change(entry["changes"][0]).ACTION)
    return little, uncertain


def list_cautions(names: Sequence[str]) -> list[str]:
    """List what a reader should know before making these changes."""
    return [caution for name in names if (caution := find_caution(name))]


def is_risky_card(card: Mapping[str, Any]) -> bool:
    """Return whether a card is of a change with a caution, which was not measured."""
    return card["kind"] == AT_MOST and bool(card["cautions"])


def _describe_card(entry: Mapping[str, Any], step_ns: float | None) -> dict[str, Any]:
    """One change or more: changes, actions, lines of code, kind (MEASURED or AT_MOST), shown_ns (the step of the
    screen), before_ns, ratio (None if none is known), low, high, fits_limit, where (the line of the script that it is
    about, or ""), what to do if no other change is for it (do), cautions, and whether it changes the precision alone,
    so that states which change more are faster (is_alone). Where it was measured: after_ns, on_slow_host and apart as
    in `rank_changes`. Otherwise ceiling_ns, which it could save at most, and elsewhere as there."""
    names = tuple(entry["changes"])
    modules = [load_change(name) for name in names]
    now = entry["step_ns"] or step_ns
    card: dict[str, Any] = {"changes": names, "fits_limit": entry.get("fits_limit", False), "before_ns": now}
    card |= {"shown_ns": step_ns}
    card["where"] = entry.get("where", "")
    card["do"] = entry["do"] if len(names) == 1 and names[0] in OF_LINES else ""
    card |= {
        "is_alone": len(names) == 1 and CHANGES[names[0]].axis == SETTINGS[0],
        "cautions": list_cautions(names),
        "actions": [module.ACTION for module in modules],
        "lines": [module.LINE for module in modules if not card["do"]],
    }
    if is_measured(entry):
        card |= {"kind": MEASURED, "ratio": entry["times_as_fast"], "low": entry["low"], "high": entry["high"]}
        card["on_slow_host"] = entry["on_slow_host"]
        return card | {"after_ns": now - entry["gain_ns"], "apart": entry["apart"]}
    left_ns = (now or 0) - float(entry["ceiling_ns"])
    ratio = now / left_ns if now and left_ns > 0 else None
    card |= {"kind": AT_MOST, "ratio": ratio, "low": 1.0, "high": ratio, "elsewhere": entry.get("elsewhere")}
    return card | {"ceiling_ns": float(entry["ceiling_ns"])}
