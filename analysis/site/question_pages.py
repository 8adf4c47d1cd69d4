"""The pages of questions and studies, the home page and the reconciliation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from profiler_job.analysis.comparison.noise import choose_bands
from profiler_job.analysis.metrics.differences import Bands
from profiler_job.analysis.pages import telemetry, token_costs
from profiler_job.analysis.pages.home_cases import BF16
from profiler_job.analysis.pages.question import Inputs, Question
from profiler_job.analysis.pages.questions import QUESTIONS, STUDIES, group_by_section
from profiler_job.analysis.pages.run_page import describe_rate
from profiler_job.analysis.pages.script_answers import answer_script
from profiler_job.analysis.pages.topics import ANATOMY, METHODS, TOPICS
from profiler_job.analysis.recording import store
from profiler_job.analysis.render.answer import Answer, assemble
from profiler_job.analysis.render.tables import page_of_run
from profiler_job.analysis.render.text import file_name, plain
from profiler_job.analysis.render.timeline import pack
from profiler_job.analysis.show.wait_stacks import draw_stacks, format_stacks
from profiler_job.analysis.site.combine import find_rates, find_studies_by_turns, select_rates, select_runs
from profiler_job.analysis.site.home_page import list_recordings, write_home
from profiler_job.analysis.site.methods_page import TrustSection, render_section
from profiler_job.analysis.site.page_context import (
    RunPages,
    ask,
    check_recording,
    describe_conditions,
    describe_question_conditions,
    describe_version,
    find_run_pages,
    identify_runs,
    join_versions,
    make_site,
    make_site_of_study,
    name_precisions,
)
from profiler_job.analysis.site.run_pages import Screens
from profiler_job.analysis.site.site_writer import Site
from profiler_job.analysis.site.state_answers import answer_states
from profiler_job.analysis.site.topic_pages import list_members, render_in_topics, write_topic
from profiler_job.jobs.contract.changes import TRIABLE
from profiler_job.jobs.contract.modes import MODES
from profiler_job.jobs.contract.studies import AGAIN, TRAINED

ALSO = {"clocks": "Do the clocks agree?"}
"""What the further templates of a question answer."""


def write_questions(
    rec: store.Recording,
    docs: Path,
    studies: Mapping[str, store.Recording] = MappingProxyType({}),
    compared: Sequence[Mapping[str, Any]] = (),
    known: RunPages = MappingProxyType({}),
    checked: Answer | None = None,
    bands: Bands | None = None,
    price: telemetry.Price | None = None,
    losses: store.Recording | None = None,
    gains: pd.DataFrame | None = None,
    written: Mapping[str, Callable[[], dict[str, Any]]] = MappingProxyType({}),
    find_screens: Callable[[], Screens] = dict,
) -> tuple[Site, list[TrustSection]]:
    """Write the pages of questions and studies, the reconciliation (`checked`), and the home page with their verdicts;
    gives what the page METHODS has of them, too.
    compared: facts of the pages of comparisons, for the home page. known: pages of runs of studies; the others are on
    the page of all runs. bands: as `choose_bands` gives them, worked out if not given. price: of the GPUs of
    one run. losses: the recording of the study LOSSES, which the ladder reads. gains: as in `prediction.measured`.
    written: by letter, what gives the results of `write_study` for pages that are written elsewhere. find_screens:
    gives first screens that are known."""
    site = make_site(rec, docs)
    run_pages = {run: page_of_run(run[0]) for run in identify_runs(rec.runs)}
    for study, studied in studies.items():
        run_pages |= find_run_pages(study, studied, known)
    bands = bands or choose_bands(rec, studies.get(AGAIN))
    calibration = find_rates([*studies.values(), rec])
    checked = checked or check_recording(rec, studies)
    states = answer_states(site, list_recordings(rec, studies), gains, bands, run_pages)
    # The question of TRAINED is about what answers for BF16.
    recorded = {**studies, **find_studies_by_turns(studies), TRAINED: states.recordings.get(BF16)}

    def write_question(question: Question) -> dict[str, Any]:
        answer = ask(question, rec, bands=bands, studies=studies)
        pages = states.pages.get(question.letter, ())
        slugs = {name_precisions(rec): question.slug} | {page.label: page.slug for page in pages}
        for page in pages:
            page.write(title=question.title, searched=[], state=page.label, switch=_link_others(slugs, page.slug))
        for name in question.also_as:
            site.write(f"report/{name}.md", f"{name}.md", answer, conditions=describe_question_conditions(rec))
            trusted.append(render_section(site, ALSO[name], name, f"{name}.md", answer))
        return _write_question(site, question, answer, rec, switch=_link_others(slugs, question.slug))

    def write_page_of_study(question: Question) -> dict[str, Any]:
        if question.letter in written:
            return written[question.letter]()
        studied = recorded.get(question.study) if question.study else rec
        if studied is None:
            return _write_question(site, question, _answer_not_recorded(question), None, "not_recorded.md")
        given = Inputs(
            recording=studied,
            main=rec,
            studies=studies,
            calibration=select_rates(studied.runs, calibration),
            bands=bands,
            losses=losses,
            run_pages=run_pages,
        )
        return write_study(site, question, given, run_pages, price)

    trusted: list[TrustSection] = []
    said = {letter: write_question(question) for letter, question in QUESTIONS.items()}
    said |= {letter: write_page_of_study(question) for letter, question in STUDIES.items()}
    for topic in TOPICS:
        if topic not in (ANATOMY, METHODS):
            write_topic(site, topic, "topic.md", list_members(topic, said))
    site.write("report/reconciliation.md", "reconciliation.md", checked, **describe_conditions(rec))
    agreement = site.block("index.md", "reconciliation.md", checked, "verdict")
    pages = {"sections": group_by_section(said), "agreement": agreement, "compared": compared}
    write_home(site, rec, studies, run_pages, gains, states, list_members(ANATOMY, said), find_screens(), **pages)
    members = list_members(METHODS, said)
    return site, [
        *(TrustSection(member["title"], member["slug"], member["answers"][0].part) for member in members),
        *trusted,
    ]


def write_study(
    site: Site, question: Question, given: Inputs, known: RunPages, price: telemetry.Price | None
) -> dict[str, Any]:
    """Write the page of a question about a study, whose site is made from `site`, of the main recording. Gives
    what home and topics show of it."""
    is_main = given.recording is given.main
    own = site if is_main else make_site_of_study(site, question.study or "", given.recording, given.main.runs, known)
    own = replace(own, recording=name_recordings(question, given))
    return _write_question(own, question, question.answer(given), given.recording, price=price)


def name_recordings(question: Question, given: Inputs) -> dict[str, str]:
    """Name the recordings whose runs the page of a question shows, as `join_versions` does."""
    others = [given.studies[name] for name in question.reads if name in given.studies]
    read = [given.recording, *[given.main] * ("main" in question.needs), *others]
    return join_versions([describe_version(rec.manifest) for rec in read])


def write_small_study(
    question: Question,
    rec: store.Recording,
    docs: Path,
    studies: Mapping[str, store.Recording],
    known: RunPages,
    price: telemetry.Price | None,
) -> dict[str, Any]:
    """Write the page of a question about a study that `has_small_tables`. Other parameters as in `write_questions`;
    result as in `write_study`."""
    given = Inputs(recording=studies[question.study or ""], main=rec, studies=studies)
    return write_study(make_site(rec, docs), question, given, known, price)


def _link_others(slugs: Mapping[str, str], shown: str) -> dict[str, str]:
    """The switch of a question's page. slugs: of its page in each state; shown: the slug of this page, which the switch
    does not link."""
    return {state: "" if slug == shown else slug for state, slug in slugs.items()}


def _words(question: Question) -> dict[str, Any]:
    """The head of a question's answer."""
    return {"title": question.title, "searched": list(question.searched)}


