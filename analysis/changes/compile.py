"""torch.compile: elementwise kernels become one."""

from profiler_job.analysis.changes.evidence import (
    LEAST_UNFUSED,
    CaptureEvidence,
    ChangeEvidence,
    WithheldCode,
    WithheldError,
)
from profiler_job.analysis.changes.model_code import compile_models
from profiler_job.analysis.changes.script_code import FoundEdits, Program

CODE = "model = torch.compile(model)"
ACTION = "Compile the model"
LINE = "model = torch.compile(model)"
FUSIBLE = ("elementwise", "copy", "reduce", "softmax", "norm", "fill", "index")
"""Families of kernels that could be fused."""
KEPT = ("gemm", "attention", "convolution")
"""Families whose kernels a library still gives it in its default mode: their time stays. Kernels of communication are
another part of a step (`CaptureEvidence.sum_parts`)."""


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    seen.need_kernels()
    if seen.is_graphed:
        return None
    rows = seen.sections["families"]
    fusible = rows[rows["family"].isin(FUSIBLE)]
    time_ns, calls = fusible[["total_ns", "calls"]].sum()
    if "per_tensor_optimizer" in seen.findings.index:  # the model is compiled, its optimizer is not
        time_ns -= seen.findings.loc["per_tensor_optimizer", "time_ns"]
        calls -= seen.findings.loc["per_tensor_optimizer", "count"]
    if time_ns < LEAST_UNFUSED * seen.sum_parts("kernels"):
        return None
    if seen.is_compiled:
        raise WithheldError(WithheldCode.ALREADY_MADE, "it is compiled already, at least in part")
    evidence = f"{calls:,.0f} kernels move or map elements one after another"
    sure = "low: which of them it fuses is not known before"
    time_ns = float(time_ns) + seen.estimate_launching(calls)
    ceiling_ns = measure_ceiling(seen)
    return ChangeEvidence(min(time_ns, ceiling_ns), ceiling_ns, evidence, sure)


def measure_ceiling(seen: CaptureEvidence) -> float:
    """Return the most that compiling could save: all kernels that are not KEPT, and all waiting for launches, if what
    the CPU does besides takes less (ns)."""
    kept_ns = sum(seen.families.get(family, 0) for family in KEPT)
    return min(max(seen.sum_parts("kernels") - kept_ns, 0.0) + seen.waiting_ns, seen.launched_ns)


def find_edits(program: Program) -> FoundEdits:
    return compile_models(program)
