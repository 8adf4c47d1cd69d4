"""Is a difference real? A, B, difference, noise band and verdict of each metric of a pair.

- `step`: wall time of an unprofiled step, the slowest rank; where a side has none (a capture), that of its range under
  nsys, on both sides
- `throughput`: tokens a second of such steps, where both sides know their tokens; its verdict and band are those of
  `step` in other words
- `kernel`: sum of kernel durations of a step of a rank
- `busy`: GPU busy of a step of a rank: the union of kernels, copies and fills on each device, summed over its devices
- `idle`: what is left of `step` beside `busy` of one device, at least 0
- `energy`: of a step of all ranks, by the counter of each GPU, where both sides have it. Its band is from how far the
  processes of a side lie apart, and not known where neither has two
- `memory`: peak allocated memory; where a side does not know it (a capture), it is left out

Times are the median over steps and ranks, and then over the processes of a case. Differences are B - A. Per token,
times are those of TOKENS tokens, with their bands, and memory is that of a whole step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from analysis.comparison.align import TOKENS as TOKEN_AXES
from analysis.comparison.align import Alignment, Case, align
from analysis.comparison.errors import NotComparable
from analysis.comparison.noise import Noise, width_of, width_of_spread
from analysis.comparison.sides import Side
from analysis.comparison.totals import Totals, totals_of_cases
from analysis.comparison.waterfall import TOKENS, Waterfall, explain
from analysis.metrics import timing
from jobs.contract.ranges import STEP

Metric = Literal["step", "throughput", "kernel", "busy", "idle", "memory", "energy"]
METRICS: dict[Metric, str] = {
    "step": "step",
    "throughput": "tokens/s",
    "kernel": "kernel time",
    "busy": "GPU busy",
    "idle": "GPU idle",
    "memory": "peak allocated",
    "energy": "energy",
}


CLOCKS = ("timer", "nsys")
MIDDLE = (0.025, 0.975)


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """first, second, band: nanoseconds, tokens a second of `throughput`, bytes of `memory` or J of `energy`; band is
    half the width of the noise band, infinite where none is known. per_token: whether they are those of TOKENS tokens,
    and not of a step."""

    metric: Metric
    first: float
    second: float
    band: float
    per_token: bool = False

    @property
    def difference(self) -> float:
        return self.second - self.first

    @property
    def share(self) -> float | None:
        """The difference as part of A; None where A has nothing."""
        return self.difference / self.first if self.first else None

    @property
    def is_real(self) -> bool:
        """Whether the difference exceeds the noise band."""
        return abs(self.difference) > self.band

    @property
    def verdict(self) -> str:
        if math.isinf(self.band):
            return "unknown"
        if not self.is_real:
            return "same"
        if self.metric == "throughput":
            return ("slower", "faster")[self.difference > 0]
        words = ("faster", "slower") if self.metric in ("step", "kernel", "busy") else ("less", "more")
        return words[self.difference > 0]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A case on one side. clocks: wall time of a step by `timer` and by `nsys`, where there is one. num_steps and
    num_profiled: unprofiled and profiled steps of all num_processes. spread: how wide the middle 95% of profiled steps
    lie, by metric. num_tokens: of a step, 0 where that is not known. energies: J of a step, of each process that has
    it."""

    totals: Totals
    clocks: dict[str, float]
    kernel_ns: float
    busy_ns: float
    num_operations: float
    num_devices: int
    memory_bytes: float | None
    num_processes: int
    num_steps: int
    num_profiled: int
    spread: dict[str, float]
    num_tokens: int
    energies: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Pair:
    case: Case
    first: Measured
    second: Measured
    clock: Literal["timer", "nsys"]
    judgements: dict[Metric, Judgement]
    waterfall: Waterfall


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """noise: what the bands are from. noise_source: the same in words."""

    first: Side
    second: Side
    alignment: Alignment
    pairs: list[Pair]
    noise: Noise
    noise_source: str


STEPS_OF_CAPTURE = (
    "the larger of how far the steps of each capture lie apart (95% of them), which are no independent samples, and "
    "of the noise bands of "
)


