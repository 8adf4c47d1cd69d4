"""An extension of Python-Markdown: figures, which are HTML and most of each page, are not parsed as Markdown."""

import re

from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor

FIGURE = re.compile(r"^<figure\b[^>]*>.*?</figure>", re.MULTILINE | re.DOTALL)
BEFORE_HTML = 24
"""Priority: after fenced code (25), before blocks of HTML are looked for (20)."""


class StoreFigures(Preprocessor):  # type: ignore[misc]
    """Store each figure in Python-Markdown's stash of raw HTML, and leave its placeholder, a block
    of its own."""

    def run(self, lines: list[str]) -> list[str]:
        page = FIGURE.sub(lambda figure: f"\n\n{self.md.htmlStash.store(figure[0])}\n\n", "\n".join(lines))
        return page.split("\n")


class RawFigures(Extension):  # type: ignore[misc]
    """Register the preprocessor."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(StoreFigures(md), "raw_figures", BEFORE_HTML)


def makeExtension(**options: object) -> RawFigures:
    """Return the extension; Python-Markdown calls this by its name."""
    return RawFigures(**options)
