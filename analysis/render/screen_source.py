"""The first screen of a step in the Markdown of its page: pipe tables of its parts, its key numbers and what to do."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from profiler_job.analysis.render import icicle, text
from profiler_job.analysis.render.pipe_tables import write_caption, write_pipes

NOT_KNOWN = Markup("not known")


def to_markdown(screen: Mapping[str, Any], csv_link: str, step: str = "") -> Markup:
    """Return the caption and the pipe tables of a screen (`pages.first_screen`). step: whose screen it is, if the page
    has several."""
    tables = [_tabulate_numbers(screen["numbers"])]
    if len(screen["parts"]):
        tables.insert(0, _tabulate_parts(screen))
    if screen["cards"]:
        tables.append(_tabulate_cards(screen["cards"]))
    return write_caption(": ".join(filter(None, (step, screen["headline"]))), csv_link) + Markup("\n\n").join(tables)


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
            str(text.listing(card["actions"])),
            str(format_gain(card)),
            ", ".join(f"`{line}`" for line in card["lines"]),
        ]
        for card in cards
    ]
    return write_pipes(["do this next", "as fast", "code"], rows, [False, False, False])


def format_gain(card: Mapping[str, Any]) -> Markup:
    """`2.6× [2.0–3.8] measured`, `≤ 2.2× not tested`"""
    ratio = text.rounded(card["ratio"], "ratio")
    return Markup("{} {}").format(Markup("≤ {}").format(ratio) if card["is_bound"] else ratio, describe_gain(card))


def describe_gain(card: Mapping[str, Any]) -> Markup:
    """`[2.0–3.8] measured`: the interval, unless both ends read the same, and how it is known."""
    if card["is_bound"]:
        return Markup("not measured by turns" if card["apart"] else "not tested")
    low, high = (text.number_alone(card[end], "ratio") for end in ("low", "high"))
    interval = Markup("[{}–{}] ").format(low, high) if low != high else Markup("")
    return interval + text.inline(card["kind"])