def write_overview_of_script(
    rec: store.Recording,
    docs: Path,
    checked: Answer,
    compared: Sequence[Mapping[str, Any]] = (),
    tuned: Sequence[Mapping[str, str]] = (),
    price: telemetry.Price | None = None,
) -> tuple[Site, str]:
    """Write the first page of the report on a script, and the reconciliation (`checked`); gives the page's verdict.
    compared: facts of the pages of comparisons. tuned: pages of results of `tune`, as `write_tuned` gives them.
    price: of the GPUs of the run, instead of the list price."""
    site = make_site(rec, docs)
    site.write("report/reconciliation.md", "reconciliation.md", checked)
    first = write_script_page(site, select_main_run(rec), compared, tuned, price)
    return site, plain(site.block("index.md", "script_page.md", first, "verdict"))


def select_main_run(rec: store.Recording) -> store.Recording:
    """Return `rec` with the run that does most, of the loops of a script: an update, or else a backward pass."""
    modes = rec.runs["mode"].astype(str).map(MODES.index)
    return select_runs(rec, [str(rec.runs["run_id"].iloc[int(modes.to_numpy().argmax())])])


def write_script_page(
    site: Site,
    rec: store.Recording,
    compared: Sequence[Mapping[str, Any]] = (),
    tuned: Sequence[Mapping[str, str]] = (),
    price: telemetry.Price | None = None,
) -> Answer:
    """Write the first page of the report on a script, and return its answer. price: instead of the list price."""
    first, of_run, _ = answer_script(rec)
    screen = of_run.facts["screen"]
    if first.facts["tokens_per_s"] and not screen["numbers"]["tokens_per_s"]:
        screen["numbers"] |= describe_rate(screen["run"], first.facts["tokens_per_s"], price)
    triable = next((card for card in screen["cards"] if {*card["changes"]} <= {*TRIABLE}), None)
    more: dict[str, Any] = {"compared": compared, "tuned": tuned, "screen": screen, "triable": triable}
    if len(stacks := first.facts["stacks"]):
        run_id = str(rec.runs["run_id"].iloc[0])
        path = f"report/timelines/{file_name(run_id)}.waits.speedscope.json.gz"
        site.write_asset(path, pack(format_stacks(stacks, run_id)))
        more["stacks"] = {"drawn": draw_stacks(stacks), "path": path}
    site.write("index.md", "script_page.md", first, **more)
    return first


def _answer_not_recorded(question: Question) -> Answer:
    return assemble({"study": question.study, "same_runs": question.study == AGAIN}, [], [], [])


def _write_question(
    site: Site,
    question: Question,
    answer: Answer,
    rec: store.Recording | None,
    template: str = "",
    price: telemetry.Price | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Write a question's page, with the conditions of the runs of `rec` and what `more` there is to say; gives what the
    home page shows of it."""
    template = template or question.template
    words = {**_words(question), **more}
    measured = {} if rec is None else {"conditions": describe_question_conditions(rec)}
    if rec is not None and (question.study or "") in token_costs.STUDIES:
        answer = token_costs.with_costs(answer, rec.runs, rec.steps, rec.processes, rec.telemetry, price)
        words["costed"] = {"price": price}
    site.write(question.page, template, answer, **words, **measured)
    verdict = site.block("index.md", template, answer, "verdict")
    parts = render_in_topics(site, question, template, answer)
    said = {"title": question.title, "slug": question.slug, "verdict": verdict, "parts": parts}
    return said | {"recording": dict(site.recording)}
