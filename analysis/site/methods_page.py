"""The page on how a recording was measured, with a short answer to each question of trust, and pages with all of the
answers of telemetry and environment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pandas as pd
from markupsafe import Markup

from profiler_job.analysis.metrics import exchange, run_grid, timing
from profiler_job.analysis.metrics.turns import list_rounds, measure_spreads
from profiler_job.analysis.pages import environment, telemetry
from profiler_job.analysis.pages.topics import METHODS
from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.run_table import keep_runs
from profiler_job.analysis.render.answer import Answer
from profiler_job.analysis.site.page_context import NOTHING, describe_conditions
from profiler_job.analysis.site.site_writer import Part, Site

WAITS = 0.3
"""From this part of a step on that the GPU waits, the Methods page says what the profiler does to it."""

NO_REPETITION: Mapping[str, Any] = MappingProxyType({})
LIMITED = {"the GPU": "the GPU limits both", "the CPU": "the CPU limits one"}


@dataclass(frozen=True)
class TrustSection:
    """A section of the page: its question, the slug of the page with the whole answer, and the short answer."""

    title: str
    slug: str
    part: Part


def render_section(site: Site, title: str, slug: str, template: str, answer: Answer) -> TrustSection:
    """Render the verdict and the first figure of a page as a section."""
    return TrustSection(title, slug, site.render_blocks(METHODS.page, slug, template, answer, METHODS.blocks))


def write_methods(
    site: Site,
    rec: store.Recording,
    studies: Mapping[str, store.Recording],
    checked: Answer,
    price: telemetry.Price | None,
    sections: Sequence[TrustSection] = (),
    repeated: Mapping[str, Any] = NO_REPETITION,
    losses: store.Recording | None = None,
) -> None:
    """Write the page, and those on environment and telemetry. sections: of other pages, which come first. checked: the
    reconciliation. repeated: how far recordings on another machine are (site/data/benchmarks/repeated.json). losses:
    the recording of the study LOSSES, whose steps are not timed."""
    measured_in = describe_conditions(rec)
    of_place = environment.answer(rec.runs, rec.manifest, rec.processes, rec.telemetry)
    site.write("report/environment.md", "environment.md", of_place)
    states = telemetry.answer(rec.runs, rec.steps, rec.processes, rec.telemetry, price)
    site.write(f"report/{telemetry.SLUG}.md", "telemetry.md", states, **measured_in)
    more = (
        ("Which clocks, temperatures and energy were read?", telemetry.SLUG, states),
        ("On which machines and programs?", environment.SLUG, of_place),
        ("Do the numbers agree?", "reconciliation", checked),
    )
    sections = [*sections, *(render_section(site, title, slug, f"{slug}.md", of) for title, slug, of in more)]
    site.write_with_parts(
        METHODS.page,
        "methods.md",
        NOTHING,
        [section.part for section in sections],
        topic=METHODS,
        sections=[
            {"title": section.title, "slug": section.slug, "markdown": Markup(section.part.markdown)}
            for section in sections
        ],
        **_constants(rec, studies, losses),
        repeated=_summarize_repetition(repeated),
        **measured_in,
    )


def _constants(
    rec: store.Recording, studies: Mapping[str, store.Recording], losses: store.Recording | None
) -> dict[str, Any]:
    """For the methods page: numbers of steps and processes, lowest and highest, thresholds, and what is seen of the two
    clocks."""
    ok = run_grid.select_measured_runs(rec.runs)
    names = {"warmup": "warmup_steps", "timed": "measured_steps", "profiled": "profiled_steps"}
    names |= {"processes": "processes"}
    steps = {key: (int(ok[name].min()), int(ok[name].max())) if len(ok) else (0, 0) for key, name in names.items()}
    every = [rec, *studies.values()]
    num_usual, num_timed = _num_usual(rec, every)
    num_losses = len(run_grid.select_measured_runs(losses.runs)) if losses else 0
    return steps | {
        "num_usual": num_usual,
        "num_timed": num_timed,
        "num_finished": num_timed + num_losses,
        "profiler": _profiler(every),
        "clock": timing.clock_lead(rec.kernels),
        "spread": _summarize_spreads(every),
    }


def _summarize_spreads(every: Sequence[store.Recording]) -> dict[str, Any]:
    """How well ratios repeat of runs that took turns, and of runs in processes of their own; {} if none took turns."""
    tables = [measure_spreads(list_rounds(rec.steps, rec.processes)) for rec in every]
    spreads = pd.concat(tables)
    if not len(spreads):
        return {}
    names = {name for rec, table in zip(every, tables) if len(table) for name in rec.runs["gpu_name"].astype(str)}
    return {
        "number": len(spreads),
        "closer": int((spreads["by_turns"] < spreads["apart"]).sum()),
        "by_turns": (spreads["by_turns"].median(), spreads["by_turns"].max()),
        "apart": (spreads["apart"].median(), spreads["apart"].max()),
        "gpus": sorted(names),
    }


def _summarize_repetition(repeated: Mapping[str, Any]) -> dict[str, Any]:
    """How far ratios and kernel times were when sweeps were recorded again on another machine, as
    `tests.bench.repeated_recordings` wrote it: rows of what is compared, with the most that it may be apart, how many
    are within that, of how many, and the furthest (shares); {} if nothing was recorded again."""
    if not repeated:
        return {}
    ratios, kernels = pd.DataFrame(repeated["ratios"]), pd.DataFrame(repeated["kernels"])
    groups = [(f"ratio of two runs, {LIMITED[limit]}", rows) for limit, rows in ratios.groupby("limit")]
    rows = [
        {
            "what": what,
            "most": of["most"].iloc[0],
            "within": int(of["within"].sum()),
            "of": len(of),
            "furthest": of["away"].abs().max(),
        }
        for what, of in [*groups, ("kernel time of a step", kernels)]
    ]
    far = kernels[~kernels["within"]]
    return {
        "rows": rows,
        "num_recordings": len(repeated["recordings"]),
        "num_sweeps": len({each["sweep"] for each in repeated["recordings"]}),
        "num_steps": kernels["run_id"].nunique(),
        "gpus": sorted({each["gpu"] for each in repeated["recordings"]}),
        "num_ratios": len(ratios),
        "num_meeting": int(ratios["do_meet"].sum()),
        "num_two_speeds": int((~ratios["within"] & ratios["is_one_speed"].eq(False)).sum()),
        "power_w": (far["power_w"].min(), far["power_w"].max()) if len(far) and far["is_capped"].all() else None,
    }


def _num_usual(rec: store.Recording, every: list[store.Recording]) -> tuple[int, int]:
    """How many of all finished runs have as many warm-up and timed steps as most runs of `rec`, and how many there
    are."""
    names = ["warmup_steps", "measured_steps"]
    usual = run_grid.select_measured_runs(rec.runs)[names].value_counts().head(1)
    ok = pd.concat([run_grid.select_measured_runs(other.runs)[names] for other in every])
    return int((ok == list(usual.index[0])).all(axis=1).sum()) if len(usual) else 0, len(ok)


def _profiler(every: list[store.Recording]) -> dict[str, Any]:
    """What the profiler does to runs whose GPU waits for more than WAITS of the unprofiled step, and to GPU busy: of
    runs without communication, whose kernels wait for other GPUs."""
    tables = []
    for rec in every:
        alone = {*rec.runs["run_id"].astype(str)} - {*exchange.list_exchanging_runs(rec.kernels)}
        kernels, memops = (keep_runs(table, alone) for table in (rec.kernels, rec.memops))
        tables.append(timing.measure_stretch(rec.steps, kernels, memops))
    table = pd.concat(tables)
    waiting = table[table["waits"] > WAITS]
    longer = waiting[waiting["longer_ns"] > 0]["longer_ns"]
    return {
        "waits": WAITS,
        "num_waiting": len(waiting),
        "num_longer": len(longer),
        "longer_ns": (longer.min(), longer.median(), longer.max()) if len(longer) else (),
        "num_runs": len(table),
        "gpus": sorted({name for rec in every for name in rec.runs["gpu_name"].astype(str)}),
        "busy_ratio": table["busy_ratio"].max() if len(table) else 0.0,
    }
