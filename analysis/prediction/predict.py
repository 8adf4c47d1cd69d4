"""The time of a step after a set of changes: phase by phase what the GPU needs or what the host needs, the longer.

The timed pass synchronises at the ends of phases, so that a step is the sum of its phases. A phase that no change
touches is as it was measured. What the host needs is inferred from launches and from the unprofiled pass; times of the
host under nsys are inflated and are not used.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from profiler_job.analysis.metrics import run_grid
from profiler_job.analysis.metrics.step_clocks import GAP_NS, HOST_LIMITED, Clock
from profiler_job.analysis.prediction import sweep_changes as changes
from profiler_job.analysis.prediction.abstentions import AbstentionCode, AbstentionError
from profiler_job.analysis.prediction.baseline import GEMM, Baseline
from profiler_job.analysis.prediction.rates import Rates
from profiler_job.analysis.prediction.sweep_changes import Change, State
from profiler_job.analysis.reference import flops
from profiler_job.jobs.contract import ranges, step_limit
from profiler_job.jobs.contract.changes import COMPILED, FUSED_ADAMW
from profiler_job.jobs.contract.quantities import format_time
from profiler_job.jobs.contract.step_limit import StepLimit

LONGEST_GAP_NS = 4000.0
QUEUE = 1000
"""Launches that a GPU's queue holds: a host with no more of them never waits for the GPU."""
HOST_WEIGHT = 0.5
"""How far a run's own host counts (an exponent): one host differs from minute to minute by as much as hosts do."""
COVERED = (0.025, 0.975)
"""Quantiles of the errors of other sizes that an interval spans."""
FEWEST = 8
"""Errors that the spread of what one limits is made of at least."""
SURE = 0.97
"""Kernel times repeat within 1%, measured peaks within 3%: this part of them is what cannot be beaten."""
HOST, GPU = "host", "GPU"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Of a step, in ns. ceiling_ns: no step takes less. gpu_ns: how long the GPU works in it. limited_by: HOST or GPU,
    whichever needs longer in the phases that take most of the step, and so sets their pace. work: tokens of the step
    over tokens of the baseline's. frees_bytes: of the peak allocated, at most; NaN where that is not known."""

    baseline_ns: float
    step_ns: float
    ceiling_ns: float
    gpu_ns: float
    limited_by: str
    reasons: tuple[str, ...]
    work: float = 1.0
    frees_bytes: float = 0.0

    @property
    def limit(self) -> StepLimit:
        """What limits the step: the GPU's work, or the CPU, for which the GPU waits the rest of it."""
        busy_ns = min(self.gpu_ns, self.step_ns)
        return StepLimit({step_limit.GPU: busy_ns, step_limit.CPU: self.step_ns - busy_ns})

    def saved_ns(self, step_ns: float) -> float:
        """What a step of this length saves of the baseline's, for as many tokens."""
        return self.baseline_ns - step_ns / self.work


@dataclass(frozen=True, kw_only=True)
class Prediction(Estimate):
    """low_ns, high_ns: where the measured step is expected, by the errors of recorded pairs of other sizes."""

    changes: tuple[str, ...]
    low_ns: float
    high_ns: float


@dataclass(frozen=True, kw_only=True)
class Abstention:
    """No prediction, and why."""

    changes: tuple[str, ...]
    code: AbstentionCode
    reason: str


@dataclass(frozen=True, kw_only=True)
class PhaseTime:
    """What a phase needs after the changes, in ns: of the GPU, and of the host, which work side by side, or else
    (is_sum) one after the other."""

    phase: str
    gpu_ns: float
    host_ns: float
    is_sum: bool = False

    def take(self, gpu: float = 1.0, host: float = 1.0) -> float:
        """Its time, where both take so many times as long."""
        times = (self.gpu_ns * gpu, self.host_ns * host)
        return sum(times) if self.is_sum else max(times)

    @property
    def limited_by(self) -> str:
        return HOST if self.host_ns > self.gpu_ns else GPU


def predict(baseline: Baseline, names: Iterable[str], rates: Rates) -> Prediction | Abstention:
    """What the step of `baseline` would take with all the changes `names`, or why that cannot be said."""
    names = tuple(names)
    try:
        state = apply_changes(baseline, names, rates)
        estimate = estimate_step(baseline, names, rates, state)
        low_ns, high_ns = interval(baseline, state, rates, [*rates.errors, *rates.tested])
    except AbstentionError as reason:
        return Abstention(changes=names, code=reason.code, reason=str(reason))
    return Prediction(
        **vars(estimate),
        changes=tuple(change.name for change in changes.sort_changes(names)),
        low_ns=min(max(low_ns, estimate.ceiling_ns), estimate.step_ns),
        high_ns=max(high_ns, estimate.step_ns),
    )


