"""The two shipped recordings of the same runs, compared on their page."""

import dataclasses

import pytest

from profiler_job.analysis.comparison.noise import SHIPPED
from profiler_job.analysis.pages.questions import second_recording
from profiler_job.analysis.recording import store
from profiler_job.analysis.site import page_context
from tests.pages.test_second_recording import BANDS, compared, select_runs
from tests.shipped.recordings import locate

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def first():
    return select_runs(store.load(locate("h200-fp32")), ("medium-ctx128", "small-ctx512"))


@pytest.fixture(scope="module")
def second():
    return select_runs(store.load(locate("again")), ("medium-ctx128", "small-ctx512"))


def test_a_step_of_any_run_is_held_against_one_in_which_the_gpu_never_waits(first, second):
    answer = page_context.ask(second_recording.QUESTION, second, main=first, bands=BANDS)
    assert answer.claims["step_differs"].holds and not answer.claims["step_same"].holds
    rows = answer.claims["step_differs"].rows
    apart = (rows["second_step_ns"] - rows["first_step_ns"]).abs()
    never_waits = SHIPPED.wall.time_half * (rows["second_step_ns"] + rows["first_step_ns"]) / 2
    assert (rows["moved"] == (apart > never_waits)).all() and rows["moved"].sum() == 6
    assert len(rows) == 6 and (rows["step_verdict"] == "within").all()
    assert answer.claims["judged"].values | {"num_rows": 6} == {"num_rows": 6, "num_kernel": 0, "num_step": 0}
    alike = page_context.ask(
        second_recording.QUESTION, dataclasses.replace(second, steps=first.steps), main=first, bands=BANDS
    )
    assert alike.claims["step_same"].holds and not alike.claims["step_differs"].holds


def test_what_differs_is_told_from_what_the_recordings_say(first, second):
    assert compared(first, second).facts["changed"] == ["day", "commit of this program"]
