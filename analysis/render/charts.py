"""Frames to inline SVG, by Altair at build time. Charts compute nothing: they draw the rows that they are given.

Colours are CSS variables (`--family-gemm`, `--series-0`, `--chart-text` ...), so that a drawing follows the reader's
light or dark drawing: the specification is drawn with placeholder colours, which `render` then replaces. What
a mark says becomes its <title>, which a tap shows, too (site/assets/report.js); ids get the chart's prefix.
"""

import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Literal
from xml.etree import ElementTree

import altair as alt
import pandas as pd
import vl_convert as vlc
from altair.utils import schemapi

WIDE, NARROW = 840, 350
LABEL_SLACK = 26
"""Pixels left of the labels: a reader's font may be wider than the one that they were measured in."""
CONFIG = {
    "background": "transparent",
    "font": "sans-serif",
    "padding": {"left": LABEL_SLACK, "right": 10, "top": 2, "bottom": 2},
    "view": {"strokeWidth": 0, "continuousWidth": 300, "continuousHeight": 300},
}
"""Of every drawing. Altair's `configure` would copy the whole chart to say so."""
SVG = "http://www.w3.org/2000/svg"
TEXT, FAINT, RULE = "--chart-text", "--chart-faint", "--chart-rule"
DRAWN = 0.001
"""Smaller shares than this would be thinner than the gap between two segments: their rows tell of them."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


class Drawing:
    """What a drawing is made of: placeholder colours for CSS variables, one hex code each, and rows by name."""

    def __init__(self) -> None:
        self.codes: dict[str, str] = {}
        self.datasets: dict[str, list[dict]] = {}

    def __getitem__(self, variable: str) -> str:
        return self.codes.setdefault(variable, f"#fe{len(self.codes):04x}")

    def data(self, rows: pd.DataFrame) -> alt.NamedData:
        """A name for `rows`: a chart that held them itself would copy them whenever it is changed or layered."""
        name = f"rows-{len(self.datasets)}"
        self.datasets[name] = json.loads(rows.to_json(orient="records", double_precision=15))
        return alt.NamedData(name)


def render(kind: str, rows: pd.DataFrame, prefix: str, width: int, label: str = "", **options) -> str:
    """SVG of `rows` drawn as `kind`, `width` CSS pixels wide, with ids that start with `prefix`; screen readers say
    `label`."""
    drawing = Drawing()
    with schemapi.debug_mode(False):  # whether it keeps to the schema, tests ask: that takes as long as all the rest
        document = specification(kind, rows, drawing, width, **options)
    svg = vlc.vegalite_to_svg(document)
    return _finish(svg, prefix, drawing, label)


def specification(kind: str, rows: pd.DataFrame, drawing: Drawing, width: int, **options) -> dict:
    """What Vega-Lite draws, with placeholder colours of `drawing`."""
    document = KINDS[kind](rows, drawing, width, **options).to_dict(validate=schemapi.DEBUG_MODE)
    return document | {"datasets": drawing.datasets, "config": CONFIG}


def case_label(rows: pd.DataFrame, by: list[str]) -> pd.Series:
    """One label per row out of its case columns: `small · 128`."""
    return rows[list(by)].astype(str).agg(" · ".join, axis=1).map(lambda text: _CONTROL.sub("\ufffd", text))


# ---------------------------------------------------------------- kinds


def dumbbell(
    rows: pd.DataFrame,
    drawing: Drawing,
    width: int,
    order,
    by,
    value="time_ns",
    unit="ms (log scale)",
    log=True,
    sign="×",
) -> alt.LayerChart:
    """One line per case with a dot per `clock`, on a logarithmic axis, or a linear one that need not start at zero. A
    `value` in ns is drawn in ms; any other is read out with its `sign`."""
    data = pd.DataFrame({"label": case_label(rows, by), "clock": rows["clock"]})
    nanoseconds = value.endswith("_ns")
    data["value"] = rows[value] / 1e6 if nanoseconds else rows[value]
    number = [f"{v:,.3g} ms" if nanoseconds else f"{v:,.3g}{sign}" for v in data["value"]]
    data["title"] = [
        f"{label}, {clock}: {text}" for label, clock, text in zip(data["label"], data["clock"], number, strict=True)
    ]
    colours = alt.Scale(domain=list(order), range=[drawing[f"--series-{i}"] for i in range(len(order))])
    shapes = alt.Scale(
        domain=list(order),
        range=["circle", "square", "triangle-up", "diamond"][: len(order)],
    )
    y = alt.Y(
        "label:N",
        sort=list(dict.fromkeys(data["label"])),
        title=None,
        axis=_category_axis(drawing),
    )
    most = 6 if width < 500 else 9
    axis = _log_axis(drawing, data["value"], most) if log else _value_axis(drawing, "~g", most)
    scale = {"type": "log"} if log else {"zero": False}
    x = alt.X("value:Q", scale=alt.Scale(nice=False, padding=12, **scale), title=unit, axis=axis)
    base = alt.Chart(drawing.data(data), width=_plot_width(data, width), height=alt.Step(17))
    lines = base.mark_line(strokeWidth=1.5, color=drawing[RULE]).encode(y=y, x=x, detail=alt.Detail("label:N"))
    dots = base.mark_point(filled=True, size=46, opacity=1).encode(
        y=y,
        x=x,
        color=alt.Color("clock:N", scale=colours, legend=None),
        shape=alt.Shape("clock:N", scale=shapes, legend=None),
        description=alt.Description("title:N"),
    )
    return lines + dots


def stacked_times(rows: pd.DataFrame, drawing: Drawing, width: int, by, order, row="") -> alt.LayerChart:
    """One bar per case (and per value of `row`) of the `time_ns` of each `family`, in ms."""
    rows = drawn("stacked_times", rows)
    return _stacked(rows.assign(share=rows["time_ns"] / 1e6), drawing, width, by, order, row, in_ms=True)


def stacked_shares(rows: pd.DataFrame, drawing: Drawing, width: int, by, order, row="") -> alt.LayerChart:
    """One 100% bar per case (and per value of `row`), cut by `family`; segments of at least 9% carry their number."""
    return _stacked(drawn("stacked_shares", rows), drawing, width, by, order, row)


def _stacked(
    rows: pd.DataFrame, drawing: Drawing, width: int, by, order, row="", in_ms: bool = False
) -> alt.LayerChart:
    names = [*by, row] if row else list(by)
    data = pd.DataFrame(
        {
            "label": case_label(rows, names),
            "family": rows["family"],
            "share": rows["share"],
        }
    )
    if row:
        rank = rows.groupby(list(by), sort=False).ngroup()
        data = data.assign(
            _rank=rank,
            _row=rows[row].map({v: i for i, v in enumerate(dict.fromkeys(rows[row]))}),
        )
        data = data.sort_values(["_rank", "_row"], kind="stable").drop(columns=["_rank", "_row"])
        data["label"] = data["label"].str.replace("train_step", "train", regex=False)
        if width <= NARROW:
            data["label"] = data["label"].str.replace(" · forward", " fwd").str.replace(" · train", " train")
    data["position"] = data["family"].map({family: i for i, family in enumerate(order)})
    full = data.groupby("label")["share"].sum().max() if in_ms else 1.0
    data["title"] = [
        f"{a}, {f}: {f'{s:,.3g} ms' if in_ms else f'{s:.1%}'}"
        for a, f, s in zip(data["label"], data["family"], data["share"], strict=True)
    ]
    room = (0.06 if width > 500 else 0.11) * full
    data["text"] = [f"{s if in_ms else s * 100:,.0f}" if s >= room else "" for s in data["share"]]
    colours = alt.Scale(domain=list(order), range=[drawing[f"--family-{family}"] for family in order])
    y = alt.Y(
        "label:N",
        sort=list(dict.fromkeys(data["label"])),
        title=None,
        axis=_category_axis(drawing),
    )
    title, scale = "ms of kernel time" if in_ms else "% of kernel time", alt.Scale(domain=[0, full], nice=False)
    axis = _value_axis(drawing, ",~f", 5)
    if not in_ms:
        axis = alt.Axis(**{**_value_axis(drawing, "%", 5).to_dict(), "labelExpr": "format(datum.value * 100, '.3~g')"})
    base = alt.Chart(drawing.data(data), width=_plot_width(data, width), height=alt.Step(17))
    bars = base.mark_bar(
        height=alt.RelativeBandSize(0.82),
        stroke=drawing["--chart-gap"],
        strokeWidth=0.75,
    ).encode(
        y=y,
        x=alt.X("share:Q", axis=axis, stack="zero", title=title, scale=scale),
        color=alt.Color("family:N", scale=colours, legend=None),
        order=alt.Order("position:Q"),
        description=alt.Description("title:N"),
    )
    on_colours = alt.Scale(domain=list(order), range=[drawing[f"--on-{family}"] for family in order])
    text = base.mark_text(fontSize=12).encode(
        y=y,
        x=alt.X("share:Q", bandPosition=0.5, axis=axis, stack="zero", title=title, scale=scale),
        order=alt.Order("position:Q"),
        text=alt.Text("text:N"),
        color=alt.Color("family:N", scale=on_colours, legend=None),
    )
    return alt.LayerChart(layer=[bars, text], resolve=alt.Resolve(scale=alt.ScaleResolveMap(color="independent")))


def grouped_bars(
    rows: pd.DataFrame, drawing: Drawing, width: int, by, order, unit="% of kernel time", zero=True
) -> alt.LayerChart:
    """Per case one dot per `scope` at its `share`: the same drawing as `dumbbell`, on a linear axis, which starts at
    `zero` where shares of a whole are drawn, and not where rates are."""
    data = pd.DataFrame({"label": case_label(rows, by), "scope": rows["scope"], "share": rows["share"]})
    data["title"] = [f"{a}, {s}: {v:.1%}" for a, s, v in zip(data["label"], data["scope"], data["share"], strict=True)]
    colours = alt.Scale(domain=list(order), range=[drawing[f"--series-{i}"] for i in range(len(order))])
    shapes = alt.Scale(
        domain=list(order),
        range=["circle", "square", "triangle-up", "diamond"][: len(order)],
    )
    y = alt.Y(
        "label:N",
        sort=list(dict.fromkeys(data["label"])),
        title=None,
        axis=_category_axis(drawing),
    )
    axis = alt.Axis(**{**_value_axis(drawing, "%", 5).to_dict(), "labelExpr": "format(datum.value * 100, '.3~g')"})
    scale = alt.Scale(domainMin=0) if zero else alt.Scale(zero=False, padding=12)
    x = alt.X("share:Q", scale=scale, axis=axis, title=unit)
    base = alt.Chart(drawing.data(data), width=_plot_width(data, width), height=alt.Step(17))
    lines = base.mark_line(strokeWidth=1.5, color=drawing[RULE]).encode(y=y, x=x, detail=alt.Detail("label:N"))
    dots = base.mark_point(filled=True, size=46, opacity=1).encode(
        y=y,
        x=x,
        color=alt.Color("scope:N", scale=colours, legend=None),
        shape=alt.Shape("scope:N", scale=shapes, legend=None),
        description=alt.Description("title:N"),
    )
    return lines + dots


def lines(
    rows: pd.DataFrame,
    drawing: Drawing,
    width: int,
    order,
    value="time_ns",
    unit="ms (log scale)",
    x="context_length",
    x_title="context length in tokens (log scale)",
) -> alt.LayerChart:
    """One line per `clock` over `x`, both axes logarithmic, named right of its end, where `note` may say more; where
    other lines go on from there, left of it if there is room. A `value` in ns is drawn in ms, one in bytes in GiB."""
    scale = {"ns": 1e6, "bytes": 2**30}.get(value.rsplit("_", 1)[-1], 1)
    word = {"ns": " ms", "bytes": " GiB"}.get(value.rsplit("_", 1)[-1], "")
    data = rows[["clock", "note"]].assign(x=rows[x].astype(float), value=rows[value] / scale)
    data["title"] = [f"{c}, {v:,.0f}: {n:,.3g}{word}" for c, v, n in zip(data["clock"], data["x"], data["value"])]
    height, low, high = 250, data["value"].min() / 1.15, data["value"].max() * 1.15
    ends = data.sort_values("x", kind="stable").groupby("clock", sort=False).tail(1)
    ends = ends.assign(text=ends["clock"] + ends["note"], label=_spread_labels(ends, height, low, high))
    reach = (ends["x"] / data["x"].min()).map(math.log) / (math.log(data["x"].max() / data["x"].min()) or 1.0)
    room, length = width - LABEL_SLACK - 60, 14 + 6.7 * ends["text"].str.len()
    goes_on = ends["x"] < data["x"].max()
    plot = min([room, *((room - length) / reach)[~goes_on & (reach > 0)]])
    is_left = goes_on & (reach * plot > length)
    plot = int(min([plot, *((room - length) / reach)[~is_left & (reach > 0)]]))
    colours = alt.Scale(domain=list(order), range=[drawing[f"--series-{i}"] for i in range(len(order))])
    shapes = alt.Scale(domain=list(order), range=["circle", "square", "triangle-up", "diamond"][: len(order)])
    across = sorted(set(data["x"]))
    below = _value_axis(drawing, ",d", len(across)).to_dict() | {"orient": "bottom", "values": across}
    below |= {"labelOverlap": "greedy", "labelSeparation": 8}
    beside = _log_axis(drawing, [low, high], 8, orient="left")
    within = alt.Scale(type="log", base=2, nice=False, padding=8)
    along = alt.X("x:Q", scale=within, title=x_title, axis=alt.Axis(**below))
    up = alt.Scale(type="log", nice=False, domain=[low, high])
    colour = alt.Color("clock:N", scale=colours, legend=None)
    y = alt.Y("value:Q", scale=up, title=unit, axis=beside)
    base = alt.Chart(drawing.data(data), width=max(120, plot), height=height)
    strokes = base.mark_line(strokeWidth=1.75).encode(x=along, y=y, color=colour)
    dots = base.mark_point(filled=True, size=46, opacity=1).encode(
        x=along,
        y=y,
        color=colour,
        shape=alt.Shape("clock:N", scale=shapes, legend=None),
        description=alt.Description("title:N"),
    )
    sides: dict[Literal["left", "right"], tuple[pd.Series, int]] = {"left": (~is_left, 9), "right": (is_left, -9)}
    names = [
        alt.Chart(drawing.data(ends[chosen]))
        .mark_text(align=align, dx=dx, fontSize=12, color=drawing[TEXT])
        .encode(x=along, y=alt.Y("label:Q", scale=up, title=unit, axis=beside), text=alt.Text("text:N"))
        for align, (chosen, dx) in sides.items()
        if chosen.any()
    ]
    return alt.LayerChart(layer=[strokes, dots, *names])


def _spread_labels(ends: pd.DataFrame, height: int, low: float, high: float, gap: int = 14) -> pd.Series:
    """Where on the logarithmic axis the names of lines stand that end at the same `x`: at least `gap` pixels apart."""
    placed = {}
    for _, group in ends.groupby("x"):
        lowest = -math.inf
        for index, size in group["value"].sort_values().items():
            lowest = max(lowest + gap, height * math.log(size / low) / math.log(high / low))
            placed[index] = low * (high / low) ** (lowest / height)
    return pd.Series(placed)


def traces(
    rows: pd.DataFrame,
    drawing: Drawing,
    width: int,
    order,
    x_title,
    y_title,
    log=False,
) -> alt.LayerChart:
    """One line for each `line` of the rows (of each series, where there is no such column) through its points (x, y),
    coloured by `series`; `log`: the vertical axis is logarithmic."""
    data = rows[["series", "x", "y"]].assign(line=rows["line"] if "line" in rows else rows["series"])
    colours = alt.Scale(domain=list(order), range=[drawing[f"--series-{i}"] for i in range(len(order))])
    below = _value_axis(drawing, ",.3~f", 4 if width < 500 else 8).to_dict() | {"orient": "bottom"}
    left = alt.Axis(**_value_axis(drawing, ",.3~f", 5).to_dict() | {"orient": "left"})
    scale = alt.Scale(domainMin=0)
    if log:
        low, high = data["y"].min() / 1.15, data["y"].max() * 1.15
        left = _log_axis(drawing, [low, high], 8, orient="left")
        scale = alt.Scale(type="log", nice=False, domain=[low, high])
    base = alt.Chart(drawing.data(data), width=width - LABEL_SLACK - 64, height=220 if width > 500 else 180)
    strokes = base.mark_line(strokeWidth=1.5).encode(
        x=alt.X("x:Q", scale=alt.Scale(nice=False), axis=alt.Axis(**below), title=x_title),
        y=alt.Y("y:Q", scale=scale, axis=left, title=y_title),
        color=alt.Color("series:N", scale=colours, legend=None),
        detail=alt.Detail("line:N"),
    )
    return alt.LayerChart(layer=[strokes])


def roofline(rows: pd.DataFrame, drawing: Drawing, width: int, order, roofs) -> alt.LayerChart:
    """One named mark per row: `flop_rate` (TFLOP/s) over `intensity` (FLOP/byte), both logarithmic, coloured by
    `series`, its area by `time_share`. Below the ridge of the lowest roof names stand right of the marks, above it at
    the right edge, one below the other.

    `roofs`: corners of the limits above them, each with its `roof`, `intensity`, `flop_rate` and a `label` or none.
    """
    data = rows[["series", "intensity", "flop_rate", "label", "time_share"]].assign(
        title=[
            f"{label}: {rate:,.3g} TFLOP/s at {intensity:,.3g} FLOP/byte, {share:.1%} of kernel time"
            for label, rate, intensity, share in rows[["label", "flop_rate", "intensity", "time_share"]].itertuples(
                index=False
            )
        ]
    )
    roofs = pd.DataFrame(roofs)
    colours = alt.Scale(domain=list(order), range=[drawing[f"--series-{i}"] for i in range(len(order))])
    wide, high = width - LABEL_SLACK - 70, 380
    bottom, top = data["flop_rate"].min() / 3, roofs["flop_rate"].max() * 1.6
    up = alt.Scale(type="log", nice=False, domain=[bottom, top])

    def axes(title_x: str, title_y: str) -> dict:
        below = _log_axis(drawing, [*data["intensity"], *roofs["intensity"]], 6, orient="bottom")
        left = _log_axis(drawing, [bottom, top], 9, orient="left")
        return {
            "x": alt.X("intensity:Q", scale=alt.Scale(type="log", nice=False, padding=8), title=title_x, axis=below),
            "y": alt.Y("flop_rate:Q", scale=up, title=title_y, axis=left),
        }

    titles = ("FLOP per byte (log scale)", "TFLOP/s (log scale)")
    lines = alt.Chart(drawing.data(roofs), width=wide, height=high).mark_line(strokeWidth=1.5, color=drawing[TEXT])
    lines = lines.encode(**axes(*titles), detail=alt.Detail("roof:N"), order=alt.Order("intensity:Q"))
    last = ~roofs.duplicated("roof", keep="last")

    def words(part: pd.DataFrame, align: Literal["left", "right"], dx: int, dy: int) -> alt.Chart:
        named = alt.Chart(drawing.data(part[part["label"] != ""]), width=wide, height=high)
        named = named.mark_text(fontSize=12, color=drawing[TEXT], align=align, dx=dx, dy=dy)
        return named.encode(**axes(*titles), text=alt.Text("label:N"))

    marks = alt.Chart(drawing.data(data), width=wide, height=high).mark_point(filled=True, opacity=0.9)
    marks = marks.encode(
        **axes(*titles),
        color=alt.Color("series:N", scale=colours, legend=None),
        size=alt.Size("time_share:Q", scale=alt.Scale(domain=[0, 1], range=[18, 1800]), legend=None),
        description=alt.Description("title:N"),
    )
    ridge = roofs.loc[roofs["flop_rate"] == roofs.groupby("roof")["flop_rate"].transform("max"), "intensity"].min()
    right = data["intensity"] >= ridge
    names = pd.concat(
        [
            named_beside(data[~right], data.loc[~right, "intensity"].max() * 1.9, high, bottom, top),
            named_beside(data[right], roofs["intensity"].max(), high, bottom, top, below=True),
        ]
    )
    leaders = names.assign(name=names["label"])
    ends = [leaders.assign(intensity=leaders["at"], flop_rate=leaders["y"]), leaders]
    strings = alt.Chart(drawing.data(pd.concat(ends, ignore_index=True)), width=wide, height=high)
    strings = strings.mark_line(strokeWidth=0.75, color=drawing[RULE]).encode(
        **axes(*titles), detail=alt.Detail("name:N")
    )
    placed = names.assign(intensity=names["at"], flop_rate=names["y"])
    beside = placed["intensity"] < ridge
    return alt.LayerChart(
        layer=[
            strings,
            lines,
            marks,
            words(roofs[last], "right", -4, -9),
            words(roofs[~last & (roofs["roof"] == roofs["roof"].iloc[0])], "right", -12, -4),
            words(roofs[~last & (roofs["roof"] != roofs["roof"].iloc[0])], "left", 8, -9),
            words(placed[beside], "left", 4, 0),
            words(placed[~beside], "right", -2, 0),
        ]
    )


def named_beside(
    marks: pd.DataFrame, at: float, height: int, low: float, high: float, below: bool = False
) -> pd.DataFrame:
    """The marks with where their names stand: `at` on the one axis, and `y` on the other, logarithmic one from `low` to
    `high`, 15 pixels apart, around the middle of the marks or `below` the lowest of them."""
    gap = math.log(high / low) * 15 / height
    rows = marks.sort_values("flop_rate", ascending=False, kind="stable")
    if not len(rows):
        return rows.assign(at=at, y=0.0)
    middle = rows["flop_rate"].map(math.log).mean()
    first = math.log(rows["flop_rate"].min()) - 1.5 * gap if below else middle + gap * (len(rows) - 1) / 2
    lowest = math.log(low) + gap * (len(rows) - 0.5)
    return rows.assign(at=at, y=[math.exp(max(first, lowest) - i * gap) for i in range(len(rows))])


def stacked_parts(
    rows: pd.DataFrame, drawing: Drawing, width: int, by, order, value="bytes", limits=None, part_of=""
) -> alt.LayerChart:
    """One bar per case of the `value` of each `scope`, bytes in GiB, ns in ms and parts in percent of `part_of`, and a
    named line at each of `limits` (in the unit of the rows, by name)."""
    if part_of:
        factor, unit = 0.01, f"% of {part_of}"
    else:
        factor, unit = (1e6, "ms") if value.endswith("_ns") else (2**30, "GiB")
    data = pd.DataFrame({"label": case_label(rows, by), "scope": rows["scope"], "size": rows[value] / factor})
    data["position"] = data["scope"].map({scope: i for i, scope in enumerate(order)})
    data["title"] = [f"{a}, {s}: {v:,.3g} {unit}" for a, s, v in zip(data["label"], data["scope"], data["size"])]
    colours = alt.Scale(domain=list(order), range=[drawing[f"--series-{i}"] for i in range(len(order))])
    y = alt.Y("label:N", sort=list(dict.fromkeys(data["label"])), title=None, axis=_category_axis(drawing))
    ends = pd.DataFrame({"name": list(limits or {}), "limit": [size / factor for size in (limits or {}).values()]})
    top = max([*data.groupby("label")["size"].sum(), *ends["limit"]])
    axis = alt.Axis(**_value_axis(drawing, "~f", 4 if width < 500 else 8).to_dict() | {"orient": "bottom"})
    scale = alt.Scale(domain=[0, top], nice=False)
    base = alt.Chart(drawing.data(data), width=_plot_width(data, width), height=alt.Step(17))
    bars = base.mark_bar(height=alt.RelativeBandSize(0.75), stroke=drawing["--chart-gap"], strokeWidth=0.5).encode(
        y=y,
        x=alt.X("size:Q", stack="zero", scale=scale, axis=axis, title=unit),
        color=alt.Color("scope:N", scale=colours, legend=None),
        order=alt.Order("position:Q"),
        description=alt.Description("title:N"),
    )
    if not len(ends):
        return alt.LayerChart(layer=[bars])
    at = alt.X("limit:Q", scale=scale, axis=axis, title=unit)
    rules = alt.Chart(drawing.data(ends)).mark_rule(strokeDash=[4, 3], color=drawing[TEXT]).encode(x=at)
    names = alt.Chart(drawing.data(ends)).mark_text(align="right", dx=-4, dy=-7, fontSize=12, color=drawing[TEXT])
    return bars + rules + names.encode(x=at, y=alt.value(0), text=alt.Text("name:N"))


def slopes(rows: pd.DataFrame, drawing: Drawing, width: int, panel, order, ends, unit) -> alt.LayerChart:
    """One panel for each value of the column `panel`, and in it one line a `series` from its `share` at the first of
    the two `ends` to that at the second. ends: short names by what rows call them."""
    data = rows[[panel, "series", "end", "share"]].astype({panel: str, "series": str})
    panels = list(dict.fromkeys(data[panel]))
    number = {name: i for i, name in enumerate(panels)}
    data["x"] = data[panel].map(number) + data["end"].map(dict(zip(ends, (0.2, 0.8)))).astype(float)
    data["line"] = data[panel] + " " + data["series"]
    data["title"] = [
        f"{name} · {series}, {end}: {share:.1%}"
        for name, series, end, share in data[[panel, "series", "end", "share"]].itertuples(index=False)
    ]
    colours = alt.Scale(domain=list(order), range=[drawing[f"--series-{i}"] for i in range(len(order))])
    shapes = alt.Scale(domain=list(order), range=["circle", "square", "triangle-up", "diamond"][: len(order)])
    axis = _value_axis(drawing, "%", 5).to_dict() | {"orient": "left", "labelExpr": "format(datum.value * 100, '.3~g')"}
    across = alt.X("x:Q", scale=alt.Scale(domain=[0, len(panels)], nice=False), axis=None)
    y = alt.Y("share:Q", scale=alt.Scale(zero=False, padding=8), axis=alt.Axis(**axis), title=unit)
    wide, high = width - LABEL_SLACK - 60, 250
    base = alt.Chart(drawing.data(data), width=wide, height=high)
    colour = alt.Color("series:N", scale=colours, legend=None)
    lines = base.mark_line(strokeWidth=1.75).encode(x=across, y=y, color=colour, detail=alt.Detail("line:N"))
    dots = base.mark_point(filled=True, size=46, opacity=1).encode(
        x=across,
        y=y,
        color=colour,
        shape=alt.Shape("series:N", scale=shapes, legend=None),
        description=alt.Description("title:N"),
    )
    names = pd.DataFrame({"x": [i + 0.5 for i in range(len(panels))], "name": panels})
    sides = pd.DataFrame(
        {"x": [i + at for i in range(len(panels)) for at in (0.2, 0.8)], "name": [*ends.values()] * len(panels)}
    )
    heads = alt.Chart(drawing.data(names)).mark_text(fontSize=12, color=drawing[TEXT], dy=30)
    feet = alt.Chart(drawing.data(sides)).mark_text(fontSize=12, color=drawing[FAINT], dy=14)
    between = alt.Chart(drawing.data(pd.DataFrame({"x": range(1, len(panels))}))).mark_rule(color=drawing[RULE])
    return alt.LayerChart(
        layer=[
            between.encode(x=across),
            lines,
            dots,
            *(words.encode(x=across, y=alt.value(high), text=alt.Text("name:N")) for words in (feet, heads)),
        ]
    )


def history(rows: pd.DataFrame, drawing: Drawing, width: int, domain, unit) -> alt.LayerChart:
    """The `value` of each entry `x`, from low to high of `domain`, with the noise band `low` to `high` (NaN where there
    is none) that it is held against; `changed` ones have another shape and colour. `title`: what a point says."""
    data = rows[["x", "value", "low", "high", "changed", "title"]]
    along = alt.X("x:O", title=None, axis=alt.Axis(labelAngle=0, labelOverlap=True, **_plain(drawing, below=True)))
    scale = alt.Scale(domain=list(domain), nice=False, zero=False)
    up = alt.Y("value:Q", title=unit, scale=scale, axis=alt.Axis(**_plain(drawing, below=False)))
    base = alt.Chart(drawing.data(data), width=max(120, min(width - LABEL_SLACK - 80, 60 * len(data))), height=150)
    bands = alt.Chart(drawing.data(data[data["low"].notna()])).mark_bar(opacity=0.25, color=drawing["--series-6"])
    bands = bands.encode(
        x=along, y=alt.Y("low:Q", title=unit, scale=scale), y2=alt.Y2("high:Q"), description=alt.Description("title:N")
    )
    strokes = base.mark_line(strokeWidth=1.5, color=drawing["--series-0"]).encode(x=along, y=up)
    marks = [
        base.transform_filter(alt.datum.changed == changed)
        .mark_point(filled=True, size=60 + 40 * changed, opacity=1, shape=shape, color=drawing[colour])
        .encode(x=along, y=up, description=alt.Description("title:N"))
        for changed, shape, colour in ((0, "circle", "--series-0"), (1, "diamond", "--series-5"))
    ]
    return alt.LayerChart(layer=[bands, strokes, *marks])


def _plain(drawing: Drawing, below: bool) -> dict:
    axis = _value_axis(drawing, "" if below else ",.4~g", 5).to_dict() | {"orient": "bottom" if below else "left"}
    return {name: value for name, value in axis.items() if name not in ("labelOverlap",) and value != ""}


def waterfall(rows: pd.DataFrame, drawing: Drawing, width: int, order) -> alt.LayerChart:
    """One bar per `label` from `begin_ns` to `end_ns`, in ms, coloured by `series`; hover says its `text`."""
    begin, end = rows["begin_ns"] / 1e6, rows["end_ns"] / 1e6
    data = pd.DataFrame({"label": case_label(rows, ["label"]), "series": rows["series"], "begin": begin, "end": end})
    data["title"] = [f"{_CONTROL.sub('', text)}: {off:+,.3g} ms" for text, off in zip(rows["text"], end - begin)]
    colours = alt.Scale(domain=list(order), range=[drawing[f"--series-{i}"] for i in range(len(order))])
    y = alt.Y("label:N", sort=list(data["label"]), title=None, axis=_category_axis(drawing))
    axis = _value_axis(drawing, "+,.3~g", 4 if width < 500 else 8)
    x = alt.X("begin:Q", scale=alt.Scale(zero=True, padding=8), axis=axis, title="ms, off a step of A")
    base = alt.Chart(drawing.data(data), width=_plot_width(data, width), height=alt.Step(17))
    zero = base.mark_rule(color=drawing[RULE]).encode(x=alt.datum(0))
    bars = base.mark_bar(height=alt.RelativeBandSize(0.7)).encode(
        y=y,
        x=x,
        x2=alt.X2("end:Q"),
        color=alt.Color("series:N", scale=colours, legend=None),
        description=alt.Description("title:N"),
    )
    return zero + bars


def bars_with_marks(rows: pd.DataFrame, drawing: Drawing, width: int, by, order, unit, hollow="") -> alt.LayerChart:
    """One bar per case from zero to the `value` of the first `series`, or of the series `hollow`, and a stroke at that
    of each of the others, the later the thinner; the bar's number stands right of them all."""
    data = pd.DataFrame({"label": case_label(rows, by), "series": rows["series"], "value": rows["value"]})
    data["text"] = [f"{value:,.2f}×" for value in data["value"]]
    data["title"] = [f"{a}, {s}: {t}" for a, s, t in zip(data["label"], data["series"], data["text"], strict=True)]
    data["furthest"] = data.groupby("label")["value"].transform("max")
    bars = data[data["series"].isin([order[0], hollow])]
    marks = (drawing.data(data[data["series"] == name]) for name in order[1:])
    y = alt.Y("label:N", sort=list(dict.fromkeys(data["label"])), title=None, axis=_category_axis(drawing))
    scale = alt.Scale(domain=[0, 1.12 * data["value"].max()], nice=False)
    x, beyond = (
        alt.X(f"{name}:Q", scale=scale, axis=_value_axis(drawing, ",~f", 5), title=unit)
        for name in ("value", "furthest")
    )
    wide, high = _plot_width(data, width), alt.Step(15)
    colour = drawing["--series-0"]
    outline = {"fill": "transparent", "stroke": colour, "strokeWidth": 1.5, "strokeDash": [4, 2]}
    measured = [
        alt.Chart(drawing.data(of_some), width=wide, height=high).mark_bar(
            height=alt.RelativeBandSize(0.7), **(outline if name == hollow else {"color": colour})
        )
        for name, of_some in bars.groupby("series", sort=False)
    ]
    numbers = alt.Chart(drawing.data(bars), width=wide, height=high)
    numbers = numbers.mark_text(align="left", dx=4, fontSize=12, color=drawing[TEXT])
    others = [
        alt.Chart(of_one, width=wide, height=high).mark_tick(
            thickness=3 / number, size=13, color=drawing[f"--series-{number}"]
        )
        for number, of_one in enumerate(marks, 1)
    ]
    described = alt.Description("title:N")
    return alt.LayerChart(
        layer=[
            *(of_some.encode(y=y, x=x, description=described) for of_some in measured),
            *(of_one.encode(y=y, x=x, description=described) for of_one in others),
            numbers.encode(y=y, x=beyond, text=alt.Text("text:N")),
        ]
    )


