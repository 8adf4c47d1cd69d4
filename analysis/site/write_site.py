"""From a recording to the pages of the report: loads, asks every question, writes Markdown and CSV below the MkDocs
folder."""

import filecmp
import inspect
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import pandas as pd

from profiler_job.analysis.comparison.judge import Comparison
from profiler_job.analysis.comparison.of_site import comparisons_of
from profiler_job.analysis.comparison.sides import Side
from profiler_job.analysis.metrics import differences, run_grid, timing
from profiler_job.analysis.metrics.differences import Bands
from profiler_job.analysis.pages import (
    benchmarks,
    comparison,
    cuda_calls,
    data_page,
    environment,
    explore,
    kernel_glossary,
    overview,
    predictions,
    reconciliation,
    run_list,
    run_page,
    script_page,
    study_runs,
    telemetry,
    titles,
    token_costs,
)
from profiler_job.analysis.pages.questions import QUESTIONS, SEARCHED, STUDIES, group_by_section, section_of
from profiler_job.analysis.prediction import ledger, of_runs, predict, rates
from profiler_job.analysis.prediction.measured import measure_gains
from profiler_job.analysis.recording import store
from profiler_job.analysis.reference import kernel_families
from profiler_job.analysis.render import strip, timeline
from profiler_job.analysis.render.answer import Answer, assemble
from profiler_job.analysis.render.tables import page_of_run
from profiler_job.analysis.render.text import file_name, inline, ms, plain
from profiler_job.analysis.show.advice_lines import of_run
from profiler_job.analysis.show.finding_lines import FINDING, sentences
from profiler_job.analysis.show.verdict_lines import of_gpus, of_phases
from profiler_job.analysis.site.parallel_pages import Helper, Later, helping
from profiler_job.analysis.site.site_writer import Site
from profiler_job.jobs.contract.axes import find_value_words
from profiler_job.jobs.contract.layout import SCRIPT
from profiler_job.jobs.contract.studies import AGAIN, BF16, GPUS, LADDER, LOSSES
from profiler_job.jobs.garbage import without_collection

WAITS = 0.3
"""From this part of a step on that the GPU waits, the Methods page says what the profiler does to it."""
NOTHING = assemble({}, [], [], [])
WITH_RUN_PAGES = (GPUS,)
"""Studies whose runs have pages, too: what each rank does, no other page tells."""
MANY = 40
"""Runs from which on a process of its own writes their pages, beside all else: to start it takes as long as ten."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """What was written. breaches: failed checks of the reconciliation. verdict: what a script comes to, in plain
    text."""

    pages: int
    files: int
    breaches: int
    verdict: str = ""


def recordings_in(folder: Path) -> list[Path]:
    """The recordings below `folder`, as of `store.recordings_in`. Raises RecordingError where there is none."""
    folders = store.recordings_in(folder)
    if not folders:
        raise store.RecordingError(f"{folder} holds no recording: make one with `profiler-job ingest`")
    return folders


def publish(
    folders: list[Path],
    docs: Path,
    compared: Comparison | None = None,
    price_per_hour: float | None = None,
) -> Published:
    """Write the report of the recordings in `folders` below `docs`. Those of one study are taken together, and so are
    those of none, which the report is about; a study alone is what its report is about. compared: has pages of its own,
    beside those of recordings that can be compared. price_per_hour: of the GPUs of one run, to show that of tokens,
    with today's date. Raises RecordingError."""
    loaded = [store.load(folder) for folder in folders]
    by_study: dict[str, dict[Path, store.Recording]] = {}
    for folder, rec in zip(folders, loaded):
        by_study.setdefault(rec.manifest.get("study", ""), {})[folder] = rec
    for parts in by_study.values():
        _refuse_doubled_runs(parts)
    studies = {study: join_recordings([*parts.values()]) for study, parts in by_study.items()}
    main = studies.pop("", None) or (next(iter(studies.values())) if len(studies) == 1 else None)
    if main is None:
        raise store.RecordingError(
            f"the recordings {_list_names(folders)} are of several studies: give the recording of a sweep, too, or"
            " choose those of one study with --recording"
        )
    data = (docs / "data").resolve()
    downloads = {folder.name: rec.manifest for folder, rec in zip(folders, loaded) if folder.resolve().parent == data}
    downloads = downloads if len(downloads) == len(folders) else {}
    price = None if price_per_hour is None else telemetry.Price(price_per_hour, date.today())
    with helping(sum(len(rec.runs) for rec in loaded) >= MANY) as helper:
        return write(main, docs, studies, downloads, compared, partial(comparisons_of, loaded), price, helper)


def _refuse_doubled_runs(recordings: Mapping[Path, store.Recording]) -> None:
    """Raises RecordingError, which names the recordings, where two of them hold the same run."""
    holders: dict[str, list[Path]] = {}
    for folder, rec in recordings.items():
        for run_id in rec.runs["run_id"].astype(str):
            holders.setdefault(run_id, []).append(folder)
    doubled = {run_id: folders for run_id, folders in holders.items() if len(folders) > 1}
    if doubled:
        folders = dict.fromkeys(folder for run in doubled.values() for folder in run)
        run_id = next(iter(doubled))
        more = f" and {len(doubled) - 1} more" if len(doubled) > 1 else ""
        raise store.RecordingError(
            f"the recordings {_list_names(folders)} hold the same runs ({run_id}{more}): choose one with --recording"
        )


def _list_names(folders: Iterable[Path]) -> str:
    """Their names, or their paths where names are the same."""
    paths = list(folders)
    names = {path.name for path in paths}
    return ", ".join(path.name if len(names) == len(paths) else str(path) for path in paths)


