"""The answers of the shipped recording in FP32, which a visitor of the repository reads without a site."""

import filecmp
import re
from pathlib import Path

import pytest

from profiler_job.analysis.answers.write_answers import answer_recording
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
