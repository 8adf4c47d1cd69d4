"""Strips of the timeline: what one GPU runs while it works on one block of the model, and its gaps; a step on the CPU
and the GPU; of several ranks what each runs in a step.

A pixel has the colour of the family that takes most of it, or the colour of waiting if the GPU idles for most of it. Of
short kernels that are far from each other every few pixels have one, as many as their time takes. So a strip is a few
hundred bytes for each family, however many kernels there are.
"""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from profiler_job.analysis.render import text, timeline
from profiler_job.jobs.contract import ranges

PIXELS, HEIGHT = 700, 10
LINE, DRAWN, GAP = 22, 24, 6
"""Pixels of a file of lanes: of a line of text, of a lane, below it."""
NUM_SERIES = 4
"""Colours of series that the theme has."""
LAUNCH_COLOUR = {"launch": "chart-faint"}
_NUMBERED = re.compile(rf"^(?:.*?/)?(?:{ranges.BLOCK_PREFIX}\d+|[^/]*\.\d+)(?=/|$)")
"""The path of a block: up to the first name with a number."""


class Lane(NamedTuple):
    """A drawing of PIXELS by HEIGHT, and what it is of, if there are several."""

    label: str
    svg: Markup


class Strip(NamedTuple):
    """One lane of the time in which the kernels of `block` run in forward, `span_ns` long; the GPU waits for the part
    `idle` of it; `families` that can be seen."""

    lanes: list[Lane]
    block: str
    span_ns: int
    idle: float
    families: list[str]


class Lanes(NamedTuple):
    """Strips of one step on several ranks, two for each, all of the same `span_ns`; `families` that can be seen."""

    num_ranks: int
    span_ns: int
    lanes: list[Lane]
    families: list[str]


class StepLanes(NamedTuple):
    """Strips of one step on the CPU and the GPU, by one clock, `span_ns` long. The CPU has launched all after
    `launched_ns`; the GPU idles for the part `idle` of the step. `phases`: on the CPU, each coloured as the series of
    its place; `families` that can be seen on the GPU."""

    span_ns: int
    launched_ns: int
    idle: float
    phases: list[str]
    families: list[str]
    lanes: list[Lane]


WAIT_COLOUR, WAIT_LINES = "ici-wait", "ici-hatch"
"""Variables of the colours of waiting, as in the icicle of a step: the ground, and the lines that are seen on a page of
nearly the same colour."""
WAITS = "GPU waits"
COMMUNICATION = "communication"
"""Key of a family: pictures know families by keys and labels alone."""


def stack(lanes: Sequence[Lane]) -> str:
    """Return one drawing of the lanes, below one another, each with its label above it."""
    parts, y = [], 0
    for label, svg in lanes:
        if label:
            y += LINE
            parts.append(f'<text x="0" y="{y - 6}" fill="var(--chart-text)">{text.escape(label)}</text>')
        parts.append(str(svg).replace("<svg ", f'<svg y="{y}" width="{PIXELS}" height="{DRAWN}" ', 1))
        y += DRAWN + GAP
    return f'<svg width="{PIXELS}" height="{y}">{"".join(parts)}</svg>'


