"""The words of a generated page, without the links to the glossary that are added when the page is written."""

import re
from html import unescape
from pathlib import Path

from profiler_job.analysis.site.page_figures import show_figures

TERM = re.compile(
    r'\[(?P<markdown>[^\]]*)\]\([^\s)]*report/glossary\.md#[^\s)]+ "[^"]*"\)'
    r'|<a class="term" [^>]*>(?P<html>[^<]*)</a>'
)


OF_PROGRAM = ("commands.md", "output.md")
"""Pages that describe the program and no recording."""


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


LINK = re.compile(r"!?\[([^\]]*)\]\([^)\n]*\)")
FENCE = re.compile(r"^```.*$", re.MULTILINE)
FIGURE = re.compile(r"^(?:!\[|\|).*$| · \[CSV\]\([^)\n]*\)$", re.MULTILINE)
"""A picture, a row of a table, or the link behind the title of one; a title is read as a sentence is."""
STATE = re.compile(r"(?<=\.svg\)\n\n)\*\*(?:FP|TF|BF)\d+[^*:\n]*: .*$", re.MULTILINE)
"""The title of a figure in another state than the one before it: a page shows one at a time."""
TAG = re.compile(r"<[^>\n]+>")
OPENED = re.compile(r"</summary>.*?</details>", re.DOTALL)
"""What a badge shows when it is opened."""
MOST_TAGS = 0.1
NUMBER = re.compile(r"(?<![\w.])\d[\d.,]*")
"""A number, one with a unit or of a model's parameters too (0.13B), and no part of a name such as FP32 or H200."""


def read_first_words(page: str) -> str:
    """Return the words of the Markdown of a page that are seen before the folded parts, code and the titles of its
    figures and tables too, without what these hold."""
    first = STATE.sub("", OPENED.sub("", page.partition("\n---\n")[2].partition("\n## ")[0]))
    return re.sub(r"[*#`]", "", TAG.sub("", LINK.sub(r"\1", FIGURE.sub("", FENCE.sub("", unescape(first))))))


def read_first_words_of_part(markdown: str) -> str:
    """Return the words of a part of a page that are seen before anything is opened."""
    return read_first_words("\n---\n" + re.sub("^## ", "# ", markdown, flags=re.MULTILINE))


def list_pages(docs: Path) -> list[Path]:
    """Return the generated pages below the folder of the docs."""
    return [docs / "index.md", *sorted((docs / "report").rglob("*.md"))]


def measure_tags(page: str) -> float:
    """Return the part of the characters of the Markdown of a page that tags take."""
    return sum(map(len, TAG.findall(page))) / len(page)


def count_words(text: str) -> int:
    """Return the number of words; a dot between two is none."""
    return sum(any(map(str.isalnum, word)) for word in text.split())
