"""A hook of MkDocs: the words of the glossary lead there from where they first stand in the text of a page, and say
what they mean to a pointer that rests on them. It comes before the hook that restores figures: what is drawn has no
links."""

import html
import re
from functools import cache
from pathlib import Path
from posixpath import relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.pages import Page

GLOSSARY = "report/glossary.md"
ENTRY = re.compile(r'<dt id="([^"]+)"><a [^>]*>([^<]+)</a></dt>\s*<dd>([^<]+)</dd>')
TAG = re.compile(r"""<(/?)(\w+)(?:"[^"]*"|'[^']*'|[^>"'])*>""")
TEXT = {"p", "li", "dd"}
"""Elements of running text."""
BARRED = {"a", "button", "code", "figure", "kbd", "label", "pre", "script", "style", "summary", "svg", "table"}
BARRED |= {f"h{level}" for level in range(1, 7)}
"""Elements in which a link would be in the way."""


@cache
def _read_terms(path: Path, _changed: float) -> tuple[re.Pattern[str], dict[str, tuple[str, str]]]:
    """What finds a term, and the id and the meaning of each by its lower-case name."""
    terms = {
        name.lower(): (entry, html.unescape(meaning))
        for entry, names, meaning in ENTRY.findall(path.read_text(encoding="utf-8"))
        for name in names.split(", ")
    }
    longest_first = sorted(terms, key=len, reverse=True)
    return re.compile(rf"(?<![\w…-])({'|'.join(map(re.escape, longest_first))})s?(?![\w…(-])", re.IGNORECASE), terms


def on_page_content(html_of_page: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    glossary = Path(config.docs_dir, GLOSSARY)
    uri = page.file.src_uri
    if not uri.startswith(("report/", "index.md")) or uri == GLOSSARY or not glossary.is_file():
        return html_of_page
    pattern, terms = _read_terms(glossary, glossary.stat().st_mtime)
    address = relpath(GLOSSARY, uri.rpartition("/")[0] or ".").replace(".md", ".html")
    return link(html_of_page, pattern, terms, address)


def link(page: str, pattern: re.Pattern[str], terms: dict[str, tuple[str, str]], address: str) -> str:
    """The HTML of a page in which the first of each term is a link to its entry at `address`."""
    linked: set[str] = set()

    def of_term(term: re.Match[str]) -> str:
        entry, meaning = terms[term[1].lower()]
        if entry in linked:
            return term[0]
        linked.add(entry)
        return f'<a class="term" href="{address}#{entry}" title="{html.escape(meaning)}">{term[0]}</a>'

    pieces, inside, start = [], dict.fromkeys(("text", "barred"), 0), 0
    for tag in TAG.finditer(page):
        words = page[start : tag.start()]
        pieces += [pattern.sub(of_term, words) if inside["text"] and not inside["barred"] else words, tag[0]]
        start = tag.end()
        kind = "text" if tag[2] in TEXT else "barred" if tag[2] in BARRED else None
        if kind:
            inside[kind] += -1 if tag[1] else 1
    return "".join([*pieces, page[start:]])
