"""Every kind of page in a real browser: nothing logged, nothing fetched from elsewhere, nothing too wide."""

import functools
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from .browser import CHROMIUM, Browser, complaints, requests

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")

PAGES = [
    "index.html",
    *(
        f"report/{name}.html"
        for name in (
            "forward-time",
            "top-kernel",
            "beyond-gemm",
            "training-mix",
            "attention-cost",
            "runs",
            "methods",
            "reconciliation",
            "kernels",
            "data",
        )
    ),
    "report/runs/small-ctx512-fp32-naive-train_step.html",
    "report/runs/2.7B-ctx1024-fp32-naive-train_step.html",
]


SCHEME = "document.body.getAttribute('data-md-color-scheme')"


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def address(site):
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.fixture(scope="module")
def browser():
    with Browser() as opened:
        yield opened


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_are_quiet_self_contained_and_fit(browser, address, width, dark):
    for page in PAGES:
        events = browser.visit(address + page, width, dark)
        assert not complaints(events), page
        assert not [url for url in requests(events) if not url.startswith((address, "data:"))], page
        assert browser.run("document.documentElement.scrollWidth") <= width, page
        assert browser.until(SCHEME, "slate" if dark else "default"), page


def test_charts_fit_and_follow_the_scheme(browser, address):
    shown = "[...document.querySelectorAll('figure.chart svg')].filter(s => s.getBoundingClientRect().width > 0)"
    for width in (1280, 390):
        browser.visit(address + "report/forward-time.html", width)
        assert browser.run(f"{shown}.length") == 1
        assert browser.run(f"{shown}[0].getBoundingClientRect().width") <= width
        assert browser.run(f"getComputedStyle({shown}[0].querySelector('text')).fontSize") == "11px"
    colour = f"getComputedStyle({shown}[0].querySelector('text')).fill"
    light = browser.run(colour)
    browser.visit(address + "report/forward-time.html", 390, dark=True)
    assert browser.until(SCHEME, "slate")
    assert browser.run(colour) != light


TABLE = "document.querySelector('#table-times')"
CELLS = f"[...{TABLE}.querySelector('tbody').rows].filter(r => !r.hidden)"


def test_tables_sort_with_unmeasured_rows_last(browser, address):
    browser.visit(address + "report/top-kernel.html")
    table = "document.querySelector('#table-top')"
    heading = f"[...{table}.querySelectorAll('th')].find(h => h.textContent.startsWith('time'))"
    browser.run(f"{heading}.querySelector('button').click()")
    order = browser.run(f"[...{table}.querySelector('tbody').rows].map(r => r.cells[5]?.dataset.v ?? null)")
    values = [float(value) for value in order if value is not None]
    assert values == sorted(values, reverse=True)
    assert order[-1] is None


def test_tables_filter_by_every_word(browser, address):
    browser.visit(address + "report/forward-time.html")
    browser.run(
        f"(i => {{ i.value = '2.7b 512'; i.dispatchEvent(new Event('input')) }})({TABLE}.querySelector('input'))"
    )
    assert browser.run(f"{CELLS}.length") == 1


def test_the_download_has_the_rows_that_are_visible_unrounded(browser, address):
    browser.visit(address + "report/forward-time.html")
    browser.run("window.saved = []; URL.createObjectURL = blob => { saved.push(blob); return 'blob:x' }; 0")
    browser.run("HTMLAnchorElement.prototype.click = function () {}; 0")
    browser.run(f"(i => {{ i.value = '2.7b'; i.dispatchEvent(new Event('input')) }})({TABLE}.querySelector('input'))")
    browser.run(f"[...{TABLE}.querySelectorAll('figcaption button')].at(-1).click()")
    lines = browser.run("saved[0].text()").splitlines()
    assert len(lines) == 1 + 3
    assert len(lines[1].split(",")[2].split(".")[0]) >= 6, "nanoseconds, not rounded milliseconds"


def test_a_link_to_rows_opens_them(browser, address):
    browser.visit(address + "report/forward-time.html#rows-range")
    assert browser.run("document.querySelector('#rows-range').closest('details').open")


def test_the_scheme_switches(browser, address):
    browser.visit(address + "index.html")
    browser.run("document.querySelector('label[for=__palette_1]').click()")
    assert browser.until(SCHEME, "slate")


def test_search_finds_a_kernel_family(browser, address):
    browser.visit(address + "index.html")
    found = browser.run(
        """new Promise(done => {
            const input = document.querySelector('input.md-search__input');
            document.querySelector('#__search').checked = true;
            input.focus(); input.value = 'reduction'; input.dispatchEvent(new KeyboardEvent('keyup'));
            input.dispatchEvent(new Event('input', {bubbles: true}));
            const look = tries => {
                const hits = document.querySelectorAll('.md-search-result__item').length;
                hits || !tries ? done(hits) : setTimeout(() => look(tries - 1), 100);
            };
            look(60);
        })"""
    )
    assert found > 0
