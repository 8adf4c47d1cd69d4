"""Charts of one question in several states: one is shown."""

from typing import Any

from markupsafe import Markup

from profiler_job.analysis.pages.home_cases import STATES
from profiler_job.analysis.render.state_switch import draw_switch

AS_TRAINED = dict.fromkeys(STATES[1:], ", fused attention and AdamW")
"""What steps as people train have, next to the conditions of a page, which name the first state."""


def show_charts_by_state(page: Any, *keys: str, shown: str, is_trained: bool = True) -> Markup:
    """Return the Markdown of the charts of `keys` that a page's answer has, one after another, each with the name of
    its state, in the order of STATES; the site shows one at a time. One that is alone needs no switch. is_trained:
    BF16 is as people train."""
    charts = page.answer.charts
    known = [key for key in keys if key in charts and len(charts[key].rows)] or [*keys[:1]]
    if len(known) == 1:
        return page.chart(known[0])  # type: ignore[no-any-return]
    known.sort(key=lambda key: [*STATES, charts[key].state].index(charts[key].state))
    drawn, figures = [], {}
    for key in known:
        state = charts[key].state
        drawn.append(page.chart(key, f"{state}{AS_TRAINED.get(state, '') if is_trained else ''}: "))
        link = page.link_rows(f"chart-{key}")
        figures[state], page.figures[link] = Markup(page.figures[link]), ""
    first = page.link_rows(f"chart-{known[0]}")
    page.figures[first] = f'<div class="by-state">\n{draw_switch(known[0], figures, shown)}\n</div>'
    return Markup("\n\n").join(drawn)
