"""The questions of the report: each is a module with a QUESTION, and a template with the words."""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import TypeVar

from profiler_job.analysis.pages.question import Question, Section

T = TypeVar("T")


def load_questions() -> list[Question]:
    """Return the questions of the modules in this folder, by letter. Modules with the data of a question have none."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    questions: list[Question] = [vars(module)["QUESTION"] for module in modules if "QUESTION" in vars(module)]
    return sorted(questions, key=lambda question: question.letter)


ALL_QUESTIONS = {question.letter: question for question in load_questions()}
QUESTIONS = {letter: question for letter, question in ALL_QUESTIONS.items() if question.study is None}
"""Those that are asked of the main recording, and of steps as people train, eager and compiled."""
STUDIES = {letter: question for letter, question in ALL_QUESTIONS.items() if question.study is not None}


def group_by_section(entries: Mapping[str, T]) -> dict[str, list[T]]:
    """Return what there is of `entries`, by the letters of questions, in each section, in the order of `Section`.
    Sections without entries are left out."""
    ordered = sorted(ALL_QUESTIONS.values(), key=lambda question: question.place)
    grouped = {
        section.value: [
            entries[question.letter]
            for question in ordered
            if question.section is section and question.letter in entries
        ]
        for section in Section
    }
    return {section: group for section, group in grouped.items() if group}
