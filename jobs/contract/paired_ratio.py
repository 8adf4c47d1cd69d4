"""How many times as fast one variant is as another, from rounds in which both took their turn, in random order.

What changes from minute to minute is in all turns of a round, so the ratio within a round leaves it out. The order is
random, so chance decides the sign of what is left, however it is distributed. Wilcoxon's signed-rank test needs no
more than that: its level is exact. The interval is Hodges and Lehmann's, of the means of each two rounds. In sweeps,
whose turns are single steps, rounds in which the host stalls weigh less (`compare_most_rounds`).

It holds for the process that was measured. Another process of the same variants has another ratio, as memory and caches
lie otherwise, so rounds of several processes are not one sample: `compare_processes` adds how far processes differ.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, combinations_with_replacement
from statistics import NormalDist, fmean, median, stdev, variance

from profiler_job.jobs.contract.tuning import TuneRatio

SURE = 0.95
FEWEST_PAIRS = 6
"""With fewer pairs all of them have one sign in more than 1 of 20 cases by chance: no interval excludes 1."""
SPREAD_OF_GPU, SPREAD_OF_CPU = 0.02, 0.2
"""How far fresh processes of one variant differ where the GPU, or the CPU, limits a step: added to the interval of few
pairs."""
SPREAD_OF_RATIOS = 0.01
"""Standard deviation of the ratio between processes that is supposed where fewer than FEWEST_PROCESSES are known."""
FEWEST_PROCESSES = 5
"""From how many processes on their own spread is used: Student's t is 4.3 for 3 of them, so that three processes would
have a wider interval than two."""
FARTHEST, ITERATIONS = 9, 10
"""From how many times their median distance from the centre on rounds weigh nothing; how often the centre is found."""
FEWEST_WEIGHED = 10
"""Fewer rounds are not weighed: if their noise is uniform, the interval of 6 would hold the ratio in 92% of cases, and
that of 14 in 95%."""
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


def compare_most_rounds(before: Sequence[float], after: Sequence[float], weights: Sequence[float] = ()) -> TuneRatio:
    """Return the ratio of paired times (ns), as `compare_rounds` does, of the rounds that agree.

    A stall of the host makes single steps up to twice as long, in up to a third of the rounds of a process: then the
    interval of the signed ranks reaches to the stalls. Of planted changes of 3% in recorded steps that the GPU limits,
    it found 1,052 of 1,160 with 15 rounds, and this one 1,107 (`tests.bench.planted_changes`). It is Tukey's biweight,
    in which a round weighs less the further it is from the others, and nothing from FARTHEST on, and its interval by
    Student's t with 0.7 of the degrees of freedom (Mosteller and Tukey, Data Analysis and Regression, 1977).
    weights: of the rounds, 1 in the mean; () for 1 each. Raises as `compare_rounds`."""
    ranked = compare_rounds(before, after)
    logs = [math.log(first / second) for first, second in zip(before, after, strict=True)]
    given = weights or [1.0] * len(logs)
    centre = find_median(logs, given)
    reach = FARTHEST * find_median([abs(log - centre) for log in logs], given)
    if len(logs) < FEWEST_WEIGHED or not reach:
        return ranked
    for _ in range(ITERATIONS):
        weights = [own * max(0.0, 1 - ((log - centre) / reach) ** 2) ** 2 for own, log in zip(given, logs)]
        centre = math.fsum(weight * log for weight, log in zip(weights, logs)) / math.fsum(weights)
    squares = [(own, ((log - centre) / reach) ** 2) for own, log in zip(given, logs)]
    near = [(own, square) for own, square in squares if square < 1]
    slope = math.fsum(own * (1 - square) * (1 - 5 * square) for own, square in near)
    spread = math.fsum(own**2 * square * (1 - square) ** 4 for own, square in near)
    error = reach * math.sqrt(spread / max(1.0, slope * (slope - 1)))
    width = find_t_quantile(max(2, int(0.7 * (len(logs) - 1)))) * error
    ends = {"low": math.exp(centre - width), "high": math.exp(centre + width)}
    return ranked.model_copy(update={"times_as_fast": math.exp(centre)} | ends)


def find_median(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the value that has half of the weights on each side; the mean of two if it is between them."""
    pairs = sorted(zip(values, weights))
    sums, half = list(accumulate(weight for _, weight in pairs)), math.fsum(weights) / 2
    low, high = (bisect_left(sums, half * share) for share in (1 - 1e-9, 1 + 1e-9))
    return (pairs[low][0] + pairs[high][0]) / 2


