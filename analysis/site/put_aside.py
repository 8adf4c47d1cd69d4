"""A hook of MkDocs: figures, which are most of each page, stand aside while Markdown is read, and while the search
plugin reads what became of it. They are HTML already, and hold nothing to be found: to read them once more took a third
of the build each time. What pages of runs and of pairs, hundreds, have below their first headings stands aside for the
search alone: they say the same there, which is found where it is told in full, and it was a third of what a search
loads."""

import re

from mkdocs.exceptions import PluginError
from mkdocs.structure.pages import Page
from mkdocs.utils.templates import TemplateContext

FIGURE = re.compile(r"^<figure\b[^>]*>.*?</figure>", re.MULTILINE | re.DOTALL)
MARK = re.compile(r'<hr data-aside="(\d+)">')
UNSEARCHED = "data-search-exclude"
DETAIL = "<h2 "
"""Where a page's first part ends."""

_aside: dict[str, list[str]] = {}
"""The figures of each page, by its source."""


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    figures = _aside[page.file.src_uri] = []

    def put(figure: re.Match[str]) -> str:
        figures.append(figure[0])
        return f'<hr data-aside="{len(figures) - 1}">'

    return FIGURE.sub(put, markdown)


def on_page_content(html: str, page: Page, **_: object) -> str:
    """With what search shall find. Raises PluginError where a figure would be lost."""
    figures = _aside.get(page.file.src_uri, [])
    number = len(MARK.findall(html))
    if number != len(figures):
        raise PluginError(f"{page.file.src_uri}: {number} of {len(figures)} figures are where they were")

    def put_back(mark: re.Match[str]) -> str:
        figure = figures[int(mark[1])]
        return mark[0] if UNSEARCHED in figure.split(">", 1)[0] else figure

    above, heading, below = MARK.sub(put_back, html).partition(DETAIL)
    if heading and (page.meta.get("search") or {}).get("detail") is False:
        figures.append(MARK.sub(lambda mark: figures[int(mark[1])], heading + below))
        below, heading = "", f'<hr data-aside="{len(figures) - 1}">'
    return above + heading + below


def on_page_context(context: TemplateContext, page: Page, **_: object) -> TemplateContext:
    """The rest. Hooks come after plugins: search has read the page."""
    figures = _aside.pop(page.file.src_uri, [])
    page.content = MARK.sub(lambda mark: figures[int(mark[1])], page.content or "")
    return context
