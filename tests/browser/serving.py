"""Serves a built site below a base path, as a project site of GitHub Pages does, 404 page included."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BASE_PATH = "/project/"


class _Handler(SimpleHTTPRequestHandler):
    def translate_path(self, path: str) -> str:
        if not path.startswith(BASE_PATH):
            return str(Path(self.directory) / "outside the base path")
        return super().translate_path("/" + path.removeprefix(BASE_PATH))

    def send_error(self, code, message=None, explain=None):
        body = (Path(self.directory) / "404.html").read_bytes()
        self.send_response(code, message)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


class _SlowHandler(_Handler):
    """Pages arrive in pieces, as over a slow line: the browser paints between them. A piece ends with a line of HTML, a
    row of a table or a paragraph: a paragraph cut by chance flows anew as its end arrives, whatever the page does."""

    def copyfile(self, source, outputfile):
        if not self.path.endswith(".html"):
            return super().copyfile(source, outputfile)
        while piece := source.read(4000) + source.readline():
            outputfile.write(piece)
            outputfile.flush()
            time.sleep(0.06)


@contextmanager
def serving(html: Path, *, slowly: bool = False) -> Iterator[str]:
    """Address of the site in the folder `html`, with its trailing slash, while the context lasts."""
    handler = _SlowHandler if slowly else _Handler
    server = ThreadingHTTPServer(("127.0.0.1", 0), lambda *args: handler(*args, directory=str(html)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{BASE_PATH}"
    finally:
        server.shutdown()
        server.server_close()


def pages_of(html: Path) -> list[str]:
    """Every page of the report, without what self-hosted tools bring along, and old addresses, which lead on."""
    found = (str(path.relative_to(html)) for path in html.rglob("*.html"))
    return sorted(path for path in found if not path.startswith("assets/") and not is_moved(html / path))


def is_moved(page: Path) -> bool:
    """Whether a page only leads on to another."""
    return 'http-equiv="refresh"' in page.read_text(encoding="utf-8")[:300]


def different_pages(html: Path) -> list[str]:
    """Every page, but one in ten of pages that are alike, and one in five pages of runs, of each mode and context."""
    pages = [path for path in pages_of(html) if path.count("/") == 2]
    others = [path for path in pages if path.startswith("report/runs-")]
    runs = [path for path in pages if path.startswith("report/runs/")]
    return sorted({*pages_of(html)} - {*others, *runs} | {*others[::10], *runs[::5]})
