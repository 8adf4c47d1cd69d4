"""What the templates of the questions print of a claim, the claim has: also one that does not hold."""

import re
from pathlib import Path

import pytest

from profiler_job.analysis.pages import questions
from profiler_job.analysis.pages.questions import QUESTIONS, STUDIES
from profiler_job.analysis.site import combine, page_context, write_site
from tests import frozen

BLOCK = re.compile(r'\{%-? *call\(f\) *(?:claim|sentence)\("(\w+)"\)(.*?)endcall', re.S)


TEMPLATES = Path(questions.__file__).parent

FROZEN = {question.slug: "" for question in QUESTIONS.values()}
FROZEN |= {"bounds": "", "softmax-detail": "", "second-recording": "again"}
FROZEN |= {"precision": "precision", "optimizer-cost": "optimizer", "host": "host", "fused-attention": "attention"}
"""Questions that frozen runs answer, and the study of these runs."""


@pytest.fixture(scope="module")
def recordings():
    """The frozen runs, by study."""
    found = {study: frozen.load_study(study) for study in ("", "precision", "optimizer", "host")}
    return found | {"attention": frozen.load("attention"), "again": frozen.measure_again(found[""])}


def answer_question(question, recordings, study):
    studies = {name: one for name, one in recordings.items() if name}
    rates = combine.find_rates(recordings.values())
    return page_context.ask(question, recordings[study], main=recordings[""], studies=studies, calibration=rates)


def name_numbers(claim):
    """Names of the numbers; None where a claim that does not hold has none."""
    try:
        return set(claim.values)
    except (LookupError, ValueError):
        assert not claim.holds
        return None


def check_words(question, answer):
    """Check that each claim has its words in the template, and each number in them."""
    template = (TEMPLATES / question.template).read_text()
    blocks = BLOCK.findall(template)
    claims = answer.claims
    assert {key for key, _ in blocks} == set(claims)
    for key, words in blocks:
        if len(claims[key].rows) and (known := name_numbers(claims[key])) is not None:
            printed = set(re.findall(r"\bf\.(\w+)", words))
            assert printed <= known, f"{key} prints {printed - known}"


@pytest.mark.parametrize("slug", FROZEN)
def test_every_claim_has_its_words_and_tells_each_number_in_them(slug, recordings):
    (question,) = (one for one in (*QUESTIONS.values(), *STUDIES.values()) if slug == one.slug)
    check_words(question, answer_question(question, recordings, FROZEN[slug]))


@pytest.mark.parametrize("question", [*QUESTIONS.values(), *STUDIES.values()], ids=lambda question: question.slug)
def test_parts_of_a_number_are_worded_in_one_place(question):
    template = (TEMPLATES / question.template).read_text()
    assert not re.findall(r"(?:none|all|each) of \{\{.*", template), "use part_of"


PAGES = sorted((Path(write_site.__file__).parents[1] / "pages").rglob("*.md"))
QUANTITY = re.compile(r"\d[\d.,]*\s*(?:%|×|ms\b|µs|s\b|GB|GiB|MiB|TFLOP|GFLOP|FLOP)")
MFU = re.compile(r'MFU(?!\*\* is the FLOPs|\*\*: matmul FLOPs|\]\(precision\.md\)|", ").{0,80}')
NO_RESULTS = ("95% interval", "below 1×")
"""The level of an interval, and what "as fast" means."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_sentence_has_a_measured_number_written_out(page):
    for key, words in BLOCK.findall(page.read_text()):
        written = re.sub(r"\{\{.*?\}\}|\{%.*?%\}", "", words, flags=re.S)
        for known in NO_RESULTS:
            written = written.replace(known, "")
        assert not QUANTITY.findall(written), key


def test_mfu_stands_with_its_denominator_wherever_a_page_names_it():
    """Which peak: the data sheet's, or the measured one. Words for the search stand alone."""
    for page in PAGES:
        for words in MFU.findall(page.read_text()):
            assert "peak" in words or "data-sheet" in words, f"{page.name}: {words}"
    for module in PAGES[0].parent.rglob("*.py"):
        for label in re.findall(r'Column\("\w*", "(MFU[^"]*)"', module.read_text()):
            assert "peak" in label, f"{module.name}: {label}"