KINDS: dict[str, Callable[..., alt.LayerChart]] = {
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
    "bars_with_marks": bars_with_marks,
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
    "bars_with_marks": "series",
}


def colour_column(kind: str) -> str:
    """Column of the rows whose values the legend explains."""
    return COLOUR_COLUMNS[kind]


def mark(kind: str) -> str:
    """What a legend shows for a series: a line, a bar, or the point whose shape tells it from others."""
    return {
        "traces": "line",
        "stacked_parts": "bar",
        "roofline": "bar",
        "waterfall": "bar",
        "bars_with_marks": "bar",
    }.get(kind, "point")


def drawn(kind: str, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that can be seen in a drawing of that kind."""
    if kind == "stacked_times":
        return rows[rows["time_ns"] >= DRAWN * rows["time_ns"].max()]
    return rows[rows["share"] >= DRAWN] if kind == "stacked_shares" else rows


# ---------------------------------------------------------------- axes and clean-up


def _category_axis(drawing: Drawing) -> alt.Axis:
    return alt.Axis(
        ticks=False,
        domain=False,
        labelColor=drawing[TEXT],
        labelFontSize=12,
        labelPadding=8,
        labelLimit=180,
    )


def _value_axis(drawing: Drawing, form: str, ticks: int) -> alt.Axis:
    return alt.Axis(
        format=form,
        tickCount=ticks,
        grid=True,
        gridColor=drawing["--chart-grid"],
        domain=False,
        ticks=False,
        labelColor=drawing[FAINT],
        titleColor=drawing[FAINT],
        titleFontWeight="normal",
        titleFontSize=12,
        labelFontSize=12,
        labelOverlap=True,
        orient="top",
    )


def _log_axis(drawing: Drawing, values: Iterable[float], most: int, orient: str = "top") -> alt.Axis:
    """Axis of a logarithmic scale over `values`, with ticks as dense as `most` allows, and evenly so; where round
    numbers are too few, Vega chooses."""
    low, high = min(values), max(values)
    for steps in (range(1, 10), (1, 2, 5), (1, 3), (1,)):
        ticks = [tick for power in range(-6, 12) for m in steps if low <= (tick := float(f"{m}e{power}")) <= high]
        if len(ticks) <= most:
            break
    axis = _value_axis(drawing, "~g", most).to_dict() | {"orient": orient}
    return alt.Axis(**axis | ({"values": ticks, "tickCount": len(ticks)} if len(ticks) > 2 else {}))


def _plot_width(data: pd.DataFrame, width: int) -> int:
    """Room that the labels leave: about 6.7 px a character at 12 px."""
    return max(120, int(width - LABEL_SLACK - 24 - 6.7 * data["label"].str.len().max()))


def _finish(svg: str, prefix: str, drawing: Drawing, label: str) -> str:
    ElementTree.register_namespace("", SVG)
    root = ElementTree.fromstring(_CONTROL.sub("\ufffd", svg))
    variables = {code: f"var({variable})" for variable, code in drawing.codes.items()}
    titles = {
        _CONTROL.sub("\ufffd", row["title"]) for rows in drawing.datasets.values() for row in rows if "title" in row
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
        silent = (tag == "text" and not child.text) or (tag == "path" and child.get("d", "") in ("", "M0,0h0v0h0Z"))
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
