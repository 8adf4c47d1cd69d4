"""From recordings to the pages of the report: load them, draft all pages, and replace the files that changed."""

import filecmp
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from profiler_job.analysis.comparison.judge import Comparison
from profiler_job.analysis.comparison.noise import choose_bands
from profiler_job.analysis.comparison.site_comparisons import make_comparisons
from profiler_job.analysis.pages import (
    telemetry,
)
from profiler_job.analysis.pages.questions import STUDIES
from profiler_job.analysis.prediction.measured import measure_gains
from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.load_parts import load_recordings
from profiler_job.analysis.render.text import file_name
from profiler_job.analysis.site import front_matter
from profiler_job.analysis.site.combine import (
    find_studies_by_turns,
    join_recordings,
    leave_out_operations,
    list_names,
    name_recordings,
    refuse_colliding_pages,
    refuse_doubled_runs,
    select_finished_runs,
)
from profiler_job.analysis.site.comparison_pages import assign_pages, list_counterparts, write_comparisons
from profiler_job.analysis.site.home_page import find_opening_runs
from profiler_job.analysis.site.list_pages import read_figures, write_explore, write_lists, write_tested
from profiler_job.analysis.site.methods_page import NO_REPETITION, TrustSection, write_methods
from profiler_job.analysis.site.page_context import RunPages, check_recording, identify_runs, make_site, name_folder
from profiler_job.analysis.site.parallel_pages import Helper, Later, helping
from profiler_job.analysis.site.question_pages import write_overview_of_script, write_questions, write_small_study
from profiler_job.analysis.site.run_pages import WrittenRuns, write_runs, write_runs_of_study
from profiler_job.analysis.site.site_writer import write_file
from profiler_job.analysis.site.tuned_pages import write_tuned
from profiler_job.jobs.contract.garbage import pausing_collector
from profiler_job.jobs.contract.layout import SCRIPT
from profiler_job.jobs.contract.outputs import TargetError, check_file, check_folder, is_generated
from profiler_job.jobs.contract.studies import AGAIN, GPUS, LOSSES

WITH_RUN_PAGES = (GPUS,)
"""Studies whose runs have pages, too: what each rank does, no other page tells."""

MANY = 40
"""Runs from which on a process of its own writes their pages at the same time: to start it takes as long as ten."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """What was written. breaches: failed checks of the reconciliation. verdict: what a script comes to, in plain
    text."""

    pages: int
    files: int
    breaches: int
    verdict: str = ""


def recordings_in(folder: Path) -> list[Path]:
    """The recordings below `folder`, as in `store.recordings_in`. Raises RecordingError where there is none."""
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
    """Write the report of the recordings in `folders` below `docs`. The recordings of one study are joined, and so are
    the recordings of no study, which the report is about; a study alone is what its report is about. compared: has its
    own pages, next to the pages of recordings that can be compared. price_per_hour: of the GPUs of one run, to show the
    price of tokens, with today's date. Raises RecordingError, and TargetError if `docs` has other pages there."""
    check_docs(docs)
    with tempfile.TemporaryDirectory() as scratch, pausing_collector():
        loaded = load_recordings(folders, Path(scratch))
        return _publish(loaded, folders, docs, compared, price_per_hour)


def _publish(
    loaded: list[store.Recording],
    folders: list[Path],
    docs: Path,
    compared: Comparison | None,
    price_per_hour: float | None,
) -> Published:
    by_study: dict[str, dict[Path, store.Recording]] = {}
    for folder, rec in zip(folders, loaded):
        by_study.setdefault(rec.manifest.get("study", ""), {})[folder] = rec
    for parts in by_study.values():
        refuse_doubled_runs(parts)
    joined = {study: join_recordings([*parts.values()]) for study, parts in by_study.items()}
    studies = dict(joined)
    main = studies.pop("", None) or (next(iter(studies.values())) if len(studies) == 1 else None)
    if main is None:
        raise store.RecordingError(
            f"the recordings {list_names(folders)} are of several studies: give the recording of a sweep, too, or"
            " choose the recordings of one study with --recording"
        )
    data = os.path.realpath(docs / "data")
    downloads = {
        Path(os.path.realpath(folder)).relative_to(data).as_posix(): rec.manifest
        for folder, rec in zip(folders, loaded)
        if Path(os.path.realpath(folder)).is_relative_to(data)
    }
    downloads = downloads if len(downloads) == len(folders) else {}
    price = None if price_per_hour is None else telemetry.Price(price_per_hour, date.today())
    compare_others = partial(make_comparisons, loaded, joined | find_studies_by_turns(joined))
    with helping(sum(len(rec.runs) for rec in loaded) >= MANY) as helper:
        return write(main, docs, studies, downloads, compared, compare_others, price, helper)


def check_docs(docs: Path) -> None:
    """Raise TargetError if `docs` is a file, or holds an index.md or a folder `report` that this program did not
    write."""
    if docs.exists() and not docs.is_dir():
        raise TargetError(f"{docs} is a file: give a folder of MkDocs as --docs")
    index = docs / "index.md"
    check_file(index, is_generated, advice="give another --docs, or move it away")
    check_folder(docs / "report", lambda folder: index.is_file())


