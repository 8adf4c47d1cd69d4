"""The site is built once; one browser serves all tests here, and ends with them: its event loop would be in the way of
others."""

import pytest

from tests.browser import chromium
from tests.browser.hostile import hostile_recording
from tests.browser.serving import BASE_PATH, serving
from tests.site_builder import build_site

SITE_URL = f"https://example.org{BASE_PATH}"


@pytest.fixture(scope="session")
def shipped(tmp_path_factory):
    """Folder of the HTML of the shipped recording's report, built for a base path."""
    return build_site(tmp_path_factory.mktemp("shipped"), site_url=SITE_URL)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory):
    """Folder of the HTML of a small report whose names come from an enemy."""
    return build_site(tmp_path_factory.mktemp("hostile"), hostile_recording(), site_url=SITE_URL)


@pytest.fixture(scope="package")
def browser(shipped, hostile):
    if why := chromium.missing():
        pytest.skip(why)
    with chromium.launched() as launched:
        yield launched


@pytest.fixture(scope="package")
def address(shipped):
    with serving(shipped) as found:
        yield found


@pytest.fixture(scope="package")
def hostile_address(hostile):
    with serving(hostile) as found:
        yield found


@pytest.fixture
def page(browser):
    """A fresh page, wide and light."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    yield context.new_page()
    context.close()
