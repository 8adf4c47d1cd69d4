"""The answers about steps as people train, eager and compiled: on the page on the anatomy of a step, and on a page for
each question."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pandas as pd
from markupsafe import Markup

from profiler_job.analysis.metrics import run_grid
from profiler_job.analysis.metrics.differences import Bands
from profiler_job.analysis.pages import compiled_steps, forward_phase
from profiler_job.analysis.pages.home_cases import BF16, COMPILED, STATES, list_runs
from profiler_job.analysis.pages.question import Question
from profiler_job.analysis.pages.questions import ALL_QUESTIONS
from profiler_job.analysis.pages.topics import ANATOMY
from profiler_job.analysis.recording import store
from profiler_job.analysis.render.answer import Answer
from profiler_job.analysis.site.combine import join_recordings, select_runs
from profiler_job.analysis.site.page_context import (
    RunPages,
    ask,
    describe_question_conditions,
    make_site_of_study,
    name_precisions,
)
from profiler_job.analysis.site.site_writer import NOT_MEASURED, Part, Site
from profiler_job.analysis.site.topic_pages import StateAnswer, render_in_topic
from profiler_job.jobs.contract.modes import MODES
from profiler_job.jobs.contract.ranges import FORWARD
from profiler_job.jobs.contract.studies import TRAINED

OF_STEPS, OF_FORWARD = "compiled_steps.md", "forward_phase.md"
"""The templates of the answers that are not a question's own."""
LABELS = {BF16: (BF16,), COMPILED: compiled_steps.STATES}
"""Of which runs the answers in a state are, those that are preferred first."""
PREFIXES = {BF16: "bf16", COMPILED: "compiled"}
"""What the names of the pages of a state begin with."""
NOT_CAPTURED = Part("No compiled run that shows this was captured.", {})


@dataclass(frozen=True, kw_only=True)
class StatePage:
    """An answer from the runs of a state with its page. site: whose cases these are; label: what runs they are."""

    site: Site
    question: Question
    state: str
    label: str
    template: str
    answer: Answer
    conditions: Mapping[str, Any]

    @property
    def slug(self) -> str:
        return f"{PREFIXES[self.state]}-{self.question.slug}"

    def write(self, **words: Any) -> None:
        """Write the page. words: what else the template needs."""
        self.site.write(f"report/{self.slug}.md", self.template, self.answer, conditions=self.conditions, **words)


@dataclass(frozen=True, kw_only=True)
class StateAnswers:
    """main: the name of the state of the main recording; recordings: the captured runs of each state; note: what was
    not recorded of compiled steps, a line of Markdown, "" if nothing; answers, pages: by the letter of the question, of
    the states that answer it, in order."""

    main: str
    recordings: Mapping[str, store.Recording]
    note: Markup
    answers: Mapping[str, Sequence[StateAnswer]]
    pages: Mapping[str, Sequence[StatePage]]

    def add_to(self, members: Sequence[Mapping[str, Any]], states: Sequence[str]) -> list[dict[str, Any]]:
        """Return the members of a topic (`list_members`) with the answers for these states, and the answer of the main
        recording labelled if there is one in BF16, too."""
        added = []
        for member in members:
            shown = member["answers"]
            own = [answer for answer in self.answers.get(member["letter"], ()) if answer.state in states]
            if any(answer.state == BF16 for answer in own):
                shown = [answer._replace(label=self.main) for answer in shown]
            added.append({**member, "answers": [*shown, *own]})
        return added


