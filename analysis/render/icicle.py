"""A step as an icicle: a row of phases, below it their modules, below them the kinds of their kernels, on one axis.

One drawing serves all widths: positions are percentages, and labels have a wide and a narrow form. Colours are
variables of the page (site/assets/report.css).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup

from profiler_job.analysis.insight.step_parts import BETWEEN, REST, WAIT
from profiler_job.analysis.render import text
from profiler_job.jobs.contract.quantities import format_rounded
from profiler_job.jobs.contract.step_limit import CPU

LABELS = {
    "matmul": "matmul",
    "attention": "fused attention",
    "elementwise": "elementwise",
    "copy": "copy, cast",
    "optimizer": "optimizer",
    "other": "other",
    "communication": "communication",
    WAIT: "GPU waits",
}
COLOURS = {
    "matmul": "family-gemm",
    "attention": "family-attention",
    "elementwise": "family-elementwise",
    "copy": "family-copy",
    "optimizer": "family-optimizer",
    "other": "family-other",
    "communication": "family-communication",
    WAIT: "ici-wait",
}
"""Variable of the colour of each kind: the colour of its main family of kernels, as in timelines. `other` holds
several families."""
SHORT = {"attention": "att.", "elementwise": "elem.", "copy": "copy", "optimizer": "opt.", "communication": "comm."}
PHASES = {"forward": "fwd", "backward": "bwd", "optimizer": "opt", "prefill": "pre", "decode": "dec"}
"""Short names of phases."""
WIDE, NARROW = 900, 330
"""Pixels of the narrowest drawing with the labels of each form."""
LETTER, BOLD, UPRIGHT = 6.8, 8.2, 6.6
"""Pixels of a letter of a label, of one of a phase, and of an upright one."""
PADDING = 6
AXIS, PHASE, MODULE, KIND = 18, 30, 74, 32
"""Heights of the axis and of the rows, in pixels."""
HEIGHT = AXIS + PHASE + MODULE + KIND
UPRIGHT_WIDTH = 15
"""Pixels that an upright label needs."""
LEAST = 0.0005
"""Parts with a smaller share of the step are not drawn."""
TICKS = {WIDE: 7, NARROW: 5}
"""Most labels of the axis in each form."""
STYLE = (
    ".ici text{font-size:12px;fill:var(--chart-text)}.ici rect{stroke:var(--chart-gap);stroke-width:1.5}"
    ".ici .axis{fill:var(--chart-faint)}.ici line{stroke:var(--chart-grid)}"
    ".ici .p{fill:var(--ici-phase)}.ici text.p{fill:var(--on-ici-phase);font-size:13px;font-weight:700}"
    ".ici .m{fill:var(--ici-module)}.ici text.m{fill:var(--on-ici-module)}"
    + "".join(
        f".ici .{kind}{{fill:var(--{colour})}}.ici text.{kind}{{fill:var(--on-{colour.removeprefix('family-')})}}"
        for kind, colour in COLOURS.items()
        if kind != WAIT
    )
    + ".ici text.wait{fill:var(--on-ici-wait);paint-order:stroke;stroke:var(--ici-wait);stroke-width:4px}"
    ".ici .hatch{stroke:var(--ici-hatch)}"
    ".ici .ground{fill:var(--ici-wait);stroke:none}.ici .u{font-size:11px;writing-mode:vertical-rl}"
    ".ici .u{transform-box:fill-box;transform-origin:center;transform:rotate(180deg)}"
    ".ici .N{display:none}"
)
NARROWED = "@media(max-width:59.9375em){.ici .W{display:none}.ici .N{display:inline}}"


class Box(NamedTuple):
    """A part to draw: its classes, its place (shares of the step, pixels), what is read of it, the labels that it may
    have, the longest first, and the label that may be upright."""

    name: str
    start: float
    share: float
    top: int
    height: int
    title: str
    labels: Sequence[str]
    upright: str = ""

    @property
    def is_focusable(self) -> bool:
        return self.name in ("p", "m")


def draw(parts: pd.DataFrame, name: str, has_reader: bool = False) -> Markup:
    """Draw the parts of one step (`insight.step_parts`). name: of the drawing, for ids. Phases and modules link to the
    table that repeats it, which has the id table-{name}. has_reader: a script shows what links are called, so that they
    need no tooltip (155 kB of a site)."""
    return _draw(parts, name, "100%", STYLE + NARROWED, has_reader)


def draw_picture(parts: pd.DataFrame) -> Markup:
    """Draw the parts of one step with the labels of a wide drawing, for a file (`svg_files.make_file`)."""
    return _draw(parts, "picture", str(WIDE), STYLE)


def _draw(parts: pd.DataFrame, name: str, width: str, style: str, has_reader: bool = False) -> Markup:
    step_ns = float(parts["step_ns"].iloc[0])
    boxes = [box for box in lay_out(parts) if box.share >= LEAST]
    name = text.file_name(name)
    pattern = Markup(
        '<defs><pattern id="hatch-{}" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect class="ground" width="7" height="7"/><line class="hatch" x1="0" y1="0" x2="0" y2="7" stroke-width="2"/>'
        "</pattern></defs>"
    ).format(Markup(name))
    return Markup('<svg class="ici" width="{}" height="{}"><style>{}</style>{}{}{}</svg>').format(
        width,
        HEIGHT,
        Markup(style),
        pattern,
        Markup("").join(_draw_axis(step_ns)),
        Markup("").join(_draw_box(box, name, has_reader) for box in boxes),
    )


def lay_out(parts: pd.DataFrame) -> Iterator[Box]:
    """Yield the boxes of one step, phase by phase."""
    step_ns = float(parts["step_ns"].iloc[0])
    start = 0.0
    for phase, of_phase in parts.groupby("phase", sort=False):
        share = of_phase["time_ns"].sum() / step_ns
        if phase == BETWEEN:
            yield _wait_box(str(phase), start, share, step_ns, AXIS, PHASE + MODULE + KIND)
        else:
            yield _phase_box(str(phase), start, share, step_ns)
            yield from _lay_out_modules(str(phase), of_phase, start, step_ns)
        start += share


def _phase_box(phase: str, start: float, share: float, step_ns: float) -> Box:
    time = format_rounded("time", share * step_ns)
    bare = format_rounded("time", share * step_ns, "ms").removesuffix(" ms")
    short = PHASES.get(phase, phase)
    labels = [f"{phase} {time}", f"{phase} {bare}", phase, f"{short} {bare}", short]
    return Box("p", start, share, AXIS, PHASE, f"{phase}: {time}, {share:.0%} of the step", labels)


def _lay_out_modules(phase: str, parts: pd.DataFrame, start: float, step_ns: float) -> Iterator[Box]:
    top = AXIS + PHASE
    num_modules = parts.loc[parts["kind"] != WAIT, "module"].nunique()
    for module, of_module in parts.groupby("module", sort=False):
        share = of_module["time_ns"].sum() / step_ns
        if (of_module["kind"] == WAIT).all():
            yield _wait_box(phase, start, share, step_ns, top, MODULE + KIND)
        else:
            name = "all kernels" if module == REST and num_modules == 1 else str(module)
            title = f"{phase}, {name}: {format_rounded('time', share * step_ns)}"
            bare = format_rounded("time", share * step_ns, "ms").removesuffix(" ms")
            yield Box("m", start, share, top, MODULE, title, [f"{name} {bare}", name], f"{name} {bare}")
            inside = start
            for kind, time_ns in zip(of_module["kind"], of_module["time_ns"]):
                words = f"{phase}, {name}, {LABELS[kind]}: {format_rounded('time', time_ns)}"
                labels = [LABELS[kind], SHORT.get(kind, LABELS[kind])]
                yield Box(kind, inside, time_ns / step_ns, top + MODULE, KIND, words, labels)
                inside += time_ns / step_ns
        start += share


def _wait_box(phase: str, start: float, share: float, step_ns: float, top: int, height: int) -> Box:
    time = format_rounded("time", share * step_ns)
    bare = format_rounded("time", share * step_ns, "ms").removesuffix(" ms")
    title = f"{phase}: the GPU waits {time}"
    return Box(WAIT, start, share, top, height, title, [f"waiting for the {CPU} {time}", f"waiting {bare}", bare])


def _draw_axis(step_ns: float) -> Iterator[Markup]:
    for form, width in (("W", WIDE), ("N", NARROW)):
        ticks = list(_choose_ticks(step_ns / 1e6, TICKS[width]))
        for i, tick in enumerate(ticks):
            at = 100 * tick / (step_ns / 1e6)
            unit = " ms" if i == len(ticks) - 1 else ""
            anchor = "start" if i == 0 else "end" if at > 96 else "middle"
            yield Markup('<text class="axis {}" x="{}%" y="12" text-anchor="{}">{}</text>').format(
                form, _percent(at), anchor, f"{tick:,.10g}{unit}"
            )


def _choose_ticks(most: float, num: int) -> Iterable[float]:
    """Round numbers from 0 to `most`, `num` at most."""
    power = 10.0 ** (len(f"{int(most)}") - 1) if most >= 1 else 0.1
    while most / power < 1:
        power /= 10
    steps = [power * factor for factor in (0.1, 0.2, 0.25, 0.5, 1, 2, 2.5, 5)]
    step = next(step for step in steps if most / step < num)
    return [step * i for i in range(int(most / step + 1e-9) + 1)]


def _draw_box(box: Box, name: str, has_reader: bool) -> Markup:
    fill = Markup(' fill="url(#hatch-{})"').format(Markup(name)) if box.name == WAIT else Markup("")
    mark = Markup("") if box.name == WAIT else Markup(' class="{}"').format(Markup(box.name))
    x = _percent(100 * box.start)
    place = Markup('x="{}%" y="{}" width="{}%" height="{}"').format(x, box.top, _percent(100 * box.share), box.height)
    title = "" if has_reader and box.is_focusable else Markup("<title>{}</title>").format(text.escape(box.title))
    rect = Markup("<rect{}{} {}>{}</rect>").format(mark, fill, place, title)
    forms = [(form, *_choose_label(box, width)) for form, width in (("W", WIDE), ("N", NARROW))]
    if forms[0][1:] == forms[1][1:]:
        forms = [("", *forms[0][1:])]
    labels = Markup("").join(_draw_label(box, form, label, upright) for form, label, upright in forms if label)
    if not box.is_focusable:
        return rect + labels
    return Markup('<a href="#table-{}" aria-label="{}">{}{}</a>').format(
        Markup(name), text.escape(box.title), rect, labels
    )


def _choose_label(box: Box, width: int) -> tuple[str, bool]:
    """Choose the longest label that fits in a drawing of this width, and whether it is upright."""
    pixels = box.share * width
    letter = BOLD if box.name == "p" else LETTER
    for label in box.labels:
        if len(label) * letter + 2 * PADDING <= pixels:
            return label, False
    if box.upright and pixels >= UPRIGHT_WIDTH:
        short = box.upright if len(box.upright) * UPRIGHT <= box.height - 4 else box.labels[-1]
        if len(short) * UPRIGHT <= box.height - 4:
            return short, True
    return "", False


def _draw_label(box: Box, form: str, label: str, upright: bool) -> Markup:
    classes = " ".join(filter(None, (box.name, form, "u" if upright else "")))
    if upright:
        at = 100 * (box.start + box.share / 2)
        place = Markup('x="{}%" y="{}" text-anchor="end"').format(_percent(at), box.top + box.height - 5)
    else:
        place = Markup('x="{}%" dx="{}" y="{}"').format(
            _percent(100 * box.start), PADDING, box.top + box.height // 2 + 4
        )
    return Markup('<text class="{}" {}>{}</text>').format(Markup(classes), place, text.escape(label))


def _percent(value: float) -> Markup:
    return Markup(f"{value:.3f}".rstrip("0").rstrip("."))


def tabulate(parts: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of the table that repeats the drawing: `module`, and the ms of each phase by its name, "" for none.
    Waiting comes last, then the total."""
    phases = list(dict.fromkeys(parts["phase"]))
    named = parts.assign(
        module=[
            f"waiting for the {CPU}" if kind == WAIT else module for kind, module in zip(parts["kind"], parts["module"])
        ]
    )
    table = named.pivot_table(index="module", columns="phase", values="time_ns", aggfunc="sum")[phases]
    waiting = f"waiting for the {CPU}"
    order = sorted(table.index, key=lambda name: (name == waiting, name == REST, -table.loc[name].sum()))
    table = pd.concat([table.loc[order], table.sum().to_frame("total").T])
    return [
        {"module": name, "times": ["" if pd.isna(ns) else format_rounded("time", ns, "ms")[:-3] for ns in row]}
        for name, row in zip(table.index, table.to_numpy())
    ]
