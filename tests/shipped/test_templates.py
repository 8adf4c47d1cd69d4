"""What the templates of the questions print of a claim, the claim has: on all shipped recordings."""

import pytest

from profiler_job.analysis.pages.questions import QUESTIONS
from profiler_job.analysis.recording import store
from profiler_job.analysis.site import combine
from tests.pages.test_templates import answer_question, check_words
from tests.shipped.recorded_studies import RECORDED
from tests.shipped.recordings import RECORDINGS

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def recordings():
    """The shipped recordings, joined by study; the default sweep is ""."""
    parts = {}
    for folder in RECORDINGS:
        one = store.load(folder)
        parts.setdefault(one.manifest.get("study", ""), []).append(one)
    return {study: combine.select_finished_runs(combine.join_recordings(of_study)) for study, of_study in parts.items()}


@pytest.mark.parametrize("question", [*QUESTIONS.values(), *RECORDED.values()], ids=lambda question: question.slug)
def test_every_claim_has_its_words_and_tells_each_number_in_them(question, recordings):
    check_words(question, answer_question(question, recordings, question.study or ""))
