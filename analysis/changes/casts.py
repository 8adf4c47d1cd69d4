"""Fewer casts: weights and activations in one type."""

from profiler_job.analysis.changes import fused_loss
from profiler_job.analysis.changes.compile import KEPT
from profiler_job.analysis.changes.evidence import CaptureEvidence, ChangeEvidence, find_removable_kernels

COMPILED = "keep weights and activations in one type, as model.to(torch.bfloat16) does"
CODE = f"{COMPILED}, or use torch.compile"
PLAIN = "keep weights and activations in one type"
ACTION = "Keep the model in BF16"
LINE = "model.to(torch.bfloat16)"


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    seen.need_kernels()
    known = find_removable_kernels(seen, "casts", "kernels only convert the data type")
    if known is None:
        return None
    loss = fused_loss.find_evidence(seen)
    if loss is not None and loss.time_ns >= float(seen.findings.loc["casts", "time_ns"]):
        return None  # compiled models cast inside their kernels: these are of the loss, and go with it
    others_ns = seen.sum_parts("kernels") - sum(seen.families.get(family, 0) for family in KEPT)
    others_ns += seen.sum_parts("communication") - float(seen.findings.loc["casts", "time_ns"])
    matmuls_ns = sum(seen.sum_wide_matmuls().values())
    ceiling_ns = known.ceiling_ns + max(others_ns, 0.0) / 2 + matmuls_ns  # others move half the bytes
    sure = "low: it changes what is rounded, so compare losses"
    return ChangeEvidence(known.time_ns, ceiling_ns, known.evidence, sure)
