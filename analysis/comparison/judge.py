"""Judge whether a difference is real: A, B, difference, noise band and verdict of each metric of a pair.

- `step`: wall time of an unprofiled step, the slowest rank; if a side has none (a capture), the range of the step under
  nsys, on both sides. If both took turns in one process (`metrics.turns`), both are that of their fastest
  process; the verdict is of their ratio within rounds, and so is the band, which is its interval
- `throughput`: tokens a second of such steps, if both sides know their tokens; it repeats the verdict and the band of
  `step`
- `kernel`: sum of kernel durations of a step of a rank
- `busy`: GPU busy of a step of a rank: the union of kernels, copies and fills on each device, summed over its devices
- `idle`: the rest of `step` without `busy` of one device, at least 0
- `energy`: of a step of all ranks, by the counter of each GPU, if both sides have it. Its band is the spread of the
  processes of a side, at least as wide as for shipped runs, and unknown if neither side has two processes
- `memory`: peak allocated memory; left out if a side does not know it (a capture)

Times are the median over steps and ranks, and then over the runs of a case. Differences are B - A.
Per token, times and their bands are for TOKENS tokens, and memory is for a whole step.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from profiler_job.analysis.comparison.align import TOKENS as TOKEN_AXES
from profiler_job.analysis.comparison.align import Alignment, Case, align
from profiler_job.analysis.comparison.choices import Metric
from profiler_job.analysis.comparison.errors import ComparisonProblem, NotComparableError
from profiler_job.analysis.comparison.noise import Noise, Width, compute_energy_width, compute_spread_width
from profiler_job.analysis.comparison.sides import Side
from profiler_job.analysis.comparison.totals import MeasuredCase, sum_totals_by_case
from profiler_job.analysis.comparison.waterfall import TOKENS, Waterfall, explain
from profiler_job.analysis.metrics import timing
from profiler_job.analysis.metrics.turns import compare_turns, have_turns, list_rounds, select_fastest_processes
from profiler_job.jobs.contract.quantities import Kind
from profiler_job.jobs.contract.ranges import STEP
from profiler_job.jobs.contract.tuning import TuneRatio

METRICS: dict[Metric, str] = {
    "step": "step",
    "throughput": "tokens/s",
    "kernel": "kernel time",
    "busy": "GPU busy",
    "idle": "GPU idle",
    "memory": "peak allocated",
    "energy": "energy",
}
_KINDS: dict[Metric, Kind] = {"throughput": "count", "memory": "bytes", "energy": "J"}
"""Kinds of the values of metrics; the others are times."""


CLOCKS = ("timer", "nsys")
MIDDLE = (0.025, 0.975)
WITHIN = "within"
"""The verdict on a difference that does not exceed its noise band, however large the band."""
CLEAR = 2
"""Number of noise bands from which on nobody would take a difference for chance."""
SEEN = 1.65
"""Number of noise bands of the smallest change that is found nine times out of ten: half a band holds 1.96 standard
deviations, and chance takes away more than 1.28 of them in one case of ten."""
Sampled = Literal["processes", "measured_steps", "profiled_steps"]
APART = 0.1
"""Share of the larger difference by which the differences of the step and of its parts may differ and still count as
equal."""


def find_kind(metric: Metric) -> Kind:
    return _KINDS.get(metric, "time")


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """first, second, band: nanoseconds, tokens a second of `throughput`, bytes of `memory` or J of `energy`; band is
    half the width of the noise band, infinite if none is known. widths: the reasons for the width. per_token: whether
    they refer to TOKENS tokens, and not to a step. turns: how many times as fast B is, which the verdict is of, if both
    took turns in one process."""

    metric: Metric
    first: float
    second: float
    band: float
    widths: tuple[Width, ...] = ()
    per_token: bool = False
    turns: TuneRatio | None = None

    @property
    def difference(self) -> float:
        return self.second - self.first

    @property
    def change(self) -> float:
        """The difference that the verdict is of: of runs that took turns, by their ratio."""
        if self.turns is None:
            return self.difference
        ratio = self.turns.times_as_fast
        return self.first * (ratio - 1 if self.metric == "throughput" else 1 / ratio - 1)

    @property
    def times_as_fast(self) -> float:
        """How many times as fast B is, by time."""
        return self.turns.times_as_fast if self.turns else self.first / self.second

    @property
    def kind(self) -> Kind:
        return find_kind(self.metric)

    @property
    def share(self) -> float | None:
        """The difference as a share of A; None if A is 0."""
        return self.difference / self.first if self.first else None

    @property
    def is_real(self) -> bool:
        """Whether the difference exceeds the noise band."""
        return abs(self.change) > self.band

    @property
    def smallest_seen(self) -> float:
        """The smallest change that would have been found nine times out of ten; infinite if no band is known."""
        return SEEN * self.band

    @property
    def is_clear(self) -> bool:
        """Whether chance cannot explain the difference, even among many differences."""
        return abs(self.change) > CLEAR * self.band

    @property
    def verdict(self) -> str:
        if math.isinf(self.band):
            return "unknown"
        if not self.is_real:
            return WITHIN
        if self.metric == "throughput":
            return ("slower", "faster")[self.change > 0]
        words = ("faster", "slower") if self.metric in ("step", "kernel", "busy") else ("less", "more")
        return words[self.change > 0]


@dataclass(frozen=True, kw_only=True)
class ComparedPair:
    """has_steps: whether these are of steps, and not of whole captures. turns: how many times as fast B is as A, if
    both took turns in one process."""

    case: Case
    first: MeasuredCase
    second: MeasuredCase
    clock: Literal["timer", "nsys"]
    judgements: dict[Metric, Judgement]
    waterfall: Waterfall
    has_steps: bool = True
    turns: TuneRatio | None = None

    @property
    def has_parts_apart(self) -> bool:
        """Whether the parts sum to another difference than the step's: in sign, or by more than APART of the larger one
        unless both are within the noise band of the step."""
        step, of_parts = self.judgements["step"], self.waterfall.difference_ns / self.waterfall.num
        larger = max(abs(step.difference), abs(of_parts))
        if step.difference * of_parts < 0:
            return True
        return larger > step.band and abs(step.difference - of_parts) > APART * larger

    @property
    def is_of_one_measurement(self) -> bool:
        """Whether all times of both are the same to the nanosecond, which no two measurements are."""
        times = [(of.samples, of.clocks, of.totals.wall_ns, of.totals.num) for of in (self.first, self.second)]
        return times[0] == times[1]

    @property
    def is_unexplained(self) -> bool:
        """Whether the step differs, and no part explains any of it."""
        off_ns = self.judgements["step"].difference * self.waterfall.num
        return self.judgements["step"].is_real and not any(cause.explains(off_ns) for cause in self.waterfall.causes)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """noise: what the bands are from. noise_source: the same in words."""

    first: Side
    second: Side
    alignment: Alignment
    pairs: list[ComparedPair]
    noise: Noise
    noise_source: str


STEPS_OF_CAPTURE = (
    "the larger of two: how much the steps of each capture differ (95% of them; they are not independent samples), and "
    "the noise bands of "
)
STEPS_OF_RUN = (
    "the larger of two: how much the processes of a run differ (its steps, if one process timed or profiled them), and "
    "the noise bands of "
)


def compare(first: Side, second: Side, noise: Noise, alignment: Alignment | None = None) -> Comparison:
    """Compare B with A. Raises NotComparableError."""
    alignment = alignment or align(first, second)
    cases = alignment.cases
    firsts, seconds = measure(first, [case.first for case in cases]), measure(second, [case.second for case in cases])
    has_capture = first.is_capture or second.is_capture
    rounds = _list_rounds(first), _list_rounds(second)
    pairs = []
    for case, a, b in zip(cases, firsts, seconds, strict=True):
        turns = compare_turns(*rounds, case.first, case.second)
        pair = _compare_pair(case, a, b, noise, has_capture, alignment.per_token, turns)
        pairs.append(dataclasses.replace(pair, has_steps=first.has_steps))
    source = describe_source(first, second, noise)
    return Comparison(first=first, second=second, alignment=alignment, pairs=pairs, noise=noise, noise_source=source)


def describe_source(first: Side, second: Side, noise: Noise) -> str:
    """Describe the source of the noise bands between two sides."""
    if first.is_capture or second.is_capture:
        return STEPS_OF_CAPTURE + noise.source
    return noise.source if noise.is_of_these else STEPS_OF_RUN + noise.source


def _list_rounds(side: Side) -> pd.DataFrame:
    """List the turns of the runs of a side; none of a capture's."""
    return list_rounds(side.steps, side.processes) if side.processes is not None else pd.DataFrame()


