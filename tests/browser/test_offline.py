"""The offline variant, read from files as a visitor would: no server, and no right to read other files."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser.chromium import watched
from tests.site_builder import ROOT

pytestmark = pytest.mark.long

RUN = "report/runs/small-ctx512-fp32-naive-train_step.html"
PAGES = ("index.html", "report/forward-time.html", "report/kernels.html", RUN, "notebooks/ask-the-data.html")
BUILD = """
import sys
from pathlib import Path
from tests import synthetic
from tests.site_builder import build_site
build_site(Path(sys.argv[1]), synthetic.recording(("small", "2.7B"), (128, 512)), config="mkdocs.offline.yml")
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Built in a process of its own: MkDocs has an event loop, and so has the browser by now."""
    folder = tmp_path_factory.mktemp("offline")
    subprocess.run([sys.executable, "-c", BUILD, str(folder)], check=True, cwd=ROOT)
    return f"file://{folder / 'html'}/"


def test_pages_are_quiet_and_ask_nobody(page, address):
    complaints, requests = watched(page)
    for path in PAGES:
        page.goto(address + path, wait_until="networkidle")
    assert not complaints
    assert not [url for url in requests if not url.startswith((address, "data:"))]


def test_every_link_of_the_navigation_is_a_file(page, address):
    page.goto(address + "index.html")
    links = page.locator(".md-nav a.md-nav__link[href]").evaluate_all("(all) => all.map((a) => a.href.split('#')[0])")
    assert len(set(links)) > 5
    assert all(Path(link.removeprefix("file://")).is_file() for link in links)
    page.locator(".md-nav--primary a", has_text="Runs").first.click()
    page.wait_for_url("**/report/runs.html")


def test_charts_are_drawn_and_tables_sort(page, address):
    page.goto(address + "report/forward-time.html#table-times")
    assert page.locator("figure.chart .wide svg").first.bounding_box()["width"] > 300
    page.locator("#table-times th button").first.click()
    assert page.locator("th[aria-sort]").count() == 1


def test_search_finds_pages(page, address):
    complaints, requests = watched(page)
    page.goto(address + "index.html")
    page.locator(".md-search__input").click()
    page.locator(".md-search__input").press_sequentially("reduction")
    page.locator(".md-search-result__link").first.wait_for(timeout=120_000)
    assert not complaints
    assert not [url for url in requests if not url.startswith((address, "data:", "blob:", "about:"))]


def test_a_timeline_is_offered_to_be_dropped_into_the_viewer(page, address):
    complaints, _ = watched(page)
    page.goto(address + RUN)
    assert page.locator(".timeline .profile").is_visible()
    page.locator(".timeline a").first.click()
    page.get_by_text("Browse").first.wait_for()
    assert not complaints