def join_recordings(recordings: list[store.Recording]) -> store.Recording:
    """Several recordings, no run in two of them, as one."""
    first, *others = recordings
    if not others:
        return first
    run_ids = pd.concat([rec.runs["run_id"].astype(str) for rec in recordings])
    tables = {name: _join_tables([getattr(rec, name) for rec in recordings]) for name in store.TABLES}
    missing = dict.fromkeys(run for rec in recordings for run in rec.manifest.get("not_run", ()))
    not_run = [run for run in missing if run not in set(run_ids)]
    name = ", ".join(dict.fromkeys(str(rec.manifest.get("name", "")) for rec in recordings))
    return store.Recording(manifest=first.manifest | {"not_run": not_run, "name": name}, **tables)


def _join_tables(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """Rows of several tables below each other. What is a category in the first is one, of all values in order: left to
    itself pandas makes text of it, row by row."""
    types = frames[0].dtypes  # a run out of memory has columns of its own
    for name in types[[isinstance(kind, pd.CategoricalDtype) for kind in types]].index:
        held = [frame[name].astype("category") for frame in frames if name in frame]
        kind = pd.CategoricalDtype(sorted({value for column in held for value in column.cat.categories}))
        frames = [frame.astype({name: kind}) if name in frame else frame for frame in frames]
    return pd.concat(frames, ignore_index=True)


def select_finished_runs(rec: store.Recording) -> store.Recording:
    """`rec` with what was measured of finished runs only: from a run that ran out of memory no number is derived, not
    even for the phases that it reached. It stays in `runs` and `memory`."""
    finished = rec.runs.loc[rec.runs["status"].astype(str) == "ok", "run_id"].astype(str)
    if len(finished) == len(rec.runs):
        return rec
    measured = {name: getattr(rec, name) for name in ("steps", "ranges", "kernels", "api", "memops")}
    kept = {name: frame[frame["run_id"].astype(str).isin(finished)] for name, frame in measured.items()}
    return replace(rec, **{name: frame.reset_index(drop=True) for name, frame in kept.items()})


def ask(question: ModuleType, rec: store.Recording, **more: Any) -> Answer:
    """A question's answer: its parameters name the tables of the recording that it gets, and what else there is."""
    given = {}
    for name, parameter in inspect.signature(question.answer).parameters.items():
        if name in more:
            given[name] = more[name]
        elif parameter.default is parameter.empty:
            given[name] = getattr(rec, name)
    return question.answer(**given)


def write(
    rec: store.Recording,
    docs: Path,
    studies: Mapping[str, store.Recording] = MappingProxyType({}),
    downloads: Mapping[str, dict] = MappingProxyType({}),
    compared: Comparison | None = None,
    compare_others: Callable[[], Mapping[str, Comparison]] = dict,
    price: telemetry.Price | None = None,
    helper: Helper | Later | None = None,
) -> Published:
    """Write all generated pages of `rec` and of the `studies` by name below `docs`; `downloads`: manifests by
    folder of docs/data, where all of it is there to be had; `compared`: two sides, which have pages, too, as have
    those that `compare_others` gives by name.

    They are drafted elsewhere, and only files that changed are replaced: a preview meets no half report, and where a
    question fails the last report stays.
    """
    # Whatever fails, the helper has written its last file before the draft is removed.
    with tempfile.TemporaryDirectory() as draft, closing(helper or Later()) as helper, without_collection():

        def compare() -> dict[str, Comparison]:
            return ({"": compared} if compared else {}) | dict(compare_others())

        benchmarked = docs / "data" / "benchmarks"
        written = _draft(rec, studies, Path(draft), benchmarked, downloads, compare, price, helper)
        _settle(Path(draft), docs)
    return written


def _settle(draft: Path, docs: Path) -> None:
    """Make `index.md` and `report` below `docs` those of `draft`; a file that is the same already keeps its time."""
    drafted = {path.relative_to(draft) for path in draft.rglob("*") if path.is_file()}
    for path in sorted(drafted):
        target = docs / path
        if target.is_file() and filecmp.cmp(draft / path, target, shallow=False):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}")
        shutil.copyfile(draft / path, beside)
        os.replace(beside, target)
    for path in sorted((docs / "report").rglob("*"), reverse=True):
        if path.is_file() and path.relative_to(docs) not in drafted:
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _draft(
    rec: store.Recording,
    studies: Mapping[str, store.Recording],
    docs: Path,
    measured: Path,
    downloads: Mapping[str, dict],
    compare: Callable[[], Mapping[str, Comparison]],
    price: telemetry.Price | None,
    helper: Helper | Later,
) -> Published:
    """The report of `rec` below `docs`, an empty folder; `measured`: the folder of the benchmarks' figures."""
    published, rec = rec, select_finished_runs(rec)
    every_study = {study: select_finished_runs(other) for study, other in studies.items()}
    losses = every_study.get(LOSSES)  # read by the ladder alone: its times are those of no page
    studies = {study: other for study, other in every_study.items() if study != LOSSES}
    with_pages = [study for study in WITH_RUN_PAGES if study in studies]
    for study in with_pages:  # first: what else the helper does waits for the comparisons
        helper.give(write_runs_of_study, study, studies[study], docs)
    compared = compare()
    captured = ledger.recordings(measured.parent)
    predicted, verdict = _read_predictions(measured.parent, [rec, *studies.values(), *captured]), ""
    bands = differences.bands_of(rec, studies[AGAIN]) if AGAIN in studies else None
    gains = measure_gains(_name_recordings(rec, studies), bands.wall if bands else None)
    helper.give(write_comparisons, rec, docs, compared, gains)
    known, sides = _assign_pages(rec, compared)
    known = {**_run_pages_of(studies), **known}
    checked = ask(reconciliation, rec, studies=every_study)  # before the questions, which share what it computes
    helper.give(write_runs, rec, docs, checked.tables["checks"].rows, _counterparts(sides), price, gains)
    summary = [side.said.facts for side in sides]
    is_script = bool(rec.manifest.get(SCRIPT))
    if is_script:
        site, verdict = write_overview_of_script(rec, docs, checked, summary)
    else:
        site = write_questions(rec, docs, studies, summary, known, predicted, checked, bands, price, losses, captured)
        write_tested(site, measured, predicted, captured)
    write_lists(site, published, rec, studies, downloads, price)
    _write_explore(site, rec, every_study, known, bands)
    for _ in ("comparisons", *with_pages):
        helper.result()
    first = helper.result()
    if verdict and len(first) == 1:  # of the one run of a script
        (lines,) = first.values()
        verdict = "\n".join([verdict, "", "What to change first:", *(f"- {line}" for line in lines)])
    files = [path for path in docs.rglob("*") if path.is_file()]
    pages = sum(path.suffix == ".md" for path in files)
    return Published(pages=pages, files=len(files), breaches=checked.facts["num_breaches"], verdict=verdict)