def _compare_pair(
    case: Case,
    a: MeasuredCase,
    b: MeasuredCase,
    noise: Noise,
    with_steps: bool,
    per_token: bool,
    turns: TuneRatio | None = None,
) -> ComparedPair:
    clock: Literal["timer", "nsys"] = "timer" if "timer" in a.clocks and "timer" in b.clocks else "nsys"
    if turns:
        assert a.fastest_ns is not None and b.fastest_ns is not None
        a = dataclasses.replace(a, clocks=a.clocks | {"timer": a.fastest_ns})
        b = dataclasses.replace(b, clocks=b.clocks | {"timer": b.fastest_ns})
    judgements = {judged.metric: judged for judged in judge(a, b, clock, noise, with_steps, per_token, turns)}
    step = judgements["step"]
    return ComparedPair(
        case=case,
        first=a,
        second=b,
        clock=clock,
        judgements=judgements,
        turns=turns,
        waterfall=explain(
            a.totals,
            b.totals,
            noise,
            (a.num_runs, b.num_runs),
            (a.num_tokens, b.num_tokens) if per_token else None,
            a.num_layers if a.num_layers == b.num_layers else 0,
            step.difference if step.is_real else 0.0,
        ),
    )


def judge(
    a: MeasuredCase,
    b: MeasuredCase,
    clock: str,
    noise: Noise,
    has_capture: bool,
    per_token: bool = False,
    turns: TuneRatio | None = None,
) -> list[Judgement]:
    """Compare B with A, by metric. A band is at least as wide as the spread of a capture's steps. If the noise does not
    come from these runs, it is also at least as wide as the spread of their processes or steps. turns: the ratio of
    their steps within rounds; its interval is the band then."""
    runs = a.num_runs, b.num_runs
    processes = (a.num_processes, b.num_processes) if clock == "timer" else runs
    scales = [TOKENS / side.num_tokens if per_token else 1.0 for side in (a, b)]

    def scale(*values: float) -> list[float]:
        return [value * scale for value, scale in zip(values, scales, strict=True)]

    def list_widths(metric: Metric, known: Width) -> tuple[Width, ...]:
        if has_capture:
            return known, Width(of="range", half=max(scale(a.spread[metric], b.spread[metric])))
        return (known, *_measure_own_width(metric, a, b, scales)) if not noise.is_of_these else (known,)

    def make_judgement(metric: Metric, values: list[float], widths: tuple[Width, ...]) -> Judgement:
        band = max(width.half for width in widths)
        return Judgement(
            metric=metric, first=values[0], second=values[1], band=band, widths=widths, per_token=per_token
        )

    if turns:
        of_scales = {name: getattr(turns, name) * scales[0] / scales[1] for name in ("times_as_fast", "low", "high")}
        turns = turns.model_copy(update=of_scales)

    steps, idle = (scale(*(of(side, clock) for side in (a, b))) for of in (_get_step, _compute_idle))
    of_steps = Width(of="processes", half=noise.width("wall", sum(steps) / 2, max(idle), processes), num=processes)
    of_step = (measure_width_of_turns(steps[0], turns),) if turns else list_widths("step", of_steps)
    judged = [dataclasses.replace(make_judgement("step", steps, of_step), turns=turns)]
    if a.num_tokens and b.num_tokens and all(steps):
        judged.append(_judge_throughput(judged[0], TOKENS if per_token else a.num_tokens))
    parts = max(scale(float(np.sqrt(a.num_operations)), float(np.sqrt(b.num_operations))))
    kernel, busy = scale(a.kernel_ns, b.kernel_ns), scale(a.busy_ns, b.busy_ns)
    of_gpu: tuple[tuple[Metric, list[float]], ...] = ("kernel", kernel), ("busy", busy)
    for metric, times in of_gpu:
        known = Width(of="repeats", half=noise.width("kernel", sum(times) / 2, parts, runs), num=runs)
        judged.append(make_judgement(metric, times, list_widths(metric, known)))
    judged.append(_judge_idle(idle, judged[0], judged[-1], max(a.num_devices, b.num_devices)))
    if a.memory_bytes is not None and b.memory_bytes is not None and a.has_graphs == b.has_graphs:
        peaks = a.memory_bytes, b.memory_bytes
        seen = Width(of="seen", half=noise.memory_share * max(peaks))
        judged.append(Judgement(metric="memory", first=peaks[0], second=peaks[1], band=seen.half, widths=(seen,)))
    if a.energies and b.energies:
        before, after = ([value * scale for value in of.energies] for of, scale in zip((a, b), scales))
        medians = [float(np.median(values)) for values in (before, after)]
        num = len(before), len(after)
        apart = Width(of="processes", half=compute_spread_width(before, after), num=num, is_from_spread=True)
        waiting = max(idle) / (sum(steps) / 2) if any(steps) else 0.0
        of_shipped = Width(of="processes", half=compute_energy_width(sum(medians) / 2, waiting, num), num=num)
        judged.append(make_judgement("energy", medians, (of_shipped, apart)))
    return judged


