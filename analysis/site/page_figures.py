"""From the Markdown of a generated page, which a person can read on a code host, to what the site shows: its tables
and pictures give way to figures that can be sorted and filtered and that show their values.

A page's figures are in a file beside it, by the links to their CSV, which their captions in the Markdown have.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from profiler_job.analysis.render.screen_source import IN_SCREEN
from profiler_job.analysis.site.link_terms import GLOSSARY, mark_entries

FOLDER = "report/figures"
"""Below the docs; the site does not publish it."""
_BLOCK = re.compile(
    r"^\*\*[^\n]*\*\* · \[(?:CSV|SVG)\]\((?P<csv>[^)\s]+)\)\n"
    r"(?:\n*(?:\|[^\n]*|!\[[^\n]*|\*The CSV has [^\n]*|Nothing was measured\."
    rf"|<p class=\"{IN_SCREEN}\"[^\n]*)(?:\n|\Z))*",
    re.MULTILINE,
)
"""A caption, and the pipe tables or the picture below it, and the paragraph of a first screen."""
_EVIDENCE = re.compile(r"^- \[[^\]]*\]\((?P<csv>[^)\s]*/rows-[^)\s]+\.csv)\): [^\n]*", re.MULTILINE)
_ROWS = re.compile(r"\[rows\]\([^)\s]*/(?P<key>rows-[^)\s/]+)\.csv\)")
_LINK = re.compile(r'\[(?P<words>[^\]\n]*)\]\((?P<page>[^)\s]*)\.md(?P<anchor>#[^)\s"]*)?(?: "(?P<title>[^"\n]*)")?\)')
_RUN = re.compile(r"(?:^|/)runs(?:-[^/]*)?/|(?:^|/)runs-of-[^/]*$")
_VERDICT = re.compile(r"^(# [^\n]*\n+)((?:>[^\n]*\n+)*)([^\n]+)\n", re.MULTILINE)
_BADGE = re.compile(r"^([^\n]*\[how we measured\]\([^)\n]*\))$", re.MULTILINE)
_NOTE = re.compile(r"^> (\*\*A mix:\*\*[^\n]*)$", re.MULTILINE)
UNSEARCHED = "## Rows behind the findings"
_CLASSED = re.compile(r"^<!-- (?P<name>\w+) -->\n(?P<block>(?:[^\n]+\n)+)", re.MULTILINE)
"""A block with the name of its class above it, which a code host does not show."""
_REPEATED = re.compile(r"^(- \*\*Noise band\*\*: [^\n]*|More on clocks and attribution: [^\n]*)$", re.MULTILINE)
"""What many pages repeat word for word: the search finds it in the glossary, and on `DEFINES_NOISE`."""
DEFINES_NOISE = "report/second-recording.md"


def path_of_figures(page: str) -> str:
    """Return the path of the figures of a page; both are below the folder of the docs."""
    return f"{FOLDER}/{page.removeprefix('report/').removesuffix('.md')}.json"


def dump(figures: Mapping[str, str]) -> str:
    """Return the file of the figures of a page."""
    return json.dumps(figures, ensure_ascii=False, indent=0)


def show_figures(markdown: str, docs: Path, page: str, is_question: bool) -> str:
    """Return the Markdown of a page (path below `docs`) with its figures as the site shows them.
    is_question: its first paragraph is its answer."""
    file = docs / path_of_figures(page)
    figures = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    shown = place_figures(markdown, figures, is_question)
    if page == f"report/{GLOSSARY.name}":
        shown = mark_entries(shown)
    if page != DEFINES_NOISE:
        shown = _REPEATED.sub(r"\1\n{: data-search-exclude }", shown)
    return shown.replace(f"{UNSEARCHED}\n", f"{UNSEARCHED} {{ data-search-exclude }}\n")


def place_figures(markdown: str, figures: Mapping[str, str], is_question: bool) -> str:
    """Return the Markdown with `figures` (by the links to their CSV) in the places of their tables and pictures; "" if
    the one before contains it. is_question: its first paragraph is its answer."""

    def replace(block: re.Match[str]) -> str:
        figure = figures.get(block["csv"])
        return block[0] if figure is None else f"\n{figure}\n\n"

    return _EVIDENCE.sub(replace, _BLOCK.sub(replace, _mark_words(markdown, is_question)))


def _mark_words(markdown: str, is_question: bool) -> str:
    """Return the text with links that have the classes of what they lead to."""
    markdown = _ROWS.sub(r'<a class="rows" href="#\g<key>" data-search-exclude>rows</a>', markdown)
    markdown = _LINK.sub(_mark_link, markdown)
    if is_question:
        markdown = _VERDICT.sub(r'\1\2<div class="verdict" markdown="1">\n\n\3\n\n</div>\n', markdown, count=1)
    markdown = _CLASSED.sub(_add_class, markdown)
    markdown = _NOTE.sub(r'<p class="note" data-search-exclude markdown="1">\1</p>', markdown)
    markdown = markdown.replace(
        '<details class="pop conditions" ', '<details class="pop conditions" data-search-exclude '
    )
    return _BADGE.sub(r'<p class="conditions" data-search-exclude markdown="1">\1</p>', markdown)


def _add_class(marked: re.Match[str]) -> str:
    name, block = marked["name"], marked["block"]
    if block.startswith("- "):
        return f'<div class="{name}" markdown="1">\n\n{block}\n</div>\n'
    return f'<p class="{name}" markdown="1">{block.rstrip()}</p>\n'


def _mark_link(link: re.Match[str]) -> str:
    words, page, anchor = link["words"], link["page"], link["anchor"] or ""
    name = page.rpartition("/")[2]
    if _RUN.search(page):
        return f'<a class="case" href="{page}.html{anchor}">{words}</a>'
    if name == "kernels" and anchor.startswith("#k-"):
        words = f"<code>{words.strip('`')}</code>" if words.startswith("`") else words
        return f'<a class="kernel" href="{page}.html{anchor}">{words}</a>'
    return f"{link[0]}{{.term}}" if name == "glossary" and link["title"] else link[0]