def write(
    rec: store.Recording,
    docs: Path,
    studies: Mapping[str, store.Recording] = MappingProxyType({}),
    downloads: Mapping[str, dict[str, Any]] = MappingProxyType({}),
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
    for each in (rec, *studies.values()):
        refuse_colliding_pages(each)
    # Whatever fails, the helper has written its last file before the draft is removed.
    with tempfile.TemporaryDirectory() as draft, closing(helper or Later()) as helper:

        def compare() -> dict[str, Comparison]:
            return ({"": compared} if compared else {}) | dict(compare_others())

        benchmarked = docs / "data" / "benchmarks"
        written = _draft(rec, studies, Path(draft), benchmarked, downloads, compare, price, helper)
        if front_matter.has_cards():
            for path, picture in front_matter.draw_cards_of_hand_written(docs).items():
                write_file(Path(draft, path), picture)
        _settle(Path(draft), docs)
    return written


def _settle(draft: Path, docs: Path) -> None:
    """Replace `index.md` and `report` below `docs` by `draft`'s; a file that is the same already keeps its time."""
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
    downloads: Mapping[str, dict[str, Any]],
    compare: Callable[[], Mapping[str, Comparison]],
    price: telemetry.Price | None,
    helper: Helper | Later,
) -> Published:
    """The report of `rec` below `docs`, an empty folder; `measured`: the folder of the benchmarks' figures."""
    rec = select_finished_runs(rec)
    every_study = {study: select_finished_runs(other) for study, other in studies.items()}
    losses = every_study.get(LOSSES)  # read by the ladder alone: no page shows its times
    studies = {study: other for study, other in every_study.items() if study != LOSSES}
    bands = choose_bands(rec, studies.get(AGAIN))
    gains = measure_gains(name_recordings(rec, studies), bands.wall)
    with_pages = [study for study in WITH_RUN_PAGES if study in studies]
    for study in with_pages:  # first: what else the helper does waits for the comparisons
        helper.give(write_runs_of_study, study, studies[study], docs, gains)
    compared = compare()
    known, sides = assign_pages(rec, compared)
    known = {**_run_pages_of(studies), **known}
    is_script = bool(rec.manifest.get(SCRIPT))
    asked = [] if is_script else [question for question in STUDIES.values() if question.study in studies]
    small_studies = [question for question in asked if question.has_small_tables]
    small = {study: leave_out_operations(other) for study, other in studies.items()}
    for question in small_studies:
        helper.give(write_small_study, question, leave_out_operations(rec), docs, small, known, price)
    verdict = ""
    helper.give(write_comparisons, rec, docs, compared, gains, find_opening_runs(rec, studies))
    checked = check_recording(rec, every_study)  # before the questions, which share what it computes
    helper.give(write_runs, rec, docs, checked.tables["checks"].rows, list_counterparts(sides), price, gains)
    summary = [side.said.facts for side in sides]
    for _ in with_pages:
        helper.result()
    # First: the home page, which comes last of the questions, waits for the first screens of all runs.
    site = make_site(rec, docs)
    write_lists(site, rec, studies, downloads, price)
    write_explore(site, rec, every_study, known, bands)
    if is_script:
        tuned = write_tuned(site, measured.parent, price)
        trusted, repeated = list[TrustSection](), NO_REPETITION
        site, verdict = write_overview_of_script(rec, docs, checked, summary, tuned, price)
    else:
        written = {question.letter: helper.result for question in small_studies}
        site, trusted = write_questions(
            rec,
            docs,
            studies,
            summary,
            known,
            checked,
            bands,
            price,
            losses,
            gains,
            written,
            lambda: _take_runs(helper).screens,
        )
        write_tested(site, measured)
        repeated = read_figures(measured / "repeated.json")
    write_methods(site, rec, studies, checked, price, trusted, repeated, losses)
    if is_script and len(first := _take_runs(helper).first) == 1 and verdict:
        (lines,) = first.values()
        verdict = "\n".join([verdict, "", "What to change first:", *(f"- {line}" for line in lines)])
    files = [path for path in docs.rglob("*") if path.is_file()]
    pages = sum(path.suffix == ".md" for path in files)
    return Published(pages=pages, files=len(files), breaches=checked.facts["num_breaches"], verdict=verdict)


def _take_runs(helper: Helper | Later) -> WrittenRuns:
    """Take the results of `write_comparisons` and `write_runs`."""
    compared, written = helper.result(), helper.result()
    return WrittenRuns(written.first, compared | written.screens)


def _run_pages_of(studies: Mapping[str, store.Recording]) -> RunPages:
    """The pages of the runs of WITH_RUN_PAGES."""
    return {
        run: f"{name_folder(study, '')}/{file_name(run[0])}"
        for study in WITH_RUN_PAGES
        if study in studies
        for run in identify_runs(studies[study].runs)
    }
