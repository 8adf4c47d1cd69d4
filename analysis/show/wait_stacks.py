"""The Python stacks that a GPU waits for, as a figure and as a file for speedscope."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pandas as pd
from markupsafe import Markup

from profiler_job.analysis.capture.capture_data import ExportError, ExportProblem
from profiler_job.analysis.insight.results import Summary
from profiler_job.analysis.render.timeline import Frame, Slice, Trace, Track, speedscope
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.quantities import format_share, format_time

LEAST_DRAWN = 0.005
"""Least share of the waiting that a frame needs to be drawn."""
MOST_FRAMES = 100
"""Frames of a stack, outermost first, that are shown."""
_TITLE = "Python stacks that the GPU waits for"


@dataclass
class FrameTree:
    """A frame, the time for which the GPU waits in it (ns), and the frames that it has called."""

    name: str = ""
    ns: int = 0
    called: dict[str, "FrameTree"] = field(default_factory=dict)

    @classmethod
    def grow(cls, stacks: pd.DataFrame) -> "FrameTree":
        """Make the tree of `stacks`, a section `wait_stacks`."""
        root = cls()
        for text, ns in zip(stacks["stack"].tolist(), stacks["wait_ns"].tolist()):
            node = root
            node.ns += int(ns)
            for name in text.split(";")[:MOST_FRAMES]:
                node = node.called.setdefault(name, cls(name))
                node.ns += int(ns)
        return root

    def list_called(self) -> list["FrameTree"]:
        return sorted(self.called.values(), key=lambda node: (-node.ns, node.name))


def format_speedscope(summary: Summary) -> str:
    """Format the stacks for speedscope: each as wide as the GPU waits for it. Raises ExportError without samples."""
    stacks, source = summary.sections["wait_stacks"], summary.capture["source"]
    if not len(stacks):
        remedy = "record with `--python-sampling=true`, and export with `--include-json=true`"
        raise ExportError(ExportProblem.NOTHING_SELECTED, source, "has no Python samples", remedy, ExitCode.USAGE)
    numbers: dict[str, int] = {}
    slices = list(_lay_out(FrameTree.grow(stacks), 0, numbers))
    trace = Trace(name=f"{source}: {_TITLE}", step=0)
    trace.frames = [Frame(make_printable(name)) for name in numbers]
    trace.tracks = [Track("Python", _TITLE, slices)]
    return speedscope(trace)


def _lay_out(node: FrameTree, start: int, numbers: dict[str, int]) -> Iterator[Slice]:
    for part in node.list_called():
        yield Slice(start, start + part.ns, numbers.setdefault(part.name, len(numbers)))
        yield from _lay_out(part, start, numbers)
        start += part.ns


def draw_icicle(summary: Summary) -> Markup:
    """Draw the stacks as nested boxes, callers above what they call; nothing without samples."""
    if "wait_stacks" not in summary.shown or not len(summary.sections["wait_stacks"]):
        return Markup("")
    tree = FrameTree.grow(summary.sections["wait_stacks"])
    boxes = Markup("").join(_draw_boxes(tree, tree.ns))
    return Markup(
        '<h2>{}</h2>\n<div class="icicle" role="img" aria-label="{}"><div class="called">{}</div></div>'
    ).format(_TITLE, _TITLE, boxes)


def _draw_boxes(node: FrameTree, whole_ns: int) -> Iterator[Markup]:
    for part in node.list_called():
        if part.ns < LEAST_DRAWN * whole_ns:
            continue
        name = make_printable(part.name)
        words = f"{name}: {format_time(part.ns)}, {format_share(part.ns / whole_ns)}"
        inside = Markup("").join(_draw_boxes(part, whole_ns))
        width = f"{100 * part.ns / max(node.ns, 1):.3f}"
        yield Markup(
            '<div class="frame" style="width:{}%"><b title="{}">{}</b><div class="called">{}</div></div>'
        ).format(width, words, name, inside)
