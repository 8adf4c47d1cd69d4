"""The first screen of a step in the Markdown of its page: pipe tables of its parts, its key numbers and what to do."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from profiler_job.analysis.metrics.steady import MOST_APART
from profiler_job.analysis.render import icicle, text
from profiler_job.analysis.render.pipe_tables import write_caption, write_pipes
from profiler_job.jobs.contract.changes import LARGER_BATCH
from profiler_job.jobs.contract.quantities import format_quantity, format_rounded

NOT_KNOWN = Markup("not known")
READS_AS_1 = 1.05
"""Below this, a ratio of two digits reads as 1.0."""
_RATIO = ("ratio", "low", "high")


def to_markdown(screen: Mapping[str, Any], csv_link: str, step: str = "", picture: str = "") -> Markup:
    """Return the caption and the pipe tables of a screen (`pages.first_screen`). step: whose screen it is, if the page
    has several; picture: a link to its drawing, shown below the caption."""
    tables = [_tabulate_numbers(screen["numbers"])]
    if len(screen["parts"]):
        tables.insert(0, _tabulate_parts(screen))
    if screen["cards"]:
        tables.append(_tabulate_cards(screen["cards"]))
    else:
        tables.append(text.inline(f"Do this next: {screen['why_no_cards']}"))
    title = ": ".join(filter(None, (step, screen["headline"])))
    if picture:
        tables.insert(0, Markup("![{}]({})").format(text.inline(title), Markup(picture)))
    return write_caption(title, csv_link) + Markup("\n\n").join(tables)


def _tabulate_parts(screen: Mapping[str, Any]) -> Markup:
    rows = [[str(text.inline(row["module"])), *row["times"]] for row in icicle.tabulate(screen["parts"])]
    headings = ["module, ms", *(str(text.inline(phase)) for phase in screen["phases"])]
    return write_pipes(headings, rows, [False, *[True] * len(screen["phases"])])


def _tabulate_numbers(numbers: Mapping[str, Any]) -> Markup:
    cells = {
        "step": numbers["step_ns"] is not None and text.rounded(numbers["step_ns"], "ns"),
        "tokens/s": numbers["tokens_per_s"] is not None and text.thousands(numbers["tokens_per_s"]),
        "MFU of sheet peak": numbers["mfu"] is not None and text.percent(numbers["mfu"], 0),
        "peak allocated": numbers["peak_bytes"] is not None and text.rounded(numbers["peak_bytes"], "bytes"),
        "price of 1M tokens": numbers["cost"] is not None and _format_cost(numbers),
    }
    return write_pipes([*cells], [[str(cell or NOT_KNOWN) for cell in cells.values()]], [True] * len(cells))


def _format_cost(numbers: Mapping[str, Any]) -> Markup:
    return text.inline(numbers["currency"]) + text.rounded(numbers["cost"], "number")


def _tabulate_cards(cards: Sequence[Mapping[str, Any]]) -> Markup:
    rows = [
        [
            f"{text.listing(card['actions'])}{': ' * bool(card['where'])}{text.inline(card['where'])}",
            f"{format_gain(card)} ({explain_gain(card)})",
            str(text.inline(card["do"])) if card["do"] else ", ".join(f"`{line}`" for line in card["lines"]),
        ]
        for card in cards
    ]
    return write_pipes(["do this next", "step", "code"], rows, [False, False, False])


def format_gain(card: Mapping[str, Any]) -> Markup:
    """`115 → 44 ms` if it was measured, or else `could save up to 62 ms`. `3.8× as fast` if the ratio by turns is far
    from that of the two times, which are of the fastest process of each."""
    if card["kind"] == "measured" and _is_of_turns_alone(card):
        return Markup("{} as fast").format(format_rounded("ratio", card["ratio"]))
    if card["kind"] == "measured":
        before, after = (text.rounded(card[name], "ns") for name in ("before_ns", "after_ns"))
        number, _, unit = before.rpartition(text.THIN)
        return Markup("{} → {}").format(number if after.endswith(text.THIN + unit) else before, after)
    return Markup("could save up to {}").format(text.rounded(card["ceiling_ns"], "ns"))


def _is_of_turns_alone(card: Mapping[str, Any]) -> bool:
    """Whether the ratio of the card's two times is more than MOST_APART outside of the interval of its ratio."""
    if card["apart"] is not None:
        return False
    of_times, most = card["before_ns"] / card["after_ns"], 1 + MOST_APART
    return bool(of_times < card["low"] / most or of_times > card["high"] * most)


def explain_gain(card: Mapping[str, Any]) -> Markup:
    """`2.6× [2.0–3.8]`, or why there is no ratio: `varies by 50%`; and that it is of another recording, if the step
    that it starts from is not the one that is shown. What was not measured: `of 115 ms, not measured`; a larger batch
    makes its own steps longer: `for the work of 115 ms, not measured`, or `for the same tokens`. A ratio has two
    digits, or three if its interval is narrower than MOST_APART or reads as if it held 1."""
    if card["kind"] != "measured":
        of = "for the work of" if LARGER_BATCH in card["changes"] else "of"
        return Markup("{} {}, not measured").format(of, text.rounded(card["before_ns"], "ns"))
    shown = card["shown_ns"] and text.rounded(card["shown_ns"], "ns")
    elsewhere = Markup(", for the same tokens" if LARGER_BATCH in card["changes"] else "")
    elsewhere += Markup("" if text.rounded(card["before_ns"], "ns") == shown else ", in another recording")
    if card["apart"] is not None:
        is_single = math.isinf(card["apart"])
        return Markup("measured once" if is_single else f"varies by {text.percent(card['apart'], 0)}") + elsewhere
    ratio, low, high = (format_rounded("ratio", card[name]) for name in _RATIO)
    if low == high or card["high"] / card["low"] - 1 < MOST_APART or card["low"] < READS_AS_1:
        ratio, low, high = (format_quantity("ratio", card[name]) for name in _RATIO)
    interval = Markup("[{}–{}]").format(low[:-1], high[:-1])
    if _is_of_turns_alone(card):
        return interval + ", by turns" + elsewhere
    return Markup("{} {}").format(ratio, interval) + elsewhere
