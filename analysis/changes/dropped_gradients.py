"""Gradients that are dropped in place of being filled with zeros: PyTorch's default. A capture does not show which
calls fill gradients, so it is never advised; `tune` measures it."""

from profiler_job.analysis.changes.evidence import CaptureEvidence, ChangeEvidence

CODE = "optimizer.zero_grad(set_to_none=True)"
ACTION = "Drop the gradients"
LINE = "optimizer.zero_grad(set_to_none=True)"


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    return None
