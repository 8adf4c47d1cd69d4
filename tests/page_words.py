"""The words of a generated page, without the links to the glossary that are added when the page is written."""

import re
from pathlib import Path

TERM = re.compile(
    r'\[(?P<markdown>[^\]]*)\]\([^\s)]*report/glossary\.md#[^\s)]+ "[^"]*"\)\{\.term\}'
    r'|<a class="term" [^>]*>(?P<html>[^<]*)</a>'
)


def remove_term_links(page: str) -> str:
    """Return the Markdown of a page with each link to the glossary replaced by the term alone."""
    return TERM.sub(lambda match: match["markdown"] or match["html"], page)


def read_page(path: Path) -> str:
    """Return the Markdown of a page without its links to the glossary."""
    return remove_term_links(path.read_text(encoding="utf-8"))
