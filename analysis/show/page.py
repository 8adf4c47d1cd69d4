"""A summary as one HTML page that needs nothing else: no script, no other file, no request.

The content of a profile is not trusted: every text is escaped, and the page forbids itself to load or run anything.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from profiler_job.analysis.insight.limit_columns import BUSY, IDLE
from profiler_job.analysis.insight.limit_lines import INFERRED_SHARE, MOST_GPUS
from profiler_job.analysis.insight.results import NUM_MOMENTS, Summary
from profiler_job.analysis.insight.section_columns import ADVICE_TITLE, SECTIONS
from profiler_job.analysis.reference.columns import format_cell
from profiler_job.analysis.render.document import FAMILY_LABELS, render_document, render_list, render_table
from profiler_job.analysis.render.tables import family_chip
from profiler_job.analysis.show.facts import FINDING, LEAST_SAID, format_heads, format_note
from profiler_job.analysis.show.index import tabulate_captures
from profiler_job.analysis.show.show_formats import ALWAYS_WHOLE, list_sections
from profiler_job.analysis.show.wait_stacks import draw_icicle
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.quantities import format_time
from profiler_job.jobs.contract.ranges import ALL_PHASES
from profiler_job.jobs.contract.words import format_count

MOST_ROWS = 1_000
"""Rows of a table on the page."""


def render_page(summary: Summary, top: int = 20, index: str = "") -> str:
    """Render the page of one capture. top: rows of a table that are not folded, 0 for all; index: link to the page that
    lists this one."""
    back = Markup('<p><a href="{}">All captures</a></p>').format(index) if index else Markup("")
    source = make_printable(summary.capture["source"])
    parts = [back, Markup("<h1>{}</h1>").format(source)]
    lead, *others = format_heads(summary)
    parts += [render_list(lead, "lead"), *_render_verdict_bars(summary)]
    for lines in others:
        is_findings = lines[0].startswith(FINDING)
        parts.append(Markup("<h2>{}</h2>").format("What stands out" if is_findings else "The capture"))
        parts.append(render_list([line.removeprefix(FINDING) for line in lines], "" if is_findings else "facts"))
    if entries := summary.insight.sentences.advice:
        parts += [Markup("<h2>{}</h2>").format(ADVICE_TITLE), render_list(["; ".join(entry) for entry in entries], "")]
        parts.append(Markup('<p class="faint">{}.</p>').format(summary.insight.sentences.advice_note))
    parts += [
        draw_icicle(summary),
        _render_timeline(summary),
        _render_phases_bar(summary),
        _render_families_bar(summary),
    ]
    for name, title, frame in list_sections(summary):
        unfolded = len(frame) if not top or name in ALWAYS_WHOLE else top
        parts.append(_render_section(name, title, frame, unfolded, is_limited=bool(top)))
        if note := format_note(summary, name):
            parts.append(Markup('<p class="faint">{}.</p>').format(note))
    return render_document(source, parts)


def render_index(summaries: Sequence[Summary], files: Sequence[str]) -> str:
    """Render the page that lists captures, each with a link to its file."""
    rows = tabulate_captures(summaries)
    table = render_table(rows, dict(zip(range(len(files)), files)))
    return render_document("Captures", [Markup("<h1>{}</h1>").format(format_count(len(rows), "capture")), table])


# ------------------------------------------------------------------------------------------------------------- drawings


def _render_bar(title: str, label: str, pieces: Iterable[tuple[str, str, str, float]]) -> Markup:
    """Draw a bar of shares, without shares that would read 0.0%. pieces: class, style, words, share."""
    spans, words = [], []
    for kind, style, name, share in pieces:
        if share < LEAST_SAID:
            continue
        text = f"{name} {format_cell('share', share)}"
        spans.append(
            Markup('<span class="{}" style="width:{}%;{}" title="{}"></span>').format(
                kind, f"{100 * share:.3f}", style, text
            )
        )
        swatch = (
            family_chip(kind, FAMILY_LABELS)
            if kind
            else Markup('<span class="swatch" style="{}"></span>{}').format(style, name)
        )
        words.append(Markup("<li>{} <b>{}</b></li>").format(swatch, format_cell("share", share)))
    if not spans:
        return Markup("")
    return Markup(
        '<h2>{}</h2>\n<div class="bar" role="img" aria-label="{}">{}</div>\n<ul class="legend">{}</ul>'
    ).format(title, label, Markup("").join(spans), Markup("\n").join(words))


def _render_families_bar(summary: Summary) -> Markup:
    rows = summary.sections["families"].to_dict("records") if "families" in summary.shown else []
    pieces = ((row["family"], "", FAMILY_LABELS[row["family"]], row["share"]) for row in rows)
    return _render_bar("Kernel time by family", "Shares of kernel time by kernel family", pieces)


def _render_phases_bar(summary: Summary) -> Markup:
    rows = summary.sections["phases"].to_dict("records") if "phases" in summary.shown else []
    pieces = (("", f"background:{_choose_phase_colour(row['phase'])}", _label_phase(row), row["share"]) for row in rows)
    return _render_bar("Kernel time by phase", "Shares of kernel time by phase", pieces)


def _label_phase(row: dict[str, Any]) -> str:
    inferred = " (inferred)" if row["phase"] and row["inferred_share"] > INFERRED_SHARE else ""
    return f"{row['phase'] or 'no phase'}{inferred}"


def _render_verdict_bars(summary: Summary) -> Iterator[Markup]:
    """Draw the parts of the elapsed time of each of a few GPUs."""
    rows = summary.sections["verdict"]
    if len(rows) > MOST_GPUS or len(summary.shown) < len(SECTIONS):
        return
    for _, row in rows.iterrows():
        shares = row[[*_PARTS]] / max(row["elapsed_ns"], 1)
        pieces = (("", f"background:var(--{_COLOURS[name]})", _PARTS[name], share) for name, share in shares.items())
        title = f"Elapsed time of GPU {row['gpu']}: {format_time(row['elapsed_ns'])}"
        yield _render_bar(title, "Shares of elapsed time", pieces)


_PARTS = BUSY | {name: f"idle: {label}" for name, label in IDLE.items()} | {"no_work_ns": "no work"}
_COLOURS = {
    "kernels_ns": "series-0",
    "graphs_ns": "family-triton",
    "communication_ns": "family-communication",
    "copies_ns": "family-copy",
    "late_launch_ns": "series-5",
    "sync_ns": "series-2",
    "between_ns": "family-sort",
    "unknown_idle_ns": "family-other",
    "no_work_ns": "family-memory",
}


def _choose_phase_colour(phase: str) -> str:
    """Choose the colour of a phase, the same on every page; grey if it is not a phase."""
    of_training = ("forward", "backward", "optimizer", "loss", "data", "clip", "zero_grad", "setup")
    order = (*of_training, "prefill", "decode", "evaluation")
    assert set(order) == set(ALL_PHASES)
    return f"var(--series-{order.index(phase)})" if phase in order else "var(--family-fill)"


def _render_timeline(summary: Summary) -> Markup:
    """Render a row for each GPU: how much of each moment it was busy."""
    if not summary.busy:
        return Markup("")
    rows = Markup("\n").join(
        Markup(
            '<span class="faint">GPU {}</span><svg viewBox="0 0 {} 100" preserveAspectRatio="none" role="img"'
            ' aria-label="GPU {}: busy {} of the time"><path d="{}"/></svg>'
        ).format(gpu, NUM_MOMENTS, gpu, format_cell("share", float(shares.mean())), _draw_outline(shares))
        for gpu, shares in summary.busy.items()
    )
    axis = Markup('<span></span><div class="axis"><span>0</span><span>{}</span></div>').format(
        format_time(summary.capture["events_ns"])
    )
    return Markup('<h2>GPU busy over time</h2>\n<div class="strip">{}\n{}</div>').format(rows, axis)


def _draw_outline(shares: Iterable[float]) -> str:
    """Draw an SVG path around bars of 0 to 100, one a pixel."""
    steps = "".join(f"V{100 - 100 * min(share, 1):.4g}h1" for share in shares)
    return f"M0 100{steps}V100z"


# --------------------------------------------------------------------------------------------------------------- tables


def _render_section(name: str, title: str, frame: pd.DataFrame, unfolded: int, is_limited: bool) -> Markup:
    rows = frame.head(MOST_ROWS) if is_limited else frame
    parts = [Markup("<h2>{}</h2>").format(title), render_table(rows.head(unfolded))]
    if len(rows) > unfolded:
        more = format_count(len(rows) - unfolded, "more row")
        parts.append(
            Markup('<details class="more"><summary>{}</summary>\n{}</details>').format(
                more, render_table(rows.iloc[unfolded:])
            )
        )
    if len(frame) > len(rows):
        words = f"and {len(frame) - len(rows)} more: `--format csv --section {name}` has all of them"
        parts.append(Markup('<p class="faint">{}</p>').format(words))
    return Markup("\n").join(parts)
