"""Words of the glossary are linked where they first occur in running text."""

import re
from pathlib import Path

import markdown
import pytest

from profiler_job.analysis.site.link_terms import link_terms, mark_entries
from profiler_job.analysis.site.page_figures import show_figures

LINK = '[{0}]({1}report/glossary.md#capture "One file of Nsight Systems.")'
CAPTURES = LINK.format("Captures", "../")


def link(page: str) -> str:
    return link_terms(page, "../")


def test_only_the_first_of_a_term_is_a_link():
    assert link("Captures, and a capture.\n") == f"{CAPTURES}, and a capture.\n"


def test_a_link_is_one_in_html_too():
    page = show_figures(link("- *Captures*\n"), Path(), "x.md", is_question=False)
    html = markdown.markdown(page, extensions=["attr_list"])
    assert (
        '<a class="term" href="../report/glossary.md#capture" title="One file of Nsight Systems.">Captures</a>' in html
    )


def test_in_html_a_link_is_html():
    wanted = '<a class="term" href="../report/glossary.html#capture" title="One file of Nsight Systems.">capture</a>'
    assert link("<div>\n<p>A capture</p>\n</div>") == f"<div>\n<p>A {wanted}</p>\n</div>"


def test_in_html_that_holds_markdown_a_link_is_markdown():
    page = '<div class="verdict" markdown="1">\n\nCaptures\n\n</div>\n'
    assert link(page) == page.replace("Captures", CAPTURES)


def test_a_term_of_several_words_goes_before_a_part_of_it():
    assert "#kernel-family " in link("- a kernel family\n")
    assert "#kernel " not in link("- a kernel family\n")


def test_words_of_which_a_term_is_a_part_are_none():
    page = "recapture, captured, capture-wide, capture&#45;wide, wide&#45;capture, torch.compile(model), kernel…name\n"
    assert link(page) == page


@pytest.mark.parametrize(
    "page",
    [
        "## Captures\n",
        "| capture |\n| --- |\n",
        "[captures](x.html)\n",
        "![captures](x.svg)\n",
        "**Captures** · [SVG](x.svg)\n",
        "<!-- eyebrow -->\n[Runs](runs.md) · capture\n",
        "`capture`\n",
        "```\ncapture\n```\n",
        "<h2>Captures</h2>",
        '<p><a href="x.html">captures</a></p>',
        "<p><code>capture</code></p>",
        "<figure>\n<table><tr><td><p>capture</p></td></tr></table></figure>",
        "<details><summary><p>capture</p></summary></details>",
        '<p title="a capture > others"></p>',
        '<div class="note">capture</div>',
    ],
)
def test_no_link_is_where_it_would_be_in_the_way(page):
    assert link(page) == page


def test_an_entry_has_its_name_in_addresses():
    page = "- **[DDP, FSDP](x.md)**: Each GPU has the model.\n- **[torch.compile](y.md)**: A compiler.\n"
    html = markdown.markdown(mark_entries(page), extensions=["attr_list"])
    assert re.findall(r'<li class="entry" id="([^"]+)"><strong><a ', html) == ["ddp-fsdp", "torch-compile"]


def test_links_go_on_after_what_has_none():
    page = "# Captures\n\n<h2>Captures</h2>\n\n| capture |\n\n<figure>capture</figure>\n\n`capture` {}\n"
    assert link(page.format("Captures")) == page.format(CAPTURES)


def test_an_end_tag_without_a_beginning_changes_nothing():
    assert link("</div>\n\nCaptures\n") == f"</div>\n\n{CAPTURES}\n"
