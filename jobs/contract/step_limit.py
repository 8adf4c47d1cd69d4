"""What limits a step: one definition for every command, page and table.

The time of a step has four parts, which add up to it. compute: matmuls or fused attention run, above the ridge of the
precision that they run in if the ridge is known. memory: other kernels and copies run. communication: only kernels
that exchange data between GPUs run. CPU: the GPU has nothing to run, since it waits for launches, a synchronisation or
data. The largest part limits the step. If the two largest differ by less than LEAST_INTERVAL of the step, either may;
if the CPU is one of them, so may either within the interval of the step, since that is how far waiting differs. A part
that is MOST_LARGER times another limits the step whatever its interval.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from profiler_job.jobs.contract.quantities import format_share, format_time

COMPUTE, MEMORY, COMMUNICATION, CPU = "compute", "memory", "communication", "CPU"
GPU = "GPU"
"""GPU work whose kernels are hidden: executions of CUDA graphs traced as a whole, or times of CUDA events.
It takes the place of compute, memory and communication."""
PARTS = {
    COMPUTE: "matmuls or fused attention run",
    MEMORY: "other kernels and copies run",
    COMMUNICATION: "only communication runs",
    CPU: "the GPU waits for the CPU",
    GPU: "the GPU runs work whose kernels are not seen",
}
"""The parts in the order of bars, and what happens in each."""
COPYING = "copies from and to the CPU's memory"
LAUNCHES, SYNCHRONISATION, DATA = "launches", "synchronisation", "data"
NOTHING, GAPS, UNKNOWN = "nothing", "gaps", "unknown"
CAUSES = {
    LAUNCHES: "launches",
    SYNCHRONISATION: "synchronisation",
    DATA: "data",
    NOTHING: "nothing to do",
    GAPS: "gaps between kernels",
    UNKNOWN: "an unknown cause",
}
"""What the GPU waits for while the CPU limits it, or why it has nothing to run. Data: the thread that launches next
makes, loads or copies a batch. Nothing to do: it sleeps, saves, or waits for another program. Gaps: what is
launched has not started yet; fewer kernels have fewer gaps, so that they belong to the launches."""
LEAST_INTERVAL = 0.05
"""Part of a step by which its two largest parts must differ at least, since steps of fresh processes differ by it."""
MOST_LARGER = 2.0
"""How many times as large as the other one of two parts is at most if either may limit a step."""
EQUAL_CAUSES = 0.9
"""Part of the largest cause from which on the second is named with it: which is larger may change between steps."""
LEAST_CAUSE = 0.01
"""Causes with a smaller part of the CPU's time are left out of sentences."""


