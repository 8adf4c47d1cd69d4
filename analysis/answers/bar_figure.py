"""Horizontal bars as an SVG file of its own, in light and dark, without a library."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from profiler_job.jobs.contract.printable import make_printable

ROOM, BAR, GAP = 310, 13, 9
"""Length of the longest bar, thickness of a bar, and room between groups: narrow enough to be read on a phone."""
_LABELS, _CHARACTER, _LONGEST = 90, 6.6, 44
"""Room for labels at least, and for a character of them; characters of a label at most."""
_NUMBERS = 74
"""Room right of the longest bar for its number."""
COLOURS = ("c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7")
_STYLE = (
    "svg{--page:#ffffff;--text:#1f2a2e;--faint:#5c6b70;--c0:#1f5f99;--c1:#b4541a;--c2:#2c7a4b;"
    "--c3:#7a4b94;--c4:#8a6d00;--c5:#a83253;--c6:#3a7d84;--c7:#767676;font-family:sans-serif;font-size:12px;"
    "max-width:100%;height:auto}"
    "@media(prefers-color-scheme:dark){svg{--page:#0d1518;--text:#dde5e6;--faint:#9fb0b4;--c0:#6db0ee;"
    "--c1:#f0955a;--c2:#6fc793;--c3:#c39ade;--c4:#d9bb4e;--c5:#f07f9c;--c6:#74c3ca;--c7:#a9b3b5}}"
    ".page{fill:var(--page)}.case{fill:var(--text)}.label{text-anchor:end}.number{fill:var(--faint)}"
    + "".join(f".{name}{{fill:var(--{name})}}" for name in COLOURS)
)


class Bar(NamedTuple):
    """One bar, or a piece of one: the row that it is in, its series, its length, and its number, which is written next
    to a bar and is the title of a piece."""

    label: str
    series: str
    value: float
    shown: str


def draw_bars(title: str, bars: Sequence[Bar], is_stacked: bool = False, note: str = "") -> str:
    """Draw bars below each other, in groups by label; is_stacked: the pieces of a label follow each other in one bar.
    note: a line below them."""
    labels = [*dict.fromkeys(bar.label for bar in bars)]
    series = [*dict.fromkeys(bar.series for bar in bars)]
    most = max((bar.value for bar in bars), default=1.0) or 1.0
    if is_stacked:
        most = max(sum(bar.value for bar in bars if bar.label == label) for label in labels) or 1.0
    at = max(_LABELS, round(_CHARACTER * min(_LONGEST, max(map(len, labels), default=0)) + 16))
    width = at + ROOM + (16 if is_stacked else _NUMBERS)
    parts: list[str] = []
    y = _draw_legend(parts, series, width)
    for label in labels:
        mine = [bar for bar in bars if bar.label == label]
        height = BAR * (1 if is_stacked else len(mine))
        parts.append(_text(at - 8, y + height / 2 + 4, _cut(label), "case label"))
        x = float(at)
        for number, bar in enumerate(mine):
            top = y if is_stacked else y + number * BAR
            long = round(ROOM * max(bar.value, 0.0) / most, 1)
            left = x if is_stacked else float(at)
            kind = COLOURS[series.index(bar.series) % len(COLOURS)]
            drawn = f'<path class="{kind}" d="M{round(left, 1):g} {top}h{long:g}v{BAR - 2}h-{long:g}z"'
            if is_stacked and not long:
                continue
            if is_stacked:
                words = escape(make_printable(f"{bar.series}: {bar.shown}"))
                parts.append(f"{drawn}><title>{words}</title></path>")
                x += long
            else:
                parts.append(f"{drawn}/>")
                parts.append(_text(at + long + 5, top + BAR - 3.5, bar.shown, "number"))
        y += height + GAP
    if note:
        parts.append(_text(at, y + 10, note, "number"))
        y += 20
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" height="{y}" role="img"'
    name = escape(make_printable(title))
    return (
        f'{head} aria-label="{name}"><title>{name}</title><style>{_STYLE}</style>'
        f'<rect class="page" width="{width}" height="{y}"/>{"".join(parts)}</svg>\n'
    )


def _draw_legend(parts: list[str], series: Sequence[str], room: int) -> int:
    """Draw what the colours mean, in as many lines as it takes; returns where the bars begin."""
    x, y = 12.0, 8
    for number, name in enumerate(series):
        width = 32 + 1.15 * _CHARACTER * len(name)
        if x + width > room and x > 12:
            x, y = 12.0, y + 18
        parts.append(f'<rect class="{COLOURS[number % len(COLOURS)]}" x="{x:.1f}" y="{y}" width="11" height="11"/>')
        parts.append(_text(x + 16, y + 10, name, "case"))
        x += width
    return y + 26


def _text(x: float, y: float, words: str, kind: str) -> str:
    place = f'x="{round(x, 1):g}" y="{round(y, 1):g}"'
    return f'<text class="{kind}" {place}>{escape(make_printable(words))}</text>'


def _cut(label: str) -> str:
    return label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}…"
