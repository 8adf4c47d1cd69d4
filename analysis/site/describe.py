"""A hook of MkDocs: what a search engine or a chat shows of a page, in words and as a picture."""

import html
import os
import re
import textwrap
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.pages import Page

from profiler_job.analysis.render import card
from profiler_job.analysis.site.parallel_pages import Helper, Later

LONGEST = 200
PARAGRAPH = re.compile(r"<p>(.*?)</p>", re.DOTALL)
MANY = 20
"""Cards from which on a process of its own draws them, beside the pages: to start it takes as long."""

_cards: dict[str, card.Card] = {}
"""The card of each page, by its path in the site."""
_helpers: list[Helper | Later] = []
"""What draws them: of one build, so at most one."""


def on_pre_build(**_: object) -> None:
    _cards.clear()
    _stop()


def on_page_content(content: str, page: Page, **_: object) -> None:
    """Shorten the description of the page, and escape it, which the theme does not. A page without gets its title and
    its first paragraph. The card says the same, or what the page wants in large letters (`figure`) and says of it
    (`said`)."""
    meta = page.meta
    title = _plain(str(meta.get("title") or page.title))
    described = meta.get("description")
    if not described:
        paragraph = PARAGRAPH.search(content)
        described = _plain(f"{page.title}: {paragraph[1]}" if paragraph else str(page.title))
    meta["description"] = html.escape(textwrap.shorten(described, LONGEST, placeholder=" …"))
    figure, said = str(meta.get("figure", "")), str(meta.get("said") or described.removeprefix(title).lstrip(" :"))
    path = path_of_card(page.file.src_uri)
    below = " · ".join(filter(None, ("profiler-job", *meta.get("recording", {}).values())))
    _cards[path] = card.Card(title, figure, said, below)
    meta["card"] = {"path": path, "alt": html.escape(": ".join(filter(None, (title, figure))))}
    meta["card"] |= {"width": card.WIDTH, "height": card.HEIGHT}


def _plain(markup: str) -> str:
    return html.unescape(re.sub("<[^>]+>", "", markup))


def path_of_card(source: str) -> str:
    """In the site, of the card of a page of this source."""
    return f"report/cards/{source.removeprefix('report/').rpartition('.')[0]}.png"


def on_env(env: object, config: MkDocsConfig, **_: object) -> None:
    """All pages have been read: their cards are drawn while they are written. A site without an address has none, since
    a link to a card is a whole one."""
    if not config.site_url:
        return
    _helpers.append(Helper() if len(_cards) >= MANY and (os.cpu_count() or 1) > 1 else Later())
    _helpers[0].give(card.write_cards, Path(config.site_dir), [*_cards.items()])


def on_post_build(**_: object) -> None:
    for helper in _helpers:
        helper.result()
    _stop()


def on_build_error(**_: object) -> None:
    _stop()


def _stop() -> None:
    while _helpers:
        _helpers.pop().close()
