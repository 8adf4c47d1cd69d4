"""The first screen of a run: the parts of its step, what limits it, its key numbers, and what to do next."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from profiler_job.analysis.changes import load_change
from profiler_job.analysis.changes.waiting_lines import HELD
from profiler_job.analysis.insight import step_parts
from profiler_job.analysis.insight.limit_lines import describe_headline, describe_nothing_to_do
from profiler_job.jobs.contract import modes
from profiler_job.jobs.contract.axes import find_default, find_value_name
from profiler_job.jobs.contract.changes import CHANGES, SCRIPT_LINE, WHOLE_GRAPHS
from profiler_job.jobs.contract.step_limit import COMMUNICATION, COMPUTE, CPU, MEMORY, StepLimit

MOST_CARDS = 3
LEAST_RATIO = 1.05
"""A smaller one is written as 1.0×, which nobody acts on."""
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
    cards = choose_cards(first, numbers["step_ns"])
    return {
        "run": run,
        "settings": describe_settings(run),
        "parts": parts,
        "phases": list(dict.fromkeys(parts["phase"])),
        "kinds": kinds,
        "limits": [
            {
                "name": label,
                "share": limit.measure_share(name),
                "kinds": [kind for kind in kinds if step_parts.KINDS[kind] == name],
            }
            for name, label in LIMITS.items()
        ]
        if limit is not None
        else [],
        "headline": NOT_PROFILED if limit is None else describe_headline(limit),
        "cards": cards,
        "why_no_cards": "" if cards else describe_nothing_to_do(limit),
        "numbers": numbers,
    }


def describe_settings(run: Mapping[str, Any]) -> str:
    """`BF16 autocast, fused attention, fused AdamW`"""
    known = [(name, str(run[name])) for name in SETTINGS if run.get(name) and not pd.isna(run[name])]
    is_training = str(run.get("mode")) == modes.MODES[-1]
    return ", ".join(
        str(find_value_name(name, value))
        for name, value in known
        if (name, value) != ("compile", find_default("compile")) and (name != "optimizer" or is_training)
    )


def choose_cards(first: Sequence[Mapping[str, Any]], step_ns: float | None) -> list[dict[str, Any]]:
    """Choose at most MOST_CARDS changes of `run_advice.rank_changes`: what was measured by its gain, then what has an
    upper bound, first what fits the limit, and of that what is about the line that holds the waiting; the rest in the
    order of `first`, which is not that of the bounds. Of changes that are one choice, such as TF32 and BF16, the later
    in CHANGES counts if its interval is above the other's gain, if it alone was measured, or if it is about that line.
    Sets of changes come only if no single change helps. No card has less than LEAST_RATIO."""
    advised = [entry for entry in first if not entry["reason"]]
    cards = [_describe_card(entry, step_ns) for entry in advised if len(entry["changes"]) == 1]
    cards = cards or [_describe_card(entry, step_ns) for entry in advised]
    known = [card for card in cards if card["ratio"] is not None and card["ratio"] >= LEAST_RATIO]
    chosen: dict[str, dict[str, Any]] = {}
    for card in sorted(known, key=lambda card: [*CHANGES].index(card["changes"][0])):
        choice = CHANGES[card["changes"][0]].axis or card["changes"][0]
        other = chosen.get(choice)
        is_known_better = other is not None and (other["kind"], card["kind"]) == (AT_MOST, MEASURED)
        is_about_line = other is not None and card["holds"] and card["kind"] == other["kind"]
        if other is None or is_known_better or is_about_line or card["low"] > other["ratio"]:
            chosen[choice] = card
    return sorted((card for card in cards if card in chosen.values()), key=_rank_card)[:MOST_CARDS]


def _rank_card(card: Mapping[str, Any]) -> tuple[bool, bool, bool, float]:
    is_bound = card["kind"] == AT_MOST
    return is_bound, not card["fits_limit"], not card["holds"], 0.0 if is_bound else -card["ratio"]


def _describe_card(entry: Mapping[str, Any], step_ns: float | None) -> dict[str, Any]:
    """One change or more: changes, actions, lines of code, kind (MEASURED or AT_MOST), shown_ns (the step of the
    screen), before_ns, ratio (None if none is known), low, high, fits_limit, where (the line of the script that it is
    about, or ""), whether that line holds the waiting (holds), and what to do if no other change is for it (do). Where
    it was measured: after_ns, and apart as in `rank_changes`. Otherwise ceiling_ns, which it could save at most."""
    names = tuple(entry["changes"])
    modules = [load_change(name) for name in names]
    now = entry["step_ns"] or step_ns
    card: dict[str, Any] = {"changes": names, "fits_limit": entry.get("fits_limit", False), "before_ns": now}
    card |= {"shown_ns": step_ns}
    card |= {"where": entry.get("where", ""), "holds": entry.get("line_share", 0.0) >= HELD}
    card["do"] = entry["do"] if len(names) == 1 and names[0] in OF_LINES else ""
    card |= {
        "actions": [module.ACTION for module in modules],
        "lines": [module.LINE for module in modules if not card["do"]],
    }
    if "measured_in" in entry:
        card |= {"kind": MEASURED, "ratio": entry["times_as_fast"], "low": entry["low"], "high": entry["high"]}
        return card | {"after_ns": now - entry["gain_ns"], "apart": entry["apart"]}
    left_ns = (now or 0) - float(entry["ceiling_ns"])
    ratio = now / left_ns if now and left_ns > 0 else None
    return card | {"kind": AT_MOST, "ratio": ratio, "low": 1.0, "high": ratio, "ceiling_ns": float(entry["ceiling_ns"])}
