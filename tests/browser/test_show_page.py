"""Pages of `show --html` in a browser, of an unmodified program that was recorded on a GPU."""

import pytest

from analysis.capture.summary import summarise
from analysis.show.page import page_of
from tests.browser.chromium import watched
from tests.browser.test_every_page import EXCESS
from tests.capture.real_captures import read_capture


@pytest.fixture(scope="module", params=["gpt2_emit", "ddp_plain"])
def shown(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shown")
    file = folder / "page.html"
    file.write_text(page_of(summarise(read_capture(request.param, folder), with_moments=True)), encoding="utf-8")
    return file.as_uri()


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
    context.close()
