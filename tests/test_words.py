"""Pages, guides and messages of the repository are in plain English: none of the turns of phrase that we once had."""

import re

import pytest

from tests.site_builder import ROOT

IDIOMS = {
    r"(?:is|are|be|was|were) told": "is shown, is inferred, is known",
    r"tells? of|said (?:by|of)|says? of": "shows, reports, covers",
    r"held against|hold\w* .{1,30} against": "compared with",
    r"(?:is|are|lies?|further|furthest|widest) apart": "differ by",
    r"behind it|beyond the noise band|put aside|mend(?:ed)?|besides?": "could save, measurably, fix, in addition",
    r"(?<!there )is no (?!longer|more|doubt)\w+": "is not a valid ..., there is no ...",
    r"of which|(?:that|those) of": "a main clause, or name the thing",
    r"stands? (?:in|on|beside|here|there|below|above)": "is, appears",
    r"as of `|no more than chance": "name the thing",
}
"""What a reader stumbles over, and what says it better."""
SENTENCE_WITH_OF = r"(?:^|[.!?]\s+)Of (?:the|\d[\d,]*|its|those|these|all)\b"
PATTERN = re.compile(rf"\b(?:{'|'.join(IDIOMS)})\b|{SENTENCE_WITH_OF}", re.IGNORECASE | re.MULTILINE)
NO_PROSE = re.compile(r"<[^>]+>|\{[{%#].*?[}%#]\}|^```.*?^```|`[^`]*`", re.DOTALL | re.MULTILINE)
MOST = 20
"""In all pages that are generated from a recording; a sentence counts on each page that has it."""
WRITTEN = sorted(
    {
        *(ROOT / "analysis" / "pages").rglob("*.md"),
        *(ROOT / "analysis" / "pages").rglob("*.html"),
        *(ROOT / "site" / "guide").glob("*.md"),
        *(ROOT / "site" / "answers").rglob("*.md"),
        *(ROOT / "site").glob("[ce]*.md"),
        *ROOT.glob("*.md"),
    }
)


def find_idioms(text):
    """Return the idioms of a Markdown page or template, each with the words around it."""
    words = NO_PROSE.sub(" ", text)
    return [" ".join(words[max(0, at.start() - 40) : at.end() + 40].split()) for at in PATTERN.finditer(words)]


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_we_write_has_no_idiom(path):
    found = find_idioms(path.read_text(encoding="utf-8"))
    assert not found, IDIOMS


@pytest.mark.parametrize(
    ("words", "num_idioms"),
    [
        ("The name is told by the log.", 1),
        ("It is no CUDA call. Of the 3 runs, 2, of which one is slow, are apart.", 4),
        ("There is no GPU, and it is no longer slow.", 0),
        ("`it is no word` <b title='is told'> {{ of_which }} {% if those of %}", 0),
    ],
)
def test_idioms_are_found_in_prose_alone(words, num_idioms):
    assert len(find_idioms(words)) == num_idioms
