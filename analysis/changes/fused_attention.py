"""Fused attention: one kernel takes the place of two matmuls and the softmax between them."""

from profiler_job.analysis.changes.evidence import CaptureEvidence, ChangeEvidence, find_removable_kernels
from profiler_job.analysis.changes.model_code import set_attention
from profiler_job.analysis.changes.script_code import FoundEdits, Program

CODE = "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)"
PLAIN = "one kernel for attention, as of FlashAttention or cuDNN"
ACTION = "Use fused attention"
LINE = "F.scaled_dot_product_attention(q, k, v)"


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
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
    return ChangeEvidence(known.time_ns, known.ceiling_ns + matmuls_ns, known.evidence, sure)


def find_edits(program: Program) -> FoundEdits:
    return set_attention(program, CODE)
