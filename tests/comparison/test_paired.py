"""Variants by turns: equal ones are called equal, and small changes are found in spite of a drifting host."""

import math

import numpy as np
import pytest

from profiler_job.analysis.comparison.paired import LEAST_ROUNDS, ROUNDS, judge_ratios
from tests.comparison.simulated_turns import NOISE, judge_simulated, simulate_ratios


def count_found(limit, change, num_rounds=ROUNDS, num=400):
    return np.mean([made.is_real for made in judge_simulated(limit, num_rounds, change, num)])


@pytest.mark.parametrize("limit", NOISE)
def test_at_most_one_in_twenty_equal_pairs_is_called_different(limit):
    held = 0.05 + 2 * math.sqrt(0.05 * 0.95 / 400)  # what chance allows of 400 pairs
    for num_rounds in (LEAST_ROUNDS, 8, ROUNDS):
        assert count_found(limit, 0.0, num_rounds) <= held


def test_changes_of_three_percent_are_found():
    assert count_found("the GPU", 0.03) >= 0.9
    assert count_found("the CPU", 0.03) >= 0.6


def test_the_interval_holds_the_change_in_nineteen_of_twenty_pairs():
    made = judge_simulated("the CPU", ROUNDS, 0.03, 400)
    assert np.mean([of.low <= 1.03 <= of.high for of in made]) >= 0.93
    assert all((of.low <= 1 <= of.high) != of.is_real for of in made), "the interval and the test agree"


def test_the_smallest_change_seen_is_found_nine_times_out_of_ten():
    made = judge_simulated("the CPU", ROUNDS, 0.0, 400)
    smallest = float(np.median([of.smallest_seen for of in made]))
    assert 0.01 < smallest < 0.06
    assert count_found("the CPU", smallest) >= 0.87


def test_too_few_rounds_find_nothing():
    made = judge_ratios([0.5] * (LEAST_ROUNDS - 1))
    assert not made.is_real and (made.low, made.high) == (0, math.inf) and math.isinf(made.smallest_seen)
    assert judge_ratios([0.5] * LEAST_ROUNDS).is_real
    with pytest.raises(ValueError, match="nothing to compare"):
        judge_ratios([])


def test_chances_are_those_of_all_signs():
    """Of four rounds there are 16 combinations of signs, each as likely as the others."""
    ratios = np.array([0.1, 0.2, 0.3, 0.4])
    p_values = [judge_ratios(np.where([(n >> bit) & 1 for bit in range(4)], 1, -1) * ratios).p_value for n in range(16)]
    assert sorted(p_values)[:4] == [0.125, 0.125, 0.25, 0.25]
    assert judge_ratios([0.0] * 8).p_value == 1.0


def test_eight_rounds_on_a_slow_host_spread_as_they_did_when_measured():
    means = simulate_ratios(NOISE["the CPU"], 8, 400).mean(axis=1)
    assert 0.02 < means.std() < 0.04