def measure_width_of_turns(first_ns: float, turns: TuneRatio) -> Width:
    """Measure how wide the interval of a ratio is on the side of no difference, in ns of the step of B: the step
    differs if the interval excludes 1."""
    second_ns = first_ns / turns.times_as_fast
    end_ns = first_ns / (turns.low if second_ns < first_ns else turns.high)
    return Width(of="rounds", half=abs(end_ns - second_ns), num=(turns.num_pairs,) * 2, is_from_spread=True)


def _measure_own_width(metric: Metric, a: MeasuredCase, b: MeasuredCase, scales: Sequence[float]) -> tuple[Width, ...]:
    """Measure the width of a band from the samples of both sides: processes, or else steps. Nothing if there is one of
    each."""
    of: Sampled = "profiled_steps"
    if metric == "step":
        of = "processes" if max(a.num_processes, b.num_processes) > 1 else "measured_steps"
    name = of if metric == "step" else metric
    samples = [[value * scale for value in side.samples[name]] for side, scale in zip((a, b), scales, strict=True)]
    num = len(samples[0]), len(samples[1])
    if sum(num) < 3 or not all(num):
        return ()
    return (Width(of=of, half=compute_spread_width(*samples), num=num, is_from_spread=True),)


def _judge_idle(idle: list[float], step: Judgement, busy: Judgement, num_devices: int) -> Judgement:
    """Idle time is a difference of two times, and so is its band."""
    of_busy = [dataclasses.replace(width, half=width.half / num_devices) for width in busy.widths]
    return Judgement(
        metric="idle",
        first=idle[0],
        second=idle[1],
        band=float(np.hypot(step.band, busy.band / num_devices)),
        widths=(*step.widths, *of_busy),
        per_token=step.per_token,
    )


