"""What the templates of the questions print of a claim, the claim tells: also where it does not hold on what ships."""

import re
from pathlib import Path

import pytest

from analysis import write_site
from analysis.pages.questions import QUESTIONS, STUDIES
from analysis.recording import store

DATA = Path(__file__).parents[2] / "site" / "data"
BLOCK = re.compile(r'\{%-? *call\(f\) *(?:claim|sentence)\("(\w+)"\)(.*?)endcall', re.S)


@pytest.fixture(scope="module")
def recorded():
    """The shipped recordings, together by study; the sweep under ""."""
    parts = {}
    for manifest in sorted(DATA.glob("*/manifest.json")):
        one = store.load(manifest.parent)
        parts.setdefault(one.manifest.get("study", ""), []).append(one)
    return {study: write_site.of_finished_runs(write_site.together(of_study)) for study, of_study in parts.items()}


def answered(question, recorded):
    study = getattr(question, "STUDY", "")
    studies = {name: one for name, one in recorded.items() if name}
    rates = write_site.rates_of(recorded.values())
    return write_site.ask(question, recorded[study], main=recorded[""], studies=studies, calibration=rates)


def told(claim):
    """Names of the numbers; None where a claim that does not hold has none."""
    try:
        return set(claim.values)
    except (LookupError, ValueError):
        assert not claim.holds
        return None


@pytest.mark.parametrize("question", [*QUESTIONS.values(), *STUDIES.values()], ids=lambda question: question.SLUG)
def test_every_claim_has_its_words_and_tells_each_number_in_them(question, recorded):
    template = Path(question.__file__).with_suffix(".md").read_text()
    blocks = BLOCK.findall(template)
    claims = answered(question, recorded).claims
    assert {key for key, _ in blocks} == set(claims)
    for key, words in blocks:
        if len(claims[key].rows) and (known := told(claims[key])) is not None:
            printed = set(re.findall(r"\bf\.(\w+)", words))
            assert printed <= known, f"{key} prints {printed - known}"


@pytest.mark.parametrize("question", [*QUESTIONS.values(), *STUDIES.values()], ids=lambda question: question.SLUG)
def test_parts_of_a_number_are_worded_in_one_place(question):
    template = Path(question.__file__).with_suffix(".md").read_text()
    assert not re.findall(r"(?:none|all|each) of \{\{.*", template), "use part_of"
