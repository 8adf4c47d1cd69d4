"""What a link to a page shows is safe in an attribute and no longer than what is shown, and its card is a picture of
its own."""

import struct

import pytest

from profiler_job.analysis.render import card
from profiler_job.analysis.site import front_matter
from profiler_job.analysis.site.page_context import join_versions
from tests.site_builder import ROOT

CARD = card.Card("A <title> & more", "52.3 ms a step", "What was found. " * 40, "profiler-job")


def describe(front=None, verdict="") -> str:
    return front_matter.complete(front or {}, "A page", verdict, {})["description"]


def test_a_page_is_split_and_joined():
    page = '---\ntitle: "A: b"\nhide: ["toc"]\n---\n# A\n\ntext\n---\nmore\n'
    front, body = front_matter.split(page)
    assert front == {"title": "A: b", "hide": ["toc"]} and body == "# A\n\ntext\n---\nmore\n"
    assert front_matter.join(front, body) == page
    assert front_matter.split("# A\n") == ({}, "# A\n") and front_matter.join({}, "# A\n") == "# A\n"


def test_surrogates_are_joined_or_replaced():
    front, _ = front_matter.split('---\ntitle: "\\ud83d\\ude00 \\ud800"\n---\n')
    assert front["title"].startswith("\U0001f600 ") and front_matter.join(front, "").encode("utf-8")


def test_a_description_is_safe_in_an_attribute():
    assert describe({"description": '"a" <b> R&D'}) == "&quot;a&quot; &lt;b&gt; R&amp;D"


def test_a_page_without_a_description_is_described_by_its_verdict():
    long = "An answer that is long enough to be understood without its question."
    assert describe(verdict=long) == long
    assert describe(verdict="Yes.") == "A page: Yes."
    assert front_matter.complete({}, "Why?", "So.", {})["description"] == "Why? So."


def test_a_long_description_is_cut_between_words():
    described = describe({"description": "word " * 100})
    assert len(described) <= front_matter.LONGEST and described.endswith("word …")


def test_the_recording_is_in_the_front_matter():
    assert front_matter.complete({}, "A", "b", {"name": "h200"})["recording"] == {"name": "h200"}


def test_a_page_of_several_recordings_names_all_of_them():
    """Figures of other recordings stood above "recording h200-fp32 of 2026-11-22"."""
    versions = [
        {"name": "a_1, a_2", "date": "2026-11-30", "commit": "x"},
        {"name": "a_2, b", "date": "2026-11-24", "commit": "y"},
    ]
    assert join_versions(versions) == {"name": "a_1, a_2, b", "date": "2026-11-24 to 2026-11-30", "commit": ""}
    assert join_versions(versions[:1] * 2)["commit"] == "x"


def test_a_site_has_cards_if_its_address_is_known(monkeypatch):
    monkeypatch.delenv("SITE_URL", raising=False)
    assert not front_matter.has_cards()
    monkeypatch.setenv("SITE_URL", "https://example.org/")
    assert front_matter.has_cards()


def test_a_card_shows_what_the_front_matter_says():
    front = {"title": "A &amp; b", "figure": "52.3 ms a step", "said": "<b>", "recording": {"name": "h200"}}
    wanted = card.draw(card.Card("A & b", "52.3 ms a step", "<b>", "profiler-job · h200"))
    assert front_matter.draw_card(front, "Heading") == wanted
    described = {"description": "Heading: it &lt; is."}
    assert front_matter.draw_card(described, "Heading") == card.draw(
        card.Card("Heading", "", "it < is.", "profiler-job")
    )


def test_pages_written_by_hand_have_cards():
    cards = front_matter.draw_cards_of_hand_written(ROOT / "site")
    assert {"report/cards/extend.png", "report/cards/guide/show.png", "report/cards/notebooks/ask-the-data.png"} <= {
        *cards
    }
    assert len({*cards.values()}) == len(cards) and "report/cards/index.png" not in cards


def test_the_theme_knows_the_size_and_the_place_of_cards():
    theme = (ROOT / "analysis" / "site" / "theme" / "main.html").read_text()
    assert f'og:image:width" content="{card.WIDTH}"' in theme and f'og:image:height" content="{card.HEIGHT}"' in theme
    assert front_matter.path_of_card("report/runs/a.b.md") == "report/cards/runs/a.b.png"
    assert front_matter.path_of_card("guide/show.md") == "report/cards/guide/show.png"


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
