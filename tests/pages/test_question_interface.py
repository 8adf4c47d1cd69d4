"""Questions have one typed interface: what they read is named, and how they answer is short."""

import ast
import inspect
from types import SimpleNamespace

import pytest

from profiler_job.analysis.pages.question import Inputs, Section
from profiler_job.analysis.pages.questions import ALL_QUESTIONS, QUESTIONS, STUDIES
from profiler_job.analysis.site.question_pages import name_recordings
from profiler_job.jobs.contract import studies

LONGEST = 80
"""Lines of an answer with its specification."""
every_question = pytest.mark.parametrize("question", ALL_QUESTIONS.values(), ids=lambda question: question.slug)


@every_question
def test_a_question_needs_what_its_answer_reads(question):
    tree = ast.parse(inspect.getsource(question.answer))
    given = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "given"
    }
    assert given == set(question.needs)


@every_question
def test_an_answer_is_short_and_specified(question):
    assert len(inspect.getsource(question.answer).splitlines()) <= LONGEST
    assert inspect.getdoc(question.answer)


def test_questions_have_letters_slugs_and_places_of_their_own():
    places = [(question.section, question.place) for question in ALL_QUESTIONS.values()]
    assert len({*places}) == len(places) == len({question.slug for question in ALL_QUESTIONS.values()})
    assert QUESTIONS | STUDIES == ALL_QUESTIONS and not QUESTIONS.keys() & STUDIES.keys()
    assert all(question.section is not Section.MORE for question in ALL_QUESTIONS.values())


@pytest.mark.parametrize("question", STUDIES.values(), ids=lambda question: question.slug)
def test_a_page_names_all_recordings_that_it_shows(question):
    assert {*question.reads} <= {*studies.STUDIES} and bool(question.reads) == ("studies" in question.needs)
    recorded = {name: SimpleNamespace(manifest={"name": f"{name}_1"}) for name in ("", *studies.STUDIES)}
    others = {name: rec for name, rec in recorded.items() if name}
    given = Inputs(recording=recorded[question.study or ""], main=recorded[""], studies=others)
    shown = {question.study or "", *question.reads, *[""] * ("main" in question.needs)}
    assert {*name_recordings(question, given)["name"].split(", ")} == {f"{name}_1" for name in shown}


def test_studies_of_questions_can_be_recorded():
    known = {question.study for question in STUDIES.values()}
    assert known - {""} <= {*studies.STUDIES, studies.AGAIN}
