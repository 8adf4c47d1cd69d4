"""The system's Chromium, driven by Playwright: no browser is downloaded."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first draws no window around pages: the tests here take 56 s of its processes, and 154 s of Chromium's."""
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--font-render-hinting=none",
    "--js-flags=--no-opt",  # pages are open for seconds, and to optimize their scripts is a tenth of these
]


def executable() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def missing() -> str:
    """Why no browser can be driven here, "" where one can."""
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "Playwright is not installed: pip install -e '.[dev]'"
    return "" if executable() else "Chromium is not installed"


@contextmanager
def launched() -> Iterator:
    """A Playwright browser; raises RuntimeError where `missing` gives a reason."""
    if why := missing():
        raise RuntimeError(why)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=ARGUMENTS)
        yield browser
        browser.close()


def watched(page) -> tuple[list[str], list[str]]:
    """(what the page complains of, what it asks for) from now on: both lists grow. Left out: messages of
    the graphics driver on its speed, and requests that ended because the page was left before the answer came."""
    complaints, requests = [], []

    def note(said):
        if said.type in ("error", "warning") and "GL Driver Message" not in said.text:
            complaints.append(said.text)

    def note_failed(request):
        if request.failure != "net::ERR_ABORTED":
            complaints.append(f"{request.url} failed ({request.failure})")

    page.on("console", note)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", note_failed)
    page.on("request", lambda request: requests.append(request.url))
    return complaints, requests
