"""How many times as fast one variant is as another, from rounds in which both took their turn."""

from collections.abc import Sequence
from math import comb
from statistics import median

from profiler_job.jobs.contract.tuning import TuneRatio

SURE = 0.95
FEWEST_PAIRS = 6
"""With so many pairs all of them are an interval that holds the median with 97%."""
SPREAD_OF_GPU, SPREAD_OF_CPU = 0.02, 0.2
"""How far fresh processes of one variant differ where the GPU, or the CPU, limits a step: added to the interval of few
pairs."""
LEAST_GAIN = 1.005
"""A change that is kept makes the script at least so many times as fast."""


def compare_rounds(before: Sequence[float], after: Sequence[float], spread: float = 0.0) -> TuneRatio:
    """Return the ratio of paired times (ns): the median over the pairs, and an interval of order statistics, which
    supposes nothing of how times are distributed. spread: by which the interval of fewer than FEWEST_PAIRS is wider."""
    ratios = sorted(first / second for first, second in zip(before, after, strict=True))
    left_out = count_left_out(len(ratios))
    more = 1.0 + (spread if len(ratios) < FEWEST_PAIRS else 0.0)
    low, high = ratios[left_out] / more, ratios[-1 - left_out] * more
    return TuneRatio(times_as_fast=median(ratios), low=low, high=high, num_pairs=len(ratios))


def count_left_out(num: int) -> int:
    """Return how many of the smallest, and of the largest, of `num` values can be left out of an interval that holds
    their median in SURE of all cases."""
    left_out, outside = 0, 0.0
    while left_out < num // 2:
        outside += 2 * comb(num, left_out) / 2**num
        if outside > 1 - SURE:
            break
        left_out += 1
    return max(0, left_out - 1)


def is_faster(ratio: TuneRatio) -> bool:
    """Return whether a variant is measurably faster."""
    return ratio.low > 1.0 and ratio.times_as_fast >= LEAST_GAIN


def is_decided(ratio: TuneRatio) -> bool:
    """Return whether more pairs would change nothing: the interval excludes that both are as fast, or a gain."""
    return is_faster(ratio) or ratio.high < LEAST_GAIN
