"""The pages that list runs, kernels, calls, data, predictions and benchmarks."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import run_grid
from profiler_job.analysis.metrics.differences import Bands
from profiler_job.analysis.pages import (
    benchmarks,
    cuda_calls,
    data_page,
    explore,
    kernel_glossary,
    output_reference,
    predictions,
    run_list,
    study_runs,
    telemetry,
)
from profiler_job.analysis.pages.home_cases import STATES, select_state
from profiler_job.analysis.pages.questions import STUDIES
from profiler_job.analysis.prediction import ledger
from profiler_job.analysis.recording import store
from profiler_job.analysis.render.tables import page_of_run
from profiler_job.analysis.site import command_reference
from profiler_job.analysis.site.combine import join_tables, select_runs
from profiler_job.analysis.site.old_addresses import write_old_addresses
from profiler_job.analysis.site.page_context import (
    NOTHING,
    RunPages,
    describe_conditions,
    describe_version,
    find_run_pages,
    identify_runs,
    join_versions,
    name_precisions,
    name_sections_page,
)
from profiler_job.analysis.site.site_writer import Site
from profiler_job.jobs.contract.studies import LADDER, LOSSES, NO_PLAIN_STEPS, TRAINED


def write_lists(
    site: Site,
    rec: store.Recording,
    studies: Mapping[str, store.Recording],
    downloads: Mapping[str, dict[str, Any]],
    price: telemetry.Price | None,
) -> None:
    """Write the pages that list runs, kernels, calls and data of a recording. rec: its finished runs."""
    measured_in = describe_conditions(rec)
    listed = run_list.answer(rec.runs, rec.steps, rec.kernels, rec.memops, rec.processes, rec.telemetry, price)
    site.write("report/runs.md", "run_list.md", listed, **measured_in)
    linked = [rec, *(_select_eager(studies[name]) for name in (TRAINED,) if name in studies)]
    names = kernel_glossary.answer([of.kernels for of in linked], _list_states(rec, studies))
    of_both = describe_conditions(replace(rec, runs=join_tables([of.runs for of in linked])))
    site.write("report/kernels.md", "kernel_glossary.md", names, has_charts=bool(names.charts), **of_both)
    calls = cuda_calls.answer(rec.runs, rec.steps, rec.kernels, rec.api, rec.memops)
    site.write(f"report/{cuda_calls.SLUG}.md", "cuda_calls.md", calls, **measured_in)
    write_old_addresses(site, studies)
    about = data_page.answer(store.dictionary(), downloads)
    site.write("report/data.md", "data_page.md", about)


def _list_states(rec: store.Recording, studies: Mapping[str, store.Recording]) -> dict[str, store.Recording]:
    """The main recording, if it is in one state, and of those as people train what is in another."""
    states = {name: rec for name in (name_precisions(rec),) if name in STATES}
    for state in STATES[1:] if TRAINED in studies and states else ():
        trained = select_state(studies[TRAINED], state, rec.runs["batch_size"])
        if state not in states and (trained.runs["profiled_steps"] > 0).any():
            states[state] = trained
    return states


def _select_eager(rec: store.Recording) -> store.Recording:
    """`rec` without kernels that a compiler wrote."""
    return select_runs(rec, [*run_grid.select_eager(rec.runs)["run_id"].astype(str)])


def write_tested(site: Site, measured: Path) -> None:
    """Write the pages of benchmarks, whose results are in the folder `measured`, of predictions, whose ledgers are next
    to it, of terms, and of commands and their output. Raises RecordingError."""
    figures = {name: read_figures(measured / f"{name}.json") for name in ("job", "reader", "faults", "site")}
    site.write("report/benchmarks.md", "benchmarks.md", benchmarks.answer(**figures))
    folder = measured.parent / ledger.FOLDER
    predicted = ledger.compare_with_measured(ledger.read_all(folder), ledger.read_measured(folder))
    scored = predictions.answer(read_figures(measured / "parts.json"), predicted)
    of_scripts = replace(site, recording={})  # predictions are of scripts, whose recordings are not published
    of_scripts.write(f"report/{predictions.SLUG}.md", "predictions.md", scored)
    site.write("report/glossary.md", "glossary.md", NOTHING)
    site.write("report/commands.md", "commands.md", command_reference.make_answer())
    site.write("report/output.md", "output.md", output_reference.answer())


def write_explore(
    site: Site,
    rec: store.Recording,
    studies: Mapping[str, store.Recording],
    known: RunPages,
    bands: Bands,
) -> None:
    """Write the page of all runs, and the sections of those without a page in `known`. Runs that compare losses or
    generate text are not among all, since their times are not the times of plain steps."""
    about = {question.study: f"report/{question.slug}" for question in STUDIES.values() if question.study}
    about[LOSSES] = about[LADDER]
    main = {run: page_of_run(run[0]) for run in identify_runs(rec.runs)}
    parts = [explore.Part(name=str(rec.manifest.get("name", "main")), page="report/runs", run_pages=main, rec=rec)]
    for study, other in studies.items():
        pages = find_run_pages(study, other, known)
        parts.append(explore.Part(name=study, page=about.get(study, ""), run_pages=pages, rec=other))
        without = study_runs.answer(parts[-1], known.keys(), is_of_losses=study == LOSSES)
        if without.facts["num_runs"]:
            of_study = replace(site, recording=describe_version(other.manifest))
            of_study.write(f"{name_sections_page(study)}.md", "study_runs.md", without)
    shown = [part for part in parts if part.name not in NO_PLAIN_STEPS]
    sizes = run_grid.list_sizes(pd.concat([part.rec.runs for part in shown], ignore_index=True))
    versions = [describe_version(part.rec.manifest) for part in shown]
    of_all = replace(site, sizes=sizes, properties={}, recording=join_versions(versions))
    losses = len(studies[LOSSES].runs) if LOSSES in studies else 0
    answer = explore.answer(shown, bands.wall)
    of_all.write(f"report/{explore.SLUG}.md", "explore.md", answer, losses=losses)


def read_figures(file: Path) -> dict[str, Any]:
    """What a benchmark wrote; nothing where it was not run."""
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
