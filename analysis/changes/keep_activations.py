"""No activation checkpointing, where memory is to spare: the forward pass runs once."""

from profiler_job.analysis.changes.evidence import (
    LEAST,
    MOST_MEMORY,
    CaptureEvidence,
    ChangeEvidence,
    WithheldCode,
    WithheldError,
)
from profiler_job.analysis.changes.model_code import keep_activations
from profiler_job.analysis.changes.script_code import FoundEdits, Program
from profiler_job.jobs.contract.quantities import format_share
from profiler_job.jobs.contract.ranges import FORWARD

CODE = "gradient_checkpointing=False, or layer(x) in place of checkpoint(layer, x)"
ACTION = "Stop checkpointing"
LINE = "model.gradient_checkpointing_disable()"


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    forward_ns, _ = seen.measure_phase(FORWARD)
    again_ns = seen.recomputed * forward_ns
    if again_ns < LEAST * seen.whole_ns:
        return None
    if (used := seen.need_memory()) > MOST_MEMORY:
        raise WithheldError(
            WithheldCode.MEMORY_FULL, f"it runs forward again, but {format_share(used)} of the memory is allocated"
        )
    again = format_share(min(seen.recomputed, 1.0))
    evidence = f"{again} of forward's attention runs again in backward, and {format_share(used)} of memory is allocated"
    sure = "medium: activations take more memory, which is measured by trying"
    return ChangeEvidence(again_ns, again_ns + seen.waiting_ns, evidence, sure)


def find_edits(program: Program) -> FoundEdits:
    return keep_activations(program)
