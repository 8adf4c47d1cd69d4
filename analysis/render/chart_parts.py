"""A drawing, and what all kinds of charts share: axes, labels and marks."""

import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

WIDE, NARROW = 840, 350

TEXT, FAINT, RULE = "--chart-text", "--chart-faint", "--chart-rule"

LABEL_SLACK = 26
"""Pixels left of the labels: a reader's font may be wider than the one that they were measured in."""

NARROWEST_PLOT = 120
LONGEST_LABEL = 300
"""Pixels."""
CHARACTER = 6.7
"""Pixels of a character at 12 px."""

DRAWN = 0.001
"""Smaller shares than this would be thinner than the gap between two segments: their rows name them."""

LEFT = {"orient": "left", "titlePadding": 10}
"""Of an axis at the left: a reader's font may be wider than the one that its labels were measured in, too, and they
would meet the title."""

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


class Drawing:
    """What a drawing is made of: placeholder colours for CSS variables, one hex code each, and rows by name."""

    def __init__(self) -> None:
        self.codes: dict[str, str] = {}
        self.datasets: dict[str, list[dict[str, Any]]] = {}

    def __getitem__(self, variable: str) -> str:
        return self.codes.setdefault(variable, f"#fe{len(self.codes):04x}")

    def data(self, rows: pd.DataFrame) -> alt.NamedData:
        """A name for `rows`: a chart that held them itself would copy them whenever it is changed or layered."""
        name = f"rows-{len(self.datasets)}"
        self.datasets[name] = json.loads(rows.to_json(orient="records", double_precision=15))
        return alt.NamedData(name)


def case_label(rows: pd.DataFrame, by: Sequence[str]) -> pd.Series:
    """One label per row out of its case columns: `small · 128`."""
    return rows[list(by)].astype(str).agg(" · ".join, axis=1).map(lambda text: CONTROL.sub("\ufffd", text))


def name_models(
    rows: pd.DataFrame, options: Mapping[str, Any], models: Mapping[str, str], width: int
) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows of a chart with the name in `models` of each `size`, once in a figure: in its panel, or in the
    first of its labels that has room for it; and the names that no label of a drawing `width` pixels wide has room
    for."""
    by, panels = list(options.get("by", ())), options.get("panels", 0)
    if options.get("panel") == "size":
        return rows.assign(size=rows["size"].astype(str).map(lambda size: models.get(size, size))), []
    if "size" not in by:
        return rows, []
    cases = case_label(rows, by[:panels] or by)
    labels = cases if panels else case_label(rows, [*by, *filter(None, [options.get("row")])])
    lengths = labels.str.len().groupby(cases).transform("max")
    most = max(label_room(width) // CHARACTER, lengths.max())
    sizes = rows["size"].astype(str)
    named, missing = sizes.copy(), []
    for size in dict.fromkeys(sizes):
        name = models.get(size, size)
        has_room = (sizes == size) & (lengths + len(name) - len(size) <= most)
        if has_room.any():
            named[cases == cases[has_room].iloc[0]] = name
        else:
            missing.append(name)
    return rows.assign(size=named), missing


def find_runs(rows: pd.DataFrame, options: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """The labels of the marks of a chart and their run ids, where each label is one run."""
    if "run_id" not in rows or not {"by", "panel"} & {*options}:
        return []
    names = [*options["by"], *filter(None, [options.get("row")])] if "by" in options else [options["panel"], "series"]
    of = pd.DataFrame({"label": case_label(rows, names), "run_id": rows["run_id"].astype(str)}).drop_duplicates()
    of = of.drop_duplicates("label", keep=False)
    return zip(of["label"], of["run_id"])


def mark(kind: str) -> str:
    """What a legend shows for a series: a line, a bar, or the point whose shape tells it from others."""
    return {
        "traces": "line",
        "stacked_parts": "bar",
        "roofline": "bar",
        "waterfall": "bar",
        "ratio_bars": "bar",
        "ladder_bars": "bar",
    }.get(kind, "point")


def drawn(kind: str, rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that can be seen in a drawing of that kind."""
    if kind == "stacked_times":
        return rows[rows["time_ns"] >= DRAWN * rows["time_ns"].max()]
    return rows[rows["share"] >= DRAWN] if kind == "stacked_shares" else rows


def category_axis(drawing: Drawing, width: int) -> alt.Axis:
    """Return the axis of the labels of rows. They have the room that `plot_width` leaves them."""
    return alt.Axis(
        ticks=False,
        domain=False,
        labelColor=drawing[TEXT],
        labelFontSize=12,
        labelPadding=8,
        labelLimit=label_room(width),
    )


def label_room(width: int) -> int:
    """Pixels for the labels of rows of a drawing that is `width` pixels wide."""
    return min(LONGEST_LABEL, width - LABEL_SLACK - 24 - NARROWEST_PLOT)


def value_axis(drawing: Drawing, form: str, ticks: int) -> alt.Axis:
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


def log_axis(
    drawing: Drawing, values: Iterable[float], most: int, orient: str = "top", least_gap: float = 0.0
) -> alt.Axis:
    """Axis of a logarithmic scale over `values`, with ticks as dense as `most` allows, and evenly so; where round
    numbers are too few, Vega chooses. least_gap: between two ticks, as a part of the axis, which their labels need."""
    low, high = min(values), max(values)
    ticks: list[float] = []
    for steps in (range(1, 10), (1, 2, 5), (1, 3), (1,)):
        ticks = [tick for power in range(-6, 12) for m in steps if low <= (tick := float(f"{m}e{power}")) <= high]
        if len(ticks) <= most and _have_room(ticks, low, high, least_gap):
            break
    if least_gap and 0 < low < high:
        while not _have_room(ticks, low, high, least_gap):  # powers of ten of a long axis
            ticks = ticks[::2]
        if len(ticks) <= 2:
            ticks = _choose_even_ticks(low, high, most, least_gap) or ticks
    axis = value_axis(drawing, "~g", most).to_dict() | (LEFT if orient == "left" else {"orient": orient})
    return alt.Axis(
        **axis | ({"values": ticks, "tickCount": len(ticks)} if len(ticks) > (1 if least_gap else 2) else {})
    )


def _have_room(ticks: Sequence[float], low: float, high: float, least_gap: float) -> bool:
    gaps = [math.log(after / tick) for tick, after in itertools.pairwise(ticks)]
    return not gaps or min(gaps) >= least_gap * math.log(high / low)


def _choose_even_ticks(low: float, high: float, most: int, least_gap: float) -> list[float]:
    """Choose multiples of the smallest round step that leaves labels their room."""
    ticks: list[float] = []
    for step in (float(f"{m}e{power}") for power in range(-6, 12) for m in (1, 2, 5)):
        first, last = math.ceil(low / step), math.floor(high / step)
        if last - first < most:
            ticks = [float(f"{number * step:.9g}") for number in range(first, last + 1)]
            if _have_room(ticks, low, high, least_gap):
                break
    return ticks


def plot_width(data: pd.DataFrame, width: int) -> int:
    """Room that the labels leave."""
    return max(NARROWEST_PLOT, int(width - LABEL_SLACK - 24 - CHARACTER * data["label"].str.len().max()))
