"""Tables of Markdown scroll in boxes."""

import markdown

TABLE = "| a | b |\n| --- | ---: |\n| *x* | 1 |\n"
PAGE = f"""# A page

{TABLE}
Words between.

<details markdown="1"><summary>more</summary>

{TABLE}
Words below.

</details>

<table class="data"><tr><td>2</td></tr></table>
"""


def render(text, *more):
    return markdown.markdown(text, extensions=["md_in_html", "tables", *more])


def test_each_table_gets_a_box_with_a_name_of_its_own_and_nothing_else_changes():
    html = render(PAGE, "profiler_job.analysis.site.scrolling_tables")
    for number in (1, 2):
        box = f'<div aria-label="Table {number}" class="scroll" role="region" tabindex="0"><table class="plain">'
        assert html.count(box) == 1
        html = html.replace(box, "<table>")
    assert html.replace("</table></div>", "</table>") == render(PAGE)


def test_a_table_in_html_is_left_as_it_is():
    assert '<table class="data"><tr>' in render(PAGE, "profiler_job.analysis.site.scrolling_tables")
