"""What two measurements of the same runs differ by, for each metric: the noise bands that a difference has to exceed.

Where they come from: a pair of recordings that the user names; the repetitions of the runs that are compared; or else
the two shipped recordings of the default sweep, whose bands are kept here (a test fits them again).
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.comparison.errors import NotComparable
from analysis.comparison.sides import Side
from analysis.metrics import differences
from analysis.metrics.differences import LEAST_PAIRS, Band

MEDIAN = math.pi / 2
"""Variance of a median of many times against that of their mean."""
STUDENT = (12.71, 4.31, 3.19, 2.78, 2.58, 2.45, 2.37, 2.31, 2.27, 2.23)
"""Student's t that holds 95% of both sides, for 1 to 10 degrees of freedom; the last is near enough for more."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """kernel: the band of kernel time and GPU busy. wall: that of unprofiled steps. memory_bytes: half width of that of
    peak allocated memory. source: what they are from."""

    kernel: Band
    wall: Band
    memory_bytes: int
    source: str


def width_of(band: Band, time_ns: float, parts: float, num_processes: tuple[int, int]) -> float:
    """Half width of a band around two times of about `time_ns`, each the median of so many processes."""
    of_one = float(band.width_ns(time_ns, parts))
    return of_one * math.sqrt(sum(map(_variance, num_processes)) / 2)


def width_of_spread(first: Sequence[float], second: Sequence[float]) -> float:
    """Half width of a band around the medians of processes of two sides, from how far those of each side lie apart;
    infinite where neither has two."""
    freedom = len(first) + len(second) - 2
    if freedom < 1:
        return math.inf
    squares = sum((value - statistics.fmean(side)) ** 2 for side in (first, second) for value in side)
    width = STUDENT[min(freedom, len(STUDENT)) - 1] * math.sqrt(squares / freedom)
    return width * math.sqrt(_variance(len(first)) + _variance(len(second)))


def _variance(num_processes: int) -> float:
    """That of the median of so many times, against one time."""
    return (MEDIAN if num_processes > 2 else 1) / num_processes


def num_processes_for(width: float, num_processes: tuple[int, int], wanted: float) -> int:
    """How many processes of each side make a band of `width`, that of `num_processes`, as narrow as `wanted`."""
    of_one = width / math.sqrt(sum(_variance(num) for num in num_processes) / 2)
    num = 1
    while num < 10_000 and of_one * math.sqrt(_variance(num)) > wanted:
        num += 1
    return num


def of_recordings(first: Side, second: Side) -> Noise:
    """The noise of two recordings of the same runs. Raises NotComparable where they share too few."""
    shared = sorted(set(first.runs["run_id"]) & set(second.runs["run_id"]))
    if not shared:
        raise NotComparable(
            f"{first.label} and {second.label} share no run: give --noise two recordings of the same runs"
        )
    pairs = [(first, run, second, run) for run in shared]
    return _fit(pairs, f"{first.label} and {second.label}, recordings of the same runs")


def of_repetitions(sides: Sequence[Side], cases: Sequence[Sequence[tuple[str, ...]]]) -> Noise | None:
    """The noise of runs that were repeated: `cases` has the run_ids of each case of each side. None where they are too
    few pairs."""
    pairs = [
        (side, run, side, run_again)
        for side, of_side in zip(sides, cases)
        for runs in of_side
        for run, run_again in itertools.combinations(runs, 2)
    ]
    if len(pairs) < LEAST_PAIRS:
        return None
    return _fit(pairs, f"{len(pairs)} pairs of repetitions within A and B")


def _fit(pairs: list[tuple[Side, str, Side, str]], source: str) -> Noise:
    """Bands from pairs of runs that measured the same."""
    sides_of_all = {id(side): side for pair in pairs for side in (pair[0], pair[2])}
    times = {key: _times(side) for key, side in sides_of_all.items()}
    bands = []
    for number, kind in enumerate(("kernel", "wall")):
        parts = []
        for place, (first, run, second, run_again) in enumerate(pairs):
            both = ((times[id(first)][number], run), (times[id(second)][number], run_again))
            sides = [frame[frame["run_id"] == name].assign(run_id=str(place)) for frame, name in both]
            parts.append(differences.paired(sides[0], sides[1], ["run_id", "part"]))
        try:
            bands.append(differences.fit_band(pd.concat(parts, ignore_index=True), kind, source))  # type: ignore[arg-type]
        except ValueError as error:
            raise NotComparable(f"{source}: {error}; give others with --noise, or leave it out") from error
    memory = [_memory_apart(*pair) for pair in pairs]
    return Noise(kernel=bands[0], wall=bands[1], memory_bytes=max(memory), source=source)


def _times(side: Side) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Kernel times and times of unprofiled steps: run_id, part ("" for all of a step, or a family), time_ns, parts."""
    of_step = differences.times_of_kernels(side.kernels, ["run_id"]).assign(part="")
    of_family = differences.times_of_kernels(side.kernels, ["run_id", "family"]).rename(columns={"family": "part"})
    steps = differences.times_of_steps(side.steps, side.kernels, side.memops).assign(part="")
    return pd.concat([of_step, of_family], ignore_index=True), steps


def _memory_apart(first: Side, run: str, second: Side, run_again: str) -> int:
    peaks = [
        side.runs.loc[side.runs["run_id"] == name, "peak_memory_bytes"]
        for side, name in ((first, run), (second, run_again))
    ]
    if any(peak.isna().all() for peak in peaks):
        return 0
    return abs(int(peaks[0].iloc[0]) - int(peaks[1].iloc[0]))


def choose(named: Noise | None, sides: Sequence[Side], runs: Sequence[Sequence[tuple[str, ...]]]) -> Noise:
    """The noise that the user names, or that of the repetitions within the sides, of whose cases `runs` has the
    run_ids, or the shipped one."""
    return named or of_repetitions(sides, runs) or SHIPPED


SHIPPED = Noise(
    kernel=Band(kind="kernel", relative=0.0019657866916, ratio=177827.941, factor=3.0933922778, num_pairs=450),
    wall=Band(kind="wall", relative=0.0039635946747, ratio=100.0, factor=2.2202537811, num_pairs=60),
    memory_bytes=0,
    source="h200-fp32 and again, the shipped recordings of the default sweep (60 runs, one H200)",
)
