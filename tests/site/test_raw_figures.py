"""Figures come through Markdown as they are written."""

import re

import markdown

FIGURE = '<figure class="chart" id="chart-{0}">\n<figcaption>{0} *is* 1</figcaption>\n\n<svg><g></g></svg>\n</figure>'
TEXT = f"""# A page

A line right above.
{FIGURE.format("zeroth")}

{FIGURE.format("first")}

<details class="folded"><summary>rows</summary>
{FIGURE.format("second")}
</details>

<div class="answer" markdown="1">
*Words* before.

{FIGURE.format("third")}
</div>
"""


def render(text: str, *more: str) -> str:
    return markdown.markdown(text, extensions=["md_in_html", "fenced_code", *more])


def test_a_page_is_as_if_its_figures_had_been_parsed():
    plain = render(TEXT)
    assert render(TEXT, "profiler_job.analysis.site.raw_figures").split() == plain.split()
    assert len(re.findall("<figure", plain)) == 4


def test_a_figure_in_a_listing_is_still_a_listing():
    listing = f"```\n{FIGURE.format('first')}\n```\n"
    html = render(listing, "profiler_job.analysis.site.raw_figures")
    assert html == render(listing)