def write_lists(
    site: Site,
    published: store.Recording,
    rec: store.Recording,
    studies: Mapping[str, store.Recording],
    downloads: Mapping[str, dict],
    price: telemetry.Price | None,
) -> None:
    """Write the pages that list runs, kernels, calls and data of a recording, and how it was measured. rec: what was
    measured of the finished runs of `published`."""
    measured_in = _describe_conditions(rec)
    site.write("report/runs.md", "run_list.md", ask(run_list, rec, price=price), **measured_in)
    linked = join_recordings([rec, studies[BF16]]) if BF16 in studies else rec
    site.write("report/kernels.md", "kernel_glossary.md", ask(kernel_glossary, linked), **_describe_conditions(linked))
    site.write(f"report/{cuda_calls.SLUG}.md", "cuda_calls.md", ask(cuda_calls, rec), **measured_in)
    about = ask(data_page, published, dictionary=store.dictionary(), downloads=downloads)
    site.write("report/data.md", "data_page.md", about)
    site.write("report/methods.md", "methods.md", NOTHING, **_constants(rec, studies), **measured_in)
    of_place = ask(environment, rec, processes=rec.processes, telemetry=rec.telemetry)
    site.write("report/environment.md", "environment.md", of_place)
    site.write(f"report/{telemetry.SLUG}.md", "telemetry.md", ask(telemetry, rec, price=price), **measured_in)


def write_tested(site: Site, measured: Path, predicted: pd.DataFrame, captured: Sequence[store.Recording] = ()) -> None:
    """Write the pages of benchmarks, whose figures lie in `measured`, of predictions, and of terms. captured: the
    recordings that predictions of scripts were made from."""
    figures = {name: _figures(measured / f"{name}.json") for name in ("job", "reader", "faults", "site")}
    site.write("report/benchmarks.md", "benchmarks.md", benchmarks.answer(**figures))
    again = predicted.assign(again_ns=of_runs.predict_again(predicted, captured))
    besides = of_runs.list_unpredicted(predicted, captured)
    held = predictions.answer(again, predict.predict_development(rates.load()), besides)
    site.write(f"report/{predictions.SLUG}.md", "predictions.md", held)
    site.write("report/glossary.md", "glossary.md", NOTHING)


@without_collection()
def write_runs(
    rec: store.Recording,
    docs: Path,
    checks: pd.DataFrame,
    counterparts: Mapping[str, list[dict[str, Any]]],
    price: telemetry.Price | None = None,
    gains: pd.DataFrame | None = None,
) -> dict[str, list[str]]:
    """Write the pages of the runs of the report and their timelines. Parameters and result as of `write_run_pages`."""
    site = _site_of(rec, docs)
    return write_run_pages(
        site, "report/runs", rec, checks, counterparts, traces=write_timelines(rec, site), gains=gains, price=price
    )


@without_collection()
def write_runs_of_study(study: str, studied: store.Recording, docs: Path) -> None:
    """Write the pages of the runs of a study, with strips of the timeline. Whole ones would be too many bytes: they are
    of one run of several GPUs for each way to share the work."""
    site = _site_of(studied, docs)
    checks = ask(reconciliation, studied, studies={}).tables["checks"].rows
    strips = write_timelines(studied, site, in_full=_choose_smallest_runs(studied))
    write_run_pages(site, _folder_of(study, ""), studied, checks, {}, traces=strips)


@without_collection()
def write_comparisons(
    rec: store.Recording, docs: Path, compared: Mapping[str, Comparison], gains: pd.DataFrame | None = None
) -> None:
    """Write the pages of the comparisons by name, and of their runs that have none in the report of `rec`. gains: as of
    `write_run_pages`."""
    site = replace(_site_of(rec, docs), notes=(), run_links={}, recording={}, properties={})
    _, sides = _assign_pages(rec, compared)
    counterparts = _counterparts(sides)
    for side in sides:
        write_comparison(site, side, counterparts, gains)


