"""How many steps a number needs, by the shipped recording of fresh processes."""

import pytest

from profiler_job.analysis.pages.questions import warm_up
from profiler_job.analysis.recording import store
from profiler_job.analysis.site import page_context
from tests.shipped.recordings import locate


@pytest.fixture(scope="module")
def shipped():
    rec = store.load(locate("warm_up"))
    return page_context.ask(warm_up.QUESTION, rec, main=store.load(locate("h200-fp32")))


@pytest.mark.long
def test_anatomy_adds_up_to_the_extra_time(shipped):
    rows = shipped.tables["anatomy"].rows
    shares = rows.groupby("size")["share"].sum()
    assert len(shares) and ((shares - 1).abs() < 1e-9).all()
    assert ((rows["first_ns"] - rows["later_ns"] - rows["extra_ns"]).abs() < 1).all()
    assert (rows["first_ns"] >= 0).all()


@pytest.mark.long
def test_cases_stand_in_model_order(shipped):
    for table in shipped.tables.values():
        assert list(dict.fromkeys(table.rows["size"])) == ["small", "large"], table.key


def test_first_step_is_long_and_more_warm_up_does_not_make_the_mean_worse(shipped):
    assert shipped.claims["first"].holds
    means = shipped.tables["numbers"].rows.query("statistic == 'mean'")
    for _, rows in means.groupby("size"):
        assert rows["error"].iloc[0] == rows["error"].max()


def test_opposite_claims_do_not_both_hold(shipped):
    assert shipped.claims["gpu_same"].holds != shipped.claims["gpu_differs"].holds
    assert shipped.claims["processes"].holds != shipped.claims["alike"].holds
    assert shipped.claims["main_outside"].holds != shipped.claims["main_inside"].holds


def test_cases_stand_beside_the_main_recording(shipped):
    assert (shipped.tables["spreads"].rows["main_ns"] > 0).all()