def compare(first: Side, second: Side, noise: Noise, alignment: Alignment | None = None) -> Comparison:
    """What B is against A. Raises NotComparable."""
    alignment = alignment or align(first, second)
    cases = alignment.cases
    firsts, seconds = measure(first, [case.first for case in cases]), measure(second, [case.second for case in cases])
    has_capture = first.is_capture or second.is_capture
    pairs = [
        _pair(case, a, b, noise, has_capture, alignment.per_token)
        for case, a, b in zip(cases, firsts, seconds, strict=True)
    ]
    source = source_of(first, second, noise)
    return Comparison(first=first, second=second, alignment=alignment, pairs=pairs, noise=noise, noise_source=source)


def source_of(first: Side, second: Side, noise: Noise) -> str:
    """What the noise bands between two sides are from, in words."""
    return (STEPS_OF_CAPTURE if first.is_capture or second.is_capture else "") + noise.source


def _pair(case: Case, a: Measured, b: Measured, noise: Noise, with_steps: bool, per_token: bool) -> Pair:
    clock: Literal["timer", "nsys"] = "timer" if "timer" in a.clocks and "timer" in b.clocks else "nsys"
    return Pair(
        case=case,
        first=a,
        second=b,
        clock=clock,
        judgements={judged.metric: judged for judged in judge(a, b, clock, noise, with_steps, per_token)},
        waterfall=explain(
            a.totals,
            b.totals,
            noise,
            (a.num_processes, b.num_processes),
            (a.num_tokens, b.num_tokens) if per_token else None,
        ),
    )


def judge(
    a: Measured, b: Measured, clock: str, noise: Noise, with_steps: bool, per_token: bool = False
) -> list[Judgement]:
    processes = a.num_processes, b.num_processes
    scales = [TOKENS / side.num_tokens if per_token else 1.0 for side in (a, b)]

    def scaled(*values: float) -> list[float]:
        return [value * scale for value, scale in zip(values, scales, strict=True)]

    def wider(metric: str, width: float) -> float:
        return max(width, *scaled(a.spread[metric], b.spread[metric])) if with_steps else width

    def judgement(metric: Metric, values: list[float], band: float) -> Judgement:
        return Judgement(metric=metric, first=values[0], second=values[1], band=band, per_token=per_token)

    steps, idle = (scaled(*(of(side, clock) for side in (a, b))) for of in (_step, _idle))
    step_band = wider("step", width_of(noise.wall, sum(steps) / 2, max(idle), processes))
    judged = [judgement("step", steps, step_band)]
    if a.num_tokens and b.num_tokens and all(steps):
        judged.append(_throughput(judged[0], TOKENS if per_token else a.num_tokens))
    parts = max(scaled(float(np.sqrt(a.num_operations)), float(np.sqrt(b.num_operations))))
    kernel, busy = scaled(a.kernel_ns, b.kernel_ns), scaled(a.busy_ns, b.busy_ns)
    kernel_band, busy_band = (
        wider(metric, width_of(noise.kernel, sum(times) / 2, parts, processes))
        for metric, times in (("kernel", kernel), ("busy", busy))
    )
    judged += [judgement("kernel", kernel, kernel_band), judgement("busy", busy, busy_band)]
    idle_band = float(np.hypot(step_band, busy_band / max(a.num_devices, b.num_devices)))
    judged.append(judgement("idle", idle, idle_band))
    if a.memory_bytes is not None and b.memory_bytes is not None:
        judged.append(Judgement(metric="memory", first=a.memory_bytes, second=b.memory_bytes, band=noise.memory_bytes))
    if a.energies and b.energies:
        before, after = ([value * scale for value in of.energies] for of, scale in zip((a, b), scales))
        medians = [float(np.median(values)) for values in (before, after)]
        judged.append(judgement("energy", medians, width_of_spread(before, after)))
    return judged


def _throughput(step: Judgement, num_tokens: int) -> Judgement:
    """Tokens a second of steps of so many tokens each. Its band is as wide against the difference as that of the
    step."""
    first, second = (1e9 * num_tokens / time for time in (step.first, step.second))
    band = step.band * first / step.second
    return Judgement(metric="throughput", first=first, second=second, band=band)


