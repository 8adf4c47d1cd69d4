"""Pages of `show --html` in a browser: of programs recorded on a GPU, of hostile names, of a result of `tune`."""

import re

import pytest

from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight.summary import summarise
from profiler_job.analysis.show.page import render_page
from profiler_job.analysis.show.tuned import show_tuned
from profiler_job.jobs.contract.tuning import name_trace, write_tuning
from tests.browser.chromium import watched
from tests.browser.hostile import NAMES
from tests.browser.test_every_page import EXCESS
from tests.browser.test_script_print import MOST_PAGES
from tests.capture.nsys_files import Export
from tests.capture.real_captures import read_capture
from tests.capture.traces import make_followed
from tests.insight.test_tuned_limits import make_kernels
from tests.show.tunings import make_tuning


@pytest.fixture(scope="module", params=["gpt2_emit", "ddp_plain", "hostile", "tuned"])
def shown(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shown")
    file = folder / "page.html"
    if request.param == "tuned":
        _write_tuned(folder, file)
        return file.as_uri()
    capture = _hostile(folder) if request.param == "hostile" else read_capture(request.param, folder)
    file.write_text(render_page(summarise(capture, with_moments=True)), encoding="utf-8")
    return file.as_uri()


def _hostile(folder) -> Capture:
    """Kernels, ranges, a GPU and a file that are called what an enemy would call them."""
    export, names = Export(), [*NAMES.values()]
    export.gpu(name=names[0])
    for number, name in enumerate(names):
        export.push(name, 1000 * number, 1000 * number + 500)
        export.launch(1000 * number + 100, name=name)
    return read(export.sqlite(folder / "<img src=x onerror='window.owned = 1'>.sqlite"))


def _write_tuned(folder, file) -> None:
    """Write the page of a result whose steps were traced."""
    tuning = make_tuning()
    tuning.base.kernels = make_kernels(120e6, 60e6, 150e6)
    tuning.ladder[-1].kernels = make_kernels(20e6, 10e6, 20e6)
    write_tuning(folder, tuning)
    for changes in ((), tuning.winner.changes):
        make_followed(1).write(folder / name_trace(changes))
    assert show_tuned(folder, "text", print, print, html=file) == 0


def test_the_page_of_a_tuned_script_begins_with_its_step_and_takes_few_pages_of_paper(browser, tmp_path):
    file = tmp_path / "page.html"
    _write_tuned(tmp_path, file)
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(file.as_uri())
    for name in ("svg.ici >> nth=0", "text=What limits a step", "text=What to write"):
        place = page.locator(name).first.bounding_box()
        assert place and place["y"] + place["height"] <= 900, name
    assert page.locator("svg.ici").count() == 2
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4"))) <= MOST_PAGES
    page.close()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_asks_nobody_and_is_quiet(browser, shown, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    complaints, requests = watched(page)
    page.goto(shown)
    assert page.evaluate(EXCESS) <= 0
    assert page.locator("h1").is_visible() and page.locator("table").count() > 3
    assert not complaints and requests == [shown]
    assert page.evaluate("window.owned") is None and page.locator("h1").count() == 1
    context.close()
