"""Noise bands: how much two measurements of the same runs differ, for each metric. A difference has to exceed them.

They come from a pair of recordings that the user names; or from the repetitions of the compared runs; or else from the
two shipped recordings of the default sweep, whose bands are kept here (a test fits them again). Repetitions come from
one session and do not show how sessions differ: between two sessions the shipped bands are the least.
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from profiler_job.analysis.comparison.errors import ComparisonProblem, NotComparableError
from profiler_job.analysis.comparison.sides import Side
from profiler_job.analysis.metrics import differences
from profiler_job.analysis.metrics.differences import LEAST_PAIRS, Band, Bands
from profiler_job.analysis.recording.store import Recording

MEDIAN = math.pi / 2
"""Ratio of the variance of a median of many times to the variance of their mean."""
STUDENT = (12.71, 4.31, 3.19, 2.78, 2.58, 2.45, 2.37, 2.31, 2.27, 2.23)
"""Student's t that holds 95% of both sides, for 1 to 10 degrees of freedom; the last is near enough for more."""


Kind = Literal["kernel", "wall"]
NumOf = tuple[int, int]
"""How many A has of something, and B."""
MOST = 10_000
"""Number of processes or steps above which more of them is not advised."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """kernel: the band of kernel time and GPU busy. wall: the band of unprofiled steps. memory_share: half the width of
    the band of peak allocated memory, as a share of it. source: where the bands come from. num_timed: processes that
    timed each of the runs that `wall` comes from. is_of_these: whether it comes from the compared runs, or was chosen
    for them. least: the lower limit of every band."""

    kernel: Band
    wall: Band
    memory_share: float
    source: str
    num_timed: NumOf = (1, 1)
    is_of_these: bool = True
    least: "Noise | None" = None

    def width(self, kind: Kind, time_ns: float, parts: float, num: NumOf) -> float:
        """Half width of a band around two times of about `time_ns`, each the median of so many processes."""
        band, fitted = (self.wall, self.num_timed) if kind == "wall" else (self.kernel, (1, 1))
        half = float(band.width_ns(time_ns, parts)) * _compute_deviation(num) / _compute_deviation(fitted)
        return max(half, self.least.width(kind, time_ns, parts, num)) if self.least else half

    def widen_to(self, least: "Noise") -> "Noise":
        """Return the larger of these bands and the bands of other runs."""
        return dataclasses.replace(
            self,
            memory_share=max(self.memory_share, least.memory_share),
            source=f"{self.source}, each of one session, and of {least.source}",
            is_of_these=False,
            least=least,
        )


def compute_energy_width(joules: float, waiting: float, num: NumOf) -> float:
    """Half width of a band around two energies of about `joules`, each the median of so many processes. waiting: part
    of a step in which the GPU waits."""
    return float(ENERGY.width_ns(joules, waiting * joules)) * _compute_deviation(num) / _compute_deviation((1, 1))


def compute_spread_width(first: Sequence[float], second: Sequence[float]) -> float:
    """Compute the half width of a band around the medians of processes (or of steps) of two sides, from the spread
    within each side; infinite if neither has two."""
    freedom = len(first) + len(second) - 2
    if freedom < 1:
        return math.inf
    squares = sum((value - statistics.fmean(side)) ** 2 for side in (first, second) for value in side)
    return _look_up_student(freedom) * math.sqrt(squares / freedom) * _compute_deviation((len(first), len(second)))


def _look_up_student(freedom: int) -> float:
    return STUDENT[min(freedom, len(STUDENT)) - 1]


def _compute_deviation(num: NumOf) -> float:
    """Compute the standard deviation of the difference of two medians of so many times, as a multiple of the deviation
    of one time."""
    return math.sqrt(sum((MEDIAN if one_side > 2 else 1) / one_side for one_side in num))


@dataclass(frozen=True, kw_only=True)
class Width:
    """A reason for the width of a noise band. half: half its width, at most the half width of the band. of: what
    narrows it if there is more of it: the processes that time a run, the times that a run is profiled, or steps.
    Runs that took turns have rounds. Nothing narrows the spread of a capture's steps (`range`) and the largest
    difference seen (`seen`). num: how many
    there are. is_from_spread: whether the width comes from their spread, or from a band that was known before."""

    of: Literal["processes", "rounds", "repeats", "measured_steps", "profiled_steps", "range", "seen"]
    half: float
    num: NumOf = (1, 1)
    is_from_spread: bool = False

    def num_for(self, wanted: float) -> int | None:
        """Compute how many of each side make the width as narrow as `wanted`; None if MOST are not enough. If the
        spread is unknown, the fewest that show it."""
        if math.isinf(self.half):
            return 2
        freedom = sum(self.num) - 2
        of_one = self.half / _compute_deviation(self.num) / (_look_up_student(freedom) if self.is_from_spread else 1)
        for num in range(2 if self.is_from_spread else 1, MOST):
            factor = _look_up_student(2 * num - 2) if self.is_from_spread else 1
            if of_one * factor * _compute_deviation((num, num)) <= wanted:
                return num
        return None


def fit_recordings(first: Side, second: Side) -> Noise:
    """Fit the noise of two recordings of the same runs. Raises NotComparableError if they share too few."""
    shared = sorted(set(first.runs["run_id"]) & set(second.runs["run_id"]))
    if not shared:
        raise NotComparableError(
            ComparisonProblem.NO_COMMON_RUN,
            f"{first.label} and {second.label} share no run: give --noise two recordings of the same runs",
        )
    pairs = [(first, run, second, run) for run in shared]
    return _fit(pairs, f"{first.label} and {second.label}, recordings of the same runs")


def fit_repetitions(sides: Sequence[Side], cases: Sequence[Sequence[tuple[str, ...]]]) -> Noise | None:
    """Fit the noise of runs that were repeated: `cases` has the run_ids of each case of each side. None if there are
    too few pairs."""
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
    times = {key: _measure_times(side) for key, side in sides_of_all.items()}
    bands = []
    for number, kind in enumerate(("kernel", "wall")):
        parts = []
        for place, (first, run, second, run_again) in enumerate(pairs):
            both = ((times[id(first)][number], run), (times[id(second)][number], run_again))
            sides = [frame[frame["run_id"] == name].assign(run_id=str(place)) for frame, name in both]
            parts.append(differences.pair_times(sides[0], sides[1], ["run_id", "part"]))
        try:
            bands.append(differences.fit_band(pd.concat(parts, ignore_index=True), kind, source))  # type: ignore[arg-type]
        except ValueError as error:
            raise NotComparableError(
                ComparisonProblem.FEW_PAIRS, f"{source}: {error}; give others with --noise, or leave it out"
            ) from error
    memory = [MEMORY, *(_compare_memory(*pair) for pair in pairs)]
    num_of = {key: num_timed(side.steps) for key, side in sides_of_all.items()}
    timed = [(num_of[id(a)].get(run, 1), num_of[id(b)].get(again, 1)) for a, run, b, again in pairs]
    return Noise(
        kernel=bands[0],
        wall=bands[1],
        memory_share=max(memory),
        source=source,
        num_timed=statistics.mode(timed),
    )


def num_timed(steps: pd.DataFrame) -> dict[str, int]:
    """Count the processes that timed each run, by run_id."""
    timed = steps[steps["collector"].astype(str) == "timer"]
    if "process" not in timed:
        return dict.fromkeys(timed["run_id"].astype(str).unique(), 1)
    counted: dict[str, int] = timed.groupby(timed["run_id"].astype(str))["process"].nunique().to_dict()
    return counted


def _measure_times(side: Side) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Kernel times and times of unprofiled steps: run_id, part ("" for all of a step, or a family), time_ns, parts."""
    of_step = differences.times_of_kernels(side.kernels, ["run_id"]).assign(part="")
    of_family = differences.times_of_kernels(side.kernels, ["run_id", "family"]).rename(columns={"family": "part"})
    steps = differences.times_of_steps(side.steps, side.kernels, side.memops).assign(part="")
    return pd.concat([of_step, of_family], ignore_index=True), steps


