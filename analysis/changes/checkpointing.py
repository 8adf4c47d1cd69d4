"""Activation checkpointing: less memory for a longer step."""

from profiler_job.analysis.changes.evidence import (
    FULL_MEMORY,
    CaptureEvidence,
    ChangeEvidence,
    WithheldCode,
    WithheldError,
)
from profiler_job.jobs.contract.quantities import format_share

CODE = "torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)"
ACTION = "Checkpoint activations"
LINE = "checkpoint(layer, x, use_reentrant=False)"


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    if (used := seen.need_memory()) > FULL_MEMORY:
        why = f"{format_share(used)} of the GPU's memory is allocated: it frees some, and makes a step slower"
        raise WithheldError(WithheldCode.MEMORY_FULL, why)
    return None
