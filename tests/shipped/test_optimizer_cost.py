"""AdamW in the shipped recording of five sizes: what holds on frozen runs holds there, too."""

import pytest

from profiler_job.analysis.recording import store
from profiler_job.analysis.site import combine
from tests.pages.test_optimizer_cost import (  # noqa: F401
    ask,
    test_foreach_holds_one_more_copy_of_the_weights_and_fused_none,
    test_no_kernel_outruns_memory,
    test_reference_adamw_launches_eight_kernels_for_each_tensor,
)
from tests.shipped.recordings import locate


@pytest.fixture(scope="module")
def recorded():
    return store.load(locate("optimizer"))


@pytest.fixture(scope="module")
def answer(recorded):
    return ask(recorded, combine.find_rates(store.load(locate(name)) for name in ("optimizer", "precision")))


def test_each_size_is_shown_with_each_implementation(answer):
    assert answer.tables["cost"].rows.groupby("optimizer")["size"].nunique().to_list() == [5] * 4
