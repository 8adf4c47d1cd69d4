"""The answers about compiled steps on the page on the anatomy of a step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from markupsafe import Markup

from profiler_job.analysis.metrics.differences import Bands
from profiler_job.analysis.pages import compiled_steps, home_cases
from profiler_job.analysis.pages.question import Question
from profiler_job.analysis.pages.questions import ALL_QUESTIONS
from profiler_job.analysis.pages.topics import ANATOMY
from profiler_job.analysis.recording import store
from profiler_job.analysis.site.combine import join_recordings, select_runs
from profiler_job.analysis.site.page_context import ask, make_site_of_study
from profiler_job.analysis.site.site_writer import NOT_MEASURED, Site
from profiler_job.analysis.site.topic_pages import StateAnswer, render_in_topic
from profiler_job.jobs.contract.studies import BF16

TEMPLATE = "compiled_steps.md"


@dataclass(frozen=True, kw_only=True)
class CompiledAnswers:
    """note: what was not recorded of compiled steps, a line of Markdown, "" if nothing; answers: by the letter of the
    question."""

    note: Markup
    answers: Mapping[str, StateAnswer]

    def add_to(self, members: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the members of a topic (`list_members`) with these answers."""
        added = []
        for member in members:
            own = self.answers.get(member["letter"])
            added.append({**member, "answers": [*member["answers"], *([own] if own else [])]})
        return added


def answer_compiled(
    site: Site, recordings: Sequence[store.Recording], gains: pd.DataFrame | None, bands: Bands | None
) -> CompiledAnswers:
    """Ask the questions of ANATOMY about the compiled runs of all recordings, but for the one on BF16: its answer is
    what compiling gives to steps in BF16. gains: as in `prediction.measured`; bands: of times."""
    runs = home_cases.list_runs(recordings)
    captured = _join_captured_runs(recordings, compiled_steps.select_captured_runs(runs))
    answer = compiled_steps.answer(runs, captured, gains)
    of_gains = site.render_blocks(ANATOMY.page, ANATOMY.slug, TEMPLATE, answer, ("verdict",))
    answers = {}
    for question in (ALL_QUESTIONS[letter] for letter in ANATOMY.letters):
        if question.study is None and captured:
            answers[question.letter] = _answer_question(site, question, recordings[0], captured, bands)
        if question.study == BF16 and of_gains.markdown != NOT_MEASURED:
            answers[question.letter] = StateAnswer(home_cases.COMPILED, home_cases.COMPILED, of_gains)
    return CompiledAnswers(note=site.block(ANATOMY.page, TEMPLATE, answer, "captured", ""), answers=answers)


def _join_captured_runs(recordings: Sequence[store.Recording], captured: pd.DataFrame) -> dict[str, store.Recording]:
    """The runs of each state as one recording."""
    joined: dict[str, store.Recording] = {}
    for state in compiled_steps.STATES:
        rows = captured[captured["state"] == state]
        parts = [select_runs(recordings[number], [*of["run_id"]]) for number, of in rows.groupby("recording")]
        joined |= {state: join_recordings(parts)} if parts else {}
    return joined


def _answer_question(
    site: Site,
    question: Question,
    main: store.Recording,
    captured: Mapping[str, store.Recording],
    bands: Bands | None,
) -> StateAnswer:
    """The answer from the runs of the first state that have one."""
    for label, rec in captured.items():
        of_state = replace(make_site_of_study(site, "", rec, main.runs, {}), run_links={})
        answer = ask(question, rec, bands=bands)
        part = render_in_topic(of_state, ANATOMY, question, question.template, answer)
        shown = StateAnswer(label, home_cases.COMPILED, part)
        if part.markdown != NOT_MEASURED:
            break
    return shown
