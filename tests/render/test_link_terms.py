"""Words of the glossary are linked where they first stand in running text."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from profiler_job.analysis.site import link_terms
from tests.site_builder import ROOT

GLOSSARY = ROOT / "analysis" / "pages" / "glossary.md"


@pytest.fixture
def docs(tmp_path):
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "glossary.md").write_text(GLOSSARY.read_text())
    return tmp_path


def read(docs: Path, html: str, uri: str = "report/host.md") -> str:
    page = SimpleNamespace(file=SimpleNamespace(src_uri=uri))
    return link_terms.on_page_content(html, page=page, config=SimpleNamespace(docs_dir=str(docs)))


def linked(term: str, words: str, meaning: str, address: str = "glossary.html") -> str:
    return f'<a class="term" href="{address}#{term}" title="{meaning}">{words}</a>'


CAPTURE = linked("capture", "Captures", "One file of Nsight Systems.")


def test_only_the_first_of_a_term_is_a_link(docs):
    assert read(docs, "<p>Captures, and a capture.</p>") == f"<p>{CAPTURE}, and a capture.</p>"


def test_a_term_of_several_words_goes_before_a_part_of_it(docs):
    assert '#kernel-family"' in read(docs, "<li>a kernel family</li>")
    assert '#kernel"' not in read(docs, "<li>a kernel family</li>")


def test_words_of_which_a_term_is_a_part_are_none(docs):
    html = "<p>recapture, captured, capture-wide, torch.compile(model), kernel…name, name…kernel</p>"
    assert read(docs, html) == html


@pytest.mark.parametrize(
    "html",
    [
        "<h2>Captures</h2>",
        '<p><a href="x.html">captures</a></p>',
        "<p><code>capture</code></p>",
        "<table><tr><td><p>capture</p></td></tr></table>",
        "<details><summary><p>capture</p></summary></details>",
        '<p title="a capture > others"></p>',
        "capture",
    ],
)
def test_no_link_stands_where_it_would_be_in_the_way(docs, html):
    assert read(docs, html) == html


def test_after_what_has_no_links_they_go_on(docs):
    assert read(docs, "<h2>Captures</h2><p><code>capture</code> Captures</p>").endswith(f"{CAPTURE}</p>")


def test_pages_lead_there_from_where_they_are(docs):
    html = "<p>Captures</p>"
    assert 'href="../glossary.html#capture"' in read(docs, html, "report/runs/a.md")
    assert 'href="report/glossary.html#capture"' in read(docs, html, "index.md")
    for alone in ("guide/show.md", "report/glossary.md"):
        assert read(docs, html, alone) == html


def test_without_a_glossary_there_is_no_link(tmp_path):
    assert read(tmp_path, "<p>Captures</p>") == "<p>Captures</p>"
