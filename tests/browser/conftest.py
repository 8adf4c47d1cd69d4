"""The site is built once; one browser serves all tests here, and ends with them: its event loop would be in the way of
others."""

from pathlib import Path

import pytest

from tests.browser import chromium
from tests.browser.hostile import hostile_comparison, hostile_recording
from tests.browser.serving import serving
from tests.conftest import runs_long_tests
from tests.site_builder import SITE_URL, build_site, build_small_site


@pytest.fixture(scope="session")
def built(request, built_once):
    """Folder of the HTML of a report, built for a base path: with --long or --all the report of the shipped
    recordings, which --site names if it was built already."""
    if site := request.config.getoption("site"):
        return Path(site)
    if runs_long_tests(request.config):
        return built_once("shipped", lambda folder: build_site(folder, site_url=SITE_URL))
    return built_once("small", build_small_site)


@pytest.fixture(scope="session")
def hostile(built_once):
    """Folder of the HTML of a small report whose names come from an enemy."""

    def build(folder):
        rec = hostile_recording()
        return build_site(folder, rec, site_url=SITE_URL, compared=hostile_comparison(rec))

    return built_once("hostile", build)


@pytest.fixture(scope="package")
def browser(built, hostile):
    if why := chromium.missing():
        pytest.skip(why)
    with chromium.launched() as launched:
        yield launched


@pytest.fixture(scope="package")
def address(built):
    with serving(built) as found:
        yield found


@pytest.fixture(scope="package")
def hostile_address(hostile):
    with serving(hostile) as found:
        yield found


@pytest.fixture
def page(browser):
    """A fresh page, wide and light."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    context.set_default_timeout(120_000)  # Playwright's own is tight on a busy machine
    yield context.new_page()
    context.close()
