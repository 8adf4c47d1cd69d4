"""Lower precision in the shipped recording of three sizes: what holds on frozen runs holds there, too."""

import pytest

from profiler_job.jobs.contract.studies import PRECISION
from tests.pages.test_precision import (  # noqa: F401
    ask,
    test_bfloat16_is_further_from_fp32_than_tf32_for_every_model,
    test_every_matmul_has_a_math_path_and_none_is_missing,
    test_families_that_gain_are_named_only_beyond_the_spread,
    test_no_step_is_faster_than_its_limit_and_no_rate_above_its_peak,
    test_the_wait_for_launches_is_said_by_its_value,
)
from tests.shipped.recordings import load_study_by_turns


@pytest.fixture(scope="module")
def recorded():
    return load_study_by_turns(PRECISION)


@pytest.fixture(scope="module")
def answer(recorded):
    return ask(recorded)


def test_each_size_is_shown_in_each_precision(answer):
    assert answer.tables["speed"].rows.groupby("precision")["size"].nunique().to_list() == [3] * 3


def test_bf16_is_not_advised_where_the_cpu_limits_and_tf32_is_faster(answer):
    """ "Use BF16 autocast" was all: the small model takes 41.7 ms in TF32, and 47.3 in BF16."""
    claim = answer.claims["tf32_first"]
    steps = answer.tables["speed"].rows.set_index(["size", "precision"])["step_ns"]
    assert set(claim.rows["size"]) == {"small"}
    assert steps["small", "bf16"] > 1.1 * steps["small", "tf32"]
    assert steps["xl", "bf16"] < steps["xl", "tf32"]
