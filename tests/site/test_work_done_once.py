"""What pages share is worked out once: by the process that needs it anyway, and for the same tables."""

import pickle

import pandas as pd
import pytest

from profiler_job.analysis.metrics.remembered import remember
from profiler_job.analysis.pages import home_cases
from profiler_job.analysis.pages.questions import STUDIES
from profiler_job.analysis.recording.run_table import keep_runs
from profiler_job.analysis.site import home_page
from profiler_job.analysis.site.combine import leave_out_operations
from profiler_job.analysis.site.page_context import check_recording, identify_runs, make_site
from profiler_job.analysis.site.question_pages import write_small_study
from profiler_job.analysis.site.run_pages import write_run_pages
from tests.synthetic import recording


@pytest.fixture(scope="module")
def rec():
    return recording(("small",), (128, 512))


def test_home_shows_the_screens_of_pages_of_runs(rec, tmp_path, monkeypatch):
    cases = home_cases.list_cases([rec])
    shown = home_page.describe_screens([rec], cases, None, {})
    checks = check_recording(rec).tables["checks"].rows
    known = write_run_pages(make_site(rec, tmp_path), "report/runs", rec, checks, {}).screens
    assert set(known) == set(identify_runs(rec.runs))
    asked = []
    monkeypatch.setattr(home_page.run_page, "answers", lambda **tables: asked.extend(tables["runs"]["run_id"]) or ())
    again = home_page.describe_screens([rec], cases, None, pickle.loads(pickle.dumps(known)))
    assert not asked and again.keys() == shown.keys()
    for place, screen in shown.items():
        parts, same_parts = (each.pop("parts").reset_index(drop=True) for each in (screen, again[place]))
        pd.testing.assert_frame_equal(parts, same_parts)
        assert repr(again[place]) == repr(screen)


def test_screens_that_are_not_known_are_worked_out(rec):
    cases = home_cases.list_cases([rec])
    first, *others = home_page.describe_screens([rec], cases, None, {})
    identity = next(run for run in identify_runs(rec.runs) if run[0] == first[1])
    screens = home_page.describe_screens([rec], cases, None, {identity: {"run": "known"}})
    assert screens[first] == {"run": "known"} and {*screens} == {first, *others}
    assert all(screens[place]["run"]["run_id"] == place[1] for place in others)


SMALL = [question for question in STUDIES.values() if question.has_small_tables]


@pytest.mark.parametrize("question", SMALL, ids=lambda question: question.slug)
def test_a_page_of_small_tables_reads_no_operations(question, rec, tmp_path):
    """The process that writes it is not given any."""
    given = leave_out_operations(rec)
    assert given.kernels is None
    entry = write_small_study(pickle.loads(pickle.dumps(question)), given, tmp_path, {question.study: given}, {}, None)
    assert (tmp_path / question.page).is_file() and pickle.loads(pickle.dumps(entry)) == entry


def test_a_table_of_which_all_runs_are_kept_is_the_same(rec):
    run_ids = {*rec.kernels["run_id"].astype(str)}
    assert keep_runs(rec.kernels, {*run_ids, "another"}) is rec.kernels
    one = min(run_ids)
    assert {*keep_runs(rec.kernels, {one})["run_id"].astype(str)} == {one} != run_ids


def test_what_was_made_of_a_table_is_known_by_its_texts(rec):
    calls = []

    @remember
    def select(steps, phase):
        calls.append(phase)
        return steps[steps["phase"] == phase]

    for phase in ("forward", "step", "forward"):
        assert {*select(rec.steps, phase)["phase"]} == {phase}
    assert calls == ["forward", "step"]
    select(rec.steps.copy(), "forward")
    assert calls == ["forward", "step", "forward"]
