"""What is said of a page where it is shared is safe in an attribute, and no longer than what is shown."""

from types import SimpleNamespace

import pytest

from analysis.render.describe import LONGEST, on_page_content


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('"quoted" <b> and</b> R&amp;D', "&quot;quoted&quot; &lt;b&gt; and&lt;/b&gt; R&amp;amp;D"),
        (None, "Two words: the first &lt; paragraph"),
    ],
)
def test_a_description_is_escaped_and_a_page_without_gets_its_first_paragraph(given, said):
    page = SimpleNamespace(meta={"description": given} if given else {}, title="Two words")
    on_page_content("<h1>Two words</h1><p>the <em>first</em> &lt; paragraph</p><p>second</p>", page)
    assert page.meta["description"] == said


def test_a_long_description_is_cut_between_words():
    page = SimpleNamespace(meta={"description": "word " * 100}, title="")
    on_page_content("", page)
    assert len(page.meta["description"]) <= LONGEST and page.meta["description"].endswith("word …")
