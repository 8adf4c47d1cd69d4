"""A run's timeline in the speedscope that the site carries, in a real browser."""

import functools
import json
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from .browser import CHROMIUM, Browser, complaints, requests

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")

RUN = "small-ctx512-fp32-naive-train_step"
COLOURS = """(async data => {
    const image = await createImageBitmap(await (await fetch('data:image/png;base64,' + data)).blob());
    const canvas = new OffscreenCanvas(image.width, image.height), context = canvas.getContext('2d');
    context.drawImage(image, 0, 0);
    const pixels = new Uint32Array(context.getImageData(0, 130, image.width, 100).data.buffer);
    return new Set(pixels).size;
})"""


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def address(site):
    """The site below a base path, as GitHub Pages serves it."""
    (site.parent / "below").mkdir()
    (site.parent / "below" / "base").symlink_to(site)
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=site.parent / "below"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/base/"
    server.shutdown()


def opened(browser, link, dark=False):
    """Follow the link and wait for the profile; gives all events since."""
    events = browser.visit(link, dark=dark)
    deadline = time.monotonic() + 30
    while browser.run("document.title") in ("", "speedscope"):
        assert time.monotonic() < deadline, complaints(events + browser.events)
        time.sleep(0.1)
    time.sleep(0.5)
    browser.run("0")
    return events + browser.events


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_link_on_a_run_page_draws_its_step(address, dark):
    with Browser() as browser:
        browser.visit(f"{address}report/runs/{RUN}.html")
        link = browser.run("document.querySelector('.timeline a').href")
        events = opened(browser, link, dark)
        assert browser.run("document.title").startswith(RUN)
        assert not complaints(events)
        assert not [url for url in requests(events) if not url.startswith((address, "data:", "blob:"))]
        assert "GPU 0 stream 7" in browser.run("document.body.innerText")
        picture = browser.call("Page.captureScreenshot", format="png")["data"]
        assert browser.run(f"{COLOURS}({json.dumps(picture)})") > 10


def test_the_viewer_reads_the_trace_without_a_warning(address):
    with Browser() as browser:
        events = opened(
            browser, f"{address}assets/speedscope/index.html#profileURL=../../report/timelines/{RUN}.speedscope.json.gz"
        )
        logged = [event["params"] for event in events if event.get("method") == "Runtime.consoleAPICalled"]
        assert not [one for one in logged if one["type"] in ("warning", "error")]
        assert any("Importing as speedscope json file" in str(one["args"]) for one in logged)


def test_from_a_file_the_page_offers_the_profile_to_drop(site):
    with Browser() as browser:
        browser.visit(f"file://{site}/report/runs/{RUN}.html")
        assert browser.run("document.querySelector('.timeline a').hash") == ""
        assert browser.run("document.querySelector('.timeline .profile').checkVisibility()")
