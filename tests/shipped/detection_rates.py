"""How small a change is found: today's test on real recordings, and the test of turns on simulated ones.

    python -m tests.shipped.detection_rates

writes the table of the guide on `compare`. The simulated noise has the spread of shipped runs.
"""

import dataclasses
import functools
from pathlib import Path

import numpy as np

from profiler_job.analysis.comparison import judge, noise
from profiler_job.analysis.metrics import step_limits
from profiler_job.jobs.contract.paired_ratio import is_different
from profiler_job.jobs.contract.step_limit import CPU
from tests.comparison.simulated_turns import NOISE, judge_simulated
from tests.shipped.sides import measured, side

GUIDE = Path(__file__).resolve().parents[2] / "site" / "guide" / "compare.md"
HEAD = "| test, and what limits the step | no change | 1% | 2% | 3% | 5% |"
CHANGES = (0.0, 0.01, 0.02, 0.03, 0.05)
NUM_ROUNDS = {"the GPU": (8,), "the CPU": (8, 16, 32)}
"""By what limits the step: more rounds find nothing that eight do not, if the GPU limits it."""


def plant(case: judge.MeasuredCase, change: float) -> judge.MeasuredCase:
    """Return a measured run whose unprofiled steps are longer by `change`."""
    samples = {
        name: tuple(value * (1 + change) for value in values) if name in ("processes", "measured_steps") else values
        for name, values in case.samples.items()
    }
    return dataclasses.replace(case, samples=samples, clocks={"timer": case.clocks["timer"] * (1 + change)})


def judge_steps(first: judge.MeasuredCase, second: judge.MeasuredCase) -> judge.Judgement:
    """Judge the unprofiled steps of two runs as `compare` does for any two recordings."""
    return next(made for made in judge.judge(first, second, "timer", noise.SHIPPED, False) if made.metric == "step")


@functools.cache
def measure_twice() -> dict[str, list[tuple[judge.MeasuredCase, judge.MeasuredCase]]]:
    """Return the shipped runs that were recorded twice, by what limits their step."""
    of_all = side("h200-fp32")
    limits = step_limits.find_limits(of_all.steps, of_all.kernels, of_all.memops)
    pairs: dict[str, list[tuple[judge.MeasuredCase, judge.MeasuredCase]]] = {name: [] for name in NOISE}
    for run in sorted(of_all.runs["run_id"]):
        limit = "the CPU" if CPU in limits[run].names else "the GPU"
        pairs[limit].append((measured("h200-fp32", run), measured("again", run)))
    return pairs


def make_table() -> list[str]:
    """Make the lines of the table."""
    lines = [HEAD, "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for limit, pairs in measure_twice().items():
        found = [sum(judge_steps(a, plant(b, change)).is_real for a, b in pairs) for change in CHANGES]
        cells = [f"{num}/{len(pairs)}" for num in found]
        lines.append(f"| two recordings, {limit} | {' | '.join(cells)} |")
    for limit in NOISE:
        for num in NUM_ROUNDS[limit]:
            shares = [
                np.mean([is_different(made) for made in judge_simulated(limit, num, change)]) for change in CHANGES
            ]
            cells = [f"{share:.1%}" if share < 0.1 else f"{share:.0%}" for share in shares]
            lines.append(f"| {num} rounds by turns, {limit} | {' | '.join(cells)} |")
    return lines


def replace_table(text: str) -> str:
    """Return the text of the guide with the table of today."""
    before, _, after = text.partition(HEAD)
    rest = after.split("\n\n", 1)[1]
    return "\n".join([before.rstrip("\n"), "", *make_table(), "", rest])


if __name__ == "__main__":
    GUIDE.write_text(replace_table(GUIDE.read_text(encoding="utf-8")), encoding="utf-8")
