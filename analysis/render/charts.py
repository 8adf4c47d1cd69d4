"""Frames to inline SVG, by Altair at build time. Charts compute nothing: they draw the rows that they are given.

Colours are CSS variables (`--family-gemm`, `--series-0`, `--chart-text` ...), so that a drawing follows the reader's
light or dark drawing: the specification is drawn with placeholder colours, which `render` then replaces. What
a mark says becomes its <title>, which a tap shows, too (site/assets/report.js); ids get the chart's prefix.
"""

import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import altair as alt
import pandas as pd
import vl_convert as vlc
from altair.utils import schemapi

from profiler_job.analysis.render.bar_charts import (
    dumbbell,
    grouped_bars,
    ladder_bars,
    ratio_bars,
    stacked_parts,
    stacked_shares,
    stacked_times,
    waterfall,
)
from profiler_job.analysis.render.chart_parts import CONTROL, LABEL_SLACK, Drawing
from profiler_job.analysis.render.line_charts import history, lines, roofline, slopes, traces

CONFIG = {
    "background": "transparent",
    "font": "sans-serif",
    "padding": {"left": LABEL_SLACK, "right": 10, "top": 2, "bottom": 2},
    "view": {"strokeWidth": 0, "continuousWidth": 300, "continuousHeight": 300},
}
"""Of every drawing. Altair's `configure` would copy the whole chart to say so."""

SVG = "http://www.w3.org/2000/svg"


def render(kind: str, rows: pd.DataFrame, prefix: str, width: int, label: str = "", **options: Any) -> str:
    """SVG of `rows` drawn as `kind`, `width` CSS pixels wide, with ids that start with `prefix`; screen readers say
    `label`."""
    drawing = Drawing()
    with schemapi.debug_mode(False):  # whether it keeps to the schema, tests ask: that takes as long as all the rest
        document = specification(kind, rows, drawing, width, **options)
    svg = vlc.vegalite_to_svg(document)
    return _finish(svg, prefix, drawing, label)


def specification(kind: str, rows: pd.DataFrame, drawing: Drawing, width: int, **options: Any) -> dict[str, Any]:
    """What Vega-Lite draws, with placeholder colours of `drawing`."""
    document = KINDS[kind](rows, drawing, width, **options).to_dict(validate=schemapi.DEBUG_MODE)
    return document | {"datasets": drawing.datasets, "config": CONFIG}


KINDS: dict[str, Callable[..., alt.LayerChart | alt.ConcatChart]] = {
    "dumbbell": dumbbell,
    "stacked_shares": stacked_shares,
    "stacked_times": stacked_times,
    "grouped_bars": grouped_bars,
    "roofline": roofline,
    "lines": lines,
    "traces": traces,
    "stacked_parts": stacked_parts,
    "slopes": slopes,
    "history": history,
    "waterfall": waterfall,
    "ratio_bars": ratio_bars,
    "ladder_bars": ladder_bars,
}

COLOUR_COLUMNS = {
    "dumbbell": "clock",
    "stacked_shares": "family",
    "stacked_times": "family",
    "grouped_bars": "scope",
    "roofline": "series",
    "lines": "clock",
    "traces": "series",
    "stacked_parts": "scope",
    "slopes": "series",
    "waterfall": "series",
    "ratio_bars": "series",
    "ladder_bars": "series",
}


def colour_column(kind: str) -> str:
    """Column of the rows whose values the legend explains."""
    return COLOUR_COLUMNS[kind]


def _finish(svg: str, prefix: str, drawing: Drawing, label: str) -> str:
    ElementTree.register_namespace("", SVG)
    root = ElementTree.fromstring(CONTROL.sub("\ufffd", svg))
    variables = {code: f"var({variable})" for variable, code in drawing.codes.items()}
    titles = {
        CONTROL.sub("\ufffd", row["title"]) for rows in drawing.datasets.values() for row in rows if "title" in row
    }
    ids = {element.get("id"): f"{prefix}-{element.get('id')}" for element in root.iter() if element.get("id")}
    for element in root.iter():
        for name, text in list(element.attrib.items()):
            if name == "id":
                element.set(name, ids[text])
            elif text.lower() in variables:
                element.set(name, variables[text.lower()])
            elif "url(#" in text:
                element.set(
                    name,
                    re.sub(
                        r"url\(#([^)]+)\)",
                        lambda m: f"url(#{ids.get(m[1], m[1])})",
                        text,
                    ),
                )
            elif name in (
                "aria-roledescription",
                "role",
                "class",
                "font-family",
                "aria-hidden",
                "pointer-events",
            ):
                del element.attrib[name]
            elif name == "d" or name == "transform":
                element.set(
                    name,
                    re.sub(
                        r"\d+\.\d+",
                        lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."),
                        text,
                    ),
                )
        said = element.attrib.pop("aria-label", None)
        if said in titles and element.tag == f"{{{SVG}}}path" and len(element) == 0:  # Vega has words of its own, too
            title = ElementTree.SubElement(element, f"{{{SVG}}}title")
            title.text = said
    _slim(root)
    width, height = (float(root.attrib[side]) for side in ("width", "height"))
    root.set("viewBox", f"0 0 {width:g} {height:g}")
    root.set("width", f"{width:g}")
    root.set("height", f"{height:g}")
    root.set("role", "img")
    root.set("aria-label", label or prefix)
    root.set("focusable", "false")
    return ElementTree.tostring(root, encoding="unicode").replace("\n", " ")


_INHERITED = ("fill", "stroke", "stroke-width", "font-size", "font-weight", "text-anchor")


def _slim(element: ElementTree.Element) -> None:
    """Drop what draws nothing, and say once on a group what all its children say."""
    for child in list(element):
        _slim(child)
        tag = child.tag.removeprefix(f"{{{SVG}}}")
        if child.get("opacity") == "1":
            del child.attrib["opacity"]
        silent = (tag == "text" and not child.text and not len(child)) or (
            tag == "path" and child.get("d", "") in ("", "M0,0h0v0h0Z")
        )
        if silent or child.get("display") == "none" or (tag == "g" and not len(child)):
            element.remove(child)
    if element.tag != f"{{{SVG}}}g" or not len(element):
        return
    for name in _INHERITED:
        values = {child.get(name) for child in element}
        if len(element) < 2 or len(values) > 1 or element.get(name) is not None:
            continue
        if (value := values.pop()) is not None:
            element.set(name, value)
            for child in element:
                del child.attrib[name]
