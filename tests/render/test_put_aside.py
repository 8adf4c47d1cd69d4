"""Figures stand aside while MkDocs and its search read a page."""

import re
from types import SimpleNamespace

import markdown
import pytest
from mkdocs.exceptions import PluginError

from profiler_job.analysis.site import put_aside

PAGE = SimpleNamespace(file=SimpleNamespace(src_uri="report/a.md"), meta={})
FIGURE = '<figure class="chart" id="chart-{0}">\n<figcaption>{0} *is* 1</figcaption>\n\n<svg><g></g></svg>\n</figure>'
TEXT = f"""# A page

{FIGURE.format("first")}

<details class="folded"><summary>rows</summary>
{FIGURE.format("second")}
</details>

<div class="answer" markdown="1">
*Words* before.

{FIGURE.format("third")}
</div>
"""


def built(text: str) -> str:
    return put_back(searched(text))


def searched(text: str) -> str:
    """What the search plugin reads."""
    html = markdown.markdown(put_aside.on_page_markdown(text, page=PAGE), extensions=["md_in_html", "fenced_code"])
    return put_aside.on_page_content(html, page=PAGE)


def put_back(html: str) -> str:
    page = SimpleNamespace(file=PAGE.file, content=html)
    put_aside.on_page_context({}, page=page)
    return page.content


def test_a_page_is_as_if_its_figures_had_been_read():
    plain = markdown.markdown(TEXT, extensions=["md_in_html", "fenced_code"])
    assert built(TEXT) == plain
    assert len(re.findall("<figure", plain)) == 3


def test_search_reads_the_figures_that_hold_what_it_shall_find_and_no_others():
    hidden = TEXT.replace('id="chart-second"', 'id="chart-second" data-search-exclude')
    assert re.findall(r'id="chart-(\w+)"', searched(hidden)) == ["first", "third"]
    assert built(hidden) == markdown.markdown(hidden, extensions=["md_in_html", "fenced_code"])


def test_search_reads_of_a_page_without_detail_what_stands_above_its_headings():
    hidden = FIGURE.format("below").replace("class", "data-search-exclude class")
    text = f"# A page\n\nFirst.\n\n<h2 id='a'>Detail</h2>\n\n{hidden}\n\nMore.\n"
    PAGE.meta["search"] = {"boost": 0.5, "detail": False}
    html = searched(text)
    assert "First" in html and "Detail" not in html and "More" not in html
    PAGE.meta.clear()
    assert put_back(html) == markdown.markdown(text, extensions=["md_in_html", "fenced_code"])


def test_a_figure_that_would_be_lost_fails_the_build():
    with pytest.raises(PluginError, match=r"report/a\.md: 0 of 1 figures"):
        built(f"```\n{FIGURE.format('first')}\n```\n")