def write_run_pages(
    site: Site,
    folder: str,
    rec: store.Recording,
    checks: pd.DataFrame,
    counterparts: Mapping[str, list[dict[str, Any]]],
    side: str = "",
    traces: Mapping[str, dict[str, Any]] = MappingProxyType({}),
    gains: pd.DataFrame | None = None,
    price: telemetry.Price | None = None,
) -> dict[str, list[str]]:
    """Write a page of every run of `rec` below `folder`, and give what to change first by run, where there is anything
    to say. counterparts: by page, what it is held against. side: which of two sides these runs are of. traces: as
    `write_timelines` gives them. gains: what changes were measured to give, as of `prediction.measured`. price: of the
    GPUs of one run."""
    first = {}
    tables = {
        name: getattr(rec, name)
        for name in ("runs", "steps", "kernels", "api", "memops", "memory", "processes", "telemetry")
    }
    predicted = of_runs.predictions(rec)
    for run_id, answer in run_page.answers(**tables, checks=checks, predicted=predicted, measured=gains, price=price):
        run = answer.facts["run"]
        mode = find_value_words("mode", str(run["mode"])) or run["mode"]
        label = inline(f"{run['size']} · {run['context_length']} · {mode}")
        path = f"{folder}/{file_name(run_id)}"
        of_side = side.partition(", ")[2]
        title = inline(titles.title_of(run) + (f" · {of_side}" if side else ""))
        more = {
            "label": label,
            "title": title,
            "side": side,
            "compared": counterparts.get(path, []),
            "trace": traces.get(run_id),
        }
        said = describe_run(answer)
        more["shared"] = _describe_for_sharing(
            answer, of_side, said["verdict"], is_script=bool(rec.manifest.get(SCRIPT))
        )
        if said["first"]:
            first[run_id] = said["first"]
        if run["status"] == "ok":
            more |= _describe_conditions(replace(rec, runs=rec.runs[rec.runs["run_id"].astype(str) == run_id]))
        site.write(f"{path}.md", "run_page.md", answer, **more, said=said)
    return first


def _describe_for_sharing(answer: Answer, side: str, verdict: list[str], is_script: bool) -> dict[str, str]:
    """What a link to the page of a run shows: what was run, of which side of a comparison, how long it takes, and what
    limits it, in a line and as parts of a card. Of a script no more is known than its name."""
    run, step_ns = answer.facts["run"], answer.facts["step_ns"]
    what = str(run["size"]) if is_script else titles.description_of(run, answer.facts["has_shape"])
    what += f" ({side})" if side else ""
    result = answer.facts["why"] or ("not timed" if step_ns is None else f"{plain(ms(step_ns))} a step")
    limit = [f"Under nsys, {line}" for line in verdict[:1]]
    sentences = [f"{line[0].upper()}{line[1:]}." for line in (*limit, what)]
    return {"figure": result, "said": " ".join(sentences), "description": ". ".join([f"{what}: {result}", *limit])}


@dataclass(frozen=True, kw_only=True)
class Sides:
    """A comparison with pages. name: in the paths of its pages; "" of the one that a user asks for."""

    name: str
    compared: Comparison
    links: comparison.Links
    said: Answer

    def folder_of(self, letter: str) -> str:
        """Beside the pages of the report's own runs."""
        return _folder_of(self.name, letter)


RunPages = Mapping[tuple[str, str], str]
"""Path below docs, without .md, of the page of each run that has one, by run id and start."""


def _assign_pages(rec: store.Recording, compared: Mapping[str, Comparison]) -> tuple[RunPages, list[Sides]]:
    """The pages of all runs, and the comparisons by name with theirs. A run of the report `rec` has its page there
    already; each other run that is compared gets one, in the first comparison that it is in."""
    known = {run: page_of_run(run[0]) for run in _identify_runs(rec.runs)}
    sides = []
    for name, made in compared.items():
        links = _links(known, made, file_name(name) if name else "")
        sides.append(Sides(name=name, compared=made, links=links, said=comparison.answer(made, links)))
    return known, sides


def _run_pages_of(studies: Mapping[str, store.Recording]) -> RunPages:
    """The pages of the runs of WITH_RUN_PAGES."""
    return {
        run: f"{_folder_of(study, '')}/{file_name(run[0])}"
        for study in WITH_RUN_PAGES
        if study in studies
        for run in _identify_runs(studies[study].runs)
    }


def _counterparts(sides: Sequence[Sides]) -> dict[str, list[dict[str, Any]]]:
    """What each run is held against, by its page."""
    counterparts: dict[str, list[dict[str, Any]]] = {}
    for side in sides:
        for page, entries in comparison.counterparts(side.compared, side.links).items():
            counterparts.setdefault(page, []).extend(entries)
    return counterparts


def _links(known: dict[tuple[str, str], str], compared: Comparison, name: str = "") -> comparison.Links:
    """Where the pages of a comparison are. known: the pages of runs that have one, to which those of other runs of a
    recording are added."""
    runs = {}
    for letter, side, run_ids in _list_compared_runs(compared):
        for run in _identify_runs(side.runs[side.runs["run_id"].isin(run_ids)]) if side.recording else ():
            known.setdefault(run, f"{_folder_of(name, letter)}/{file_name(run[0])}")
            runs[letter, run[0]] = known[run]
    page = f"report/{comparison.SLUG}{f'-{name}' if name else ''}"
    pairs = [f"{page}/{file_name(pair.case.first[0])}" for pair in compared.pairs]
    pairs = pairs if len(pairs) > 1 else [page]
    named = {
        (letter, str(run["run_id"])): titles.title_of(run)
        for letter, side, _ in _list_compared_runs(compared)
        if side.recording
        for run in side.recording.runs.to_dict("records")
    }
    return comparison.Links(comparison=page, runs=runs, pairs=pairs, titles=named)


def _identify_runs(runs: pd.DataFrame) -> list[tuple[str, str]]:
    """What tells a run from the same run of another recording."""
    return [*zip(runs["run_id"].astype(str), runs["started_at"].astype(str))]