def _step(side: Measured, clock: str) -> float:
    return side.clocks[clock]


def _idle(side: Measured, clock: str) -> float:
    return max(side.clocks[clock] - side.busy_ns / side.num_devices, 0.0)


def measure(side: Side, cases: Sequence[tuple[str, ...]]) -> list[Measured]:
    """What a side measured of each case, given by its run_ids. Raises NotComparable where its runs were not
    profiled."""
    run_ids = tuple(run for case in cases for run in case)
    steps, kernels, memops = (of_runs(frame, run_ids) for frame in (side.steps, side.kernels, side.memops))
    profiled = {str(run) for run in kernels["run_id"].unique()}
    for case in cases:
        if not profiled & set(case):
            raise NotComparable(f"{case[0]} of {side.label} was not profiled: leave it out with --a or --b KEY=VALUE")
    of_step = steps[steps["phase"].astype(str) == STEP].astype({"run_id": str})
    walls = {clock: timing.host_times(of_step, clock, "wall").set_index("run_id")["wall_ns"] for clock in CLOCKS}
    timed = of_step.loc[of_step["collector"].astype(str) == "timer", ["run_id", "step"]].drop_duplicates()
    num_timed = timed["run_id"].value_counts()
    measured = []
    for case, totals in zip(cases, totals_of_cases(kernels, memops, steps, cases), strict=True):
        of_run = totals.steps.groupby("run_id", sort=False)[["kernel_ns", "busy_ns", "operations"]].median().median()
        of_case = {clock: of[of.index.isin(case)] for clock, of in walls.items()}
        measured.append(
            Measured(
                totals=totals,
                clocks={clock: float(of.median()) for clock, of in of_case.items() if len(of)},
                kernel_ns=float(of_run["kernel_ns"]),
                busy_ns=float(of_run["busy_ns"]),
                num_operations=float(of_run["operations"]),
                num_devices=int(totals.steps["devices"].max()),
                memory_bytes=_peak(side, case),
                num_processes=len(case),
                num_steps=int(num_timed[num_timed.index.isin(case)].sum()),
                num_profiled=len(totals.steps[["run_id", "step"]].drop_duplicates()),
                spread={
                    name: float(np.ptp(np.quantile(totals.steps[column], MIDDLE)))
                    for name, column in (("step", "wall_ns"), ("kernel", "kernel_ns"), ("busy", "busy_ns"))
                },
                num_tokens=_num_tokens(side, case),
                energies=_energies(side, case),
            )
        )
    return measured


def of_runs(frame: pd.DataFrame, run_ids: tuple[str, ...]) -> pd.DataFrame:
    """The rows of these runs, without a copy where they are all."""
    if set(frame["run_id"].unique()) <= set(run_ids):
        return frame
    return frame[frame["run_id"].isin(run_ids)]


def _num_tokens(side: Side, run_ids: tuple[str, ...]) -> int:
    """Tokens of a step of runs that are one case; 0 where that is not known."""
    if not set(TOKEN_AXES) <= set(side.runs):
        return 0
    return int(side.runs.loc[side.runs["run_id"].isin(run_ids), [*TOKEN_AXES]].prod(axis=1).iloc[0])


def _energies(side: Side, run_ids: tuple[str, ...]) -> tuple[float, ...]:
    """J of a step of all ranks, of each process that read all of them."""
    if side.processes is None:
        return ()
    rows = side.processes[side.processes["run_id"].isin(run_ids)]
    joules = rows["energy_mj"].astype("float64") / rows["energy_steps"].astype("float64") / 1000
    by_process = joules.groupby([rows["run_id"].astype(str), rows["process"]], sort=False)
    of_process = by_process.sum()[by_process.count() == by_process.size()]
    return tuple(of_process[of_process > 0])


def _peak(side: Side, run_ids: tuple[str, ...]) -> float | None:
    if "peak_memory_bytes" not in side.runs:
        return None
    peaks = side.runs.loc[side.runs["run_id"].isin(run_ids), "peak_memory_bytes"].dropna()
    return float(peaks.median()) if len(peaks) else None