def apply_changes(baseline: Baseline, names: Iterable[str], rates: Rates) -> State:
    """The step with the changes. Raises AbstentionError."""
    wanted = changes.sort_changes(names)
    if str(baseline.run["gpu_name"]) != rates.gpu:
        raise AbstentionError(
            AbstentionCode.OTHER_GPU,
            f"the recorded pairs are of {rates.gpu}, and this run is of {baseline.run['gpu_name']}",
        )
    if baseline.run.get("gpus", 1) > 1:
        raise AbstentionError(
            AbstentionCode.SEVERAL_GPUS, "its GPUs wait for each other, and the recorded pairs are of one GPU"
        )
    state = changes.baseline_state(baseline)
    for change in wanted:
        state = change(state, rates)
    return state


def estimate_step(baseline: Baseline, names: Iterable[str], rates: Rates, state: State) -> Estimate:
    """The same without an interval. state: as in `apply_changes`."""
    times = phase_times(baseline, state, rates)
    step_ns = between_ns(baseline) + sum(time.take() for time in times)
    by_host_ns = sum(time.take() for time in times if time.limited_by == HOST)
    ceiling_ns = compute_ceiling(baseline, state, changes.sort_changes(names), rates)
    return Estimate(
        baseline_ns=baseline.step_ns,
        step_ns=max(step_ns, ceiling_ns),
        ceiling_ns=ceiling_ns,
        gpu_ns=sum(time.gpu_ns for time in times),
        limited_by=HOST if by_host_ns > step_ns / 2 else GPU,
        work=state.work,
        reasons=tuple(
            f"{time.phase} {format_time(baseline.clocks[time.phase].wall_ns)} -> {format_time(time.take())}, "
            f"at the pace of the {time.limited_by}"
            for time in times
            if time.phase in state.touched
        ),
    )


def between_ns(baseline: Baseline) -> float:
    """What no phase of a step contains."""
    return baseline.step_ns - sum(baseline.clocks[phase].wall_ns for phase in baseline.phases)


def phase_times(baseline: Baseline, state: State, rates: Rates) -> list[PhaseTime]:
    """What each phase needs after the changes."""
    return [phase_time(baseline, state, phase, rates) for phase in baseline.phases]


def phase_time(baseline: Baseline, state: State, phase: str, rates: Rates) -> PhaseTime:
    clock = baseline.clocks[phase]
    if phase not in state.touched:
        if clock.issue_ns > HOST_LIMITED * clock.wall_ns:
            return PhaseTime(phase=phase, gpu_ns=0.0, host_ns=clock.wall_ns)
        return PhaseTime(phase=phase, gpu_ns=clock.wall_ns, host_ns=0.0)
    before, after = (parts[parts["phase"] == phase] for parts in (baseline.parts, state.parts))
    busy_ns, launches = float(after["time_ns"].sum()), float(after["launches"].sum())
    if phase == ranges.OPTIMIZER:
        # Fused AdamW sorts all tensors into groups before it launches its first kernel: the two add up.
        return PhaseTime(phase=phase, gpu_ns=busy_ns, host_ns=launches * rates.host[FUSED_ADAMW], is_sum=True)
    key = host_key(state.run, phase)
    if key not in rates.host:
        raise AbstentionError(
            AbstentionCode.NO_PAIR, f"no recorded run tells what the host needs for {phase} with these changes"
        )
    host_ns = launches * rates.host[key] * host_speed(baseline, rates)
    return PhaseTime(phase=phase, gpu_ns=busy_ns + launches * gap_ns(clock, before), host_ns=host_ns)


def gap_ns(clock: Clock, before: pd.DataFrame) -> float:
    """Between operations of a phase, as the run itself has it where the GPU limits the phase."""
    if math.isnan(clock.issue_ns) or clock.issue_ns > HOST_LIMITED * clock.wall_ns:
        return GAP_NS
    gap = (clock.wall_ns - before["time_ns"].sum()) / max(before["launches"].sum(), 1)
    return float(np.clip(gap, 0.0, LONGEST_GAP_NS))


def host_key(run: Mapping[str, Any], phase: str) -> str:
    """Of a phase in `Rates.host`: an operation is less work for the host without gradients, more under autocast, and
    little in a graph, whose launch takes longer the more operations it has."""
    if str(run.get("compile", "off")) != "off":
        return f"{phase}/{run['compile']}"
    of_phase = "no_grad" if str(run["mode"]) == "forward" else phase
    return f"{of_phase}/autocast" if str(run["precision"]) == "bf16" else of_phase


def host_speed(baseline: Baseline, rates: Rates) -> float:
    """Time of this run's host over the hosts of the recorded runs; 1 where the host always waited for the GPU."""
    keys = {phase: host_key(baseline.run, phase) for phase in baseline.phases}
    known = {keys[phase]: rate for phase, rate in own_host_rates(baseline).items() if keys[phase] in rates.host}
    ratios = [rate / rates.host[key] for key, rate in known.items()]
    return float(np.median(ratios)) ** HOST_WEIGHT if ratios else 1.0


