"""The answers about compiled steps: on the page on the anatomy of a step, and on a page for each question."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from markupsafe import Markup

from profiler_job.analysis.metrics.differences import Bands
from profiler_job.analysis.pages import compiled_forward, compiled_steps, home_cases
from profiler_job.analysis.pages.question import Question
from profiler_job.analysis.pages.questions import ALL_QUESTIONS
from profiler_job.analysis.pages.topics import ANATOMY
from profiler_job.analysis.recording import store
from profiler_job.analysis.render.answer import Answer
from profiler_job.analysis.site.combine import join_recordings, select_runs
from profiler_job.analysis.site.page_context import ask, describe_question_conditions, make_site_of_study
from profiler_job.analysis.site.site_writer import NOT_MEASURED, Part, Site
from profiler_job.analysis.site.topic_pages import StateAnswer, render_in_topic
from profiler_job.jobs.contract.studies import BF16

OF_STEPS, OF_FORWARD = "compiled_steps.md", "compiled_forward.md"
"""The templates of the answers that are not a question's own."""
NOT_CAPTURED = Part("No compiled run that shows this was captured.", {})


@dataclass(frozen=True, kw_only=True)
class CompiledPage:
    """An answer from compiled runs with its page. site: whose cases these are; label: their state."""

    site: Site
    question: Question
    label: str
    template: str
    answer: Answer
    conditions: Mapping[str, Any]

    @property
    def slug(self) -> str:
        return f"compiled-{self.question.slug}"

    def write(self, **words: Any) -> None:
        """Write the page. words: what else the template needs."""
        self.site.write(f"report/{self.slug}.md", self.template, self.answer, conditions=self.conditions, **words)


@dataclass(frozen=True, kw_only=True)
class CompiledAnswers:
    """note: what was not recorded of compiled steps, a line of Markdown, "" if nothing; answers: by the letter of the
    question; pages: of the questions that compiled runs answer, by letter."""

    note: Markup
    answers: Mapping[str, StateAnswer]
    pages: Mapping[str, CompiledPage]

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
    if not len(runs):
        return CompiledAnswers(note=Markup(""), answers={}, pages={})
    captured = _join_captured_runs(recordings, compiled_steps.select_captured_runs(runs))
    answer = compiled_steps.answer(runs, captured, gains)
    answers: dict[str, StateAnswer] = {}
    pages: dict[str, CompiledPage] = {}
    for question in (ALL_QUESTIONS[letter] for letter in ANATOMY.letters):
        if question.study is None and captured:
            page, part = _answer_question(site, question, recordings[0], captured, bands)
            label = page.label if page else home_cases.COMPILED
            answers[question.letter] = StateAnswer(label, home_cases.COMPILED, part)
            pages |= {question.letter: page} if page else {}
        if question.study == BF16:
            of_gains = site.render_blocks(ANATOMY.page, ANATOMY.slug, OF_STEPS, answer, ("verdict",))
            if of_gains.markdown != NOT_MEASURED:
                answers[question.letter] = StateAnswer(home_cases.COMPILED, home_cases.COMPILED, of_gains)
    note = site.block(ANATOMY.page, OF_STEPS, answer, "captured", "")
    return CompiledAnswers(note=note, answers=answers, pages=pages)


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
) -> tuple[CompiledPage | None, Part]:
    """The first answer, as its page and as its part of ANATOMY, with what the answer before it has of modules; no page
    if there is none."""
    modules: list[str] = []
    for page in _list_answers(site, question, main, captured, bands):
        if page.site.block(ANATOMY.page, page.template, page.answer, "verdict") != NOT_MEASURED:
            part = render_in_topic(page.site, ANATOMY, question, page.template, page.answer)
            return page, Part("\n\n".join([part.markdown, *modules]), part.figures)
        of_modules = render_in_topic(page.site, ANATOMY, question, page.template, page.answer).markdown
        modules = [of_modules] if of_modules != NOT_MEASURED else []
    return None, NOT_CAPTURED


def _list_answers(
    site: Site,
    question: Question,
    main: store.Recording,
    captured: Mapping[str, store.Recording],
    bands: Bands | None,
) -> Iterator[CompiledPage]:
    """Answers in the order in which they are preferred: of each state the question's, and then, for a question on
    forward passes, that of the forward phase of training steps."""
    for label, rec in captured.items():
        own = replace(make_site_of_study(site, "", rec, main.runs, {}), run_links={})
        known: dict[str, Any] = {
            "site": own,
            "question": question,
            "label": label,
            "conditions": describe_question_conditions(rec),
        }
        yield CompiledPage(template=question.template, answer=ask(question, rec, bands=bands), **known)
        if label == home_cases.COMPILED and question.letter in compiled_forward.LETTERS:
            forward = compiled_forward.answer(rec, question.letter)
            yield CompiledPage(template=OF_FORWARD, answer=forward, **known)
