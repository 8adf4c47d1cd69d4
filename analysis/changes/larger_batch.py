"""A larger batch: more work for each launch, and for each step of the optimizer. What it saves is told for the same
tokens: two steps become one of twice the batch, which takes no less time than one of them, so at most half is saved."""

from profiler_job.analysis.changes.evidence import (
    LEAST_IDLE,
    MOST_MEMORY,
    CaptureEvidence,
    ChangeEvidence,
    WithheldCode,
    WithheldError,
)
from profiler_job.jobs.contract.quantities import format_share
from profiler_job.jobs.contract.ranges import OPTIMIZER

CODE = "twice the batch size, with a learning rate for it"
PLAIN = CODE
ACTION = "Double the batch"
LINE = "batch_size *= 2"
LEAST_SAVED = 0.05
"""Part of a step that launches and half of the optimizer must take if launches alone take less than LEAST_IDLE."""


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    late_ns = seen.late_launches_ns
    is_late = late_ns >= LEAST_IDLE * seen.whole_ns
    if seen.memory_used is None and seen.limit.is_launches and is_late:
        ceiling_ns = min(seen.waiting_for_launches_ns, seen.whole_ns / 2)
        evidence = "the GPU waits for launches, and a larger batch has as many"
        sure = "low: it is not known how much memory is left"
        return ChangeEvidence(min(late_ns, ceiling_ns), ceiling_ns, evidence, sure)
    used = seen.need_memory()
    optimizer_ns = _halve_optimizer(seen)
    if not is_late and (not optimizer_ns or late_ns + optimizer_ns < LEAST_SAVED * seen.whole_ns):
        return None
    if used > MOST_MEMORY:
        raise WithheldError(WithheldCode.MEMORY_FULL, f"peak allocated is {format_share(used)} of the GPU's memory")
    ceiling_ns = min(seen.waiting_for_launches_ns + optimizer_ns, seen.whole_ns / 2)
    reasons = ["the GPU waits for launches"] * is_late
    reasons += ["the optimizer runs once a step, whatever the batch"] * bool(optimizer_ns)
    evidence = f"{', '.join(reasons)}, and peak allocated is {format_share(used)} of its memory"
    sure = "medium: a token takes less time, a step does not"
    return ChangeEvidence(min(late_ns + optimizer_ns, ceiling_ns), ceiling_ns, evidence, sure)


def _halve_optimizer(seen: CaptureEvidence) -> float:
    """Return half of the time of the optimizer's kernels (ns): a step has as many for twice the batch. 0 if unknown."""
    return seen.measure_phase(OPTIMIZER)[0] / 2