def _judge_throughput(step: Judgement, num_tokens: int) -> Judgement:
    """Judge tokens a second of steps with so many tokens each. The ratio of band to change equals the step's."""
    first, second = (1e9 * num_tokens / time for time in (step.first, step.second))
    band = step.band * first / (step.first + step.change)
    return Judgement(metric="throughput", first=first, second=second, band=band, turns=step.turns)


def _get_step(side: MeasuredCase, clock: str) -> float:
    return side.clocks[clock]


def _compute_idle(side: MeasuredCase, clock: str) -> float:
    return max(side.clocks[clock] - side.busy_ns / side.num_devices, 0.0)


def measure(side: Side, cases: Sequence[tuple[str, ...]]) -> list[MeasuredCase]:
    """Collect what a side measured for each case, given by its run_ids. Raises NotComparableError if its runs were not
    profiled."""
    if side.measured is not None:
        return [side.measured] * len(cases)
    run_ids = tuple(run for case in cases for run in case)
    steps, kernels, memops = (keep_runs(frame, run_ids) for frame in (side.steps, side.kernels, side.memops))
    profiled = {str(run) for run in kernels["run_id"].unique()}
    for case in cases:
        if not profiled & set(case):
            raise NotComparableError(
                ComparisonProblem.NOT_RECORDED,
                f"{case[0]} of {side.label} was not profiled: leave it out with --a or --b KEY=VALUE",
            )
    of_step = steps[steps["phase"].astype(str) == STEP].astype({"run_id": str})
    known = set(of_step["collector"].astype(str))
    if "process" not in of_step:
        of_step = of_step.assign(process=0)
    walls = {
        clock: (timing.wall_times(of_step, clock) if clock in known else of_step[:0]).set_index("run_id")
        for clock in CLOCKS
    }
    of_fastest = select_fastest_processes(of_step)
    fastest = timing.wall_times(of_fastest, "timer").set_index("run_id") if have_turns(of_step) else walls["timer"]
    measured = []
    for case, totals in zip(cases, sum_totals_by_case(kernels, memops, steps, cases), strict=True):
        if not len(totals.steps):
            raise NotComparableError(
                ComparisonProblem.NOT_RECORDED,
                f"{case[0]} of {side.label} has kernels and no profiled step: leave it out with --a or --b KEY=VALUE",
            )
        of_run = totals.steps.groupby("run_id", sort=False)[["kernel_ns", "busy_ns", "operations"]].median().median()
        of_case = {clock: of[of.index.isin(case)] for clock, of in walls.items()}
        timed, profiled_runs = of_case["timer"], set(totals.steps["run_id"])
        of_processes = timed.groupby(["run_id", "process"], sort=False, dropna=False)["wall_ns"].median()
        of_steps = totals.steps.groupby(["run_id", "step"], sort=False)[["kernel_ns", "busy_ns"]].median()
        measured.append(
            MeasuredCase(
                totals=totals,
                clocks={clock: _find_median(of) for clock, of in of_case.items() if len(of)},
                fastest_ns=_find_median(of) if len(of := fastest[fastest.index.isin(case)]) else None,
                kernel_ns=float(of_run["kernel_ns"]),
                busy_ns=float(of_run["busy_ns"]),
                num_operations=float(of_run["operations"]),
                num_devices=int(totals.steps["devices"].max()),
                memory_bytes=_read_peak(side, case),
                has_graphs=_has_graphs(side, case),
                num_runs=len(profiled_runs),
                num_processes=len(of_processes) or len(profiled_runs),
                num_steps=len(timed),
                samples={
                    "processes": tuple(of_processes),
                    "measured_steps": tuple(timed["wall_ns"]),
                    "kernel": tuple(of_steps["kernel_ns"]),
                    "busy": tuple(of_steps["busy_ns"]),
                },
                num_profiled=len(totals.steps[["run_id", "step"]].drop_duplicates()),
                spread={
                    name: float(np.ptp(np.quantile(totals.steps[column], MIDDLE)))
                    for name, column in (("step", "wall_ns"), ("kernel", "kernel_ns"), ("busy", "busy_ns"))
                },
                num_tokens=_num_tokens(side, case),
                num_layers=_num_layers(side, case),
                energies=_read_energies(side, case),
            )
        )
    return measured