def own_host_rates(baseline: Baseline) -> dict[str, float]:
    """ns of the host for each operation by phase, of the unprofiled pass, where it did not wait for the GPU."""
    known = {}
    for phase in changes.PASSES:
        if phase not in baseline.clocks:
            continue
        clock = baseline.clocks[phase]
        launches = baseline.parts.loc[baseline.parts["phase"] == phase, "launches"].sum()
        is_compiled = str(baseline.run.get("compile", "off")) != "off"  # many operations for one launch
        waits = launches > QUEUE and clock.issue_ns < HOST_LIMITED * clock.wall_ns and not is_compiled
        if launches and not waits and not math.isnan(clock.issue_ns):
            known[phase] = clock.issue_ns / launches
    return known


def interval(
    baseline: Baseline, state: State, rates: Rates, errors: Sequence[Mapping[str, Any]]
) -> tuple[float, float]:
    """Where the step is expected, in ns: what the GPU needs and what the host needs, each so much shorter or longer as
    recorded pairs of other sizes were, whichever limits; kernels that a compiler made, as its kernels were. Raises
    AbstentionError."""
    others = [error for error in errors if error["size"] != str(baseline.run["size"]) and "ratio" in error]
    is_compiled = str(state.run["compile"]) != "off"
    alike = [error for error in others if bool({*error["changes"].split("+")} & {*COMPILED}) == is_compiled]
    gpu, host = spread(alike, GPU), spread(others, HOST)
    times, rest_ns = phase_times(baseline, state, rates), between_ns(baseline)
    low, high = (rest_ns + sum(time.take(*factors) for time in times) for factors in zip(gpu, host))
    return low, high


def spread(errors: Sequence[Mapping[str, Any]], limited_by: str) -> tuple[float, float]:
    """Quantiles COVERED of measured over predicted time of pairs that the same thing limits, or of all where these are
    few. Raises AbstentionError."""
    alike = [error["ratio"] for error in errors if error["limited_by"] == limited_by]
    ratios = alike if len(alike) >= FEWEST else [error["ratio"] for error in errors]
    if len(ratios) < FEWEST:
        raise AbstentionError(AbstentionCode.FEW_PAIRS, "too few recorded pairs of other sizes for an interval")
    low, high = np.quantile(ratios, COVERED)
    return float(min(low, 1.0)), float(max(high, 1.0))


def select_advised(said: Iterable[Prediction | Abstention]) -> list[Prediction]:
    """What to change first: the predictions whose whole interval is a gain, the shortest step (for as many tokens as
    now) first."""
    predictions = [one_said for one_said in said if isinstance(one_said, Prediction)]
    gains = [prediction for prediction in predictions if prediction.saved_ns(prediction.high_ns) > 0]
    return sorted(gains, key=lambda prediction: prediction.step_ns / prediction.work)


def predict_development(rates: Rates) -> pd.DataFrame:
    """The pairs that the rates were developed on, each predicted with the rates and the errors of other sizes: what an
    error has, error (predicted over measured, less 1), inside (the interval), beaten (the ceiling)."""
    names = ["predicted_ns", "low_ns", "high_ns", "ceiling_ns", "measured_ns"]
    table = pd.DataFrame([dict.fromkeys(names) | dict(pair) for pair in rates.errors])
    table = table.astype(dict.fromkeys(names, float))
    table["error"] = table["predicted_ns"] / table["measured_ns"] - 1
    table["inside"] = table["measured_ns"].between(table["low_ns"], table["high_ns"])
    return table.assign(beaten=table["measured_ns"] < table["ceiling_ns"])


def compute_ceiling(baseline: Baseline, state: State, wanted: Iterable[Change], rates: Rates) -> float:
    """What no step beats: the operations that no change touches, and matmuls at the measured peak; all else of what is
    touched is free. The host is left out: hosts differ by more than could be promised of them."""
    parts = baseline.parts
    groups = zip(parts["phase"], parts["leaf"], parts["kind"])
    touched = np.array([any(change.touches(*group) for change in wanted) for group in groups], bool)
    matmuls = parts[touched & (parts["kind"] == GEMM)]
    needed = 0.0
    if len(matmuls):
        costs = flops.matmul_costs(run_grid.shape_of(state.run))
        fused = str(state.run["attention"]) != "naive"
        for phase, leaf in zip(matmuls["phase"], matmuls["leaf"]):
            if leaf in costs and not (fused and leaf in changes.BATCHED):
                cost, number = costs[leaf]
                needed += changes.PASSES[phase] * number * cost.flops
        needed *= 1e9 / rates.peaks[f"gemm_{state.run['precision']}"]
    return SURE * float(parts.loc[~touched, "time_ns"].sum() + needed)
