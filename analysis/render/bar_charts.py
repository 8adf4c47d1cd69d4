"""Charts of bars and dots, one row or column a case."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from profiler_job.analysis.render.chart_parts import (
    CONTROL,
    LABEL_SLACK,
    NARROW,
    RULE,
    TEXT,
    Drawing,
    case_label,
    category_axis,
    drawn,
    log_axis,
    plot_width,
    value_axis,
)
from profiler_job.jobs.contract.quantities import (
    Kind,
    format_quantity,
    format_rounded,
    format_share,
    format_time,
)

MOST_PANELS, BETWEEN_PANELS = 3, 20
"""Panels in a row, and pixels between them."""
NUMBER = 42
"""Pixels for a number right of a bar."""


def dumbbell(
    rows: pd.DataFrame,
    drawing: Drawing,
    width: int,
    order: Sequence[str],
    by: Sequence[str],
    value: str = "time_ns",
    unit: str = "ms (log scale)",
    log: Any = True,
    sign: str = "×",
    limits: Any = None,
    colours: Sequence[str] = (),
) -> alt.LayerChart:
    """One line per case with a dot per `clock`, on a logarithmic axis, or a linear one that need not start at zero. A
    `value` in ns is drawn in ms; any other is read out with its `sign`. limits: values by name, each a line with its
    name above all cases. colours: as in `stacked_parts`."""
    data = pd.DataFrame({"label": case_label(rows, by), "clock": rows["clock"]})
    nanoseconds = value.endswith("_ns")
    data["value"] = rows[value] / 1e6 if nanoseconds else rows[value]
    number = [format_time(v) if nanoseconds else f"{format_quantity('number', v)}{sign}" for v in rows[value]]
    data["title"] = [
        f"{label}, {clock}: {text}" for label, clock, text in zip(data["label"], data["clock"], number, strict=True)
    ]
    used = colours or [f"series-{i}" for i in range(len(order))]
    scale_of_colours = alt.Scale(domain=list(order), range=[drawing[f"--{name}"] for name in used])
    shapes = alt.Scale(
        domain=list(order),
        range=["circle", "square", "triangle-up", "diamond"][: len(order)],
    )
    y = alt.Y(
        "label:N",
        sort=list(dict.fromkeys(data["label"])),
        title=None,
        axis=category_axis(drawing, width),
    )
    most, gap = (5, 0.17) if width < 500 else (9, 0.0)
    axis = log_axis(drawing, data["value"], most, least_gap=gap) if log else value_axis(drawing, "~g", most)
    scale: dict[str, Any] = {"type": "log"} if log else {"zero": False}
    if limits:  # their names are where the axis is otherwise
        below = {"orient": "bottom", "titleAnchor": "end" if width < 500 else "middle"}  # it may be wider than the dots
        axis = alt.Axis(**axis.to_dict() | below)
        ends = [*data["value"], *limits.values()]
        scale |= {"domain": [min(ends), max(ends)]}
    x = alt.X("value:Q", scale=alt.Scale(nice=False, padding=12, **scale), title=unit, axis=axis)
    base = alt.Chart(drawing.data(data), width=plot_width(data, width), height=alt.Step(17))
    lines = base.mark_line(strokeWidth=1.5, color=drawing[RULE]).encode(y=y, x=x, detail=alt.Detail("label:N"))
    dots = base.mark_point(filled=True, size=46, opacity=1).encode(
        y=y,
        x=x,
        color=alt.Color("clock:N", scale=scale_of_colours, legend=None),
        shape=alt.Shape("clock:N", scale=shapes, legend=None),
        description=alt.Description("title:N"),
    )
    return alt.LayerChart(layer=[*_draw_limits(limits or {}, drawing, x), lines, dots])


def _draw_limits(limits: Mapping[str, float], drawing: Drawing, x: alt.X) -> Iterator[alt.Chart]:
    """Draw a line across all cases at each of the limits on the scale `x`, with the names above, one below the other,
    each on the side of its line where there is room."""
    middle = (min(limits.values()) + max(limits.values())) / 2 if limits else 0.0
    for place, (name, value) in enumerate(limits.items()):
        base = alt.Chart(drawing.data(pd.DataFrame({"value": [value], "name": [name]})))
        yield base.mark_rule(strokeDash=[4, 3], color=drawing[TEXT]).encode(x=x)
        align, dx = ("left", 4) if value <= middle else ("right", -4)
        dy = -7 - 15 * (len(limits) - 1 - place)
        text = base.mark_text(align=align, dx=dx, dy=dy, fontSize=12, color=drawing[TEXT])  # type: ignore[arg-type]
        yield text.encode(x=x, y=alt.value(0), text=alt.Text("name:N"))


def stacked_times(
    rows: pd.DataFrame, drawing: Drawing, width: int, by: Sequence[str], order: Sequence[str], row: str = ""
) -> alt.LayerChart:
    """One bar per case (and per value of `row`) of the `time_ns` of each `family`, in ms."""
    rows = drawn("stacked_times", rows)
    return _stacked(rows.assign(share=rows["time_ns"] / 1e6), drawing, width, by, order, row, in_ms=True)


def stacked_shares(
    rows: pd.DataFrame, drawing: Drawing, width: int, by: Sequence[str], order: Sequence[str], row: str = ""
) -> alt.LayerChart:
    """One 100% bar per case (and per value of `row`), cut by `family`; segments of at least 9% carry their number."""
    return _stacked(drawn("stacked_shares", rows), drawing, width, by, order, row)


def _stacked(
    rows: pd.DataFrame,
    drawing: Drawing,
    width: int,
    by: Sequence[str],
    order: Sequence[str],
    row: str = "",
    in_ms: bool = False,
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
        f"{a}, {f}: {format_time(s * 1e6) if in_ms else format_share(s)}"
        for a, f, s in zip(data["label"], data["family"], data["share"], strict=True)
    ]
    room = (0.06 if width > 500 else 0.11) * full
    shown = [f"{size:,.0f}" if in_ms else format_share(size, 0).removesuffix("%") for size in data["share"]]
    data["text"] = [number if share >= room else "" for number, share in zip(shown, data["share"])]
    colours = alt.Scale(domain=list(order), range=[drawing[f"--family-{family}"] for family in order])
    y = alt.Y(
        "label:N",
        sort=list(dict.fromkeys(data["label"])),
        title=None,
        axis=category_axis(drawing, width),
    )
    title, scale = "ms of kernel time" if in_ms else "% of kernel time", alt.Scale(domain=[0, full], nice=False)
    axis = value_axis(drawing, ",~f", 5)
    if not in_ms:
        axis = alt.Axis(**{**value_axis(drawing, "%", 5).to_dict(), "labelExpr": "format(datum.value * 100, '.3~g')"})
    base = alt.Chart(drawing.data(data), width=plot_width(data, width), height=alt.Step(17))
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
    rows: pd.DataFrame,
    drawing: Drawing,
    width: int,
    by: Sequence[str],
    order: Sequence[str],
    unit: str = "% of kernel time",
    zero: bool = True,
) -> alt.LayerChart:
    """Per case one dot per `scope` at its `share`: the same drawing as `dumbbell`, on a linear axis, which starts at
    `zero` where shares of a whole are drawn, and not where rates are."""
    data = pd.DataFrame({"label": case_label(rows, by), "scope": rows["scope"], "share": rows["share"]})
    data["title"] = [
        f"{a}, {s}: {format_share(v)}" for a, s, v in zip(data["label"], data["scope"], data["share"], strict=True)
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
        axis=category_axis(drawing, width),
    )
    axis = alt.Axis(**{**value_axis(drawing, "%", 5).to_dict(), "labelExpr": "format(datum.value * 100, '.3~g')"})
    scale = alt.Scale(domainMin=0) if zero else alt.Scale(zero=False, padding=12)
    x = alt.X("share:Q", scale=scale, axis=axis, title=unit)
    base = alt.Chart(drawing.data(data), width=plot_width(data, width), height=alt.Step(17))
    lines = base.mark_line(strokeWidth=1.5, color=drawing[RULE]).encode(y=y, x=x, detail=alt.Detail("label:N"))
    dots = base.mark_point(filled=True, size=46, opacity=1).encode(
        y=y,
        x=x,
        color=alt.Color("scope:N", scale=colours, legend=None),
        shape=alt.Shape("scope:N", scale=shapes, legend=None),
        description=alt.Description("title:N"),
    )
    chart: alt.LayerChart = lines + dots
    return chart


def stacked_parts(
    rows: pd.DataFrame,
    drawing: Drawing,
    width: int,
    by: Sequence[str],
    order: Sequence[str],
    value: str = "bytes",
    limits: Any = None,
    part_of: str = "",
    colours: Sequence[str] = (),
) -> alt.LayerChart:
    """One bar per case of the `value` of each `scope`, bytes in GiB, ns in ms and parts in percent of `part_of`, and a
    named line at each of `limits` (in the unit of the rows, by name). colours: variables, without dashes in front, in
    the order of the scopes; without them the scopes have the colours of series."""
    if part_of:
        factor, unit = 0.01, f"% of {part_of}"
    else:
        factor, unit = (1e6, "ms") if value.endswith("_ns") else (2**30, "GiB")
    data = pd.DataFrame({"label": case_label(rows, by), "scope": rows["scope"], "size": rows[value] / factor})
    data["position"] = data["scope"].map({scope: i for i, scope in enumerate(order)})
    kind: Kind = "share" if part_of else "time" if value.endswith("_ns") else "bytes"
    sizes = [f"{format_quantity(kind, size)}{f' of {part_of}' * bool(part_of)}" for size in rows[value]]
    data["title"] = [f"{a}, {s}: {size}" for a, s, size in zip(data["label"], data["scope"], sizes)]
    used = colours or [f"series-{i}" for i in range(len(order))]
    scale_of_colours = alt.Scale(domain=list(order), range=[drawing[f"--{name}"] for name in used])
    y = alt.Y("label:N", sort=list(dict.fromkeys(data["label"])), title=None, axis=category_axis(drawing, width))
    ends = pd.DataFrame({"name": list(limits or {}), "limit": [size / factor for size in (limits or {}).values()]})
    top = max([*data.groupby("label")["size"].sum(), *ends["limit"]])
    below = {"orient": "bottom", "titleAnchor": "end" if width < 500 else "middle"}  # it may be wider than the bars
    axis = alt.Axis(**value_axis(drawing, "~f", 4 if width < 500 else 8).to_dict() | below)
    scale = alt.Scale(domain=[0, top], nice=False)
    base = alt.Chart(drawing.data(data), width=plot_width(data, width), height=alt.Step(17))
    bars = base.mark_bar(height=alt.RelativeBandSize(0.75), stroke=drawing["--chart-gap"], strokeWidth=0.5).encode(
        y=y,
        x=alt.X("size:Q", stack="zero", scale=scale, axis=axis, title=unit),
        color=alt.Color("scope:N", scale=scale_of_colours, legend=None),
        order=alt.Order("position:Q"),
        description=alt.Description("title:N"),
    )
    if not len(ends):
        return alt.LayerChart(layer=[bars])
    at = alt.X("limit:Q", scale=scale, axis=axis, title=unit)
    rules = alt.Chart(drawing.data(ends)).mark_rule(strokeDash=[4, 3], color=drawing[TEXT]).encode(x=at)
    names = alt.Chart(drawing.data(ends)).mark_text(align="right", dx=-4, dy=-7, fontSize=12, color=drawing[TEXT])
    chart: alt.LayerChart = bars + rules + names.encode(x=at, y=alt.value(0), text=alt.Text("name:N"))
    return chart


def waterfall(
    rows: pd.DataFrame, drawing: Drawing, width: int, order: Sequence[str], unit: str = "ms, off a step of A"
) -> alt.LayerChart:
    """One bar per `label` from `begin_ns` to `end_ns`, in ms, coloured by `series`; hover says its `text`."""
    begin, end = rows["begin_ns"] / 1e6, rows["end_ns"] / 1e6
    data = pd.DataFrame({"label": case_label(rows, ["label"]), "series": rows["series"], "begin": begin, "end": end})
    off = [format_quantity("time", ns, is_signed=True) for ns in rows["end_ns"] - rows["begin_ns"]]
    data["title"] = [f"{CONTROL.sub('', text)}: {size}" for text, size in zip(rows["text"], off)]
    colours = alt.Scale(domain=list(order), range=[drawing[f"--series-{i}"] for i in range(len(order))])
    y = alt.Y("label:N", sort=list(data["label"]), title=None, axis=category_axis(drawing, width))
    axis = value_axis(drawing, "+,.3~g", 4 if width < 500 else 8)
    x = alt.X("begin:Q", scale=alt.Scale(zero=True, padding=8), axis=axis, title=unit)
    base = alt.Chart(drawing.data(data), width=plot_width(data, width), height=alt.Step(17))
    zero = base.mark_rule(color=drawing[RULE]).encode(x=alt.datum(0))
    bars = base.mark_bar(height=alt.RelativeBandSize(0.7)).encode(
        y=y,
        x=x,
        x2=alt.X2("end:Q"),
        color=alt.Color("series:N", scale=colours, legend=None),
        description=alt.Description("title:N"),
    )
    chart: alt.LayerChart = zero + bars
    return chart


def ratio_bars(
    rows: pd.DataFrame,
    drawing: Drawing,
    width: int,
    by: Sequence[str],
    order: Sequence[str],
    unit: str,
    hollow: str = "",
    panels: int = 0,
) -> alt.LayerChart | alt.ConcatChart:
    """One bar per case from zero to its `value`, an outline if its `series` is `hollow`, with a line from `low` to
    `high` if they are known. A bar's number is right of it. order: of the series that a legend names. panels: so many
    of the columns of `by` name a panel, on one scale with all others; panels share a row where there is room."""
    data = pd.DataFrame({"label": case_label(rows, by), "series": rows["series"], "value": rows["value"]})
    data["bar"] = case_label(rows, list(by)[panels:])
    data["text"] = [format_rounded("ratio", value) for value in data["value"]]
    data = data.join(rows.reindex(columns=["low", "high"]))
    data["end"] = data[["value", "high"]].max(axis=1)
    spans = [f" [{low:.2f}, {high:.2f}]" if low == low else "" for low, high in zip(data["low"], data["high"])]
    named = zip(data["label"], data["series"], data["value"], spans, strict=True)
    data["title"] = [f"{label}, {name}: {format_quantity('ratio', at)}{ends}" for label, name, at, ends in named]
    columns = MOST_PANELS if panels and width > NARROW else 1
    wide = plot_width(
        data.assign(label=data["bar"]), (width + (columns - 1) * (LABEL_SLACK - BETWEEN_PANELS)) // columns
    )
    top, axis = data["end"].max() * wide / (wide - NUMBER), category_axis(drawing, width)
    if not panels:
        return _draw_ratio_bars(data, drawing, wide, axis, top, unit, hollow)
    drawn_panels: list[alt.LayerChart] = []
    for name, of_panel in data.groupby(case_label(rows, list(by)[:panels]), sort=False):
        above = unit if len(drawn_panels) < columns else ""
        panel = _draw_ratio_bars(of_panel, drawing, wide, axis, top, above, hollow)
        title = alt.TitleParams(str(name), anchor="start", fontSize=12, color=drawing[TEXT], frame="group")
        drawn_panels.append(panel.properties(title=title))
    return alt.concat(*drawn_panels, columns=columns, spacing=BETWEEN_PANELS)


def _draw_ratio_bars(
    data: pd.DataFrame, drawing: Drawing, wide: int, axis: alt.Axis, top: float, unit: str, hollow: str
) -> alt.LayerChart:
    """The bars of `data` on a plot `wide` pixels wide, whose scale reaches to `top`."""
    y = alt.Y("bar:N", sort=list(dict.fromkeys(data["bar"])), title=None, axis=axis)
    scale = alt.Scale(domain=[0, top], nice=False)
    values = value_axis(drawing, ",~f", 5 if wide > NARROW else 3)
    x = alt.X("value:Q", scale=scale, axis=values, title=unit or None)
    high = alt.Step(15)
    colour = drawing["--series-0"]
    outline = {"fill": "transparent", "stroke": colour, "strokeWidth": 1.5, "strokeDash": [4, 2]}
    bars = [
        alt.Chart(drawing.data(of_some), width=wide, height=high)
        .mark_bar(height=alt.RelativeBandSize(0.7), **(outline if name == hollow else {"color": colour}))
        .encode(y=y, x=x, description=alt.Description("title:N"))
        for name, of_some in data.groupby("series", sort=False)
    ]
    numbers = alt.Chart(drawing.data(data), width=wide, height=high)
    numbers = numbers.mark_text(align="left", dx=4, fontSize=12, color=drawing[TEXT])
    if len(known := data.dropna(subset=["low"])):
        spans = alt.Chart(drawing.data(known), width=wide, height=high).mark_rule(strokeWidth=2, color=drawing[TEXT])
        low = alt.X("low:Q", scale=scale, axis=values, title=unit or None)
        bars.append(spans.encode(y=y, x=low, x2=alt.X2("high:Q")))
    beyond = alt.X("end:Q", scale=scale, axis=values, title=unit or None)
    return alt.LayerChart(layer=[*bars, numbers.encode(y=y, x=beyond, text=alt.Text("text:N"))])


def ladder_bars(rows: pd.DataFrame, drawing: Drawing, width: int, order: Sequence[str] = ()) -> alt.LayerChart:
    """One bar per `label` from zero to its `value`, a ratio, with a line from `low` to `high`; its `text` is right of
    both, the part before a comma if the drawing is narrow. order: of the one series that a legend names."""
    data = pd.DataFrame({"label": case_label(rows, ["label"]), "value": rows["value"], "low": rows["low"]})
    data["high"] = rows[["high", "value"]].max(axis=1)
    data["text"] = [CONTROL.sub("", text) for text in rows["text"]]
    data["title"] = data["label"] + ": " + data["text"]
    if width <= NARROW:
        data["text"] = data["text"].str.partition(",")[0]
    wide = plot_width(data, width)
    room = max(wide - 8 - 6.7 * data["text"].str.len().max(), 0.3 * wide)
    y = alt.Y("label:N", sort=list(data["label"]), title=None, axis=category_axis(drawing, width))
    scale = alt.Scale(domain=[0, data["high"].max() * wide / room], nice=False)
    axis = value_axis(drawing, ",~f", 3 if width < 500 else 6)
    x, beyond = (alt.X(f"{name}:Q", scale=scale, axis=axis, title="times as fast") for name in ("value", "high"))
    base = alt.Chart(drawing.data(data), width=wide, height=alt.Step(22))
    bars = base.mark_bar(height=alt.RelativeBandSize(0.7), color=drawing["--series-0"])
    spans = base.mark_rule(strokeWidth=2, color=drawing[TEXT])
    texts = base.mark_text(align="left", dx=6, fontSize=12, color=drawing[TEXT])
    return alt.LayerChart(
        layer=[
            bars.encode(y=y, x=x, description=alt.Description("title:N")),
            spans.encode(y=y, x=alt.X("low:Q", scale=scale, axis=axis, title="times as fast"), x2=alt.X2("high:Q")),
            texts.encode(y=y, x=beyond, text=alt.Text("text:N")),
        ]
    )