def _list_compared_runs(compared: Comparison) -> list[tuple[str, Side, list[str]]]:
    """(letter, side, run_ids) of both sides of a comparison."""
    cases = [pair.case for pair in compared.pairs]
    first, second = ([run for case in cases for run in getattr(case, which)] for which in ("first", "second"))
    return [("A", compared.first, first), ("B", compared.second, second)]


def _folder_of(name: str, letter: str) -> str:
    return "-".join(filter(None, ("report/runs", file_name(name) if name else "", letter.lower())))


def _write_explore(
    site: Site,
    rec: store.Recording,
    studies: Mapping[str, store.Recording],
    known: RunPages,
    bands: Bands | None,
) -> None:
    """Write the page of all runs, and the sections of those without a page in `known`. Runs that compare losses are not
    among all, since their times are not those of plain steps."""
    about = {question.STUDY: f"report/{question.SLUG}" for question in STUDIES.values() if question.STUDY}
    about[LOSSES] = about[LADDER]
    main = {run: page_of_run(run[0]) for run in _identify_runs(rec.runs)}
    parts = [explore.Part(name=str(rec.manifest.get("name", "main")), page="report/runs", run_pages=main, rec=rec)]
    for study, other in studies.items():
        pages = _pages_or_sections_of(study, other, known)
        parts.append(explore.Part(name=study, page=about.get(study, ""), run_pages=pages, rec=other))
        without = study_runs.answer(parts[-1], known.keys(), is_of_losses=study == LOSSES)
        if without.facts["num_runs"]:
            of_study = replace(site, recording=_version(other.manifest))
            of_study.write(f"{_sections_of(study)}.md", "study_runs.md", without)
    shown = [part for part in parts if part.name != LOSSES]
    sizes = run_grid.list_sizes(pd.concat([part.rec.runs for part in shown], ignore_index=True))
    of_all = replace(site, sizes=sizes, properties={})
    losses = len(studies[LOSSES].runs) if LOSSES in studies else 0
    answer = explore.answer(shown, bands.wall if bands else None)
    of_all.write(f"report/{explore.SLUG}.md", "explore.md", answer, losses=losses)


def write_comparison(
    site: Site, sides: Sides, counterparts: Mapping[str, list[dict[str, Any]]], gains: pd.DataFrame | None = None
) -> None:
    """Write the pages of a comparison and of its pairs, where there are several, and of runs that have none yet."""
    compared, links = sides.compared, sides.links
    notes = {
        letter: environment.mix(side.recording.runs, is_main=False, side=f"{letter}, {side.label}")
        for letter, side, _ in _list_compared_runs(compared)
        if side.recording
    }
    site = replace(site, notes=tuple(notes.values()))
    site.write(f"{links.comparison}.md", "comparison.md", sides.said)
    if len(compared.pairs) > 1:
        for pair, path in zip(compared.pairs, links.pairs, strict=True):
            site.write(f"{path}.md", "comparison.md", comparison.answer_pair(compared, pair, links))
    for letter, side, run_ids in _list_compared_runs(compared):
        folder = f"{sides.folder_of(letter)}/"
        here = [run for run in run_ids if links.runs.get((letter, run), "").startswith(folder)]
        if here and side.recording:
            rec = _select_runs(side.recording, here)
            checks = ask(reconciliation, rec, studies={}).tables["checks"].rows
            of_side = replace(site, notes=(notes[letter],))
            strips = write_timelines(rec, of_side, in_full=())  # those of every run would be too many bytes
            named = f"{letter}, {side.label}"
            write_run_pages(
                of_side, folder.rstrip("/"), rec, checks, counterparts, side=named, traces=strips, gains=gains
            )


def _select_runs(rec: store.Recording, run_ids: list[str]) -> store.Recording:
    """`rec` with these runs and no others."""
    tables = {}
    for name in store.TABLES:
        frame = getattr(rec, name)
        if "run_id" in frame:
            tables[name] = frame[frame["run_id"].astype(str).isin(run_ids)].reset_index(drop=True)
    return replace(rec, **tables)


def _name_recordings(rec: store.Recording, studies: Mapping[str, store.Recording]) -> dict[str, store.Recording]:
    """The recordings that show what changes give, by the names that pages call them: the main one first. Another
    recording of its runs has none of these changes."""
    others = {study: other for study, other in studies.items() if study != AGAIN}
    return {str(rec.manifest.get("name", "main")): rec, **others}


def _describe_conditions(rec: store.Recording) -> dict[str, Any]:
    """The conditions of the runs of a recording, for a page; none of a user's script, which has its own."""
    return {} if rec.manifest.get(SCRIPT) else {"conditions": environment.conditions(rec.runs)}


def _conditions(rec: store.Recording) -> dict[str, Any]:
    """What stands above the numbers of a question: the conditions of the runs, and what their machines did to them."""
    return environment.conditions(rec.runs) | {"machines": environment.machines(rec.runs, rec.processes, rec.telemetry)}


def _conditions_of_claims(recordings: list[store.Recording], deciding: Answer | None) -> dict[str, Any]:
    """The conditions of all runs that the first claims of the overview are about: training steps, with the ladder
    (`deciding`) those of its rows alone. A run that several of the `recordings` hold counts in the first."""
    rows = [deciding.tables[key].rows for key in ("shown", "rest", "alone")] if deciding else []
    claimed = {*pd.concat([of["run_id"].astype(str) for of in rows])} if rows else None
    seen: set[str] = set()
    parts: dict[str, list[pd.DataFrame]] = {"runs": [], "processes": [], "telemetry": []}
    for rec in recordings:
        steps = {*rec.runs.loc[rec.runs["mode"].astype(str) == "train_step", "run_id"].astype(str)} - seen
        held = steps if claimed is None else steps & claimed
        seen |= held
        for name, tables in parts.items():
            table = getattr(rec, name)
            tables.append(table[table["run_id"].astype(str).isin(held)])
    runs, processes, states = (_join_tables(tables) for tables in parts.values())
    return environment.conditions(runs) | {"machines": environment.machines(runs, processes, states)}


