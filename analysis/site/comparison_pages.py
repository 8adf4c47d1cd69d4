"""The pages of comparisons, and of their runs that have no other page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from profiler_job.analysis.comparison.judge import Comparison
from profiler_job.analysis.comparison.sides import Side
from profiler_job.analysis.pages import (
    comparison,
    environment,
    titles,
)
from profiler_job.analysis.recording import store
from profiler_job.analysis.render.answer import Answer
from profiler_job.analysis.render.tables import page_of_run
from profiler_job.analysis.render.text import file_name
from profiler_job.analysis.site.combine import select_runs
from profiler_job.analysis.site.page_context import RunPages, check_recording, identify_runs, make_site, name_folder
from profiler_job.analysis.site.run_pages import write_run_pages, write_timelines
from profiler_job.analysis.site.site_writer import Site


def write_comparisons(
    rec: store.Recording, docs: Path, compared: Mapping[str, Comparison], gains: pd.DataFrame | None = None
) -> None:
    """Write the pages of the comparisons by name, and of their runs that have none in the report of `rec`. gains: as in
    `write_run_pages`."""
    site = replace(make_site(rec, docs), notes=(), run_links={}, recording={}, properties={})
    _, sides = assign_pages(rec, compared)
    counterparts = list_counterparts(sides)
    for side in sides:
        write_comparison(site, side, counterparts, gains)


@dataclass(frozen=True, kw_only=True)
class Sides:
    """A comparison with pages. name: in the paths of its pages; "" of the one that a user asks for."""

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
        for run in identify_runs(side.runs[side.runs["run_id"].isin(run_ids)]) if side.recording else ():
            known.setdefault(run, f"{name_folder(name, letter)}/{file_name(run[0])}")
            runs[letter, run[0]] = known[run]
    page = f"report/{comparison.SLUG}{f'-{name}' if name else ''}"
    pairs = [f"{page}/{file_name(pair.case.first[0])}" for pair in compared.pairs]
    pairs = pairs if len(pairs) > 1 else [page]
    named = {
        (letter, str(run["run_id"])): titles.title_of(run)
        for letter, side, _ in list_compared_runs(compared)
        if side.recording
        for run in side.recording.runs.to_dict("records")
    }
    return comparison.Links(comparison=page, runs=runs, pairs=pairs, titles=named)


def list_compared_runs(compared: Comparison) -> list[tuple[str, Side, list[str]]]:
    """(letter, side, run_ids) of both sides of a comparison."""
    cases = [pair.case for pair in compared.pairs]
    first, second = ([run for case in cases for run in getattr(case, which)] for which in ("first", "second"))
    return [("A", compared.first, first), ("B", compared.second, second)]


def write_comparison(
    site: Site, sides: Sides, counterparts: Mapping[str, list[dict[str, Any]]], gains: pd.DataFrame | None = None
) -> None:
    """Write the pages of a comparison and of its pairs, where there are several, and of runs that have none yet."""
    compared, links = sides.compared, sides.links
    notes = {
        letter: environment.mix(side.recording.runs, is_main=False, side=f"{letter}, {side.label}")
        for letter, side, _ in list_compared_runs(compared)
        if side.recording
    }
    site = replace(site, notes=tuple(notes.values()))
    site.write(f"{links.comparison}.md", "comparison.md", sides.said)
    if len(compared.pairs) > 1:
        for pair, path in zip(compared.pairs, links.pairs, strict=True):
            site.write(f"{path}.md", "comparison.md", comparison.answer_pair(compared, pair, links))
    for letter, side, run_ids in list_compared_runs(compared):
        folder = f"{sides.folder_of(letter)}/"
        here = [run for run in run_ids if links.runs.get((letter, run), "").startswith(folder)]
        if here and side.recording:
            rec = select_runs(side.recording, here)
            checks = check_recording(rec).tables["checks"].rows
            of_side = replace(site, notes=(notes[letter],))
            strips = write_timelines(rec, of_side, in_full=())  # strips of every run would be too many bytes
            named = f"{letter}, {side.label}"
            write_run_pages(
                of_side, folder.rstrip("/"), rec, checks, counterparts, side=named, traces=strips, gains=gains
            )
