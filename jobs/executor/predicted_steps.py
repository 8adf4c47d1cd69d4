"""What a step would take with changes: the sum of its parts, each measured alone on the GPU at hand. Nothing is fitted
to recordings; the only numbers that are not measured are the widths of intervals."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from profiler_job.jobs.contract.paired_ratio import SPREAD_OF_CPU
from profiler_job.jobs.contract.ranges import DATA, OPTIMIZER
from profiler_job.jobs.executor.changed_calls import CHANGED, LARGER, change_calls, find_kind, weigh_calls
from profiler_job.jobs.executor.described_calls import Call, list_inputs

SPREAD = {"matmul": 0.06, "attention": 0.12, "optimizer": 0.1, "loss": 0.35, "other": 0.12}
"""By how much the time of parts of a kind, which a change brings, may be wrong."""
SPREAD_OF_STEP = 0.008
"""The same of the step without changes."""
OVERLAP = 8
"""Exponent of the norm that joins the times of GPU and CPU: where they are equal, the step is 9% longer than either."""
BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2}
MATMUL_KINDS = ("matmul", "convolution")
Part = Mapping[str, Any]
Times = dict[str, tuple[float, float] | None]


@dataclass(frozen=True, kw_only=True)
class PredictedStep:
    """A step with changes, in ns: its time with an interval, and what the GPU and the CPU need for it alone."""

    step_ns: float
    low_ns: float
    high_ns: float
    gpu_ns: float
    cpu_ns: float


class StepParts:
    """Predicts steps of a script. step: `calls` and `optimizer` of a step without changes, and what `change_calls`
    needs for larger batches. shares: of the same, with `issue` (ns of the CPU by phase; see `jobs.follow.turns`).
    measure: returns two times of parts, as `jobs.follow.measured_parts` does."""

    def __init__(
        self,
        step: Mapping[str, Any],
        shares: Mapping[str, Any],
        measure: Callable[[Sequence[Part]], Sequence[tuple[float, float] | None]],
    ):
        self.step, self.shares, self.measure = step, shares, measure
        self.times: Times = {}
        self.lists: dict[tuple[str, ...], list[tuple[str, Call]]] = {}
        self.base = self.sum_parts(())

    @property
    def is_measured(self) -> bool:
        """Whether the parts of the step could be measured: not while the script runs a profiler itself."""
        return any(self.base.values())

    def predict(self, changes: Sequence[str], known: Sequence[str] = ()) -> PredictedStep | None:
        """Predict the step with changes; None if the calls of one of them are not known. known: changes with which the
        step is known, so that the interval is of what is new."""
        if not all(name in CHANGED for name in changes):
            return None
        if not self.step.get("rows") and {*LARGER}.intersection(changes):
            return None
        before, after = self.base, self.sum_parts(changes)
        scales = self.compare_with_step(before)
        kinds = {kind: scales[kind] * after[kind] for kind in SPREAD}
        gpu_ns = sum(kinds.values())
        spread = sum(SPREAD[kind] * scales[kind] * time_ns for kind, time_ns in self.sum_new(changes, known).items())
        spread += SPREAD_OF_STEP * gpu_ns
        step_ns, busy_ns = float(self.shares["step_ns"]), self.find_busy(before)
        cpu_before, cpu_ns = self.estimate_cpu(()), self.estimate_cpu(changes)
        if cpu_before > step_ns:  # it was measured phase by phase; a step takes no less
            cpu_before, cpu_ns = step_ns, cpu_ns * step_ns / cpu_before
        joined = join(busy_ns, cpu_before)
        factor = step_ns / joined if cpu_before > busy_ns or joined > step_ns else 1.0
        rest_ns = max(step_ns - factor * joined, 0.0)

        def add(sign: int) -> float:
            gpu, cpu = gpu_ns + sign * spread, cpu_ns * (1 + sign * SPREAD_OF_CPU)
            return max(factor * join(gpu, cpu), gpu, cpu) + rest_ns

        return PredictedStep(step_ns=add(0), low_ns=add(-1), high_ns=add(1), gpu_ns=gpu_ns, cpu_ns=cpu_ns)

    def find_busy(self, before: Mapping[str, float]) -> float:
        """Return how long the GPU works in a step without changes; without a GPU, the step is its parts."""
        kernels = self.shares["kernels"]
        return float(kernels["busy"] if kernels else self.shares["step_ns"])

    def compare_with_step(self, before: Mapping[str, float]) -> dict[str, float]:
        """Return how much longer parts of each kind take in the step than alone."""
        kernels = self.shares["kernels"]
        if not kernels:
            alone = sum(before[kind] for kind in SPREAD)
            return dict.fromkeys(SPREAD, float(self.shares["step_ns"]) / max(alone, 1.0))
        matmuls = sum(kernels[kind] for kind in MATMUL_KINDS)
        seen = {"matmul": matmuls, "attention": kernels["attention"]}
        others = max(kernels["busy"] - sum(seen.values()), 0.0)
        alone = before["other"] + before["optimizer"]
        factor = others / alone if alone else 1.0
        scales = {kind: time_ns / before[kind] if before[kind] and time_ns else 1.0 for kind, time_ns in seen.items()}
        return scales | dict.fromkeys(("other", "loss", "optimizer"), factor)

    def list_calls(self, changes: Sequence[str]) -> list[tuple[str, Call]]:
        """List the calls of a step with changes that do something, each with its key."""
        wanted = tuple(changes)
        if wanted not in self.lists:
            calls = [call for call in change_calls(self.step, wanted) if not call["is_view"]]
            self.lists[wanted] = [(make_key(call), call) for call in calls]
        return self.lists[wanted]

    def sum_parts(self, changes: Sequence[str]) -> dict[str, float]:
        """Sum the parts of a step with changes by kind, in ns of the GPU."""
        calls = self.list_calls(changes)
        missing = {key: call for key, call in calls if key not in self.times}
        if missing:
            self.times.update(zip(missing, self.measure([*map(strip, missing.values())])))
        return self.add_up(calls, changes)

    def add_up(self, calls: Sequence[tuple[str, Call]], changes: Sequence[str]) -> dict[str, float]:
        """Add up the times of calls by kind, as much of them as the work of a step needs with changes."""
        passes, updates = weigh_calls(self.step, changes)
        sums = dict.fromkeys(SPREAD, 0.0)
        for key, call in calls:
            kind = find_kind(call)
            sums[kind] += (updates if kind == "optimizer" else passes) * self.find_time(key, call)
        return sums

    def estimate_cpu(self, changes: Sequence[str]) -> float:
        """Estimate how long the CPU takes to launch a step with changes, in ns; 0 without a GPU. A new call, such as a
        cast, costs as much as calls of this step do, views included: the time of one that is launched alone is of
        another moment, while a trace slows it. One that is left out frees its share, and that of Python around it."""
        if not self.shares["kernels"]:
            return 0.0
        issue: dict[str, float] = dict(self.shares["issue"])
        optimizer_ns = issue.pop(OPTIMIZER, 0.0)
        others_ns = sum(issue.values())
        before, after = (
            Counter(call["op"] for _, call in self.list_calls(each) if call["phase"] != OPTIMIZER)
            for each in ((), changes)
        )
        num_calls = sum(call["phase"] not in (OPTIMIZER, DATA) for call in self.step["calls"])
        call_ns = (others_ns - issue.get(DATA, 0.0)) / max(num_calls, 1)
        new_ns = call_ns * (after - before).total()
        left_out_ns = others_ns * (before - after).total() / max(before.total(), 1)
        for key, call in self.list_calls(changes):
            if call["op"] == OPTIMIZER and (times := self.times.get(key)):
                optimizer_ns = times[1]
        passes, updates = weigh_calls(self.step, changes)
        return passes * (others_ns + new_ns - left_out_ns) + updates * optimizer_ns

    def sum_new(self, changes: Sequence[str], known: Sequence[str]) -> dict[str, float]:
        """Sum the parts that a step has with changes, and not with those that are known, by kind, in ns of the GPU."""
        before = Counter(key for key, _ in self.list_calls(known))
        new = []
        for key, call in self.list_calls(changes):
            if before[key] > 0:
                before[key] -= 1
            else:
                new.append((key, call))
        return self.add_up(new, changes)

    def find_time(self, key: str, call: Call) -> float:
        """Return the time of a call in ns of the GPU; of one that cannot be measured alone from another of the same
        operator, by the bytes."""
        if times := self.times[key]:
            return times[0]
        size = count_bytes(call)
        for other_key, other in self.list_calls(()):
            known = self.times.get(other_key)
            if other["op"] == call["op"] and known:
                return float(known[0] * size / max(count_bytes(other), 1))
        return 0.0


def join(gpu_ns: float, cpu_ns: float) -> float:
    """Join the times that GPU and CPU need for a step, while the CPU runs ahead."""
    most = max(gpu_ns, cpu_ns, 1.0)
    return float(most * ((gpu_ns / most) ** OVERLAP + (cpu_ns / most) ** OVERLAP) ** (1 / OVERLAP))


def strip(call: Call) -> Part:
    return {name: value for name, value in call.items() if name not in ("outputs", "phase", "is_view")}


def make_key(call: Call) -> str:
    """Return what calls have in common that take the same time: all but the numbers of values."""

    def forget(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: forget(each) for name, each in value.items() if name != "value"}
        return [forget(each) for each in value] if isinstance(value, list) else value

    return json.dumps(forget(strip(call)), sort_keys=True)


def count_bytes(call: Call) -> int:
    total = 0
    for tensor in list_inputs(call):
        size = BYTES.get(tensor["dtype"], 1)
        for length in tensor["shape"]:
            size *= length
        total += size
    return total
