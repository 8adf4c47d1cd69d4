"""The page of comparisons, and pages of their runs that have no other page."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from profiler_job.analysis.comparison.judge import Comparison
from profiler_job.analysis.comparison.sides import Side
from profiler_job.analysis.pages import (
    comparison,
    environment,
    titles,
)
from profiler_job.analysis.recording import store
from profiler_job.analysis.render.answer import Answer
from profiler_job.analysis.render.tables import address, page_of_run
from profiler_job.analysis.render.text import file_name
from profiler_job.analysis.site.combine import select_runs
from profiler_job.analysis.site.fragments import to_html, to_redirect, to_script
from profiler_job.analysis.site.page_context import (
    NOTHING,
    RunPages,
    check_recording,
    identify_runs,
    make_site,
    name_folder,
)
from profiler_job.analysis.site.run_pages import Screens, write_run_pages, write_timelines
from profiler_job.analysis.site.site_writer import QUERY, Part, Site
from profiler_job.jobs.contract.layout import SCRIPT
from profiler_job.jobs.contract.modes import MODES
from profiler_job.jobs.contract.printable import make_printable

PAGE = f"report/{comparison.SLUG}"
PARTS = "report/compared"
"""The folder of the files with the parts of the page."""
UNNAMED = "given"
"""Names the comparison that a user asks for, in addresses."""


def write_comparisons(
    rec: store.Recording,
    docs: Path,
    compared: Mapping[str, Comparison],
    gains: pd.DataFrame | None = None,
    in_full: Collection[str] = (),
) -> Screens:
    """Write the page of the comparisons by name, and pages of their runs that have none in the report of `rec`, whose
    screens are returned. gains: as in `write_run_pages`. in_full: ids of runs whose timeline can be opened."""
    site = replace(make_site(rec, docs), notes=(), run_links={}, recording={}, properties={})
    _, sides = assign_pages(rec, compared)
    if sides:
        write_page(site, sides)
    elif not rec.manifest.get(SCRIPT):
        site.write(f"{PAGE}.md", "comparisons.md", NOTHING, chosen=[])
    counterparts = list_counterparts(sides)
    screens: Screens = {}
    for side in sides:
        screens |= write_runs_compared(site, side, counterparts, gains, in_full)
    return screens


@dataclass(frozen=True, kw_only=True)
class Sides:
    """A comparison on the site. name: in the paths of its files; "" of the one that a user asks for."""

    name: str
    compared: Comparison
    links: comparison.Links
    said: Answer

    def folder_of(self, letter: str) -> str:
        """A folder next to the pages of the report's own runs."""
        return name_folder(self.name, letter)


def assign_pages(rec: store.Recording, compared: Mapping[str, Comparison]) -> tuple[RunPages, list[Sides]]:
    """The pages of all runs, and the comparisons by name with theirs. A run of the report `rec` has its page there
    already; each other run that is compared gets one, in the first comparison that it is in."""
    known = {run: page_of_run(run[0]) for run in identify_runs(rec.runs)}
    sides = []
    for name, made in compared.items():
        links = _links(known, made, file_name(name) if name else "")
        sides.append(Sides(name=name, compared=made, links=links, said=comparison.answer(made, links)))
    return known, sides


def list_counterparts(sides: Sequence[Sides]) -> dict[str, list[dict[str, Any]]]:
    """The runs that each run is compared with, by its page."""
    counterparts: dict[str, list[dict[str, Any]]] = {}
    for side in sides:
        for page, entries in comparison.counterparts(side.compared, side.links).items():
            counterparts.setdefault(page, []).extend(entries)
    return counterparts


def _links(known: dict[tuple[str, str], str], compared: Comparison, name: str = "") -> comparison.Links:
    """Where the pages of a comparison are. known: the pages of runs that have one, to which the pages of other runs of
    a recording are added."""
    runs = {}
    for letter, side, run_ids in list_compared_runs(compared):
        for run in identify_runs(_select_with_pages(side.runs, run_ids)) if side.recording else ():
            known.setdefault(run, f"{name_folder(name, letter)}/{file_name(run[0])}")
            runs[letter, run[0]] = known[run]
    page = f"{PAGE}{QUERY}{name or UNNAMED}"
    pairs = [f"{page}/{file_name(pair.case.first[0])}" for pair in compared.pairs]
    pairs = pairs if len(pairs) > 1 else [page]
    named = {
        (letter, str(run["run_id"])): titles.title_of(run)
        for letter, side, _ in list_compared_runs(compared)
        if side.recording
        for run in side.recording.runs.to_dict("records")
    }
    return comparison.Links(comparison=page, runs=runs, pairs=pairs, titles=named)


