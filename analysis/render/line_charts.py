"""Charts of lines and points over two axes."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import altair as alt
import pandas as pd

from profiler_job.analysis.render.chart_parts import (
    FAINT,
    LABEL_SLACK,
    LEFT,
    RULE,
    TEXT,
    Drawing,
    log_axis,
    value_axis,
)
from profiler_job.jobs.contract.quantities import Kind, format_quantity, format_share


def lines(
    rows: pd.DataFrame,
    drawing: Drawing,
    width: int,
    order: Sequence[str],
    value: str = "time_ns",
    unit: str = "ms (log scale)",
    x: str = "context_length",
    x_title: str = "context length in tokens (log scale)",
) -> alt.LayerChart:
    """One line per `clock` over `x`, both axes logarithmic, named right of its end, where `note` may say more; where
    other lines go on from there, left of it if there is room. A `value` in ns is drawn in ms, one in bytes in GiB."""
    scale = {"ns": 1e6, "bytes": 2**30}.get(value.rsplit("_", 1)[-1], 1)
    kinds: dict[str, Kind] = {"ns": "time", "bytes": "bytes"}
    kind = kinds.get(value.rsplit("_", 1)[-1], "number")
    data = rows[["clock", "note"]].assign(x=rows[x].astype(float), value=rows[value] / scale)
    data["title"] = [
        f"{c}, {v:,.0f}: {format_quantity(kind, n)}" for c, v, n in zip(data["clock"], data["x"], rows[value])
    ]
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
    below = value_axis(drawing, ",d", len(across)).to_dict() | {"orient": "bottom", "values": across}
    below |= {"labelOverlap": "greedy", "labelSeparation": 8}
    beside = log_axis(drawing, [low, high], 8, orient="left")
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
    order: Sequence[str],
    x_title: str,
    y_title: str,
    log: Any = False,
) -> alt.LayerChart:
    """One line for each `line` of the rows (of each series, where there is no such column) through its points (x, y),
    coloured by `series`; `log`: the vertical axis is logarithmic."""
    data = rows[["series", "x", "y"]].assign(line=rows["line"] if "line" in rows else rows["series"])
    colours = alt.Scale(domain=list(order), range=[drawing[f"--series-{i}"] for i in range(len(order))])
    below = value_axis(drawing, ",.3~f", 4 if width < 500 else 8).to_dict() | {"orient": "bottom"}
    left = alt.Axis(**value_axis(drawing, ",.3~f", 5).to_dict() | LEFT)
    scale = alt.Scale(domainMin=0)
    if log:
        low, high = data["y"].min() / 1.15, data["y"].max() * 1.15
        left = log_axis(drawing, [low, high], 8, orient="left")
        scale = alt.Scale(type="log", nice=False, domain=[low, high])
    base = alt.Chart(drawing.data(data), width=width - LABEL_SLACK - 64, height=220 if width > 500 else 180)
    strokes = base.mark_line(strokeWidth=1.5).encode(
        x=alt.X("x:Q", scale=alt.Scale(nice=False), axis=alt.Axis(**below), title=x_title),
        y=alt.Y("y:Q", scale=scale, axis=left, title=y_title),
        color=alt.Color("series:N", scale=colours, legend=None),
        detail=alt.Detail("line:N"),
    )
    return alt.LayerChart(layer=[strokes])


def roofline(rows: pd.DataFrame, drawing: Drawing, width: int, order: Sequence[str], roofs: Any) -> alt.LayerChart:
    """One named mark per row: `flop_rate` (TFLOP/s) over `intensity` (FLOP/byte), both logarithmic, coloured by
    `series`, its area by `time_share`. Below the ridge of the lowest roof names stand right of the marks, above it at
    the right edge, one below the other.

    `roofs`: corners of the limits above them, each with its `roof`, `intensity`, `flop_rate` and a `label` or none.
    """
    data = rows[["series", "intensity", "flop_rate", "label", "time_share"]].assign(
        title=[
            f"{label}: {format_quantity('FLOP/s', 1e12 * rate)} at {format_quantity('FLOP/byte', intensity)}, "
            f"{format_share(share)} of kernel time"
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

    def axes(title_x: str, title_y: str) -> dict[str, Any]:
        below = log_axis(drawing, [*data["intensity"], *roofs["intensity"]], 6, orient="bottom")
        left = log_axis(drawing, [bottom, top], 9, orient="left")
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
        chart: alt.Chart = named.encode(**axes(*titles), text=alt.Text("label:N"))
        return chart

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


AT = (0.25, 0.75)
"""Where in its panel a line of `slopes` begins and ends."""
ROOM_OF_ENDS = 70
"""Pixels of a panel in which the names of both ends have room at the usual size."""


def slopes(
    rows: pd.DataFrame, drawing: Drawing, width: int, panel: str, order: Sequence[str], ends: Any, unit: str
) -> alt.LayerChart:
    """One panel for each value of the column `panel`, and in it one line a `series` from its `share` at the first of
    the two `ends` to that at the second. ends: short names by what rows call them."""
    data = rows[[panel, "series", "end", "share"]].astype({panel: str, "series": str})
    panels = list(dict.fromkeys(data[panel]))
    number = {name: i for i, name in enumerate(panels)}
    data["x"] = data[panel].map(number) + data["end"].map(dict(zip(ends, AT))).astype(float)
    data["line"] = data[panel] + " " + data["series"]
    data["title"] = [
        f"{name} · {series}, {end}: {format_share(share)}"
        for name, series, end, share in data[[panel, "series", "end", "share"]].itertuples(index=False)
    ]
    colours = alt.Scale(domain=list(order), range=[drawing[f"--series-{i}"] for i in range(len(order))])
    shapes = alt.Scale(domain=list(order), range=["circle", "square", "triangle-up", "diamond"][: len(order)])
    axis = value_axis(drawing, "%", 5).to_dict() | {"orient": "left", "labelExpr": "format(datum.value * 100, '.3~g')"}
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
    names = pd.DataFrame(
        {"x": [i + 0.5 for i in number.values()], "name": [name.replace(" (", "\n(") for name in panels]}
    )
    sides = pd.DataFrame(
        {"x": [i + at for i in range(len(panels)) for at in AT], "name": [*ends.values()] * len(panels)}
    )
    heads = alt.Chart(drawing.data(names)).mark_text(fontSize=12, color=drawing[TEXT], dy=30, lineBreak="\n")
    small = 10 if wide < ROOM_OF_ENDS * len(panels) else 12
    feet = alt.Chart(drawing.data(sides)).mark_text(fontSize=small, color=drawing[FAINT], dy=14)
    between = alt.Chart(drawing.data(pd.DataFrame({"x": range(1, len(panels))}))).mark_rule(color=drawing[RULE])
    return alt.LayerChart(
        layer=[
            between.encode(x=across),
            lines,
            dots,
            *(words.encode(x=across, y=alt.value(high), text=alt.Text("name:N")) for words in (feet, heads)),
        ]
    )


def history(rows: pd.DataFrame, drawing: Drawing, width: int, domain: Sequence[float], unit: str) -> alt.LayerChart:
    """The `value` of each entry `x`, from low to high of `domain`, with the noise band `low` to `high` (NaN where there
    is none) that it is compared with; `changed` ones have another shape and colour. `title`: what a point says."""
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


def _plain(drawing: Drawing, below: bool) -> dict[str, Any]:
    axis = value_axis(drawing, "" if below else ",.4~g", 5).to_dict() | {"orient": "bottom" if below else "left"}
    return {name: value for name, value in axis.items() if name not in ("labelOverlap",) and value != ""}
