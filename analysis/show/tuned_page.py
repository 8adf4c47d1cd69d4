"""A result of `tune` as one HTML page that needs nothing else: what it means, a figure, tables, the patch."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from profiler_job.analysis.insight.tuned_ladder import TunedLadder, chart_ladder, list_diff_lines, name_tuned
from profiler_job.analysis.insight.tuned_limits import (
    COLOURS,
    SCOPES,
    chart_tuned_limits,
    describe_tuned_limits,
    find_tuned_limits,
)
from profiler_job.analysis.insight.tuned_parts import TunedStep
from profiler_job.analysis.render import chart_parts, charts, icicle
from profiler_job.analysis.render.document import render_document, render_list, render_table
from profiler_job.analysis.show.tuned_forms import list_tables
from profiler_job.jobs.contract.printable import make_printable

TITLE = "Times as fast as the script as it is"
NOTE = "Each change is on top of those before it. Intervals are of 95%."
PARTS_NOTE = Markup(
    "Rows: phase, module, kind of kernel. The step was timed without a profiler; its parts were traced in another one."
    " <code>profiler-job profile</code> names the lines that the GPU waits for."
)


def render_tuned(ladder: TunedLadder, steps: Sequence[TunedStep] = ()) -> str:
    """Render the page. steps: whose parts are drawn."""
    title = name_tuned(ladder)
    checks = [line for line in (ladder.check, ladder.losses) if line]
    drawn = [_draw_step(step, f"step-{number}") for number, step in enumerate(steps)]
    parts = [Markup("<h1>{}</h1>").format(title), render_list([ladder.headline], "lead"), *drawn[:1]]
    parts.append(_draw_limits(ladder))
    if ladder.code:
        parts += [Markup("<h2>What to write</h2>"), render_list(ladder.code, "")]
    if ladder.apply:
        code = _draw_code([make_printable(ladder.apply)])
        parts.append(Markup("<p>{}</p>\n{}").format("Write the patch into the script:", code))
    parts += [render_list(checks, ""), _draw_ladder(ladder), *drawn[1:]]
    if lines := [line for line in (*ladder.facts, *ladder.notes) if line]:
        parts += [Markup("<h2>In numbers</h2>"), render_list(lines, "")]
    for name, heading, rows in list_tables(ladder):
        parts.append(Markup("<h2>{}</h2>\n{}").format(heading, render_table(rows)))
        if name == "steps":
            parts.append(Markup('<p class="faint">{}</p>').format(NOTE))
    if diff := list_diff_lines(ladder):
        parts.append(Markup("<h2>The patch</h2>\n{}").format(_draw_code(diff)))
    return render_document(make_printable(title), parts)


def _draw_code(lines: Sequence[str]) -> Markup:
    return Markup('<pre class="scroll"><code>{}</code></pre>').format("\n".join(lines))


def _draw_step(step: TunedStep, name: str) -> Markup:
    """Draw the parts of a step as an icicle, with a table that repeats it."""
    phases = dict.fromkeys(step.parts["phase"])
    rows = pd.DataFrame(
        [{"module, ms": row["module"]} | dict(zip(phases, row["times"])) for row in icicle.tabulate(step.parts)]
    )
    return Markup(
        '<h2>{}</h2>\n<div class="chart">{}</div>\n'
        '<details class="more" id="table-{}"><summary>{}</summary>\n{}<p class="faint">{}</p></details>'
    ).format(
        make_printable(step.title),
        icicle.draw(step.parts, name),
        name,
        "The figure as a table",
        render_table(rows),
        PARTS_NOTE,
    )


def _draw_limits(ladder: TunedLadder) -> Markup:
    """Draw what limits each step of the ladder whose kernels are known, with what it comes to and a legend."""
    limits = find_tuned_limits(ladder)
    if not limits:
        return Markup("")
    names = [*SCOPES.values()]
    legend = Markup("").join(
        Markup('<li><span class="swatch" style="background:var(--{})"></span>{}</li>').format(colour, name)
        for colour, name in zip(COLOURS, names)
    )
    options: dict[str, Any] = {"by": ["label"], "order": names, "value": "time_ns", "colours": COLOURS}
    drawings = _draw("stacked_parts", chart_tuned_limits(limits), "limits", **options)
    return Markup('<h2>What limits a step</h2>\n<p>{}</p>\n{}\n<ul class="legend">{}</ul>').format(
        make_printable(describe_tuned_limits(limits)), drawings, legend
    )


def _draw_ladder(ladder: TunedLadder) -> Markup:
    """Draw a bar for each step of the ladder."""
    rows = chart_ladder(ladder)
    if len(rows) < 2:
        return Markup("")
    return Markup("<h2>{}</h2>\n{}").format(TITLE, _draw("ladder_bars", rows, "ladder", TITLE))


def _draw(kind: str, rows: pd.DataFrame, name: str, title: str = "", **options: Any) -> Markup:
    """Draw a chart twice: wide, and narrow for small screens."""
    return Markup("\n").join(
        Markup('<div class="chart {}">{}</div>').format(
            form, Markup(charts.render(kind, rows, f"{name}-{form}", width, title, **options))
        )
        for form, width in (("wide", chart_parts.WIDE), ("narrow", chart_parts.NARROW))
    )
