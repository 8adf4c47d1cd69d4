"""A drawing as an SVG file of its own: with its legend, in light, and in dark where the reader's system is."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple

from profiler_job.analysis.render.text import escape

_VARIABLE = re.compile(r"var\(--([a-z0-9-]+)\)")
_DEFINED = re.compile(r"--([a-z0-9-]+):\s*(#[0-9a-f]+)")
_STYLE = re.compile(r"(?<=<style>)[^<]*(?=</style>)")
_SIZE = re.compile(r'<svg [^>]*?width="([\d.]+)" height="([\d.]+)"')
_ALSO_CALLED = {
    "chart-text": "ink",
    "chart-faint": "quiet",
    "chart-rule": "rule",
    "chart-grid": "rule",
    "chart-gap": "paper",
}
LINE, SWATCH, LETTER = 22, 10, 6.8
"""Pixels: of a line of the legend, of the side of a swatch, of a letter."""


class Entry(NamedTuple):
    """An entry of a legend. variable: of its colour, without dashes in front; is_round: its marks are points;
    is_hollow: they are outlines."""

    label: str
    variable: str
    is_round: bool = False
    is_hollow: bool = False


@cache
def read_colours() -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the colours by variable, in light and in dark."""
    css = resources.files(__package__).joinpath("document.css").read_text(encoding="utf-8")
    light, dark = (dict(_DEFINED.findall(part)) for part in css.split("@media (prefers-color-scheme: dark)")[:2])
    return tuple({**of, **{name: of[known] for name, known in _ALSO_CALLED.items()}} for of in (light, dark))  # type: ignore[return-value]


def make_file(svg: str, legend: Sequence[Entry]) -> str:
    """Return the file of a drawing whose colours are variables, in its attributes and its style, if it has one. Colours
    are written as in light, which any program shows; a rule for each has it as in dark."""
    light, dark = read_colours()
    size = _SIZE.match(svg)
    assert size, "a drawing has a size"
    width, height = float(size[1]), float(size[2])
    entries, top = _draw_legend(legend, width)
    drawing = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height + top:g}"'
        f' viewBox="0 0 {width:g} {height + top:g}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="var(--paper)"/>{entries}'
        f'<g transform="translate(0,{top})">{svg}</g></svg>\n'
    )
    drawing = _STYLE.sub(
        lambda style: f"{style[0]}@media(prefers-color-scheme:dark){{{_fill_in(style[0], dark)}}}", drawing
    )
    used = dict.fromkeys(_VARIABLE.findall(_STYLE.sub("", drawing)))
    plain = _fill_in(drawing, light)
    rules = {light.get(name, light["quiet"]): dark.get(name, dark["quiet"]) for name in used}
    style = "".join(f'[fill="{old}"]{{fill:{new}}}[stroke="{old}"]{{stroke:{new}}}' for old, new in rules.items())
    return plain.replace("<rect ", f"<style>@media(prefers-color-scheme:dark){{{style}}}</style><rect ", 1)


def _fill_in(drawing: str, colours: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda variable: colours.get(variable[1], colours["quiet"]), drawing)


def _draw_legend(legend: Sequence[Entry], width: float) -> tuple[str, int]:
    """Return the entries side by side, in as many lines as it takes, and their height."""
    parts, x, y = [], 8.0, LINE // 2
    for label, variable, is_round, is_hollow in legend:
        needed = SWATCH + 8 + LETTER * len(label) + 14
        if x > 8 and x + needed > width:
            x, y = 8.0, y + LINE
        corner = SWATCH / 2 if is_round else 1
        colour = f'fill="{"none" if is_hollow else f"var(--{variable})"}"'
        colour += f' stroke="var(--{variable})"' if is_hollow else ""
        parts.append(
            f'<rect x="{x:g}" y="{y - SWATCH / 2:g}" width="{SWATCH}" height="{SWATCH}" rx="{corner:g}"'
            f" {colour}/>"
            f'<text x="{x + SWATCH + 6:g}" y="{y + 4}" fill="var(--chart-text)">{escape(label)}</text>'
        )
        x += needed
    return "".join(parts), y + LINE // 2 if legend else 0