def _figures(file: Path) -> dict[str, Any]:
    """What a benchmark wrote; nothing where it was not run."""
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _read_predictions(data: Path, recordings: list[store.Recording]) -> pd.DataFrame:
    """The ledgers below `data` held against the recordings. Raises RecordingError."""
    return ledger.compare_with_measured(ledger.read_all(data / ledger.FOLDER), recordings)


def describe_run(answer: Answer) -> dict[str, list[str]]:
    """The verdict, the findings and the advice of a run in the sentences in which `show` gives those of a capture."""
    run, rows = answer.facts["run"], answer.tables["elapsed"].rows
    by_gpu = rows.drop(columns="phase").groupby("gpu", as_index=False).sum()
    verdict = [*of_gpus(by_gpu), *of_phases(rows)]
    if len(by_gpu) == 1:  # which of the machine's it is says nothing
        verdict = [line.removeprefix(f"GPU {by_gpu['gpu'].iloc[0]}: ") for line in verdict]
    return {
        "verdict": verdict,
        "findings": [line.removeprefix(FINDING) for line in sentences(answer.tables["findings"].rows)],
        "first": of_run(answer.facts["first"], run),
    }


def _choose_smallest_runs(rec: store.Recording) -> list[str]:
    """Of each way to share the work among GPUs the run with the fewest kernels."""
    if "gpus" not in rec.runs:
        return []
    ways = rec.runs[rec.runs["gpus"].fillna(1) > 1].astype({"run_id": str, "parallel": str})
    num_kernels = ways["run_id"].map(rec.kernels["run_id"].astype(str).value_counts()).dropna()
    return ways.loc[num_kernels.groupby(ways["parallel"]).idxmin(), "run_id"].tolist()


