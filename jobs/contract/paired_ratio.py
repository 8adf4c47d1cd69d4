"""How many times as fast one variant is as another, from rounds in which both took their turn, in random order.

What changes from minute to minute is in all turns of a round, so the ratio within a round leaves it out. The order is
random, so chance decides the sign of what is left, however it is distributed. Wilcoxon's signed-rank test needs no
more than that: its level is exact. The interval is Hodges and Lehmann's, of the means of each two rounds.
"""

import math
from collections.abc import Sequence
from functools import cache
from itertools import combinations_with_replacement
from statistics import median

from profiler_job.jobs.contract.tuning import TuneRatio

SURE = 0.95
FEWEST_PAIRS = 6
"""With fewer pairs all of them have one sign in more than 1 of 20 cases by chance: no interval excludes 1."""
SPREAD_OF_GPU, SPREAD_OF_CPU = 0.02, 0.2
"""How far fresh processes of one variant differ where the GPU, or the CPU, limits a step: added to the interval of few
pairs."""
LEAST_GAIN = 1.005
"""A change that is kept makes the script at least so many times as fast."""


def compare_rounds(before: Sequence[float], after: Sequence[float], spread: float = 0.0) -> TuneRatio:
    """Return the ratio of paired times (ns), with the interval that holds it in SURE of all cases. Of fewer than
    FEWEST_PAIRS pairs it is their range, made wider by `spread`. Raises ValueError without any pair."""
    logs = [math.log(first / second) for first, second in zip(before, after, strict=True)]
    if not logs:
        raise ValueError("no round has steps of both variants: there is nothing to compare")
    means = sorted(sum(both) / 2 for both in combinations_with_replacement(logs, 2))
    left_out = count_left_out(len(logs))
    more = math.log1p(spread) if len(logs) < FEWEST_PAIRS else 0.0
    low, high = means[left_out] - more, means[-1 - left_out] + more
    ends = {"low": math.exp(low), "high": math.exp(high)}
    return TuneRatio(times_as_fast=math.exp(median(means)), num_pairs=len(logs), **ends)


@cache
def count_left_out(num: int) -> int:
    """Return how many of the smallest, and of the largest, of the means of each two of `num` logarithms can be left out
    of an interval that holds their centre in SURE of all cases."""
    ways = [1]  # in how many of 2**num cases the ranks of positive ratios have the sum 0, 1, 2 ...
    for rank in range(1, num + 1):
        ways = [a + b for a, b in zip(ways + [0] * rank, [0] * rank + ways)]
    most, below, left_out = (1 - SURE) / 2 * 2**num, 0, 0
    for number in ways:
        below += number
        if below > most:
            break
        left_out += 1
    return max(0, left_out - 1)


def is_different(ratio: TuneRatio) -> bool:
    """Return whether two variants differ measurably, either way. Of 100 equal pairs at most 5 seem to."""
    return ratio.num_pairs >= FEWEST_PAIRS and not ratio.low <= 1.0 <= ratio.high


def is_faster(ratio: TuneRatio) -> bool:
    """Return whether a variant is measurably faster."""
    return ratio.low > 1.0 and ratio.times_as_fast >= LEAST_GAIN


def is_decided(ratio: TuneRatio) -> bool:
    """Return whether more pairs would change nothing: the interval excludes that both are as fast, or a gain."""
    return is_faster(ratio) or ratio.high < LEAST_GAIN