def _find_median(walls: pd.DataFrame) -> float:
    """Return the median over the runs of a case of the median over the steps of each, in ns."""
    return float(walls.groupby("run_id", sort=False)["wall_ns"].median().median())


def keep_runs(frame: pd.DataFrame, run_ids: tuple[str, ...]) -> pd.DataFrame:
    """Select the rows of these runs, without a copy if they are all rows."""
    if set(frame["run_id"].unique()) <= set(run_ids):
        return frame
    return frame[frame["run_id"].isin(run_ids)]


def _num_tokens(side: Side, run_ids: tuple[str, ...]) -> int:
    """Return the tokens of a step of runs that are one case; 0 if not known."""
    if not set(TOKEN_AXES) <= set(side.runs):
        return 0
    return int(side.runs.loc[side.runs["run_id"].isin(run_ids), [*TOKEN_AXES]].prod(axis=1).iloc[0])


def _num_layers(side: Side, run_ids: tuple[str, ...]) -> int:
    """Return the layers of the model of runs that are one case; 0 if not known."""
    if "num_layers" not in side.runs:
        return 0
    counts = side.runs.loc[side.runs["run_id"].isin(run_ids), "num_layers"].dropna()
    return int(counts.iloc[0]) if len(counts) else 0


def _read_energies(side: Side, run_ids: tuple[str, ...]) -> tuple[float, ...]:
    """J of a step of all ranks, of each process that read all of them."""
    if side.processes is None:
        return ()
    rows = side.processes[side.processes["run_id"].isin(run_ids)]
    joules = rows["energy_mj"].astype("float64") / rows["energy_steps"].astype("float64") / 1000
    by_process = joules.groupby([rows["run_id"].astype(str), rows["process"]], sort=False)
    of_process = by_process.sum()[by_process.count() == by_process.size()]
    return tuple(of_process[of_process > 0])


def _read_peak(side: Side, run_ids: tuple[str, ...]) -> float | None:
    if "peak_memory_bytes" not in side.runs:
        return None
    peaks = side.runs.loc[side.runs["run_id"].isin(run_ids), "peak_memory_bytes"].dropna()
    return float(peaks.median()) if len(peaks) else None


def _has_graphs(side: Side, run_ids: tuple[str, ...]) -> bool:
    mine = side.runs[side.runs["run_id"].isin(run_ids)]
    return "compile" in mine and bool((mine["compile"].astype(str) == "cudagraphs").any())
