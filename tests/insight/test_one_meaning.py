"""What a capture or a run means reads the same in every form: sentence, number and unit."""

import html
import json
import re

import pandas as pd
import pytest

from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight.summary import summarise
from profiler_job.analysis.pages import run_page
from profiler_job.analysis.reference.kernel_families import FAMILIES
from profiler_job.analysis.show import show
from profiler_job.analysis.show.page import render_page
from profiler_job.analysis.show.show_formats import as_markdown, as_text
from profiler_job.analysis.site import run_pages
from profiler_job.analysis.site.combine import select_runs
from profiler_job.analysis.site.question_pages import write_script_page
from profiler_job.analysis.site.site_writer import Site
from tests import frozen
from tests.capture.real_captures import FOLDER, unpack

NAMES = sorted(path.name.removesuffix(".sqlite.packed") for path in FOLDER.glob("*.packed"))
UNLIMITED = 100_000
"""Columns of a terminal in which no sentence is broken."""


def read_words(page: str) -> str:
    """The words of an HTML page or of Markdown, as they are read."""
    words = html.unescape(re.sub(r"<[^>]+>|\*\*", "", page)).replace("\N{NARROW NO-BREAK SPACE}", " ")
    return re.sub(r"\\([\\`*_{}\[\]()#+!|~$-])", r"\1", words)


@pytest.mark.parametrize("name", NAMES)
def test_a_capture_means_the_same_in_text_markdown_html_and_json(name, tmp_path):
    path = unpack(name, tmp_path)
    summary = summarise(read(path, details=False), skips_startup=True)
    said = summary.insight.sentences
    lines = [*said.verdict, *said.communication, *said.findings, *(line for entry in said.advice for line in entry)]
    assert said.verdict and said.findings and said.advice
    forms = {
        "text": as_text(summary, 10, UNLIMITED),
        "markdown": read_words(as_markdown(summary, 10)),
        "html": read_words(render_page(summary, 10)),
    }
    assert not [(form, line) for form, words in forms.items() for line in lines if line not in words]
    printed: list[str] = []
    assert show([path], "json", 0, out=printed.append, err=pytest.fail) == 0
    assert json.loads("".join(printed))["sentences"] == said.as_json()


def test_sentences_are_computed_once(tmp_path):
    summary = summarise(read(unpack("infer_plain", tmp_path), details=False))
    assert summary.insight is summary.insight


@pytest.fixture(scope="module")
def rec():
    return frozen.load_study("optimizer")


@pytest.mark.long
def test_a_run_and_its_page_mean_the_same(rec, tmp_path):
    names = ("runs", "steps", "kernels", "api", "memops", "memory", "processes", "telemetry")
    tables = {name: getattr(rec, name) for name in names}
    checks = pd.DataFrame(columns=["run_id", "check", "found", "at_least", "at_most", "passed"])
    labels = {key: family.label for key, family in FAMILIES.items()}
    site = Site(tmp_path, (), labels, ("size", "context_length"))
    run_pages.write_run_pages(site, "report/runs", rec, checks, {})
    answers = dict(run_page.answers(**tables, checks=checks))
    measured = {run_id: answer for run_id, answer in answers.items() if not answer.facts["why"]}
    assert measured
    for run_id, answer in measured.items():
        said = answer.facts["insight"].sentences
        page = read_words((tmp_path / f"report/runs/{run_id}.md").read_text(encoding="utf-8"))
        lines = [*said.verdict, *said.communication, *said.findings, *(line for (line,) in said.advice)]
        assert said.verdict and not [line for line in lines if line not in page]


@pytest.mark.long
def test_the_first_page_of_a_script_means_the_same_as_the_page_of_its_run(rec, tmp_path):
    run_id = str(rec.runs.loc[rec.runs["status"].astype(str) == "ok", "run_id"].iloc[0])
    one = select_runs(rec, [run_id])
    labels = {key: family.label for key, family in FAMILIES.items()}
    answer = write_script_page(Site(tmp_path, (), labels, ("size", "context_length")), one)
    page = read_words((tmp_path / "index.md").read_text(encoding="utf-8"))
    verdict = answer.facts["insight"].sentences.verdict
    assert verdict and not [line for line in verdict if line not in page]
