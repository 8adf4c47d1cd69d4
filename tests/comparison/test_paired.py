"""Variants by turns: equal ones are called equal, and small changes are found in spite of a drifting host."""

import math

import numpy as np
import pytest

from profiler_job.jobs.contract.paired_ratio import FEWEST_PAIRS, is_different
from tests.comparison.simulated_turns import NOISE, judge_simulated, simulate_ratios

ROUNDS = 16
"""Rounds of five steps that find most changes of 3%, also where the CPU limits the step."""


def count_found(limit, change, num_rounds=ROUNDS, num=400):
    return np.mean([is_different(made) for made in judge_simulated(limit, num_rounds, change, num)])


@pytest.mark.parametrize("limit", NOISE)
def test_at_most_one_in_twenty_equal_pairs_is_called_different(limit):
    held = 0.05 + 2 * math.sqrt(0.05 * 0.95 / 400)  # what chance allows of 400 pairs
    for num_rounds in (FEWEST_PAIRS, 8, ROUNDS):
        assert count_found(limit, 0.0, num_rounds) <= held


def test_changes_of_three_percent_are_found():
    assert count_found("the GPU", 0.03) >= 0.9
    assert count_found("the CPU", 0.03) >= 0.6


def test_the_interval_holds_the_change_in_nineteen_of_twenty_pairs():
    made = judge_simulated("the CPU", ROUNDS, 0.03, 400)
    assert np.mean([of.low <= 1.03 <= of.high for of in made]) >= 0.93


def test_eight_rounds_on_a_slow_host_spread_as_they_did_when_measured():
    means = simulate_ratios(NOISE["the CPU"], 8, 400).mean(axis=1)
    assert 0.02 < means.std() < 0.04