def _select_with_pages(runs: pd.DataFrame, run_ids: Sequence[str]) -> pd.DataFrame:
    """The compared runs that get a page: not those of forward and backward alone, next to training steps, which have
    all that these have."""
    modes = runs["mode"].astype(str)
    is_part = (modes == MODES[1]) & (modes == MODES[-1]).any()
    return runs[runs["run_id"].isin(run_ids) & ~is_part]


def list_compared_runs(compared: Comparison) -> list[tuple[str, Side, list[str]]]:
    """(letter, side, run_ids) of both sides of a comparison."""
    cases = [pair.case for pair in compared.pairs]
    first, second = ([run for case in cases for run in getattr(case, which)] for which in ("first", "second"))
    return [("A", compared.first, first), ("B", compared.second, second)]


def write_page(site: Site, sides: Sequence[Sides]) -> None:
    """Write the page of the comparisons, which shows the first; a file for each of them and for each of their pairs,
    which a script shows in its place; and pages at their old addresses that lead on."""
    first: Part | None = None
    for side in sides:
        overview = write_parts(replace(site, notes=tuple(describe_mixes(side.compared).values())), side)
        first = first or overview
    chosen = [
        {"name": side.name or UNNAMED, "first": side.said.facts["first"], "second": side.said.facts["second"]}
        | {"summary": side.said.facts["summary"], "link": Markup(address(side.links.comparison, "../", ".md"))}
        for side in sides
    ]
    assert first is not None
    extra = {"chosen": chosen, "shown": Markup(first.markdown), "pairs": list_pairs(sides[0])}
    site.write_with_parts(f"{PAGE}.md", "comparisons.md", sides[0].said, [first], **extra)


def write_parts(site: Site, side: Sides) -> Part:
    """Write the files of a comparison and of its pairs, if there are several, and return the part of the first."""
    name = side.name or UNNAMED
    overview = site.render_part_of_page(f"{PAGE}.md", name, "comparison.md", side.said)
    parts = {name: overview}
    old = f"{PAGE}-{file_name(side.name)}" if side.name else PAGE
    if side.name:
        site.write_asset(f"{old}.html", to_redirect(f"{comparison.SLUG}.html{QUERY}{name}"))
    pairs = list_pairs(side)
    for pair, (path, _) in zip(side.compared.pairs, pairs):
        of_pair = comparison.answer_pair(side.compared, pair, side.links)
        parts[path] = site.render_part_of_page(f"{PAGE}.md", path, "comparison.md", of_pair)
        moved = f"{old}/{path.rpartition('/')[2]}.html"
        site.write_asset(moved, to_redirect(f"../{comparison.SLUG}.html{QUERY}{path}"))
    for path, part in parts.items():
        script = to_script("showCompared", name=path, html=to_html(part), pairs=pairs if path == name else None)
        site.write_asset(f"{PARTS}/{path}.js", script)
    return overview


def list_pairs(side: Sides) -> list[tuple[str, str]]:
    """Return name and label of each pair of a comparison, if there are several."""
    if len(side.compared.pairs) < 2:
        return []
    names = [page.partition(QUERY)[2] for page in side.links.pairs]
    return [(name, make_printable(pair.case.label)) for name, pair in zip(names, side.compared.pairs, strict=True)]


def describe_mixes(compared: Comparison) -> dict[str, Answer]:
    """What differs among the runs of each side. Nothing within a study: there a pair is of one recording."""
    if compared.first.recording is compared.second.recording:
        return {}
    return {
        letter: environment.mix(side.recording.runs, is_main=False, side=f"{letter}, {side.label}")
        for letter, side, _ in list_compared_runs(compared)
        if side.recording
    }


def write_runs_compared(
    site: Site,
    sides: Sides,
    counterparts: Mapping[str, list[dict[str, Any]]],
    gains: pd.DataFrame | None = None,
    in_full: Collection[str] = (),
) -> Screens:
    """Write the pages of runs of a comparison that have none yet. in_full and result: as in `write_comparisons`."""
    screens: Screens = {}
    notes = describe_mixes(sides.compared)
    for letter, side, run_ids in list_compared_runs(sides.compared):
        folder = f"{sides.folder_of(letter)}/"
        here = [run for run in run_ids if sides.links.runs.get((letter, run), "").startswith(folder)]
        if here and side.recording:
            rec = select_runs(side.recording, here)
            checks = check_recording(rec).tables["checks"].rows
            of_side = replace(site, notes=(notes[letter],) if notes else ())
            strips = write_timelines(rec, of_side, in_full=in_full)
            is_of_study = sides.compared.first.recording is sides.compared.second.recording
            source = f"{'study' if is_of_study else 'recording'} {side.label}"
            written = write_run_pages(
                of_side, folder.rstrip("/"), rec, checks, counterparts, source=source, traces=strips, gains=gains
            )
            screens |= written.screens
    return screens
