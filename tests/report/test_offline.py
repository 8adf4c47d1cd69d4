"""The offline variant, read from files as a visitor would: no server, and no right to read other files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .browser import CHROMIUM, Browser, complaints, requests

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")

ROOT = Path(__file__).parents[2]
PAGES = ("index.html", "report/forward-time.html", "report/kernels.html", "notebooks/ask-the-recording.html")


@pytest.fixture(scope="module")
def address(site):
    """The site as mkdocs.offline.yml builds it from the pages of `site`, as a file:// address."""
    folder = site.parent
    config = (ROOT / "mkdocs.offline.yml").read_text().replace("build/offline", str(folder / "offline"))
    (folder / "mkdocs.offline.yml").write_text(config)
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(folder / "mkdocs.offline.yml")],
        capture_output=True,
        text=True,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return f"file://{folder / 'offline'}/"


@pytest.fixture(scope="module")
def browser():
    with Browser() as opened:
        yield opened


def test_pages_are_quiet_and_ask_nobody(browser, address):
    for page in PAGES:
        events = browser.visit(address + page)
        assert not complaints(events), page
        assert not [url for url in requests(events) if not url.startswith((address, "data:"))], page


def test_every_link_of_the_navigation_is_a_file(browser, address):
    browser.visit(address + "index.html")
    links = browser.run("[...document.querySelectorAll('.md-nav a.md-nav__link[href]')].map(a => a.href.split('#')[0])")
    assert len(set(links)) > 5
    assert all(Path(link.removeprefix("file://")).is_file() for link in links)
    browser.run("document.querySelector('.md-nav a[href$=\"runs.html\"]').click()")
    assert browser.until("document.readyState === 'complete' && location.pathname.endsWith('runs.html')", True, 10)


def test_charts_are_drawn_and_tables_sort(browser, address):
    browser.visit(address + "report/forward-time.html")
    width = "Math.max(...[...document.querySelectorAll('figure svg')].map(s => s.getBoundingClientRect().width))"
    assert browser.run(width) > 300
    browser.run("document.querySelector('figure[data-table] th button').click()")
    assert browser.run("document.querySelectorAll('th[aria-sort]').length") == 1


def test_search_finds_pages(browser, address):
    events = browser.visit(address + "index.html")
    browser.run(
        """document.querySelector('#__search').click();
        (input => { input.focus(); input.value = 'reduction'; input.dispatchEvent(new KeyboardEvent('keyup'));
        input.dispatchEvent(new Event('input', {bubbles: true})) })(document.querySelector('input.md-search__input'))"""
    )
    found = "document.querySelectorAll('.md-search-result__item a').length > 0"
    assert browser.until(found, True, 10)
    asked = requests(events + browser.events)
    assert not [url for url in asked if not url.startswith((address, "data:", "about:"))]


def test_a_timeline_opens_in_the_viewer_by_dropping_it(browser, address):
    browser.visit(address + "report/runs/small-ctx512-fp32-naive-train_step.html")
    assert browser.run("document.querySelector('.timeline .profile').checkVisibility()")
    events = browser.visit(browser.run("document.querySelector('.timeline a').href"))
    assert browser.until("document.body.innerText.includes('Browse')", True, 5)
    assert not complaints(events)
