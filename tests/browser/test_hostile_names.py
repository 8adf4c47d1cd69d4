"""Names from a profile are text: in pages, in drawings, in CSV, and they move nothing."""

import csv
import io
import re

import pytest

from tests.browser.hostile import MESSAGE, MODULE, NAMES
from tests.browser.serving import pages_of
from tests.browser.test_behaviour import downloaded
from tests.browser.test_every_page import EXCESS, STEADY, WATCH_SHIFTS, least_shift

RUN = "report/runs/small-ctx128-fp32-naive-forward.html"
FAILED = "report/runs/2.7B-ctx1024-fp32-naive-train_step.html"


def open_kernels(page, address: str) -> None:
    """The page of the run, its table of kernels unfolded as a reader would."""
    page.goto(address + RUN)
    page.locator("details.detail", has=page.locator("#table-kernels")).locator("> summary").click()


def squeezed(text: str) -> str:
    """White space and what no page can show as it is, made alike."""
    return re.sub(r"\s+", " ", re.sub(r"[\x00-\x08\x0b-\x1f\ufffd]", "?", re.sub(r"[\r\n\t]", " ", text))).strip()


@pytest.mark.parametrize("width", [1280, pytest.param(390, marks=pytest.mark.long)])
def test_nothing_runs_nothing_is_added_and_nothing_moves(browser, hostile, hostile_address, width):
    context = browser.new_context(viewport={"width": width, "height": 900}, reduced_motion="reduce")
    context.add_init_script(WATCH_SHIFTS)
    page = context.new_page()
    asked = []
    page.on("request", lambda one: asked.append(one.url))
    problems = []
    for path in pages_of(hostile):
        page.goto(hostile_address + path)
        if page.evaluate("window.owned"):
            problems.append(f"{path}: a name was run")
        if (
            page.locator("article h1").count() != 1
            or page.locator("article img:not(.notebook img), article script").count()
        ):
            problems.append(f"{path}: a name became an element")
        if page.locator("article a[href^='javascript']").count():
            problems.append(f"{path}: a name became a link")
        if page.evaluate(EXCESS) > 0 or least_shift(page) > STEADY:
            problems.append(f"{path}: a name moved the page")
    assert not problems
    assert all(url.startswith(hostile_address) for url in asked)
    context.close()


def test_names_read_as_themselves(page, hostile_address):
    page.goto(hostile_address + RUN)
    shown = {squeezed(text) for text in page.locator("#table-kernels td.kernel code").all_text_contents()}
    for name in NAMES.values():
        assert squeezed(name) in shown
    assert squeezed(MODULE) in {squeezed(text) for text in page.locator("#table-modules td").all_text_contents()}
    page.goto(hostile_address + FAILED)
    assert squeezed(MESSAGE) in squeezed(page.locator(".note").text_content())


def test_an_opened_name_stays_in_its_cell(page, hostile_address):
    open_kernels(page, hostile_address)
    table = page.locator("#table-kernels table")
    before = table.bounding_box()["width"]
    for summary in page.locator("#table-kernels summary").all():
        summary.click()
    assert table.bounding_box()["width"] <= before + 1


def cells_of(text: str) -> list[str]:
    return [cell for row in csv.reader(io.StringIO(text)) for cell in row]


def test_csv_has_every_name_and_no_formula(page, hostile, hostile_address):
    open_kernels(page, hostile_address)
    visible = [cell for row in downloaded(page, "#table-kernels") for cell in row]
    whole = cells_of((hostile / "report/csv/runs/small-ctx128-fp32-naive-forward/kernels.csv").read_text("utf-8"))
    for cells in (visible, whole):
        names = {squeezed(cell).removeprefix("'") for cell in cells}
        assert {squeezed(name) for name in NAMES.values()} <= names
    for path in hostile.rglob("*.csv"):
        for cell in cells_of(path.read_text(encoding="utf-8")):
            assert not re.match(r"[=+@\t\r]|-(?![\d.])", cell), f"{path.name}: {cell[:40]}"
    assert not [cell for cell in visible if re.match(r"[=+@\t\r]|-(?![\d.])", cell)]


@pytest.mark.long
def test_drawings_hold_no_markup_of_a_name(page, hostile, hostile_address):
    allowed = {"svg", "g", "path", "text", "title", "rect", "line", "defs", "clipPath", "tspan", "polyline"}
    for path in pages_of(hostile):
        page.goto(hostile_address + path)
        tags = page.locator("figure.chart svg, figure.chart svg *").evaluate_all("(all) => all.map((e) => e.tagName)")
        assert set(tags) <= allowed, path