def _compare_memory(first: Side, run: str, second: Side, run_again: str) -> float:
    """Compute by what share of the larger one the peaks of two runs differ; 0 if one is not known."""
    peaks = [
        side.runs.loc[side.runs["run_id"] == name, "peak_memory_bytes"]
        for side, name in ((first, run), (second, run_again))
    ]
    if any(peak.isna().all() for peak in peaks):
        return 0.0
    first_bytes, second_bytes = (int(peak.iloc[0]) for peak in peaks)
    return abs(first_bytes - second_bytes) / max(first_bytes, second_bytes, 1)


def choose_noise(named: Noise | None, sides: Sequence[Side], runs: Sequence[Sequence[tuple[str, ...]]]) -> Noise:
    """Choose the noise that the user names; or the noise of the repetitions within the sides (`runs` has the run_ids of
    their cases); or the shipped one, which is the least between two sessions."""
    if named:
        return named
    repeated = fit_repetitions(sides, runs)
    if repeated is None:
        return SHIPPED
    return repeated if _are_from_one_session(sides) else repeated.widen_to(SHIPPED)


def choose_bands(first: Recording, again: Recording | None = None) -> Bands:
    """Choose the noise bands by which the times of one recording differ: of the runs that a second recording has too,
    or the shipped ones if there are none or too few."""
    fitted = differences.bands_of(first, again) if again else None
    return fitted or Bands(kernel=SHIPPED.kernel, wall=SHIPPED.wall, gpu=SHIPPED_GPU)


def _are_from_one_session(sides: Sequence[Side]) -> bool:
    """Whether all are runs of one recording."""
    sessions = {(side.label, side.recorded_at) for side in sides}
    return len(sessions) == 1 and all(side.recorded_at for side in sides)


MEMORY = 0.0002868
"""Half the noise band of peak allocated memory, as a share of it: 97.5% of 239 pairs of shipped runs with the same axes
and the same memory before their step differ by at most this (a test counts them again). The rest depends on where the
allocator puts a block."""

SHIPPED_GPU = "NVIDIA H200"
"""The GPU that SHIPPED was fitted to."""
SHIPPED = Noise(
    kernel=Band(kind="kernel", relative=0.00269256120108, ratio=89125.0938, factor=2.80150298287, num_pairs=450),
    wall=Band(kind="wall", relative=0.00144811196281, ratio=70.7945784384, factor=3.81655641183, num_pairs=60),
    memory_share=MEMORY,
    source="h200-fp32 and again, the shipped recordings of the default sweep (60 runs on H200s, 10 steps of each of 3"
    " processes)",
    num_timed=(3, 3),
    is_of_these=False,
)

ENERGY = Band(
    kind="wall",
    relative=0.0648808689680,
    ratio=3.54813389234,
    factor=2.31261782740,
    num_pairs=360,
    source="h200-fp32 and the same runs in BF16 (3 processes of each of 120 runs)",
)
"""Difference in energy between two processes of one run. It exceeds what three of them show: two may have run on one
GPU and the third on another. In J, of the energy and of the energy of waiting. The runs in BF16 are no longer kept."""