def draw_block(kernels: pd.DataFrame, memops: pd.DataFrame, labels: dict[str, str]) -> Strip | None:
    """Strip of the middle block of the forward pass in `kernels` and `memops` of one step, on the device that runs it;
    None where no module is numbered. labels: of families, by key."""
    forward = kernels[kernels["phase"].astype(str) == ranges.FORWARD]
    paths = forward["module"].astype(str).str.extract(f"({_NUMBERED.pattern})", expand=False)
    of_blocks = forward.assign(block=paths).dropna(subset="block").sort_values("start_ns", kind="stable")
    if not len(of_blocks):
        return None
    blocks = list(dict.fromkeys(of_blocks["block"]))
    mine = of_blocks[of_blocks["block"] == blocks[len(blocks) // 2]]
    device, rank = mine["device"].iloc[0], mine["rank"].iloc[0]
    mine = mine[(mine["device"] == device) & (mine["rank"] == rank)]
    begin, end = int(mine["start_ns"].min()), int(mine["end_ns"].max())
    inside = _operations(kernels, memops, labels)
    inside = inside[(inside["device"] == device) & (inside["rank"] == rank)]
    block = str(mine["block"].iloc[0])
    svg, families, filled = _drawn(inside, begin, end, f"Timeline of {block} in the forward pass", labels, waits=True)
    idle = round(1 - float(filled.sum(axis=0).clip(max=1).mean()), 6)
    return Strip([Lane("", svg)], block, end - begin, idle, families)


def draw_ranks(kernels: pd.DataFrame, memops: pd.DataFrame, labels: dict[str, str]) -> Lanes | None:
    """Strips of all that each of several ranks does in `kernels` and `memops` of one step, by one clock; None of one
    rank. labels: of families, by key."""
    operations = _operations(kernels, memops, labels)
    ranks = sorted(operations["rank"].unique().tolist())
    if len(ranks) < 2:
        return None
    begin, end = int(operations["start_ns"].min()), int(operations["end_ns"].max())
    lanes: list[Lane] = []
    seen: dict[str, None] = {}
    exchanges = operations["family"] == COMMUNICATION
    for rank in ranks:
        for what, is_of_it in (("computation", ~exchanges), (COMMUNICATION, exchanges)):
            label = f"rank {rank}, {what}"
            mine = operations[is_of_it & (operations["rank"] == rank)]
            svg, families, _ = _drawn(mine, begin, end, f"Timeline of one step: {label}", labels)
            lanes.append(Lane(label, svg))
            seen |= dict.fromkeys(families)
    return Lanes(len(ranks), end - begin, lanes, list(seen))


def draw_step(
    host_ranges: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame, labels: dict[str, str]
) -> StepLanes | None:
    """Strips of one step of one rank: its phases and launches on the CPU, and what the GPU runs. Where the profiler's
    GPU times are too early against the CPU's, they are moved as in `timeline.trace_step`. None of several ranks,
    without phases on the CPU, and without launches. labels: of families, by key."""
    named = host_ranges.assign(family=host_ranges["name"].astype(str))
    named = named[named["family"].isin(ranges.ALL_PHASES)]
    calls = kernels[kernels["launch_end_ns"] > kernels["launch_ns"]]
    if not len(named) or not len(calls) or kernels["rank"].nunique() > 1:
        return None
    launches = pd.DataFrame({"start_ns": calls["launch_ns"], "end_ns": calls["launch_end_ns"], "family": "launch"})
    launches = launches.drop_duplicates()
    operations = _operations(kernels, memops, labels)
    shift = timeline.find_shift(kernels, memops)
    operations = operations.assign(start_ns=operations["start_ns"] + shift, end_ns=operations["end_ns"] + shift)
    begin = int(min(named["start_ns"].min(), launches["start_ns"].min()))
    end = int(max(named["end_ns"].max(), operations["end_ns"].max()))
    phases = list(dict.fromkeys(named.sort_values("start_ns")["family"]))
    phase_labels, launch_labels = {name: name for name in phases}, {"launch": "launches of kernels"}
    colours = {name: f"series-{place % NUM_SERIES}" for place, name in enumerate(phases)}
    on_cpu, _, _ = _drawn(named, begin, end, "Phases on the CPU in one step", phase_labels, colours)
    launching, _, _ = _drawn(launches, begin, end, "Launches on the CPU in one step", launch_labels, LAUNCH_COLOUR)
    on_gpu, families, filled = _drawn(operations, begin, end, "What the GPU runs in one step", labels, waits=True)
    lanes = [Lane("CPU: phases", on_cpu), Lane("CPU: launches of kernels", launching), Lane("GPU", on_gpu)]
    idle = round(1 - float(filled.sum(axis=0).clip(max=1).mean()), 6)
    return StepLanes(end - begin, int(launches["end_ns"].max()) - begin, idle, phases, families, lanes)


def _operations(kernels: pd.DataFrame, memops: pd.DataFrame, labels: dict[str, str]) -> pd.DataFrame:
    """Kernels, copies and fills with their family, `other` where that has no label."""
    shown = ["device", "rank", "start_ns", "end_ns", "family"]
    parts = [part[shown] for part in (kernels, memops.assign(family="memory")) if len(part)]
    rows = pd.concat([part.astype({"family": object}) for part in parts], ignore_index=True)
    return rows.assign(family=rows["family"].where(rows["family"].isin(list(labels)), "other"))


def _drawn(
    operations: pd.DataFrame,
    begin: int,
    end: int,
    label: str,
    labels: dict[str, str],
    colours: Mapping[str, str] = MappingProxyType({}),
    waits: bool = False,
) -> tuple[Markup, list[str], np.ndarray]:
    """Picture of `operations` from begin to end, the families that can be seen, and `_filled`. colours: variables
    for rows that have no family of kernels. waits: the GPU waits wherever none of them runs."""
    names, filled = _filled(operations[(operations["end_ns"] > begin) & (operations["start_ns"] < end)], begin, end)
    leading = np.full(PIXELS, -1)
    if names:
        leading = np.where(_choose_pixels(filled.sum(axis=0)), filled.argmax(axis=0), -1)
    families = [name for i, name in enumerate(names) if (leading == i).any()]
    bars = Markup("").join(
        Markup('<path stroke="var(--{})" d="{}"><title>{}</title></path>').format(
            colours.get(name, f"family-{name}"),
            _runs(leading == names.index(name)),
            text.escape(labels.get(name, name)),
        )
        for name in families
    )
    ground = Markup('<rect width="{}" height="{}" fill="var(--{})"><title>{}</title></rect>').format(
        PIXELS, HEIGHT, Markup(WAIT_COLOUR), WAITS
    )
    svg = Markup(
        '<svg class="strip" viewBox="0 0 {} {}" preserveAspectRatio="none" stroke-width="{}" role="img"'
        ' aria-label="{}">{}{}</svg>'
    ).format(PIXELS, HEIGHT, HEIGHT, text.escape(label), ground if waits else "", bars)
    return svg, families, filled


def _filled(operations: pd.DataFrame, begin: int, end: int) -> tuple[list[str], np.ndarray]:
    """Families, and the part of each pixel that each of them takes: families x PIXELS."""
    names = list(dict.fromkeys(operations["family"]))
    edges = np.linspace(0, end - begin, PIXELS + 1)
    filled = np.zeros((len(names), PIXELS))
    for i, name in enumerate(names):
        rows = operations[operations["family"] == name]
        # Each running kernel adds a nanosecond a nanosecond: from its start on, until its end takes that away again.
        done = _sum_elapsed(edges, rows["start_ns"] - begin) - _sum_elapsed(edges, rows["end_ns"] - begin)
        filled[i] = np.diff(done) / (edges[1] - edges[0])
    return names, filled


def _sum_elapsed(edges: np.ndarray, times: pd.Series) -> np.ndarray:
    """Sum, for each edge, of the time that has passed since each of `times` before it."""
    ordered = np.sort(times.to_numpy(float).clip(0))
    num_before = np.searchsorted(ordered, edges)
    sums = np.concatenate([[0], np.cumsum(ordered)])
    elapsed: np.ndarray = num_before * edges - sums[num_before]
    return elapsed


def _choose_pixels(filled: np.ndarray) -> np.ndarray:
    """Whether each pixel is drawn: if half of it is filled, or if the pixels before it that are not drawn together fill
    one."""
    on = filled * 2 >= 1
    left = 0.0
    for pixel in np.flatnonzero(~on & (filled > 0)):
        left += filled[pixel]
        on[pixel] = left >= 1
        left -= on[pixel]
    return on


def _runs(on: np.ndarray) -> str:
    """The runs of True as lines of a path."""
    steps = np.flatnonzero(np.diff(np.concatenate([[0], on.astype(int), [0]])))
    return "".join(f"M{begin} {HEIGHT // 2}h{end - begin}" for begin, end in steps.reshape(-1, 2).tolist())
