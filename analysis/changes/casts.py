"""Fewer casts: weights and activations in one type."""

from profiler_job.analysis.changes import fused_loss
from profiler_job.analysis.changes.compile import KEPT
from profiler_job.analysis.changes.evidence import WIDE_PATHS, CaptureEvidence, ChangeEvidence, find_removable_kernels
from profiler_job.jobs.contract.quantities import format_share

COMPILED = "keep weights and activations in one type, as model.to(torch.bfloat16) does"
CODE = f"{COMPILED}, or use torch.compile"
PLAIN = "keep weights and activations in one type"
ACTION = "Keep the model in BF16"
LINE = "model.to(torch.bfloat16)"
CAUTION = "Risk: small updates are lost"
OF_FP32 = r"Functor<float\b"
"""In the names of PyTorch's optimizer kernels whose weights are in FP32."""


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    seen.need_kernels()
    known = find_removable_kernels(seen, "casts", "kernels only convert the data type")
    if known is None and not seen.is_compiled:
        return None
    casts_ns = 0.0 if known is None else float(seen.findings.loc["casts", "time_ns"])
    others_ns = seen.sum_parts("kernels") - sum(seen.families.get(family, 0) for family in KEPT)
    others_ns += seen.sum_parts("communication") - casts_ns
    matmuls_ns = sum(seen.sum_wide_matmuls().values())
    saved_ns = max(others_ns, 0.0) / 2 + matmuls_ns  # others move half the bytes
    sure = "low: it changes what is rounded, so compare losses"
    loss = fused_loss.find_evidence(seen)
    if known is not None and (loss is None or loss.time_ns < casts_ns):
        return ChangeEvidence(known.time_ns, known.ceiling_ns + saved_ns, known.evidence, sure)
    # Compiled models cast inside their kernels: casts that are left are of the loss, and go with it.
    optimizer_ns = _sum_wide_optimizer(seen)
    if not optimizer_ns or not seen.sum_matmuls().keys() - WIDE_PATHS:
        return None
    share = format_share(optimizer_ns / seen.sum_parts("kernels"))
    evidence = f"matmuls run in 16 bits, and the optimizer updates weights in FP32 ({share} of kernel time)"
    return ChangeEvidence(optimizer_ns / 2, saved_ns, evidence, sure)


def _sum_wide_optimizer(seen: CaptureEvidence) -> float:
    """Return the time of the optimizer's kernels if most of it is for weights in FP32; 0 if not. Counts of steps, which
    take next to no time, are in FP32 for any weights."""
    rows = seen.sections["kernels"]
    rows = rows[rows["family"] == "optimizer"]
    time_ns = float(rows["total_ns"].sum())
    wide_ns = float(rows.loc[rows["name"].astype(str).str.contains(OF_FP32), "total_ns"].sum())
    return time_ns if wide_ns > time_ns / 2 else 0.0
