"""The pages that list runs, kernels, calls, data, predictions and benchmarks, and how all was measured."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import exchange, run_grid, timing
from profiler_job.analysis.metrics.differences import Bands
from profiler_job.analysis.pages import (
    benchmarks,
    cuda_calls,
    data_page,
    environment,
    explore,
    kernel_glossary,
    output_reference,
    predictions,
    run_list,
    study_runs,
    telemetry,
)
from profiler_job.analysis.pages.questions import STUDIES
from profiler_job.analysis.prediction import ledger
from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.run_table import keep_runs
from profiler_job.analysis.render.tables import page_of_run
from profiler_job.analysis.site import command_reference
from profiler_job.analysis.site.combine import join_recordings
from profiler_job.analysis.site.page_context import (
    NOTHING,
    RunPages,
    describe_conditions,
    describe_version,
    find_run_pages,
    identify_runs,
    name_sections_page,
)
from profiler_job.analysis.site.site_writer import Site
from profiler_job.jobs.contract.studies import BF16, LADDER, LOSSES, NO_PLAIN_STEPS

WAITS = 0.3
"""From this part of a step on that the GPU waits, the Methods page says what the profiler does to it."""


def write_lists(
    site: Site,
    published: store.Recording,
    rec: store.Recording,
    studies: Mapping[str, store.Recording],
    downloads: Mapping[str, dict[str, Any]],
    price: telemetry.Price | None,
) -> None:
    """Write the pages that list runs, kernels, calls and data of a recording, and how it was measured. rec: what was
    measured of the finished runs of `published`."""
    measured_in = describe_conditions(rec)
    listed = run_list.answer(rec.runs, rec.steps, rec.kernels, rec.memops, rec.processes, rec.telemetry, price)
    site.write("report/runs.md", "run_list.md", listed, **measured_in)
    linked = join_recordings([rec, studies[BF16]]) if BF16 in studies else rec
    names = kernel_glossary.answer(linked.kernels)
    site.write("report/kernels.md", "kernel_glossary.md", names, **describe_conditions(linked))
    calls = cuda_calls.answer(rec.runs, rec.steps, rec.kernels, rec.api, rec.memops)
    site.write(f"report/{cuda_calls.SLUG}.md", "cuda_calls.md", calls, **measured_in)
    about = data_page.answer(store.dictionary(), downloads)
    site.write("report/data.md", "data_page.md", about)
    site.write("report/methods.md", "methods.md", NOTHING, **_constants(rec, studies), **measured_in)
    of_place = environment.answer(rec.runs, rec.manifest, rec.processes, rec.telemetry)
    site.write("report/environment.md", "environment.md", of_place)
    states = telemetry.answer(rec.runs, rec.steps, rec.processes, rec.telemetry, price)
    site.write(f"report/{telemetry.SLUG}.md", "telemetry.md", states, **measured_in)


def write_tested(site: Site, measured: Path) -> None:
    """Write the pages of benchmarks, whose results are in the folder `measured`, of predictions, whose ledgers are next
    to it, of terms, and of commands and their output. Raises RecordingError."""
    figures = {name: _figures(measured / f"{name}.json") for name in ("job", "reader", "faults", "site")}
    site.write("report/benchmarks.md", "benchmarks.md", benchmarks.answer(**figures))
    folder = measured.parent / ledger.FOLDER
    predicted = ledger.compare_with_measured(ledger.read_all(folder), ledger.read_measured(folder))
    scored = predictions.answer(_figures(measured / "parts.json"), predicted)
    site.write(f"report/{predictions.SLUG}.md", "predictions.md", scored)
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
    of_all = replace(site, sizes=sizes, properties={})
    losses = len(studies[LOSSES].runs) if LOSSES in studies else 0
    answer = explore.answer(shown, bands.wall)
    of_all.write(f"report/{explore.SLUG}.md", "explore.md", answer, losses=losses)


def _figures(file: Path) -> dict[str, Any]:
    """What a benchmark wrote; nothing where it was not run."""
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


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
