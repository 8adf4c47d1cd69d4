"""The description of a shared page is safe in an attribute and no longer than what is shown, and its card is a
picture of its own."""

import struct
from types import SimpleNamespace

import pytest

from profiler_job.analysis.render import card
from profiler_job.analysis.site import describe
from profiler_job.analysis.site.describe import LONGEST, on_page_content

CARD = card.Card("A <title> & more", "52.3 ms a step", "What was found. " * 40, "profiler-job")


def page_of(title: str, source: str = "report/a.md", **meta) -> SimpleNamespace:
    return SimpleNamespace(meta=meta, title=title, file=SimpleNamespace(src_uri=source))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('"quoted" <b> and</b> R&amp;D', "&quot;quoted&quot; &lt;b&gt; and&lt;/b&gt; R&amp;amp;D"),
        (None, "Two words: the first &lt; paragraph"),
    ],
)
def test_a_description_is_escaped_and_a_page_without_gets_its_first_paragraph(given, said):
    page = page_of("Two words", **({"description": given} if given else {}))
    on_page_content("<h1>Two words</h1><p>the <em>first</em> &lt; paragraph</p><p>second</p>", page)
    assert page.meta["description"] == said


def test_a_long_description_is_cut_between_words():
    page = page_of("", description="word " * 100)
    on_page_content("", page)
    assert len(page.meta["description"]) <= LONGEST and page.meta["description"].endswith("word …")


def test_the_cards_of_a_build_are_written_once_all_pages_were_read(tmp_path):
    describe.on_pre_build()
    pages = [page_of("A run", "report/runs/a.md", figure="52.3 ms a step", said="<b>"), page_of("Guide", "guide/b.md")]
    for page in pages:
        on_page_content("<p>words</p>", page)
    describe.on_env(None, SimpleNamespace(site_dir=tmp_path, site_url="https://example.org/"))
    describe.on_post_build()
    paths = [page.meta["card"]["path"] for page in pages]
    assert paths == ["report/cards/runs/a.png", "report/cards/guide/b.png"]
    assert pages[0].meta["card"]["alt"] == "A run: 52.3 ms a step"
    assert (tmp_path / paths[0]).read_bytes() == card.draw(card.Card("A run", "52.3 ms a step", "<b>", "profiler-job"))
    assert (tmp_path / paths[1]).is_file()


def test_a_site_without_an_address_has_no_cards(tmp_path):
    describe.on_pre_build()
    on_page_content("<p>words</p>", page_of("Guide", "guide/b.md"))
    describe.on_env(None, SimpleNamespace(site_dir=tmp_path, site_url=""))
    describe.on_post_build()
    assert not [*tmp_path.iterdir()]


def test_a_card_is_small_and_as_large_as_it_says():
    picture = card.draw(CARD)
    assert struct.unpack_from(">II", picture, 16) == (card.WIDTH, card.HEIGHT)
    assert picture == card.draw(CARD) and len(picture) < 15_000
    assert picture != card.draw(CARD._replace(title="Another"))


@pytest.mark.parametrize("words", ["", "\x00\x1b", "a" * 500, "日本 \u202e"])
def test_a_card_is_drawn_of_any_words(words):
    assert card.draw(card.Card(words, words, words, words))[1:4] == b"PNG"


def test_of_words_that_are_too_many_a_card_says_that_there_are_more(monkeypatch):
    drawn = []
    letters = card._letters
    monkeypatch.setattr(card, "_letters", lambda word, form: drawn.append(word) or letters(word, form))
    card.draw(CARD)
    assert "…" in drawn
    drawn.clear()
    card.draw(CARD._replace(words="Few words."))
    assert "…" not in drawn
