"""A hook of MkDocs: figures, which are most of each page, stand aside while Markdown is read. They are HTML already:
to read them once more took a third of the build."""

import re

from mkdocs.exceptions import PluginError
from mkdocs.structure.pages import Page

FIGURE = re.compile(r"^<figure\b.*?</figure>", re.MULTILINE | re.DOTALL)
MARK = re.compile(r'<hr data-aside="(\d+)">')

_aside: list[str] = []
"""The figures of the page that is read."""


def on_page_markdown(markdown: str, **_: object) -> str:
    _aside.clear()

    def put(figure: re.Match[str]) -> str:
        _aside.append(figure[0])
        return f'<hr data-aside="{len(_aside) - 1}">'

    return FIGURE.sub(put, markdown)


def on_page_content(html: str, page: Page, **_: object) -> str:
    """Raises PluginError where a figure would be lost."""
    restored, number = MARK.subn(lambda mark: _aside[int(mark[1])], html)
    if number != len(_aside):
        raise PluginError(f"{page.file.src_uri}: {number} of {len(_aside)} figures are where they were")
    return restored
