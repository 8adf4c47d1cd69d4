"""Builds the site the way `make site` does, from any recording, below any base path, into any folder."""

import logging
import os
import re
import shutil
import struct
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from unittest import mock

from mkdocs.commands.build import build
from mkdocs.config import load_config

from profiler_job.analysis.site import write_site
from tests.browser.serving import BASE_PATH, pages_of
from tests.synthetic import recording as made_up

SITE_URL = f"https://example.org{BASE_PATH}"
ROOT = Path(__file__).parents[1]
CARD = re.compile(r'<meta property="og:image(?::(\w+))?" content="([^"]+)">')
LARGEST_CARD = 15_000
"""Bytes of a picture full of words; most are half of that."""
RUN_ID = re.compile(r"[\w.]+-ctx\d+-(?:fp32|tf32|bf16)-\w+")
READ_OUT = {"title", "aria-label", "alt", "placeholder"}
"""Attributes that a reader sees, or hears."""
UNSEEN = {"script", "style", "pre", "code"}
GENERATED = ("report", "index.md")


def build_site(folder: Path, recording=None, site_url: str = "", config: str = "mkdocs.yml", compared=None) -> Path:
    """Build the site below `folder` and give the folder of its HTML. Without a `recording`, those in site/data are
    rendered. compared: a comparison that has pages, too. Raises SystemExit or mkdocs's Abort where a strict build has a
    warning."""
    docs, html = folder / "docs", folder / "html"
    left_out = GENERATED if recording is None else (*GENERATED, "data")
    shutil.copytree(ROOT / "site", docs, ignore=shutil.ignore_patterns(*left_out))
    with mock.patch.dict(os.environ, SITE_URL=site_url):
        if recording is None:
            write_site.publish(write_site.recordings_in(docs / "data"), docs, compared)
        else:
            write_site.write(recording, docs, compared=compared)
    logging.getLogger("mkdocs").setLevel(logging.WARNING)
    loaded = load_config(str(ROOT / config), docs_dir=str(docs), site_dir=str(html), site_url=site_url, strict=True)
    loaded.plugins.run_event("startup", command="build", dirty=False)
    try:
        build(loaded)
    finally:
        loaded.plugins.run_event("shutdown")
    return html


def cards_of(site: Path) -> dict[str, dict[str, str]]:
    """The card of each page of a site built for SITE_URL: address, width, height and alt. Raises AssertionError where
    one is not there, or is not what the page says."""
    cards = {}
    for path in pages_of(site):
        if path == "404.html":
            continue
        card = {name: unescape(said) for name, said in CARD.findall((site / path).read_text(encoding="utf-8"))}
        picture = (site / card[""].removeprefix(SITE_URL)).read_bytes()
        assert picture[:4] == b"\x89PNG" and len(picture) < LARGEST_CARD, path
        assert struct.unpack_from(">II", picture, 16) == (int(card["width"]), int(card["height"])), path
        assert card["alt"], path
        cards[path] = card
    return cards


class _Shown(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.unseen: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.words += [value for name, value in attrs if name in READ_OUT and value]
        if tag in UNSEEN:
            self.unseen.append(tag)

    def handle_endtag(self, tag):
        if self.unseen and self.unseen[-1] == tag:
            self.unseen.pop()

    def handle_data(self, data):
        if not self.unseen:
            self.words.append(data)


def run_ids_shown(page: Path) -> list[str]:
    """Ids of runs that a reader may see, or hear, of a page, but for code."""
    shown = _Shown()
    shown.feed(page.read_text(encoding="utf-8"))
    return RUN_ID.findall(" ".join(shown.words))


def build_small_site(folder: Path) -> Path:
    """As `build_site`, of a made-up recording, which takes a tenth of the time of the shipped ones."""
    rec = made_up(("small", "2.7B"), (128, 512, 1024))
    for table in ("kernels", "ranges"):
        frame = getattr(rec, table)
        frame["run_id"] = frame["run_id"].astype("category")
    return build_site(folder, rec, site_url=SITE_URL)
