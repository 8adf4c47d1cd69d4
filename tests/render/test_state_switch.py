"""Charts in several states become one figure with a switch, and stay a list of pictures in the Markdown."""

from types import SimpleNamespace

import pandas as pd
import pytest
from markupsafe import Markup

from profiler_job.analysis.render.answer import Chart
from profiler_job.analysis.site.page_figures import place_figures
from profiler_job.analysis.site.state_figures import show_charts_by_state


class FakePage:
    """Draws a chart as its title, on a page that has charts of these states, the first of which has no rows."""

    def __init__(self, *states):
        charts = [Chart(f"t-{state}", "lines", "Time", pd.DataFrame({"a": [1]}), state=state) for state in states]
        charts = [Chart("t", "lines", "Time", pd.DataFrame(), state="none"), *charts]
        self.answer = SimpleNamespace(charts={chart.key: chart for chart in charts})
        self.figures = {}

    def link_rows(self, key):
        return f"csv/p/{key}.csv"

    def chart(self, key, before=""):
        title, link = before + self.answer.charts[key].title, self.link_rows(f"chart-{key}")
        self.figures[link] = f'<figure id="{key}">{title}</figure>'
        return Markup(f"**{title}** · [CSV]({link})\n\n![{title}](csv/p/{key}.svg)")


def test_each_state_has_a_button_and_a_figure_and_one_is_chosen():
    page = FakePage("FP32", "BF16")
    markdown = show_charts_by_state(page, "t", "t-FP32", "t-BF16", "t-other", shown="BF16")
    assert [line for line in markdown.splitlines() if line.startswith("!")] == [
        "![FP32: Time](csv/p/t-FP32.svg)",
        "![BF16, fused attention and AdamW: Time](csv/p/t-BF16.svg)",
    ]
    html = place_figures(markdown, page.figures, is_question=False)
    assert html.count("<figure") == html.count('<div class="state"><figure') == html.count('type="radio"') == 2
    assert html.count(" checked") == 1 and '"BF16" checked' in html and "![" not in html
    assert html.count('name="state-t-FP32"') == 2


@pytest.mark.parametrize("states", [(), ("BF16",)])
def test_one_chart_alone_has_no_switch(states):
    page = FakePage(*states)
    markdown = show_charts_by_state(page, "t", "t-FP32", "t-BF16", shown="FP32")
    assert "radio" not in place_figures(markdown, page.figures, is_question=False)
    assert markdown.startswith("**Time**")


def test_a_state_that_is_not_there_gives_way_to_the_first():
    page = FakePage("FP32", "TF32")
    show_charts_by_state(page, "t-FP32", "t-TF32", shown="BF16")
    assert '"FP32" checked' in page.figures["csv/p/chart-t-FP32.csv"]
