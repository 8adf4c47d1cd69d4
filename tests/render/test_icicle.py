"""The icicle holds each part once, at its place; labels that do not fit are left out."""

import re
from pathlib import Path

import pandas as pd
import pytest

from profiler_job.analysis.insight import step_parts
from profiler_job.analysis.insight.step_parts import COLUMNS
from profiler_job.analysis.render import icicle
from profiler_job.analysis.render.svg_files import Entry, make_file, read_colours

MS = 1e6
ROWS = [
    ("forward", "FFN", "matmul", 20),
    ("forward", "FFN", "elementwise", 10),
    ("forward", "<b>", "copy", 5),
    ("forward", "", "wait", 15),
    ("backward", "other", "matmul", 45),
    ("between phases", "", "wait", 5),
]


@pytest.fixture
def parts():
    rows = [("a", 100 * MS, phase, module, kind, ms * MS) for phase, module, kind, ms in ROWS]
    return pd.DataFrame(rows, columns=COLUMNS)


def read_boxes(parts):
    return {box.title: box for box in icicle.lay_out(parts)}


def test_each_part_is_at_its_place(parts):
    boxes = read_boxes(parts)
    assert (boxes["forward: 50 ms, 50% of the step"].start, boxes["forward: 50 ms, 50% of the step"].share) == (0, 0.5)
    assert boxes["forward, FFN: 30 ms"].share == pytest.approx(0.3)
    assert boxes["forward, FFN, elementwise: 10 ms"].start == pytest.approx(0.2)
    assert boxes["forward: the GPU waits 15 ms"].start == pytest.approx(0.35)
    assert boxes["backward, all kernels: 45 ms"].start == pytest.approx(0.5)
    assert boxes["between phases: the GPU waits 5.0 ms"].start == pytest.approx(0.95)


def test_names_are_inert(parts):
    svg = icicle.draw(parts, "a b")
    assert "<b>" not in svg and "&lt;b&gt;" in svg and 'id="hatch-a_b"' in svg and 'href="#table-a_b"' in svg


def test_phases_and_modules_have_the_keyboard_and_all_parts_a_title(parts):
    svg = icicle.draw(parts, "a")
    assert svg.count("<a href=") == 2 + 3
    assert svg.count("<title>") == len(list(icicle.lay_out(parts)))
    assert icicle.draw(parts, "a", has_reader=True).count("<title>") == svg.count("<title>") - svg.count("<a href=")


@pytest.mark.parametrize("width", [icicle.WIDE, icicle.NARROW])
def test_a_label_fits_its_part(parts, width):
    for box in icicle.lay_out(parts):
        label, is_upright = icicle._choose_label(box, width)
        room = box.height if is_upright else box.share * width
        assert len(label) * 6 <= room, label


def test_the_table_repeats_the_figure(parts):
    rows = {row["module"]: row["times"] for row in icicle.tabulate(parts)}
    assert rows["FFN"] == ["30", "", ""] and rows["waiting for the CPU"] == ["15", "", "5.0"]
    assert [*rows][-1] == "total" and rows["total"] == ["50", "45", "5.0"]


@pytest.mark.parametrize("most", [0.03, 0.8, 1, 7.3, 44, 115, 390, 2500])
def test_ticks_are_few_and_round(most):
    ticks = list(icicle._choose_ticks(most, 7))
    assert 2 <= len(ticks) <= 7 and ticks[0] == 0 and ticks[-1] <= most
    assert all(re.fullmatch(r"[1-9]?\d?\.?0*(25|[1-9]5?)?0*", f"{tick:.6g}") or tick == 0 for tick in ticks[1:])


def test_a_file_of_it_has_its_colours_in_light_and_in_dark(parts):
    file = make_file(str(icicle.draw_picture(parts)), [Entry("matmul", "family-gemm")])
    assert "var(" not in file and 'width="100%"' not in file.replace('<rect width="100%"', "")
    light, _, dark = re.search("<style>(.ici text.*?)</style>", file)[1].partition("@media(prefers-color-scheme:dark)")
    assert ".ici .matmul{fill:#184c96}" in light and ".ici .matmul{fill:#64ace9}" in dark
    assert "max-width" not in file


def test_a_kind_has_the_colour_of_its_family():
    """Copies were orange here and pink in the timeline of the same page."""
    first = {kind: family for family, kind in reversed(step_parts.KIND_OF_FAMILY.items())}
    assert {kind: f"family-{family}" for kind, family in first.items()}.items() <= icicle.COLOURS.items()
    assert {*icicle.COLOURS} == {*step_parts.KINDS}


def test_documents_and_pictures_have_the_colours_of_the_site():
    css = (Path(__file__).parents[2] / "site" / "assets" / "report.css").read_text(encoding="utf-8")
    halves = css.split('[data-md-color-scheme="slate"] {')[:2]
    for half, colours in zip(halves, read_colours(), strict=True):
        of_site = dict(re.findall(r"--((?:family|on|ici|below)-[a-z-]+):\s*(#[0-9a-f]+)", half))
        shared = of_site.keys() & colours.keys()
        assert {*(name for name in icicle.COLOURS.values()), "below-peak", "on-gemm"} <= shared
        assert {name: colours[name] for name in shared} == {name: of_site[name] for name in shared}