@dataclass(frozen=True)
class StepLimit:
    """The parts of a step, and of its CPU part the causes, in ns. interval_ns: the width of the interval of the step;
    the limit has at least LEAST_INTERVAL. host_copies_ns: the time in which only copies from and to the host run, which
    is in memory."""

    parts: Mapping[str, float]
    causes: Mapping[str, float] = field(default_factory=dict)
    interval_ns: float = 0.0
    host_copies_ns: float = 0.0

    @property
    def step_ns(self) -> float:
        return sum(self.parts.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The largest part, or two if either may be it; none if no time passes."""
        ranked = sorted((name for name in PARTS if self.parts.get(name)), key=lambda name: -self.parts[name])
        if not ranked:
            return ()
        first = self.parts[ranked[0]]
        least_ns = LEAST_INTERVAL * self.step_ns
        if CPU in ranked[:2]:  # kernels take as long in each step: intervals of steps are of waiting
            least_ns = max(least_ns, self.interval_ns)
        is_near = [first - self.parts[name] < least_ns and first < MOST_LARGER * self.parts[name] for name in ranked]
        return tuple(ranked[:1] + [name for name, near in zip(ranked[1:2], is_near[1:2]) if near])

    @property
    def name(self) -> str:
        """`CPU`, `either CPU or memory`; "" if no time passes."""
        names = self.names
        return names[0] if len(names) == 1 else f"either {' or '.join(names)}" if names else ""

    @property
    def cause(self) -> str:
        """The cause with most of the CPU's time; gaps count as launches. "" if the GPU does not wait."""
        return next(iter(self.main_causes), "")

    @property
    def main_causes(self) -> tuple[str, ...]:
        """The cause with most of the CPU's time, or two that take about as long (EQUAL_CAUSES); none if the GPU does
        not wait."""
        times = self._sum_causes()
        first, second, *_ = sorted(times, key=lambda name: -times[name])
        if not times[first]:
            return ()
        return (first, second) if times[second] >= EQUAL_CAUSES * times[first] else (first,)

    def _sum_causes(self) -> dict[str, float]:
        times = {name: self.causes.get(name, 0.0) for name in CAUSES}
        times[LAUNCHES] += times.pop(GAPS)
        return times

    @property
    def targets(self) -> frozenset[str]:
        """What a change must relieve to shorten the step: the limits, and for the CPU what the GPU waits for, with
        causes that may be as large (LEAST_INTERVAL)."""
        times = self._sum_causes()
        least_ns = max(times.values()) - LEAST_INTERVAL * self.step_ns
        causes = {name for name, ns in times.items() if ns and ns > least_ns} | {self.cause or UNKNOWN}
        return frozenset().union(*(causes if name == CPU else {name} for name in self.names))

    @property
    def is_host_copies(self) -> bool:
        """Whether memory alone limits the step, and copies from and to the host take more of it than anything else."""
        others = [self.parts.get(name, 0.0) - self.host_copies_ns * (name == MEMORY) for name in PARTS]
        return self.names == (MEMORY,) and self.host_copies_ns > max(others)

    @property
    def is_launches(self) -> bool:
        """Whether launches limit the step, or may."""
        return CPU in self.names and LAUNCHES in self.main_causes

    def measure_share(self, name: str) -> float:
        """Return a part's share of the step."""
        return self.parts.get(name, 0.0) / self.step_ns if self.step_ns else 0.0

    def format_shares(self, decimals: int = 1) -> dict[str, str]:
        """Format the shares of all parts, by name."""
        return {name: format_share(self.measure_share(name), decimals) for name in PARTS}


def split_time(times: Mapping[str, float]) -> StepLimit:
    """Make the limit of the time of a GPU from first to last operation, by the columns of `insight.gpu_limit`, in ns;
    what is missing is 0."""
    late, sync, data, nothing, between, unknown = (
        float(times.get(f"{name}_ns", 0))
        for name in ("late_launch", "sync", "data", "nothing", "between", "unknown_idle")
    )
    kernels, compute, communication, copies, graphs = (
        float(times.get(f"{name}_ns", 0)) for name in ("kernels", "compute", "communication", "copies", "graphs")
    )
    causes = {LAUNCHES: late - data - nothing, SYNCHRONISATION: sync, DATA: data, NOTHING: nothing, GAPS: between}
    parts = {COMPUTE: compute, MEMORY: kernels - compute + copies, COMMUNICATION: communication, GPU: graphs}
    host_copies_ns = float(times.get("host_copies_ns", 0))
    causes[UNKNOWN] = unknown
    return StepLimit(parts | {CPU: sum(causes.values())}, causes, host_copies_ns=host_copies_ns)


def name_limits(limit: StepLimit) -> str:
    """`limited by the CPU`, `limited by either compute or memory`"""
    words = [f"the {name}" if name in (CPU, GPU) else name for name in limit.names]
    return f"limited by {'either ' if len(words) > 1 else ''}{' or '.join(words)}" if words else "no time passes"


def describe_limit(limit: StepLimit) -> str:
    """`limited by the CPU, 63.2% of 99.1 ms: the GPU waits for launches`"""
    names = limit.names
    if not names:
        return name_limits(limit)
    shares = " and ".join(limit.format_shares()[name] for name in names)
    line = f"{name_limits(limit)}, {shares} of {format_time(limit.step_ns)}"
    if names == (CPU,):
        return f"{line}: the GPU {_describe_main_causes(limit)}"
    if limit.is_host_copies:
        return f"{line}: {COPYING} take {format_time(limit.host_copies_ns)}"
    return f"{line}: {PARTS[names[0]]}" if len(names) == 1 else line


def _describe_main_causes(limit: StepLimit) -> str:
    """`waits for launches`, `waits for data and launches`; in the gaps, if these take longer than the launches that are
    late."""
    causes = limit.main_causes
    waits = [CAUSES[name] for name in causes if name not in (LAUNCHES, NOTHING)]
    is_in_gaps = limit.causes.get(GAPS, 0.0) > limit.causes.get(LAUNCHES, 0.0)
    if LAUNCHES in causes and not is_in_gaps:
        waits.append(CAUSES[LAUNCHES])
    parts = [f"waits for {' and '.join(waits)}"] * bool(waits)
    parts += [f"waits in {CAUSES[GAPS]}"] * (LAUNCHES in causes and is_in_gaps)
    parts += [f"has {CAUSES[NOTHING]}"] * (NOTHING in causes)
    return " and ".join(parts) or "waits for the CPU"


def describe_parts(limit: StepLimit) -> str:
    """`99.1 ms = compute 22.7 ms (22.9%) + memory 13.8 ms (13.9%) + CPU 62.6 ms (63.2%)`"""
    present = [name for name in PARTS if limit.parts.get(name)]
    if not present:
        return ""
    shares = limit.format_shares()
    terms = [f"{name} {format_time(limit.parts[name])} ({shares[name]})" for name in present]
    return f"{format_time(limit.step_ns)} = {' + '.join(terms)}"


def describe_causes(limit: StepLimit) -> str:
    """`CPU: launches 55.2 ms, gaps between kernels 7.35 ms`; "" if the GPU does not wait."""
    least = LEAST_CAUSE * limit.parts.get(CPU, 0.0)
    ranked = sorted(CAUSES, key=lambda name: -limit.causes.get(name, 0.0))
    terms = [
        f"{CAUSES[name]} {format_time(limit.causes[name])}" for name in ranked if limit.causes.get(name, 0) > least
    ]
    return f"{CPU}: {', '.join(terms)}" if terms else ""
