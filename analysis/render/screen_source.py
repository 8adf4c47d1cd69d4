"""The first screen of a step in the Markdown of its page: pipe tables of its parts, its key numbers and what to do."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from profiler_job.analysis.insight.advice_lines import (
    IN_ONE_PROCESS,
    MOST_OF,
    ON_SLOW_CPU,
    OR_NOTHING,
    explain_apart,
    format_elsewhere,
    says_nothing,
)
from profiler_job.analysis.metrics.steady import MOST_APART
from profiler_job.analysis.render import icicle, text
from profiler_job.analysis.render.pipe_tables import write_caption, write_pipes
from profiler_job.jobs.contract.changes import LARGER_BATCH
from profiler_job.jobs.contract.quantities import UNITS, format_quantity, format_rounded

NOT_KNOWN = Markup("not known")
IN_SCREEN = "screen"
"""The name above a paragraph of a screen: the site shows the screen in its place."""
NOT_THE_LIMIT = "not what limits it"
ONLY_CHANGE = ", no other change"
ELSEWHERE = ", measured another time"
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
    start = "" if screen["cards"] else "Do this next: "
    words = ["Gains do not add up."] * (len(screen["cards"]) > 1)
    words += [f"{start}{screen['nothing_more']}"] * bool(screen["nothing_more"])
    if words:
        tables.append(Markup("<!-- {} -->\n").format(IN_SCREEN) + text.inline(" ".join(words)))
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
    known = {name: str(cell) for name, cell in cells.items() if cell} or {"step": str(NOT_KNOWN)}
    return write_pipes([*known], [[*known.values()]], [True] * len(known))


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
    """`115 → 44 ms` if it was measured, or else `could save up to 62 ms`, or `could save most of 62 ms` if the bound
    says nothing. What was measured elsewhere: `2.5× as fast on an H200`. `3.8× as fast` if the ratio is by turns, and
    the two times, each of the fastest process, give another. A larger batch makes its own steps longer, so it has
    rates: `34.7k → 37.2k tokens/s`."""
    is_rate = LARGER_BATCH in card["changes"]
    if card["kind"] == "measured":
        shown = _choose_rates(card) if is_rate else _choose_times(card)
        return shown or Markup("{}× {}").format(_format_interval(card)[0], "the tokens/s" if is_rate else "as fast")
    if card["elsewhere"]:
        return text.inline(format_elsewhere(card["changes"], card["elsewhere"])[0])
    if is_rate:
        return Markup("could give up to {} the tokens/s").format(text.rounded(card["ratio"], "ratio"))
    if says_nothing(card["changes"], card["ceiling_ns"], card["before_ns"]):
        return Markup("{} {}").format(MOST_OF, text.rounded(card["before_ns"], "ns"))
    return Markup("could save up to {}").format(text.rounded(card["ceiling_ns"], "ns"))


def _choose_rates(card: Mapping[str, Any]) -> Markup | None:
    """Write tokens a second before and after; None if the tokens of the step are not known, or two times do not give
    the ratio within its interval."""
    if not card.get("tokens") or not _is_within(card):
        return None
    before, after = (text.thousands(card["tokens"] / card[name] * 1e9) for name in ("before_ns", "after_ns"))
    return Markup("{} → {} tokens/s").format(before, after)


def _is_within(card: Mapping[str, Any]) -> bool:
    return card["apart"] is not None or bool(card["low"] <= card["before_ns"] / card["after_ns"] <= card["high"])


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
    the step that it starts from is not the one that is shown. What was not measured: `of 115 ms, not measured`, or that
    it does not fit the limit, or what it gave elsewhere. If the precision changes and nothing
    else, unlike in states, that is said, too."""
    is_rate = LARGER_BATCH in card["changes"]
    if card["kind"] != "measured":
        return _explain_bound(card)
    shown = card["shown_ns"] and text.rounded(card["shown_ns"], "ns")
    elsewhere = Markup(ONLY_CHANGE if card["is_alone"] else "")
    elsewhere += Markup("" if text.rounded(card["before_ns"], "ns") == shown else ELSEWHERE)
    if card["apart"] is not None:
        return Markup(explain_apart(card["apart"])) + elsewhere
    ratio, low, high = _format_interval(card)
    interval = Markup("[{}–{}]").format(low, high)
    elsewhere = Markup(ON_SLOW_CPU if card["on_slow_host"] else "") + elsewhere
    if not (_is_within(card) if is_rate else _choose_times(card)):
        return interval + IN_ONE_PROCESS + elsewhere
    if is_rate and not _choose_rates(card):
        return interval + elsewhere
    return Markup("{}× {}").format(ratio, interval) + elsewhere


def _explain_bound(card: Mapping[str, Any]) -> Markup:
    step, is_rate = text.rounded(card["before_ns"], "ns"), LARGER_BATCH in card["changes"]
    is_unbounded = not is_rate and says_nothing(card["changes"], card["ceiling_ns"], card["before_ns"])
    if card["elsewhere"]:
        return text.inline(format_elsewhere(card["changes"], card["elsewhere"])[1])
    words: list[str] = [] if is_rate or is_unbounded else [Markup("of {}").format(step)]
    words += [OR_NOTHING] * is_unbounded
    words += ["not measured"] * (card["fits_limit"] and not is_unbounded)
    words += [NOT_THE_LIMIT] * (not card["fits_limit"])
    return Markup(", ").join(words)
