"""AdamW in the shipped recording of three sizes: what holds on frozen runs holds there, too."""

import pytest

from profiler_job.analysis.recording import store
from profiler_job.analysis.site import combine
from profiler_job.jobs.contract.studies import OPTIMIZER
from tests.pages.test_optimizer_cost import (  # noqa: F401
    ask,
    test_foreach_holds_one_more_copy_of_the_weights_and_fused_none,
    test_no_kernel_outruns_memory,
    test_reference_adamw_launches_eight_kernels_for_each_tensor,
)
from tests.shipped.recordings import WITH_RATES, load_study_by_turns, locate


@pytest.fixture(scope="module")
def recorded():
    return load_study_by_turns(OPTIMIZER)


@pytest.fixture(scope="module")
def answer(recorded):
    return ask(recorded, combine.find_rates([store.load(locate(WITH_RATES))]))


def test_each_size_is_shown_with_each_implementation(answer):
    sizes = answer.tables["cost"].rows.groupby("optimizer")["size"].nunique()
    assert sizes.to_dict() == {"own": 3, "fused": 3, "loop": 1, "foreach": 1}
