"""Runs that were not measured with the same versions: every page of their report says so, and no other page."""

import html
import re
from dataclasses import replace

import pytest

from profiler_job.analysis.comparison.judge import compare
from profiler_job.analysis.comparison.noise import SHIPPED
from profiler_job.analysis.pages import environment
from profiler_job.analysis.site import write_site
from tests import frozen
from tests.page_words import OF_PROGRAM, read_page
from tests.pages.test_comparison import recorded
from tests.synthetic import recording

pytestmark = pytest.mark.usefixtures("undrawn")

NOTE = re.compile(r"^##? .*\n\n(> \*\*A mix:\*\* .*)\n\n", re.MULTILINE)


def a_mix():
    """Three runs, two of them measured with another torch, and one of these with a commit that is not known."""
    rec = recording(("small",), (128, 256, 512), ("forward",))
    rec.runs["torch"] = ["2.11", "<2.12>", "<2.12>"]
    rec.runs.loc[2, "commit"] = None
    return rec


def a_mixed_study():
    study = frozen.load_study("optimizer")
    return replace(study, runs=study.runs.assign(driver=["1"] + ["2"] * (len(study.runs) - 1)))


def notes(docs):
    """The note on a mix below the heading of each page about this recording."""
    paths = [path for path in docs.rglob("*.md") if path.name not in OF_PROGRAM]
    pages = {path.relative_to(docs).as_posix(): read_page(path) for path in paths}
    return {path: [html.unescape(note) for note in NOTE.findall(words)] for path, words in pages.items()}


@pytest.mark.long
def test_every_page_says_which_facts_differ_in_how_many_runs(tmp_path):
    write_site.write(a_mix(), tmp_path)
    found = notes(tmp_path)
    assert {"index.md", "report/runs.md", "report/methods.md", "report/forward-time.md"} < found.keys()
    assert len([path for path in found if path.startswith("report/runs/")]) == 3
    said = (
        "the 3 runs of this recording were not measured with the same torch: <2.12> (2 runs), 2.11 (1 run); "
        "commit of the job: 000000000000 (2 runs), not recorded (1 run)."
    )
    del found["report/comparison.md"]  # there is none
    for path, of_page in found.items():
        assert len(of_page) == 1 and said in of_page[0], path
        assert f"]({'../' * path.count('/')}report/environment.md)" in of_page[0]


def test_the_environment_page_names_the_runs_of_a_mix():
    rec = a_mix()
    others = environment.answer(rec.runs, rec.manifest).tables["others"].rows
    assert set(others["property"]) == {"torch", "commit of the job"}


@pytest.mark.long
def test_another_python_and_no_nsys_in_some_runs_are_no_mix(tmp_path):
    rec = recording(("small",), (128, 256), ("forward",))
    rec.runs.loc[0, "python"] = "3.1"
    rec.runs.loc[1, "nsys"] = ""
    write_site.write(rec, tmp_path)
    assert not any(notes(tmp_path).values())


@pytest.mark.long
def test_of_a_study_that_is_a_mix_its_page_says_so(tmp_path):
    write_site.write(recording(("small",), (128,)), tmp_path, {"optimizer": a_mixed_study()})
    found = {path: said for path, said in notes(tmp_path).items() if said}
    assert list(found) == ["report/optimizer-cost.md"]
    assert "runs of this study were not measured with the same driver: 2 (3 runs), 1 (1 run)." in found.popitem()[1][0]


@pytest.mark.long
def test_pages_of_a_comparison_say_which_side_is_a_mix(tmp_path):
    first, second = recorded("before"), recorded("after", 1.5)
    second.recording.runs["torch"] = ["2.11", "2.12"]
    write_site.write(first.recording, tmp_path, compared=compare(first, second, SHIPPED))
    said = {path: found for path, found in notes(tmp_path).items() if found}
    assert said.keys() == {path for path in notes(tmp_path) if path.startswith(("report/comparison", "report/runs-b"))}
    part = (tmp_path / "report" / "compared" / "given" / "small-ctx128-fp32-naive-forward.js").read_text()
    assert part.count("A mix:") == 1
    for found in said.values():
        assert "the 2 runs of B, after were not measured with the same torch: 2.11 (1 run), 2.12 (1 run)" in found[0]


@pytest.mark.long
def test_a_study_alone_says_so_once(tmp_path):
    study = a_mixed_study()
    write_site.write(study, tmp_path, {"optimizer": study})
    found = notes(tmp_path)
    del found["report/comparison.md"]  # there is none
    assert {len(said) for said in found.values()} == {1}
