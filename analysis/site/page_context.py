"""What several kinds of pages need: questions asked of a recording, sites, paths and conditions of pages."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import run_grid
from profiler_job.analysis.pages import environment, reconciliation, study_runs
from profiler_job.analysis.pages.question import Inputs, Question
from profiler_job.analysis.recording import store
from profiler_job.analysis.reference import kernel_families
from profiler_job.analysis.render.answer import Answer, assemble
from profiler_job.analysis.render.tables import page_of_run
from profiler_job.analysis.render.text import file_name, name_model_of
from profiler_job.analysis.site.combine import PARTS
from profiler_job.analysis.site.site_writer import Site
from profiler_job.jobs.contract.layout import SCRIPT

NOTHING = assemble({}, [], [], [])


def ask(question: Question, rec: store.Recording, **more: Any) -> Answer:
    """Return a question's answer from a recording. more: other fields of `Inputs`; `main` is `rec` unless given."""
    return question.answer(Inputs(recording=rec, **{"main": rec} | more))


def check_recording(rec: store.Recording, studies: Mapping[str, store.Recording] = MappingProxyType({})) -> Answer:
    """Return the reconciliation of a recording, and of its numbers with the numbers of the studies."""
    return reconciliation.answer(
        rec.runs, rec.steps, rec.kernels, rec.memops, rec.nsys_sums, rec.api, rec.processes, studies
    )


BETWEEN_DAYS = " to "

RunPages = Mapping[tuple[str, str], str]
"""Path below docs, without .md, of the page of each run that has one, by run id and start."""


def identify_runs(runs: pd.DataFrame) -> list[tuple[str, str]]:
    """What tells a run from the same run of another recording."""
    return [*zip(runs["run_id"].astype(str), runs["started_at"].astype(str))]


def name_folder(name: str, letter: str) -> str:
    return "-".join(filter(None, ("report/runs", file_name(name) if name else "", letter.lower())))


def describe_conditions(rec: store.Recording) -> dict[str, Any]:
    """The conditions of the runs of a recording, for a page; none of a user's script, which has its own."""
    return {} if rec.manifest.get(SCRIPT) else {"conditions": environment.conditions(rec.runs)}


def describe_question_conditions(rec: store.Recording) -> dict[str, Any]:
    """The head of a question's numbers: the conditions of the runs, and what their machines did to them."""
    return environment.conditions(rec.runs) | {"machines": environment.machines(rec.runs, rec.processes, rec.telemetry)}


def name_precisions(rec: store.Recording) -> str:
    """Name the state of the runs of a recording of a sweep: `FP32`."""
    return " / ".join(sorted(rec.runs["precision"].astype(str).str.upper().unique()))


def describe_version(manifest: Mapping[str, Any]) -> dict[str, str]:
    """What names a recording: its name, the days from its first run to its last, and the commit of the program that
    made it."""
    if parts := manifest.get(PARTS):
        return join_versions([describe_version(part) for part in parts])
    days = [str(manifest.get(end) or "")[:10] for end in ("recorded_from", "recorded_to")]
    return {
        "name": str(manifest.get("name") or ""),
        "date": _join_days(filter(None, days)),
        "commit": str(manifest.get("commit") or ""),
    }


def join_versions(versions: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Name several recordings, each as `describe_version` does: all names, the first day and the last, and the commit
    that made all of them, if one did."""
    names = [name for version in versions for name in version["name"].split(", ") if name]
    commits = {version["commit"] for version in versions}
    return {
        "name": ", ".join(dict.fromkeys(names)),
        "date": _join_days(day for version in versions for day in version["date"].split(BETWEEN_DAYS) if day),
        "commit": commits.pop() if len(commits) == 1 else "",
    }


def _join_days(days: Iterable[str]) -> str:
    ordered = sorted(days)
    return BETWEEN_DAYS.join(dict.fromkeys((ordered[0], ordered[-1]))) if ordered else ""


def name_models(runs: pd.DataFrame) -> dict[str, str]:
    """Name each model with its parameters, by size."""
    columns = [name for name in ("workload", "size", "num_parameters") if name in runs]
    each = runs[columns].sort_values("num_parameters").drop_duplicates("size").to_dict("records")
    return {str(run["size"]): name_model_of(run) for run in each}


def make_site(rec: store.Recording, docs: Path) -> Site:
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
        models=name_models(rec.runs),
        recording=describe_version(rec.manifest),
        properties=run_grid.property_names(rec.runs),
        has_glossary=not rec.manifest.get(SCRIPT),
    )


def make_site_of_study(site: Site, study: str, studied: store.Recording, main: pd.DataFrame, known: RunPages) -> Site:
    """Where pages of a study are written: they name its cases, and note if its runs are a mix, in addition to the notes
    on `main`, which may be the same. Runs without a page in `known` have a section."""
    runs = studied.runs
    notes = site.notes if runs is main else (*site.notes, environment.mix(runs, is_main=False))
    columns = tuple(run_grid.case_columns(runs))
    sizes, version = run_grid.list_sizes(runs), describe_version(studied.manifest)
    links = {run[0]: page for run, page in find_run_pages(study, studied, known).items()}
    return replace(
        site,
        case_columns=columns,
        run_links=links,
        notes=notes,
        sizes=sizes,
        models={**site.models, **name_models(runs)},
        recording=version,
        properties=run_grid.property_names(runs),
    )


def find_run_pages(study: str, studied: store.Recording, known: RunPages) -> RunPages:
    """The page of each run of a study in `known`; of the others their section on the page of such runs."""
    runs = identify_runs(studied.runs)
    return {run: known.get(run) or f"{name_sections_page(study)}#{file_name(run[0])}" for run in runs}


def name_sections_page(study: str) -> str:
    return f"report/{study_runs.SLUG}-{file_name(study)}"
