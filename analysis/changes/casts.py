"""Fewer casts: weights and activations in one type."""

from profiler_job.analysis.changes.evidence import CaptureEvidence, ChangeEvidence, find_removable_kernels

CODE = "keep weights and activations in one type, as model.to(torch.bfloat16) does, or use torch.compile"
PLAIN = "keep weights and activations in one type"
ACTION = "Drop the casts"
LINE = "model.to(torch.bfloat16)"


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    seen.need_kernels()
    known = find_removable_kernels(seen, "casts", "kernels only convert the data type")
    return known and ChangeEvidence(
        known.time_ns, known.ceiling_ns, known.evidence, "low: it changes what is rounded, so compare losses"
    )
