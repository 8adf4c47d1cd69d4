"""Links from the words of a page to the glossary."""

import html
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

GLOSSARY = Path(__file__).resolve().parents[1] / "pages" / "glossary.md"
ENTRY = re.compile(r"^- \*\*\[(?P<names>[^\]]+)\]\([^)]+\)\*\*: (?P<meaning>.+)$", re.MULTILINE)
SKIPPED = re.compile(
    r"""^(?:\#{1,6}\ |\|)[^\n]*                              # a heading, a row of a table
    | ^\*\*[^\n]*\[(?:CSV|SVG)\]\([^\n]*                        # the caption of a figure
    | ^<!--\ \w+\ -->\n(?:[^\n]+\n)+                            # a block with a class
    | ^<details\ class="pop\ .*?^</details>                     # what a badge shows when it is opened
    | ^```.*?^```                                             # code
    | `[^`\n]+`
    | !?\[[^\]\n]*\]\([^)\n]*\)                               # a link of Markdown
    | <(?P<end>/?)(?P<name>\w+)(?P<attributes>(?:"[^"]*"|'[^']*'|[^>"'])*)>""",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
"""What is not running text: `name`: of a tag."""
TEXT = {"p", "li", "dd"}
"""HTML elements of running text."""
BLOCKS = {"details", "div", "dl", "dt", "form", "ol", "section", "ul"}
"""HTML elements whose own text is not running text, unless it is Markdown."""
BARRED = {"a", "button", "code", "figure", "kbd", "label", "pre", "script", "style", "summary", "svg", "table"}
BARRED |= {f"h{level}" for level in range(1, 7)}
"""HTML elements that may hold no link, or in which a link would be in the way."""


class Term(NamedTuple):
    """An entry of the glossary: its id there, and what it means."""

    entry: str
    meaning: str


class _Element(NamedTuple):
    """An open HTML element; is_text: a word directly in it may be a link. is_markdown: its content is read as
    Markdown."""

    name: str
    is_text: bool
    is_markdown: bool


def name_entry(names: str) -> str:
    """Name the entry of a term in addresses: `DDP, FSDP` is `ddp-fsdp`."""
    return re.sub("[^a-z0-9]+", "-", names.lower()).strip("-")


def mark_entries(glossary: str) -> str:
    """Return the Markdown of the glossary with the name of each entry as its id."""
    return ENTRY.sub(lambda entry: f"{entry[0]}\n    {{: #{name_entry(entry['names'])} .entry }}", glossary)


@cache
def read_terms(path: Path = GLOSSARY) -> tuple[re.Pattern[str], Mapping[str, Term]]:
    """Return the pattern that finds a term in a text, and the terms by their names in lower case."""
    terms = {
        name.lower(): Term(name_entry(names), meaning)
        for names, meaning in ENTRY.findall(path.read_text(encoding="utf-8"))
        for name in names.split(", ")
    }
    longest_first = sorted(terms, key=len, reverse=True)
    return re.compile(rf"(?<![\w…;-])({'|'.join(map(re.escape, longest_first))})s?(?![\w…(&-])", re.IGNORECASE), terms


def link_terms(page: str, root: str) -> str:
    """Return the Markdown of a page with a link from the first occurrence of each term to its entry in the glossary.

    root: the way from the page to the top folder of the site ("" or "../"...).
    """
    pattern, terms = read_terms()
    linked: set[str] = set()

    def write_link(match: re.Match[str], is_markdown: bool) -> str:
        term = terms[match[1].lower()]
        if term.entry in linked:
            return match[0]
        linked.add(term.entry)
        meaning = html.escape(term.meaning)
        if is_markdown:
            return f'[{match[0]}]({root}report/glossary.md#{term.entry} "{meaning}")'
        return f'<a class="term" href="{root}report/glossary.html#{term.entry}" title="{meaning}">{match[0]}</a>'

    def link_text(words: str) -> str:
        innermost = opened[-1] if opened else _Element("", is_text=True, is_markdown=True)
        if not innermost.is_text:
            return words
        return pattern.sub(lambda match: write_link(match, innermost.is_markdown), words)

    pieces: list[str] = []
    opened: list[_Element] = []
    start = 0
    for skipped in SKIPPED.finditer(page):
        pieces += [link_text(page[start : skipped.start()]), skipped[0]]
        start = skipped.end()
        if skipped["name"] in TEXT | BLOCKS | BARRED:
            _follow_tag(opened, skipped)
    return "".join([*pieces, link_text(page[start:])])


def _follow_tag(opened: list[_Element], tag: re.Match[str]) -> None:
    """Add to the open elements, outermost first, the one that the tag begins, or take away the one that it ends."""
    name = tag["name"]
    if tag["end"]:
        names = [element.name for element in opened]
        if name in names:
            del opened[len(names) - 1 - names[::-1].index(name) :]
        return
    around = opened[-1] if opened else _Element("", is_text=True, is_markdown=True)
    is_barred = name in BARRED or any(element.name in BARRED for element in opened)
    is_markdown = around.is_markdown and 'markdown="1"' in tag["attributes"]
    opened.append(_Element(name, not is_barred and (is_markdown or name in TEXT), is_markdown))
