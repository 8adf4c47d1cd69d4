"""Judge variants that took turns in one process: rounds in which each variant runs once, in random order.

What changes from minute to minute is in all turns of a round, so the ratio within a round leaves it out. The order is
random, so chance decides the sign of what is left, however it is distributed. Wilcoxon's signed-rank test needs no
more than that: its level is exact. Its interval is of Hodges and Lehmann, the median of the means of each two rounds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from profiler_job.analysis.metrics.differences import LEVEL

LEAST_ROUNDS = 6
"""Rounds from which on the test can find anything at LEVEL: of five, all have one sign in 1 of 16 cases by chance."""
ROUNDS = 16
"""Rounds of five steps that find most changes of 3%, also where the CPU limits the step."""
SEEN = 2.0
"""Half widths of the interval of the smallest change that is found nine times out of ten, counted in simulated rounds:
the interval of one comparison is often narrower than that of another."""


@dataclass(frozen=True, kw_only=True)
class PairedRatio:
    """Time of a variant over the time of its base. low, high: its interval at LEVEL; 0 and infinite below LEAST_ROUNDS.
    p_value: how often chance alone makes as large a difference. smallest_seen: the smallest relative change that so
    many rounds with this noise find nine times out of ten."""

    num_rounds: int
    ratio: float
    low: float
    high: float
    p_value: float

    @property
    def is_real(self) -> bool:
        """Whether the two differ, which is said of at most 5 of 100 equal pairs."""
        return self.p_value <= 1 - LEVEL

    @property
    def smallest_seen(self) -> float:
        return math.expm1(SEEN * math.log(self.high / self.low) / 2) if self.low else math.inf


def judge_ratios(log_ratios: Sequence[float] | np.ndarray) -> PairedRatio:
    """Judge by the logarithms of the ratios of all rounds whether a variant differs. Raises ValueError without any."""
    ratios = np.asarray(log_ratios, float)
    num = len(ratios)
    if not num:
        raise ValueError("no round has steps of both variants: there is nothing to compare")
    pairs = np.triu_indices(num)
    means = np.sort((ratios[pairs[0]] + ratios[pairs[1]]) / 2)
    most = len(means)
    chances = _sum_chances(num)
    positive = (means > 0).sum() + (means == 0).sum() / 2
    extreme = math.floor(min(positive, most - positive))
    outside = int(np.searchsorted(chances, (1 - LEVEL) / 2, side="right"))  # means that the interval leaves out
    low, high = (means[outside - 1], means[most - outside]) if outside else (-math.inf, math.inf)
    return PairedRatio(
        num_rounds=num,
        ratio=math.exp(np.median(means)),
        low=math.exp(low),
        high=math.exp(high),
        p_value=min(1.0, 2 * float(chances[extreme])),
    )


@cache
def _sum_chances(num: int) -> np.ndarray:
    """Sum the chances of the sums 0, 1, 2 ... of the ranks of positive ratios: each of `num` ranks counts or not."""
    counts = np.ones(1)
    for rank in range(1, num + 1):
        longer = np.zeros(len(counts) + rank)
        longer[: len(counts)] += counts
        longer[rank:] += counts
        counts = longer / 2
    return np.cumsum(counts)