def compare_processes(rounds: Sequence[tuple[Sequence[float], Sequence[float]]]) -> TuneRatio:
    """Return the ratio of variants that took turns in several processes, of each the paired times (ns) of its rounds,
    with the interval that holds the ratio of all processes in SURE of all cases: Student's, of the centres of the
    processes. Of fewer than FEWEST_PROCESSES it is the interval of all rounds, made wider by SPREAD_OF_RATIOS; each
    process has the same weight in it. If 24 rounds of one outweighed 6 of another, 12.5% of equal variants would seem
    to differ, and not 5%. The rounds are those that agree (`compare_most_rounds`), of each process or of all.
    Raises ValueError without any round."""
    known = [compare_most_rounds(*pairs) for pairs in rounds if len(pairs[0])]
    if len(known) < FEWEST_PROCESSES:
        before, after = ([time for pairs in rounds for time in pairs[side]] for side in (0, 1))
        shares = [len(before) / (len(known) * len(pairs[0])) for pairs in rounds for _ in pairs[0]]
        pooled = compare_most_rounds(before, after, shares)
        centre = math.log(pooled.times_as_fast)
        more = NormalDist().inv_cdf((1 + SURE) / 2) * SPREAD_OF_RATIOS / math.sqrt(len(known))
        below, above = (math.hypot(more, math.log(end) - centre) for end in (pooled.low, pooled.high))
    else:
        logs = [math.log(ratio.times_as_fast) for ratio in known]
        centre = fmean(logs)
        below = above = find_t_quantile(len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    ends = {"low": math.exp(centre - below), "high": math.exp(centre + above)}
    return TuneRatio(times_as_fast=math.exp(centre), num_pairs=sum(ratio.num_pairs for ratio in known), **ends)


def compare_variant_processes(
    before: Sequence[Sequence[float]], after: Sequence[Sequence[float]], spread: float
) -> TuneRatio:
    """Return the ratio of two variants whose processes took turns, with the interval that holds it in SURE of all
    cases. Each process has one variant. before, after: times (ns) of each process in each round; all took part in the
    same rounds.

    The interval is Student's, of the processes and not of their rounds: two processes of one variant differ, and more
    rounds do not change it. Each variant has as many as the one that has less. For one pair of processes it is the
    interval of its rounds, made wider by `spread`. Raises ValueError without any round."""
    num = min(len(before), len(after))
    ratios = [[compare_rounds(first, second).times_as_fast for second in after[:num]] for first in before[:num]]
    if num == 1:
        ratio = compare_rounds(before[0], after[0])
        ends = {"low": ratio.low / (1 + spread), "high": ratio.high * (1 + spread)}
        return ratio.model_copy(update=ends)
    rows = [fmean(map(math.log, row)) for row in ratios]
    columns = [fmean(map(math.log, column)) for column in zip(*ratios)]
    centre = fmean(rows)
    width = find_t_quantile(2 * num - 2) * math.sqrt((variance(rows) + variance(columns)) / num)
    ends = {"low": math.exp(centre - width), "high": math.exp(centre + width)}
    return TuneRatio(times_as_fast=math.exp(centre), num_pairs=num * len(before[0]), **ends)


T_QUANTILES = {2: 4.3027, 3: 3.1824, 4: 2.7764, 5: 2.5706, 6: 2.4469, 7: 2.3646, 8: 2.3060, 9: 2.2622}


def find_t_quantile(degrees: int) -> float:
    """Return the quantile of Student's t that holds SURE of it in the middle; degrees: at least 2."""
    z = NormalDist().inv_cdf((1 + SURE) / 2)
    expanded = z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    return T_QUANTILES.get(degrees, expanded)


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
