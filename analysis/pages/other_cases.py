"""Cards of home that lead to another measured case: another context, or a larger batch, with faster steps per token."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from profiler_job.analysis.insight.run_advice import LEAST_RATIO, MOST_CARDS
from profiler_job.analysis.metrics.steady import MOST_APART
from profiler_job.analysis.pages.first_screen import AT_MOST, MEASURED, is_risky_card
from profiler_job.analysis.pages.home_cases import HomeCase
from profiler_job.jobs.contract.changes import LARGER_BATCH

CONTEXT, BATCH = 1, 2
"""Places of the choices in `HomeCase.at`."""

Screens = Mapping[tuple[int, str], Mapping[str, Any]]


def fill_cards(case: HomeCase, state: str, cases: Sequence[HomeCase], screens: Screens) -> dict[str, Any]:
    """Return the first screen of a state of a case. If it has fewer than MOST_CARDS, each choice that none is about may
    add one: the case whose step per token is fastest, of those that differ in this choice alone, have the same
    settings, and are faster in all pairs of processes. If no context is, that is said. screens: of all cases, by the
    index of the recording and the id of the run."""
    shown = screens[case.runs[state]]
    cards, is_best_context = [*shown["cards"]], False
    is_about_batch = any(LARGER_BATCH in card["changes"] for card in cards)
    for choice in (CONTEXT, *[BATCH] * (not is_about_batch)):
        others = [
            _compare(case, other, choice, shown, screens[other.runs[state]]) for other in cases if state in other.runs
        ]
        known = [card for card in others if card]
        faster = [card for card in known if card["ratio"] >= LEAST_RATIO and card["low"] > 1]
        cards += sorted(faster, key=lambda card: -card["ratio"])[:1]
        is_best_context |= choice == CONTEXT and bool(known) and all(card["ratio"] < LEAST_RATIO for card in known)
    cards = sorted(cards, key=lambda card: (is_risky_card(card), _is_beside_limit(card)))
    if len(cards) >= MOST_CARDS:
        return {**shown, "cards": cards[:MOST_CARDS], "nothing_more": ""}
    nothing = shown["nothing_else"] if len(cards) > len(shown["cards"]) else shown["nothing_more"]
    if is_best_context:
        nothing += " No other context that we measured gives 5% more tokens/s."
    return {**shown, "cards": cards, "nothing_more": nothing}


def _is_beside_limit(card: Mapping[str, Any]) -> bool:
    """Return whether a card has a bound alone, of what does not limit the step."""
    return card["kind"] == AT_MOST and not card["fits_limit"] and not card["elsewhere"]


def _compare(
    case: HomeCase, other: HomeCase, choice: int, shown: Mapping[str, Any], of_other: Mapping[str, Any]
) -> dict[str, Any] | None:
    """A card, or None if the other case differs in more than this choice, or has a smaller batch."""
    larger = _count_tokens(other) / _count_tokens(case)
    if any((a != b) != (at == choice) for at, (a, b) in enumerate(zip(case.at, other.at))):
        return None
    if shown["settings"] != of_other["settings"] or (choice == BATCH and larger < 1):
        return None
    before, after = shown["numbers"], of_other["numbers"]
    if not before["step_ns"] or not after["step_ns"]:
        return None
    apart = max(
        of["longest_ns"] / of["shortest_ns"] - 1 if of["num_processes"] > 1 else math.inf for of in (before, after)
    )
    value, name = other.at[choice], "context" if choice == CONTEXT else "batch"
    return {
        "changes": (LARGER_BATCH,),  # as with this, a step has other tokens
        "tokens": _count_tokens(case),
        "kind": MEASURED,
        "before_ns": before["step_ns"],
        "shown_ns": before["step_ns"],
        "after_ns": after["step_ns"] / larger,
        "ratio": before["step_ns"] / after["step_ns"] * larger,
        "low": before["shortest_ns"] / after["longest_ns"] * larger,
        "high": before["longest_ns"] / after["shortest_ns"] * larger,
        "apart": apart if apart > MOST_APART else None,
        "on_slow_host": False,
        "is_alone": False,
        "where": "",
        "do": "",
        "actions": [f"Use a {name} of {value}"],
        "lines": [f"{name}_{'length' if choice == CONTEXT else 'size'} = {value.replace(',', '')}"],
        "cautions": [f"Only if {'longer' if larger > 1 else 'shorter'} texts fit your task"]
        if choice == CONTEXT
        else [],
    }


def _count_tokens(case: HomeCase) -> int:
    return case.numbers.context_length * case.numbers.batch_size
