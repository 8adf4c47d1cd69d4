"""Reports with the pages of some questions alone: those of all, and the home page, take four seconds of a processor."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from profiler_job.analysis.pages.questions import QUESTIONS, STUDIES, Question
from profiler_job.analysis.site import question_pages


@contextmanager
def only_questions(*chosen: Question) -> Iterator[None]:
    """Have `write_questions` and `write_site` write the pages of these questions, and neither those of others nor the
    home page."""
    with pytest.MonkeyPatch.context() as patch:
        for name, questions in (("QUESTIONS", QUESTIONS), ("STUDIES", STUDIES)):
            kept = {letter: question for letter, question in questions.items() if question in chosen}
            patch.setattr(question_pages, name, kept)
        patch.setattr(question_pages, "TOPICS", ())
        patch.setattr(question_pages, "list_members", lambda *_: [])
        patch.setattr(question_pages, "write_home", lambda *_, **__: None)
        yield
