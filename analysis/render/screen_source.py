"""The first screen of a step in the Markdown of its page: pipe tables of its parts, its key numbers and what to do."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from profiler_job.analysis.insight.advice_lines import ON_SLOW_CPU, says_nothing
from profiler_job.analysis.metrics.steady import MOST_APART
from profiler_job.analysis.render import icicle, text
from profiler_job.analysis.render.pipe_tables import write_caption, write_pipes
from profiler_job.jobs.contract.changes import LARGER_BATCH
from profiler_job.jobs.contract.quantities import UNITS, format_quantity, format_rounded

NOT_KNOWN = Markup("not known")
NOT_THE_LIMIT = "not what limits it"
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
    if len(screen["cards"]) > 1:
        tables.append(Markup("Gains do not add up."))
    if screen["nothing_more"]:
        start = "" if screen["cards"] else "Do this next: "
        tables.append(text.inline(f"{start}{screen['nothing_more']}"))
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
            ". ".join([_write_code(card), *(str(text.inline(caution)) for caution in card["cautions"])]),
        ]
        for card in cards
    ]
    return write_pipes(["do this next", "step", "code"], rows, [False, False, False])


def _write_code(card: Mapping[str, Any]) -> str:
    return str(text.inline(card["do"])) if card["do"] else ", ".join(f"`{line}`" for line in card["lines"])


def format_gain(card: Mapping[str, Any]) -> Markup:
    """`115 → 44 ms` if it was measured, or else `could save up to 62 ms`, or half, or an unknown part if the
    bound says nothing. `3.8× as fast` if the ratio is by turns, and the two times, each of the fastest
    process, give another."""
    if card["kind"] == "measured":
        return _choose_times(card) or Markup("{}× as fast").format(_format_interval(card)[0])
    if says_nothing(card["changes"], card["ceiling_ns"], card["before_ns"]):
        return Markup("could save an unknown part")
    is_half = LARGER_BATCH in card["changes"] and round(card["ceiling_ns"] / card["before_ns"], 2) == 0.5
    return Markup("could save up to {}").format("half" if is_half else text.rounded(card["ceiling_ns"], "ns"))


def _choose_times(card: Mapping[str, Any]) -> Markup | None:
    """Write both times with so many digits, two or three, that they give the ratio within its interval, as it is shown;
    None if they do not. Without a ratio two digits do."""
    for form in (text.rounded, text.quantity):
        before, after = (form(card[name], "ns") for name in ("before_ns", "after_ns"))
        number, _, unit = before.rpartition(text.THIN)
        shown = Markup("{} → {}").format(number if after.endswith(text.THIN + unit) else before, after)
        if card["apart"] is not None:
            return shown
        _, low, high = _format_interval(card)
        ratio = f"{_read_time(before) / _read_time(after):.{len(low.partition('.')[2])}f}"
        if float(low) <= float(ratio) <= float(high):
            return shown
    return None


def _read_time(shown: str) -> float:
    number, _, unit = shown.rpartition(text.THIN)
    return float(number.replace(",", "")) * UNITS["time"][unit]


def _format_interval(card: Mapping[str, Any]) -> tuple[str, str, str]:
    """The ratio and the ends of its interval, without a sign; two digits, or three if it is narrower than MOST_APART or
    reads as if it held 1."""
    shown = [format_rounded("ratio", card[name]) for name in _RATIO]
    if shown[1] == shown[2] or card["high"] / card["low"] - 1 < MOST_APART or card["low"] < READS_AS_1:
        shown = [format_quantity("ratio", card[name]) for name in _RATIO]
    ratio, low, high = (number.removesuffix("×") for number in shown)
    return ratio, low, high


def explain_gain(card: Mapping[str, Any]) -> Markup:
    """`2.6× [2.0–3.8]`, or why there is no ratio: `processes differ by 50%`; and that it is of another recording, if
    the step that it starts from is not the one that is shown. What was not measured: `of 115 ms, not measured`; a
    larger batch makes its own steps longer: `of 115 ms for the same tokens, not measured`, or `for the same tokens`.
    What does not fit the limit says that instead. `alone`: the precision changes and nothing else, unlike in states."""
    if card["kind"] != "measured":
        same = " for the same tokens" if LARGER_BATCH in card["changes"] else ""
        step = text.rounded(card["before_ns"], "ns")
        return Markup("of {}{}, {}").format(step, same, "not measured" if card["fits_limit"] else NOT_THE_LIMIT)
    shown = card["shown_ns"] and text.rounded(card["shown_ns"], "ns")
    elsewhere = Markup(", for the same tokens" if LARGER_BATCH in card["changes"] else "")
    elsewhere += Markup(", alone" if card["is_alone"] else "")
    elsewhere += Markup("" if text.rounded(card["before_ns"], "ns") == shown else ", in another recording")
    if card["apart"] is not None:
        is_single = math.isinf(card["apart"])
        return (
            Markup("measured once" if is_single else f"processes differ by {text.percent(card['apart'], 0)}")
            + elsewhere
        )
    ratio, low, high = _format_interval(card)
    interval = Markup("[{}–{}]").format(low, high)
    elsewhere = Markup(ON_SLOW_CPU if card["on_slow_host"] else "") + elsewhere
    if not _choose_times(card):
        return interval + ", by turns" + elsewhere
    return Markup("{}× {}").format(ratio, interval) + elsewhere
