"""Fused attention: one kernel takes the place of two matmuls and the softmax between them."""

from profiler_job.analysis.changes.evidence import CaptureEvidence, ChangeEvidence, find_removable_kernels
from profiler_job.analysis.changes.model_code import set_attention
from profiler_job.analysis.changes.script_code import FoundEdits, Program
from profiler_job.jobs.contract.step_limit import LEAST_INTERVAL

CODE = "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)"
PLAIN = "one kernel for attention, as of FlashAttention or cuDNN"
ACTION = "Use fused attention"
LINE = "F.scaled_dot_product_attention(q, k, v, is_causal=True)"


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    """At most all kernels of attention go. Between its matmuls run kernels of other modules, too, as copies of what
    comes next; they stay. The waiting for launches goes as well, where it is more than steps differ by anyway."""
    seen.need_kernels()
    known = find_removable_kernels(seen, "unfused_attention", "attention is not fused: kernels between its two matmuls")
    if known is None:
        return None
    times = seen.sum_matmuls()
    matmuls_ns = seen.attention_matmuls_ns
    if matmuls_ns is None:
        matmuls_ns = seen.families.get("gemm", 0)
    is_fp32 = bool(times.get("fp32"))
    sure = (
        "low: in FP32 it gives little where contexts are short" if is_fp32 else "medium: one kernel takes their place"
    )
    between_ns = float(seen.findings.loc["unfused_attention", "time_ns"])
    kernels_ns, waiting_ns = between_ns + matmuls_ns, known.ceiling_ns - between_ns
    if seen.attention_ns is None:
        return ChangeEvidence(known.time_ns, kernels_ns + waiting_ns, known.evidence, sure)
    kernels_ns = min(kernels_ns, seen.attention_ns)
    ceiling_ns = kernels_ns + (waiting_ns if waiting_ns >= LEAST_INTERVAL * seen.whole_ns else 0.0)
    return ChangeEvidence(min(known.time_ns, ceiling_ns), ceiling_ns, known.evidence, sure)


def find_edits(program: Program) -> FoundEdits:
    return set_attention(program, CODE)
