"""The words of a generated page, without the links to the glossary that are added when the page is written."""

import re
from pathlib import Path

from profiler_job.analysis.site.page_figures import show_figures

TERM = re.compile(
    r'\[(?P<markdown>[^\]]*)\]\([^\s)]*report/glossary\.md#[^\s)]+ "[^"]*"\)'
    r'|<a class="term" [^>]*>(?P<html>[^<]*)</a>'
)


def remove_term_links(page: str) -> str:
    """Return the Markdown of a page with each link to the glossary replaced by the term alone."""
    return TERM.sub(lambda match: match["markdown"] or match["html"], page)


def read_page(path: Path) -> str:
    """Return the Markdown of a page without its links to the glossary."""
    return remove_term_links(path.read_text(encoding="utf-8"))


def read_shown(docs: Path, page: str) -> str:
    """Return what MkDocs reads of a page (path below docs): its Markdown with its figures as HTML."""
    return show_figures(read_page(docs / page), docs, page, is_question=False)


def read_verdict(page: str) -> str:
    """Return the first paragraph below the heading of the Markdown of a page, after its notes."""
    paragraphs = page.partition("\n# ")[2].split("\n\n")[1:]
    return next(paragraph for paragraph in paragraphs if not paragraph.startswith(">"))
