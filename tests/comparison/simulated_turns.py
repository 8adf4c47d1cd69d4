"""Simulated steps of two variants by turns, on a host that drifts, judged by the test of turns."""

import dataclasses
import functools
import math

import numpy as np

from profiler_job.jobs.contract.paired_ratio import compare_rounds
from profiler_job.jobs.contract.tuning import TuneRatio

STEPS = 5
"""Steps of a turn; the median is its time."""
NUM_PAIRS = 1000
"""Simulated comparisons of each kind."""


@dataclasses.dataclass(frozen=True)
class Noise:
    """Noise of the logarithms of times of steps. step: spread of a step, with heavy tails (Student's t of 4 degrees),
    `alike` to the one before. drift: spread of what the host's speed changes by from step to step, and stays. slow:
    how often a slow stretch begins, how many steps it lasts and by how much it slows, on average."""

    step: float
    alike: float
    drift: float
    slow: tuple[float, float, float]


NOISE = {
    "the GPU": Noise(step=0.005, alike=0.1, drift=0.0005, slow=(0.002, 20, 0.01)),
    "the CPU": Noise(step=0.04, alike=0.3, drift=0.004, slow=(0.01, 25, 0.2)),
}
"""By what limits the step. A step spreads as in three quarters of the runs of h200-fp32 at most, and as in the median
run of accumulation (a test measures both). The slow stretches make the mean of eight rounds of two equal variants
spread by 3%, as three such measurements of one model on a slow host did."""


def simulate_ratios(of: Noise, num_rounds: int, num: int, seed: int = 0) -> np.ndarray:
    """Simulate `num` comparisons of two equal variants: the logarithm of the ratio of each round, num x num_rounds."""
    random = np.random.default_rng(seed)
    shape = (2 * STEPS * num_rounds, num)
    fresh = random.standard_t(4, shape) * of.step / math.sqrt(2)
    begins, length = random.random(shape) < of.slow[0], random.geometric(1 / of.slow[1], shape)
    size = random.exponential(of.slow[2], shape)
    logs, last, left, slower = np.empty(shape), np.zeros(num), np.zeros(num), np.zeros(num)
    for step in range(shape[0]):
        starts = begins[step] & (left <= 0)
        left, slower = np.where(starts, length[step], left - 1), np.where(starts, size[step], slower)
        last = of.alike * last + math.sqrt(1 - of.alike**2) * fresh[step]
        logs[step] = last + np.where(left > 0, slower, 0)
    logs += np.cumsum(random.normal(0, of.drift, shape), axis=0)
    first, second = np.moveaxis(np.median(logs.reshape(num_rounds, 2, STEPS, num), axis=2), 1, 0)
    return (np.where(random.random(first.shape) < 0.5, 1, -1) * (second - first)).T


@functools.cache
def judge_simulated(limit: str, num_rounds: int, change: float, num: int = NUM_PAIRS) -> list[TuneRatio]:
    """Judge simulated comparisons, the second variant slower by `change`."""
    ratios = np.exp(simulate_ratios(NOISE[limit], num_rounds, num)) * (1 + change)
    return [compare_rounds(of_pair, [1.0] * num_rounds) for of_pair in ratios.tolist()]
