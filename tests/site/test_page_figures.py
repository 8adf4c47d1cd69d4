"""Markdown that a person can read becomes what the site shows."""

import re

import pytest
from markdown import markdown

from profiler_job.analysis.render.screen_source import to_markdown
from profiler_job.analysis.site.page_figures import dump, path_of_figures, show_figures

PAGE = """# How long?

It takes **2 ms** ([small · 128](runs/a.md)).

<details class="pop conditions" markdown="1"><summary>FP32 · batch 4</summary>

- **GPU**: NVIDIA H200

</details>

[how we measured](methods.md)

**Times** · [CSV](csv/p/times.csv)

| model | ms |
| ----- | -: |
| small |  2 |

*The CSV has 4 more rows.*

**Shares** · [CSV](csv/p/chart-shares.csv)

![Shares](csv/p/chart-shares.svg)

- It waits for [`exp`](../report/kernels.md#k-1). [rows](csv/p/rows-waits.csv)

| not | ours |
| --- | ---- |

## Rows behind the findings

- [3 rows](csv/p/rows-waits.csv): It waits.
"""
FIGURES = {
    "csv/p/times.csv": '<figure id="table-times"></figure>',
    "csv/p/chart-shares.csv": "<figure><svg></svg></figure>",
    "csv/p/rows-waits.csv": '<details class="folded">3</details>',
}


@pytest.fixture
def shown(tmp_path):
    file = tmp_path / path_of_figures("report/p.md")
    file.parent.mkdir(parents=True)
    file.write_text(dump(FIGURES))
    return show_figures(PAGE, tmp_path, "report/p.md", is_question=True)


def test_a_first_screen_takes_the_place_of_all_its_markdown(tmp_path):
    page = "report/runs/a.md"
    numbers = dict.fromkeys(("step_ns", "tokens_per_s", "mfu", "peak_bytes", "cost"))
    screen = {"parts": (), "numbers": numbers, "cards": (), "headline": "Waits", "nothing_more": "No change helps."}
    file = tmp_path / path_of_figures(page)
    file.parent.mkdir(parents=True)
    file.write_text(dump({"step.csv": "<div>No change helps.</div>"}))
    text = f"# Run\n\n{to_markdown(screen, 'step.csv')}\n\n<!-- note -->\nA slow CPU.\n"
    assert text.count("No change helps.") == 1
    html = show_figures(text, tmp_path, page, is_question=False)
    assert html.count("No change helps.") == 1 and "not known" not in html
    assert '<p class="note" markdown="1">A slow CPU.</p>' in html


def test_tables_and_pictures_give_way_to_figures(shown):
    assert all(shown.count(figure) == 1 for figure in FIGURES.values())
    assert "| model" not in shown and "4 more rows" not in shown and "![" not in shown
    assert "| not | ours |" in shown and "[CSV]" not in shown


def test_links_get_the_classes_of_what_they_lead_to(shown):
    assert '<a class="case" href="runs/a.html">small · 128</a>' in shown
    assert '<a class="kernel" href="../report/kernels.html#k-1"><code>exp</code></a>' in shown
    assert '<a class="rows" href="#rows-waits" data-search-exclude>rows</a>' in shown
    assert "[how we measured](methods.md)" in shown


def test_the_answer_of_a_question_is_marked_and_no_other_paragraph(shown, tmp_path):
    assert shown.count('<div class="verdict" markdown="1">\n\nIt takes') == 1
    assert "verdict" not in show_figures(PAGE, tmp_path, "report/p.md", is_question=False)


def test_rows_behind_findings_are_not_searched(shown):
    assert "## Rows behind the findings { data-search-exclude }\n" in shown


REPEATED = """- **Clock**: the timer.
- **Noise band**: how far recordings differ ([second recording](second-recording.md)).

More on clocks and attribution: [methods](methods.md).
"""


def test_what_many_pages_repeat_is_searched_on_one(tmp_path):
    """It was 27 KB of the index of the search."""
    shown, defined = (show_figures(REPEATED, tmp_path, f"report/{n}.md", False) for n in ("p", "second-recording"))
    html = markdown(shown, extensions=["attr_list", "md_in_html"])
    assert "data-search-exclude" in html.split(">More")[0].rpartition("<")[2]
    assert re.search(r"<li data-search-exclude[^>]*>\s*<strong>Noise band", html)
    assert html.count("<li") == 2 and html.count("data-search-exclude=") + html.count("data-search-exclude>") == 2
    assert "{: data-search-exclude }" not in defined


def test_a_comment_above_a_block_is_its_class(tmp_path):
    page = (
        "<!-- eyebrow -->\n[Runs](../runs.md) · FP32\n\n# A run\n\n<!-- axes -->\n- **a** · [b](b.md)\n- c\n\nMore.\n"
    )
    html = markdown(show_figures(page, tmp_path, "report/x.md", False), extensions=["attr_list", "md_in_html"])
    assert '<p class="eyebrow"><a href="../runs.md">Runs</a> · FP32</p>' in html
    assert re.search(r'<div class="axes">\s*<ul>\s*<li><strong>a</strong> · <a href="b.md">b</a></li>', html)
    assert "<!--" not in html and "<p>More.</p>" in html


def test_the_conditions_under_an_answer_are_not_searched(shown):
    html = markdown(shown, extensions=["attr_list", "md_in_html"])
    badge = re.search(
        r'<details class="pop conditions" data-search-exclude[^>]*>(.*?)</details>\s*(.*)', html, re.DOTALL
    )
    assert badge and badge[1].strip().startswith("<summary>FP32 · batch 4</summary>")
    assert "<li><strong>GPU</strong>: NVIDIA H200</li>" in badge[1]
    assert re.match(
        '<p class="conditions" data-search-exclude[^>]*><a href="methods.md">how we measured</a></p>', badge[2]
    )


def test_a_page_without_figures_stays_as_it_is(tmp_path):
    page = "# A page\n\n**Bold** · [CSV](x.csv)\n\n| a |\n| - |\n"
    assert show_figures(page, tmp_path, "guide/x.md", is_question=False) == page
