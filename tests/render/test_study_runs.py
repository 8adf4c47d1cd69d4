"""Runs of studies, without pages of their own, have sections, to which the page of all runs leads."""

import re
from collections import defaultdict
from dataclasses import replace

import pandas as pd
import pytest

from profiler_job.analysis.pages import study_runs
from profiler_job.analysis.pages.explore import Part
from profiler_job.analysis.site import write_site
from profiler_job.jobs.contract.studies import LOSSES
from tests.page_words import MOST_TAGS, measure_tags, read_page, read_shown
from tests.pages.question_page import only_questions
from tests.synthetic import recording as made_up

pytestmark = pytest.mark.long

ROW = re.compile(r'<tr id="([^"]+)"><td[^>]*><a href="([^"]+)"')
SECTION = re.compile(r'<details class="folded run">.*?</details>', re.DOTALL)


def study_of(name: str, **axes):
    """A made-up recording of another day."""
    rec = made_up(("small", "2.7B"), (512,), ("forward", "train_step"))
    runs = rec.runs.assign(started_at="2026-02-03T04:05:06+00:00", **axes)
    return replace(rec, runs=runs, manifest=rec.manifest | {"name": name, "study": name})


@pytest.fixture(scope="module")
def report(tmp_path_factory, undrawn):
    docs = tmp_path_factory.mktemp("docs")
    losses = study_of(LOSSES)
    runs = losses.runs["run_id"].astype(str)
    figures = pd.DataFrame({"run_id": runs, "rank": 0, "figure": "loss_trained", "unit": "", "value": 6.5})
    studies = {"optimizer": study_of("optimizer"), LOSSES: replace(losses, figures=figures)}
    with only_questions():
        write_site.write(made_up(("small",), (512,)), docs, studies)
    return docs / "report"


def test_explore_leads_from_each_run_to_its_page_or_section(report):
    rows = ROW.findall(read_shown(report.parent, "report/explore.md"))
    assert sum(row.startswith("optimizer-") for row, _ in rows) == 4
    for row, link in rows:
        page, _, anchor = link.partition("#")
        text = read_shown(report.parent, f"report/{page.replace('.html', '.md')}")
        assert anchor and f'id="{anchor}"' in text if row.startswith("optimizer-") else "## Time" in text


def test_a_section_has_the_numbers_of_a_run_with_their_conditions(report):
    page = read_shown(report.parent, "report/runs-of-optimizer.md")
    (section,) = [part for part in SECTION.findall(page) if 'id="small-ctx512-fp32-naive-train_step"' in part]
    assert ">small · 512 · training step · FP32</span>" in section
    for said in ("<dt>step</dt>", "<dt>peak allocated</dt>", "By phase: forward ", "unfused (eager) attention"):
        assert said in section, said
    assert re.search(r"n = 1 process × \d+ steps by the timer, 3 steps under nsys", section)
    assert 'href="explore.html#optimizer-small-ctx512-fp32-naive-train_step"' in section
    assert len(section.encode()) < 1500


def test_runs_without_pages_read_as_tables_that_are_mostly_words(report):
    page = read_page(report / "runs-of-optimizer.md")
    rows = re.findall(r"^\| (small|2\.7B) · 512 · .*$", page, re.MULTILINE)
    assert len(rows) == 4 and measure_tags(page) < MOST_TAGS
    assert re.search(r"^\| 2\.7B .* OOM in backward .*$", page, re.MULTILINE)


def test_the_peak_of_cuda_graphs_is_not_shown():
    """A step that replays them allocates next to nothing: 3.7 GiB stood where the process reserved 7.6."""
    for compiled, is_shown in (("default", True), ("cudagraphs", False)):
        rec = study_of("compile", compile=compiled)
        rows = Part(name="compile", page="", run_pages=defaultdict(str), rec=rec).rows
        finished = rows[rows["step_ns"].notna()]
        assert len(finished) and (finished["peak_memory_bytes"].notna() == is_shown).all()


def test_a_run_that_did_not_finish_says_why_and_has_no_numbers(report):
    page = read_shown(report.parent, "report/runs-of-optimizer.md")
    (section,) = [part for part in SECTION.findall(page) if 'id="2.7B-ctx512-fp32-naive-train_step"' in part]
    assert "OOM in backward" in section and "<dt>" not in section and "By phase" not in section


def test_runs_that_compare_losses_have_sections_without_times(report):
    assert "[sections](runs-of-losses.md)" in read_page(report / "explore.md")
    page = read_shown(report.parent, "report/runs-of-losses.md")
    assert len(SECTION.findall(page)) == 4 and "loss 6.5000" in page
    sections = "".join(SECTION.findall(page))
    assert " ms" not in sections and "timer" not in sections and "explore.html#" not in page


@pytest.mark.parametrize(
    ("sizes", "folds"), [(("small", "2.7B"), True), pytest.param(("small",), False, marks=pytest.mark.nightly)]
)
def test_many_runs_are_folded_by_model_where_there_are_several(monkeypatch, tmp_path, undrawn, sizes, folds):
    monkeypatch.setattr(study_runs, "MANY", 2)
    study = study_of("optimizer")
    runs = study.runs[study.runs["size"].isin(sizes)]
    with only_questions():
        write_site.write(made_up(("small",), (512,)), tmp_path, {"optimizer": replace(study, runs=runs)})
    page = read_page(tmp_path / "report" / "runs-of-optimizer.md")
    assert ("\nfolded: true\n" in page) == folds