def write_timelines(
    rec: store.Recording, site: Site, *, in_full: Collection[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Write one step of every run that has kernels for speedscope and for Perfetto, or of those in `in_full` alone, and
    give what the run's page says of them, with a strip of one block, or of several ranks strips of the step. Of other
    runs that is the strips alone, of those that have some."""
    names = {str(run["run_id"]): titles.title_of(run) for run in rec.runs.to_dict("records")}
    frames = (rec.ranges, rec.kernels, rec.memops)
    by_run = [dict(iter(frame.groupby("run_id", observed=True, sort=False))) for frame in frames]
    written = {}
    for run_id in by_run[1]:
        ranges, kernels, memops = (of_run.get(run_id, frame.head(0)) for of_run, frame in zip(by_run, frames))
        step = timeline.median_step(ranges)
        if step is None:
            continue
        num_ranks = kernels["rank"].nunique()
        ranges, kernels, memops = _select_one_clock(ranges, kernels, memops)
        launched, moved = (of[of["step"] == step] for of in (kernels, memops))
        said: dict[str, Any] = {"step": step + 1, "strip": None}
        said["is_of_one_machine"] = kernels["rank"].nunique() < num_ranks
        said["lanes"] = strip.draw_ranks(launched, moved, dict(site.families))
        if said["lanes"] is None:
            said["strip"] = strip.draw_block(launched, moved, dict(site.families))
        if has_files := in_full is None or str(run_id) in in_full:
            trace = timeline.trace_step(names[str(run_id)], step, ranges, kernels, memops)
            files = {}
            for viewer, document in (("speedscope", timeline.speedscope(trace)), ("perfetto", timeline.chrome(trace))):
                path = f"report/timelines/{file_name(run_id)}.{viewer}.json.gz"
                files[viewer] = {"path": path, "bytes": site.put(path, timeline.pack(document))}
            said |= {"shift": trace.shift, "files": files}
        if has_files or said["strip"] or said["lanes"]:
            written[run_id] = said
    return written


def _select_one_clock(
    ranges: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The tables of a run without the ranks that are on other machines than the first."""
    if "node" not in kernels or (kernels["node"] == kernels["node"].iloc[0]).all():
        return ranges, kernels, memops
    ranks = kernels.loc[kernels["node"] == kernels["node"].min(), "rank"].unique()
    ranges, kernels, memops = (frame[frame["rank"].isin(ranks)] for frame in (ranges, kernels, memops))
    return ranges, kernels, memops


def write_questions(
    rec: store.Recording,
    docs: Path,
    studies: Mapping[str, store.Recording] = MappingProxyType({}),
    compared: Sequence[Mapping[str, Any]] = (),
    known: RunPages = MappingProxyType({}),
    predicted: pd.DataFrame | None = None,
    checked: Answer | None = None,
    bands: Bands | None = None,
    price: telemetry.Price | None = None,
    losses: store.Recording | None = None,
    captured: Sequence[store.Recording] = (),
) -> Site:
    """Write the pages of questions and studies, the reconciliation (`checked`), and the overview with their verdicts.
    compared: facts of the pages of comparisons, for the overview. known: pages of runs of studies; the others are on
    that of all runs. predicted: what was said of runs before they were measured, as of `_read_predictions`. bands: of
    the runs that were recorded again, worked out where not given. price: of the GPUs of one run. losses: the recordings
    of the study LOSSES, which the ladder reads. captured: runs that predictions were made from, beside those of
    `rec`."""
    site = _site_of(rec, docs)
    run_pages = {run: page_of_run(run[0]) for run in _identify_runs(rec.runs)}
    for study, studied in studies.items():
        run_pages |= _pages_or_sections_of(study, studied, known)
    if bands is None and AGAIN in studies:
        bands = differences.bands_of(rec, studies[AGAIN])
    twin = None
    if BF16 in studies:  # its pages have as many rows as those of `rec`: with links they are too large
        twin = _Twin(studies[BF16], replace(_site_of_study(site, BF16, studies[BF16], rec.runs, known), run_links={}))
    calibration = find_rates([*studies.values(), rec])
    checked = checked or ask(reconciliation, rec, studies=studies)

    def write_question(letter: str, question: ModuleType) -> dict[str, Any]:
        answer = ask(question, rec, bands=bands, studies=studies)
        of_twin = twin.write(letter, question, bands) if twin else {}
        for name in getattr(question, "ALSO_AS", ()):
            site.write(f"report/{name}.md", f"{name}.md", answer, conditions=_conditions(rec))
        return _write_question(site, letter, question, answer, rec, **of_twin)

    def answer_study(question: ModuleType, studied: store.Recording) -> Answer:
        more = {"main": rec, "calibration": select_rates(studied.runs, calibration), "studies": studies, "bands": bands}
        more |= {"losses": losses, "run_pages": run_pages}
        if predicted is not None and "hindsight" in inspect.signature(question.answer).parameters:
            more["hindsight"] = pd.concat(of_runs.predict_measured(part, question.MODE) for part in (rec, *captured))
        return ask(question, studied, **more, predicted=predicted)

    def write_study(letter: str, question: ModuleType) -> dict[str, Any]:
        studied = studies.get(question.STUDY) if question.STUDY else rec
        if studied is None:
            return _write_question(site, letter, question, _answer_not_recorded(question), None, "not_recorded.md")
        own = site if studied is rec else _site_of_study(site, question.STUDY, studied, rec.runs, known)
        answers[letter] = answer_study(question, studied)
        return _write_question(own, letter, question, answers[letter], studied, price=price)

    answers: dict[str, Answer] = {}
    said = {letter: write_question(letter, question) for letter, question in QUESTIONS.items()}
    said |= {letter: write_study(letter, question) for letter, question in STUDIES.items()}
    pages: dict[str, Any] = {"conditions": _conditions(rec)}
    leading, deciding = None, None
    claimed: tuple[str, ...] = ()
    for letter, question in STUDIES.items():
        if question.STUDY == BF16 and twin:
            leading, pages["leading"], claimed = answers[letter], said[letter], (BF16, *claimed)
        if getattr(question, "DECIDES", False) and letter in answers:
            deciding, pages["deciding"], claimed = answers[letter], said[letter], (*claimed, *question.READS)
    of_claims = [rec, *(studies[name] for name in claimed if name in studies)]
    pages["claimed_in"] = _conditions_of_claims(of_claims, deciding) if claimed else pages["conditions"]
    site.write("report/reconciliation.md", "reconciliation.md", checked, **_describe_conditions(rec))
    agreement = site.block("index.md", "reconciliation.md", checked, "verdict")
    pages |= {"sections": group_by_section(said), "agreement": agreement, "compared": compared}
    home = ask(overview, rec, leading=leading, deciding=deciding, twin=studies.get(BF16), run_pages=run_pages)
    site.write("index.md", "overview.md", home, **pages)
    return site


@dataclass(frozen=True)
class _Twin:
    """The runs of the main recording as people train today, of which the same questions are asked."""

    rec: store.Recording
    site: Site

    def write(self, letter: str, question: ModuleType, bands: Bands | None) -> dict[str, Any]:
        """Write the page of a question of the twin; gives what the page of the main recording and the overview say of
        it."""
        answer = ask(question, self.rec, bands=bands)
        slug, template = f"bf16-{question.SLUG}", _template(question)
        words = {**_words(letter, question), "twin_of": question.SLUG, "searched": []}
        self.site.write(f"report/{slug}.md", template, answer, **words, conditions=_conditions(self.rec))
        verdicts = {page: self.site.block(page, template, answer, "verdict") for page in (_page(question), "index.md")}
        return {"twin": {"slug": slug, "verdict": verdicts[_page(question)], "in_overview": verdicts["index.md"]}}


def _words(letter: str, question: ModuleType) -> dict[str, Any]:
    """What stands above the answer of a question."""
    searched = list(SEARCHED.get(letter, ()))
    return {"letter": letter, "title": question.TITLE, "section": section_of(letter), "searched": searched}


def _page(question: ModuleType) -> str:
    return f"report/{question.SLUG}.md"


def _template(question: ModuleType) -> str:
    return question.__name__.rsplit(".", 1)[-1] + ".md"


def write_overview_of_script(
    rec: store.Recording, docs: Path, checked: Answer, compared: Sequence[Mapping[str, Any]] = ()
) -> tuple[Site, str]:
    """Write the first page of the report on a script, and the reconciliation (`checked`); gives the page's verdict.
    compared: facts of the pages of comparisons."""
    site = _site_of(rec, docs)
    site.write("report/reconciliation.md", "reconciliation.md", checked)
    overview = ask(script_page, rec)
    site.write("index.md", "script_page.md", overview, compared=compared)
    return site, plain(site.block("index.md", "script_page.md", overview, "verdict"))


def _version(manifest: Mapping[str, Any]) -> dict[str, str]:
    """What names a recording: its name, its date, and the commit of the program that made it."""
    date_of = str(manifest.get("recorded_to") or "")[:10]
    return {"name": str(manifest.get("name") or ""), "date": date_of, "commit": str(manifest.get("commit") or "")}


def _site_of(rec: store.Recording, docs: Path) -> Site:
    """Where the pages of the main recording are written."""
    labels = {key: family.label for key, family in kernel_families.FAMILIES.items()}
    folder = Path(__file__).resolve().parents[1] / "pages" / "questions"
    notes = (environment.mix(rec.runs, is_main=True),)
    columns, sizes = tuple(run_grid.case_columns(rec.runs)), run_grid.list_sizes(rec.runs)
    links = {run: page_of_run(run) for run in rec.runs["run_id"].astype(str)}
    return Site(
        docs,
        (folder,),
        labels,
        columns,
        run_links=links,
        notes=notes,
        sizes=sizes,
        recording=_version(rec.manifest),
        properties=run_grid.property_names(rec.runs),
    )


def _site_of_study(site: Site, study: str, studied: store.Recording, main: pd.DataFrame, known: RunPages) -> Site:
    """Where pages of a study are written: they name its cases, and say where its runs are a mix, beside what is said
    of `main`, which may be the same. Runs without a page in `known` have a section."""
    runs = studied.runs
    notes = site.notes if runs is main else (*site.notes, environment.mix(runs, is_main=False))
    columns = tuple(run_grid.case_columns(runs))
    sizes, version = run_grid.list_sizes(runs), _version(studied.manifest)
    links = {run[0]: page for run, page in _pages_or_sections_of(study, studied, known).items()}
    names = run_grid.property_names(runs)
    return replace(
        site, case_columns=columns, run_links=links, notes=notes, sizes=sizes, recording=version, properties=names
    )


def _pages_or_sections_of(study: str, studied: store.Recording, known: RunPages) -> RunPages:
    """The page of each run of a study in `known`; of the others their section on the page of such runs."""
    runs = _identify_runs(studied.runs)
    return {run: known.get(run) or f"{_sections_of(study)}#{file_name(run[0])}" for run in runs}


def _sections_of(study: str) -> str:
    return f"report/{study_runs.SLUG}-{file_name(study)}"


def _answer_not_recorded(question: ModuleType) -> Answer:
    return assemble({"study": question.STUDY, "same_runs": question.STUDY == AGAIN}, [], [], [])


def _write_question(
    site: Site,
    letter: str,
    question: ModuleType,
    answer: Answer,
    rec: store.Recording | None,
    template: str = "",
    price: telemetry.Price | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Write a question's page, with the conditions of the runs of `rec` and what `more` there is to say; gives what the
    overview says of it."""
    template = template or _template(question)
    words = {**_words(letter, question), **more}
    measured = {} if rec is None else {"conditions": _conditions(rec)}
    if rec is not None and getattr(question, "STUDY", "") in token_costs.STUDIES:
        answer = token_costs.with_costs(answer, rec.runs, rec.steps, rec.processes, rec.telemetry, price)
        words["costed"] = {"price": price}
    site.write(_page(question), template, answer, **words, **measured)
    return {**words, **measured, "slug": question.SLUG, "verdict": site.block("index.md", template, answer, "verdict")}


def find_rates(recordings: Iterable[store.Recording]) -> pd.DataFrame:
    """The peak rates of the first recording that has them; no rows where none has."""
    columns = ["figure", "unit", "value", "low", "high", "repeats", "gpu_name"]
    for rec in recordings:
        if rec.manifest.get("calibration"):
            return pd.DataFrame([{"gpu_name": "", **rate} for rate in rec.manifest["calibration"]])[columns]
    return pd.DataFrame(columns=columns)


def select_rates(runs: pd.DataFrame, calibration: pd.DataFrame) -> pd.DataFrame:
    """The rates measured on a GPU that `runs` were measured on, or on one that is not recorded: those of another GPU
    say nothing of these runs."""
    return calibration[calibration["gpu_name"].isin({"", *runs["gpu_name"].astype(str)})]


def _constants(rec: store.Recording, studies: Mapping[str, store.Recording]) -> dict[str, Any]:
    """For the methods page: numbers of steps and processes, lowest and highest, thresholds, and what is seen of the two
    clocks."""
    ok = run_grid.select_measured_runs(rec.runs)
    names = {"warmup": "warmup_steps", "timed": "measured_steps", "profiled": "profiled_steps"}
    names |= {"processes": "processes"}
    steps = {key: (int(ok[name].min()), int(ok[name].max())) if len(ok) else (0, 0) for key, name in names.items()}
    every = [rec, *studies.values()]
    return steps | {
        "usual": _num_usual(rec, every),
        "profiler": _profiler(every),
        "clock": timing.clock_lead(rec.kernels),
    }


def _num_usual(rec: store.Recording, every: list[store.Recording]) -> tuple[int, int]:
    """Of all finished runs, those with as many warm-up and timed steps as most runs of `rec`; and their number."""
    names = ["warmup_steps", "measured_steps"]
    usual = run_grid.select_measured_runs(rec.runs)[names].value_counts().head(1)
    ok = pd.concat([run_grid.select_measured_runs(other.runs)[names] for other in every])
    return int((ok == list(usual.index[0])).all(axis=1).sum()) if len(usual) else 0, len(ok)


def _profiler(every: list[store.Recording]) -> dict[str, Any]:
    """What the profiler does to runs whose GPU waits for more than WAITS of the unprofiled step, and to GPU busy: of
    runs without communication, whose kernels wait for other GPUs."""
    tables = []
    for rec in every:
        exchanging = rec.kernels.loc[rec.kernels["family"] == kernel_families.COMMUNICATION, "run_id"].unique()
        kernels, memops = (frame[~frame["run_id"].isin(exchanging)] for frame in (rec.kernels, rec.memops))
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
