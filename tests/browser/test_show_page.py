"""Pages of `show --html` in a browser, of unmodified programs that were recorded on a GPU, and of hostile names."""

import pytest

from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight.summary import summarise
from profiler_job.analysis.show.page import render_page
from tests.browser.chromium import watched
from tests.browser.hostile import NAMES
from tests.browser.test_every_page import EXCESS
from tests.capture.nsys_files import Export
from tests.capture.real_captures import read_capture


@pytest.fixture(scope="module", params=["gpt2_emit", "ddp_plain", "hostile"])
def shown(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shown")
    file = folder / "page.html"
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
