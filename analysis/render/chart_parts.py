"""A drawing, and what all kinds of charts share: axes, labels and marks."""

import json
import re
from collections.abc import Iterable, Sequence
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

DRAWN = 0.001
"""Smaller shares than this would be thinner than the gap between two segments: their rows name them."""

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
        labelLimit=min(LONGEST_LABEL, width - LABEL_SLACK - 24 - NARROWEST_PLOT),
    )


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


def log_axis(drawing: Drawing, values: Iterable[float], most: int, orient: str = "top") -> alt.Axis:
    """Axis of a logarithmic scale over `values`, with ticks as dense as `most` allows, and evenly so; where round
    numbers are too few, Vega chooses."""
    low, high = min(values), max(values)
    for steps in (range(1, 10), (1, 2, 5), (1, 3), (1,)):
        ticks = [tick for power in range(-6, 12) for m in steps if low <= (tick := float(f"{m}e{power}")) <= high]
        if len(ticks) <= most:
            break
    axis = value_axis(drawing, "~g", most).to_dict() | {"orient": orient}
    return alt.Axis(**axis | ({"values": ticks, "tickCount": len(ticks)} if len(ticks) > 2 else {}))


def plot_width(data: pd.DataFrame, width: int) -> int:
    """Room that the labels leave: about 6.7 px a character at 12 px."""
    return max(NARROWEST_PLOT, int(width - LABEL_SLACK - 24 - 6.7 * data["label"].str.len().max()))
