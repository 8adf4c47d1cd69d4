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

LEAST_DRAWN, MOST_DRAWN = 0.005, 200
"""Least share of the waiting that a frame needs to be drawn, and how many are: those with most."""
MOST_FRAMES = 100
"""Frames of a stack, outermost first, that are shown."""
TITLE = "Python stacks that the GPU waits for"


@dataclass
class FrameTree:
    """A frame, the time for which the GPU waits in it (ns), and the frames that it has called."""

    name: str = ""
    ns: int = 0
    called: dict[str, "FrameTree"] = field(default_factory=dict)

    @classmethod
    def grow(cls, stacks: pd.DataFrame) -> "FrameTree":
        """Make the tree of `stacks`, a section or table `wait_stacks`."""
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

    def list_all(self, depth: int = 0, least_ns: float = 0.0) -> Iterator[tuple[int, "FrameTree"]]:
        """Yield the frames that take so long and how deep each is, callers before what they call."""
        for part in self.list_called():
            if part.ns >= least_ns:
                yield depth, part
                yield from part.list_all(depth + 1, least_ns)

    def find_least_drawn(self) -> float:
        """Find how long the GPU waits at least in a frame that is drawn (ns)."""
        times = sorted((part.ns for _, part in self.list_all()), reverse=True)[: MOST_DRAWN + 1]
        least = LEAST_DRAWN * self.ns
        return max(least, times[MOST_DRAWN] + 1) if len(times) > MOST_DRAWN else least


def format_speedscope(summary: Summary) -> str:
    """Format the stacks for speedscope: each as wide as the GPU waits for it. Raises ExportError without samples."""
    stacks, source = summary.sections["wait_stacks"], summary.capture["source"]
    if not len(stacks):
        remedy = "record with `--python-sampling=true`, and export with `--include-json=true`"
        raise ExportError(ExportProblem.NOTHING_SELECTED, source, "has no Python samples", remedy, ExitCode.USAGE)
    return format_stacks(stacks, source)


def format_stacks(stacks: pd.DataFrame, source: str) -> str:
    """Format `wait_stacks` for speedscope. source: what they are of."""
    numbers: dict[str, int] = {}
    slices = list(_lay_out(FrameTree.grow(stacks), 0, numbers))
    trace = Trace(name=f"{source}: {TITLE}", step=0)
    trace.frames = [Frame(make_printable(name)) for name in numbers]
    trace.tracks = [Track("Python", TITLE, slices)]
    return speedscope(trace)


def _lay_out(node: FrameTree, start: int, numbers: dict[str, int]) -> Iterator[Slice]:
    for part in node.list_called():
        yield Slice(start, start + part.ns, numbers.setdefault(part.name, len(numbers)))
        yield from _lay_out(part, start, numbers)
        start += part.ns


def draw_icicle(summary: Summary) -> Markup:
    """Draw the stacks as nested boxes, with a heading; nothing without samples."""
    if "wait_stacks" not in summary.shown or not len(summary.sections["wait_stacks"]):
        return Markup("")
    return Markup('<h2>{}</h2>\n<div class="stacks">{}</div>').format(
        TITLE, draw_stacks(summary.sections["wait_stacks"])
    )


def draw_stacks(stacks: pd.DataFrame) -> Markup:
    """Draw `wait_stacks` as nested boxes, callers above what they call."""
    tree = FrameTree.grow(stacks)
    boxes = Markup("").join(_draw_boxes(tree, tree.ns, tree.find_least_drawn()))
    return Markup('<div class="called" role="img" aria-label="{}">{}</div>').format(TITLE, boxes)


def tabulate_stacks(stacks: pd.DataFrame) -> pd.DataFrame:
    """List what `draw_stacks` draws: depth, frame, wait_ns and share, callers before what they call."""
    tree = FrameTree.grow(stacks)
    drawn = list(tree.list_all(least_ns=tree.find_least_drawn()))
    rows = [(depth, make_printable(part.name), part.ns, part.ns / max(tree.ns, 1)) for depth, part in drawn]
    return pd.DataFrame(rows, columns=["depth", "frame", "wait_ns", "share"])


def _draw_boxes(node: FrameTree, whole_ns: int, least_ns: float) -> Iterator[Markup]:
    for part in node.list_called():
        if part.ns < least_ns:
            continue
        name = make_printable(part.name)
        words = f"{name}: {format_time(part.ns)}, {format_share(part.ns / whole_ns)}"
        inside = Markup("").join(_draw_boxes(part, whole_ns, least_ns))
        width = f"{100 * part.ns / max(node.ns, 1):.3f}"
        yield Markup(
            '<div class="frame" style="width:{}%"><b title="{}">{}</b><div class="called">{}</div></div>'
        ).format(width, words, name, inside)
