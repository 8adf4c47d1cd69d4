"""Lower precision in the shipped recording of five sizes: what holds on frozen runs holds there, too."""

import pytest

from profiler_job.analysis.recording import store
from tests.pages.test_precision import (  # noqa: F401
    ask,
    test_bfloat16_is_further_from_fp32_than_tf32_for_every_model,
    test_every_matmul_has_a_math_path_and_none_is_missing,
    test_families_that_gain_are_named_only_beyond_the_spread,
    test_no_step_is_faster_than_its_limit_and_no_rate_above_its_peak,
    test_the_wait_for_launches_is_said_by_its_value,
)
from tests.shipped.recordings import locate


@pytest.fixture(scope="module")
def recorded():
    return store.load(locate("precision"))


@pytest.fixture(scope="module")
def answer(recorded):
    return ask(recorded)


def test_each_size_is_shown_in_each_precision(answer):
    assert answer.tables["speed"].rows.groupby("precision")["size"].nunique().to_list() == [5] * 3
