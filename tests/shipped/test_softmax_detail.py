"""The five kernels of softmax in every run of the shipped default sweep."""

import pytest

from profiler_job.analysis.pages.questions import attention_cost, softmax_detail
from profiler_job.analysis.recording import store
from profiler_job.analysis.site import combine, page_context
from tests.pages.test_softmax_detail import WORD
from tests.shipped.recordings import locate

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def rec():
    return store.load(locate("h200-fp32"))


@pytest.fixture(scope="module")
def answer(rec):
    return page_context.ask(
        softmax_detail.QUESTION, rec, calibration=combine.find_rates([store.load(locate("precision"))])
    )


def test_the_order_of_launches_names_each_kernel_as_its_own_name_does(answer):
    rows = answer.tables["every"].rows
    assert len(rows) == 5 * rows["run_id"].nunique() > 0
    for row in rows.itertuples():
        assert WORD[row.kernel] in row.kernel_name


def test_the_time_of_the_chain_is_the_kernel_time_of_softmax_in_question_e(rec, answer):
    cost = page_context.ask(attention_cost.QUESTION, rec).tables["cost"].rows.set_index("run_id")["softmax_ns"]
    chain = answer.tables["bound"].rows.set_index("run_id")["chain_ns"]
    assert len(chain) and (chain - cost.loc[chain.index]).abs().max() < 1


def test_the_bound_is_below_what_was_measured(answer):
    rows = answer.tables["bound"].rows
    assert (rows["bound_ns"] < rows["chain_ns"]).all()


def test_the_verdict_is_of_scores_that_the_cache_cannot_hold(answer):
    claim = answer.claims["beyond_cache"]
    assert claim.holds and not answer.claims["small_only"].holds
    assert (claim.rows["score_bytes"] > 60 * 2**20).all()


def test_faster_than_memory_means_faster_than_every_bandwidth_measured(answer):
    rows = answer.claims["cache"].rows
    assert (rows["rate"] * 1e9 > 4.39e12).all()
