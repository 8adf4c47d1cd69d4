"""The five kernels of softmax in every run of the shipped default sweep."""

import pytest

from profiler_job.analysis.pages.questions import softmax_detail
from profiler_job.analysis.recording import store
from profiler_job.analysis.site import combine, page_context
from tests.pages.test_softmax_detail import (  # noqa: F401
    test_the_bound_is_below_what_was_measured,
    test_the_order_of_launches_names_each_kernel_as_its_own_name_does,
    test_the_time_of_the_chain_is_the_kernel_time_of_softmax_in_question_e,
    test_the_verdict_is_of_scores_that_the_cache_cannot_hold,
)
from tests.shipped.recordings import WITH_RATES, locate

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def rec():
    return store.load(locate("h200-fp32"))


@pytest.fixture(scope="module")
def answer(rec):
    return page_context.ask(
        softmax_detail.QUESTION, rec, calibration=combine.find_rates([store.load(locate(WITH_RATES))])
    )


def test_faster_than_memory_means_faster_than_every_bandwidth_measured(answer):
    rows = answer.claims["cache"].rows
    measured = [
        rate["high"] for rate in store.read_manifest(locate(WITH_RATES))["calibration"] if rate["unit"] == "bytes/s"
    ]
    assert len(measured) == 2 and (rows["rate"] * 1e9 > max(measured)).all()
