"""The answers of the shipped recording in FP32, which a visitor of the repository reads without a site."""

import filecmp
import re
from pathlib import Path

import pytest

from profiler_job.analysis.answers.write_answers import answer_recording, ask
from profiler_job.analysis.comparison.noise import choose_bands
from profiler_job.analysis.pages.questions import QUESTIONS
from profiler_job.analysis.recording import store
from profiler_job.analysis.site import page_context
from profiler_job.jobs.contract.studies import AGAIN
from tests.shipped.recordings import locate

pytestmark = pytest.mark.long
ANSWERS = Path(__file__).parents[2] / "site" / "answers"
LARGEST = 60 * 1024


def test_the_answers_in_the_repository_are_current(tmp_path):
    """Else: profiler-job answers site/data/main/h200-fp32 --out site/answers --brief"""
    answer_recording(locate("h200-fp32"), tmp_path / "answers", print, is_brief=True)
    names = sorted(path.name for path in ANSWERS.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "answers").iterdir())
    assert filecmp.cmpfiles(ANSWERS, tmp_path / "answers", names, shallow=False)[0] == names


def test_the_answers_in_the_repository_are_small_and_their_links_lead_somewhere():
    assert sum(path.stat().st_size for path in ANSWERS.iterdir()) <= LARGEST
    for page in ANSWERS.glob("*.md"):
        links = re.findall(r"\]\(([^)]+)\)", page.read_text())
        assert links and all((ANSWERS / link).is_file() for link in links), page


def test_an_answer_and_the_page_of_its_question_judge_by_one_noise_band():
    """The answers know no second recording: 13 of 20 cases differed by the ranges of steps, 12 by the band."""
    rec, again = (store.load(locate(name)) for name in ("h200-fp32", AGAIN))
    page = page_context.ask(QUESTIONS["a"], rec, bands=choose_bands(rec, again))
    slower = [answer.claims["profiler_slows"].rows["run_id"].tolist() for answer in (ask("a", rec), page)]
    assert slower[0] == slower[1] and len(slower[0]) == 12


def test_runs_that_nobody_recorded_twice_have_the_shipped_bands():
    rec, again = (store.load(locate(name)) for name in ("h200-fp32", AGAIN))
    fitted, shipped = choose_bands(rec, again), choose_bands(rec)
    for kind in ("kernel", "wall"):
        one, other = (getattr(bands, kind) for bands in (fitted, shipped))
        assert one.time_half == pytest.approx(other.time_half) and one.parts_half == pytest.approx(other.parts_half)