def answer_states(
    site: Site,
    recordings: Sequence[store.Recording],
    gains: pd.DataFrame | None,
    bands: Bands | None,
    run_pages: RunPages = MappingProxyType({}),
) -> StateAnswers:
    """Ask the questions of ANATOMY about the runs of each state, but for the one on BF16: its answer for compiled steps
    is what compiling gives. recordings: the main one first, which answers by itself for the precision that it has.
    gains: as in `prediction.measured`; bands: of times; run_pages: the pages of all runs."""
    main = recordings[0]
    runs = list_runs(recordings)
    if not len(runs):
        return StateAnswers(main=name_precisions(main), recordings={}, note=Markup(""), answers={}, pages={})
    captured = {
        state: _join_recordings(recordings, rows)
        for state in STATES + compiled_steps.STATES
        if len(rows := _select_captured(recordings, runs, state)) and state not in name_precisions(main).split(" / ")
    }
    steps = compiled_steps.answer(runs, captured, gains)
    answers: dict[str, list[StateAnswer]] = {}
    pages: dict[str, list[StatePage]] = {}
    for letter in ANATOMY.letters:
        question = ALL_QUESTIONS[letter]
        if question.study is not None:
            of_gains = site.render_blocks(ANATOMY.page, ANATOMY.slug, OF_STEPS, steps, ("verdict",))
            if of_gains.markdown != NOT_MEASURED:
                answers[letter] = [StateAnswer(COMPILED, COMPILED, of_gains)]
            continue
        for state, labels in LABELS.items():
            known = {label: captured[label] for label in labels if label in captured}
            if known:
                asked = _list_answers(site, question, state, main, known, bands, run_pages)
                page, part = _choose_answer(question, asked)
                answers.setdefault(letter, []).append(StateAnswer(page.label if page else state, state, part))
                pages.setdefault(letter, []).extend([page] if page else [])
    note = site.block(ANATOMY.page, OF_STEPS, steps, "captured", "")
    return StateAnswers(main=name_precisions(main), recordings=captured, note=note, answers=answers, pages=pages)


def _select_captured(recordings: Sequence[store.Recording], runs: pd.DataFrame, state: str) -> pd.DataFrame:
    """Select the captured runs of the reference Transformer in a state with its usual values: those
    of the study TRAINED, if it has any, and of the batch of the main recording, if any has it."""
    known = run_grid.select_known_shapes(runs)
    known = known[(known["state"] == state) & (known["distance"] == 0)]
    of_study = known["recording"].map(lambda number: recordings[number].manifest.get("study", "") == TRAINED)
    for preferred in (of_study, known["batch_size"].isin(recordings[0].runs["batch_size"])):
        preferred = preferred.reindex(known.index).astype(bool)
        known = known[preferred] if preferred.any() else known
    return known.drop_duplicates("run_id")


def _join_recordings(recordings: Sequence[store.Recording], runs: pd.DataFrame) -> store.Recording:
    """These runs as one recording."""
    return join_recordings(
        [select_runs(recordings[number], [*rows["run_id"]]) for number, rows in runs.groupby("recording")]
    )


def _choose_answer(question: Question, asked: Iterator[StatePage]) -> tuple[StatePage | None, Part]:
    """The first answer, as its page and as its part of ANATOMY, with what the answer before it has of modules; no page
    if there is none."""
    modules: list[str] = []
    for page in asked:
        part = render_in_topic(page.site, ANATOMY, question, page.template, page.answer)
        if page.site.block(ANATOMY.page, page.template, page.answer, "verdict") != NOT_MEASURED:
            return page, Part("\n\n".join([part.markdown, *modules]), part.figures)
        modules = [part.markdown] if part.markdown != NOT_MEASURED else []
    return None, NOT_CAPTURED


def _list_answers(
    site: Site,
    question: Question,
    state: str,
    main: store.Recording,
    captured: Mapping[str, store.Recording],
    bands: Bands | None,
    run_pages: RunPages,
) -> Iterator[StatePage]:
    """Answers in the order in which they are preferred: of each of LABELS the question's, and for a question on forward
    passes that of the forward phase of training steps, which takes its place if there are more of these."""
    for label, rec in captured.items():
        own = make_site_of_study(site, "", rec, main.runs, run_pages)
        known: dict[str, Any] = {
            "site": own if run_pages else replace(own, run_links={}),
            "question": question,
            "state": state,
            "label": label,
            "conditions": describe_question_conditions(rec),
        }
        has_phase = label == state and question.letter in forward_phase.LETTERS
        of_question = _leave_out_few_forward_passes(rec) if has_phase else rec
        yield StatePage(template=question.template, answer=ask(question, of_question, bands=bands), **known)
        if has_phase:
            yield StatePage(template=OF_FORWARD, answer=forward_phase.answer(rec, question.letter), **known)


def _leave_out_few_forward_passes(rec: store.Recording) -> store.Recording:
    """`rec` without its forward passes if it has more training steps."""
    modes = rec.runs["mode"].astype(str)
    num_runs = modes.value_counts()
    if num_runs.get(MODES[-1], 0) <= num_runs.get(FORWARD, 0):
        return rec
    return select_runs(rec, [*rec.runs.loc[modes != FORWARD, "run_id"].astype(str)])
