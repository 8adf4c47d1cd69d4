"""A fused optimizer: few kernels that update all parameters."""

from profiler_job.analysis.changes.evidence import CaptureEvidence, ChangeEvidence, find_removable_kernels
from profiler_job.jobs.contract.ranges import OPTIMIZER

CODE = "torch.optim.AdamW(..., fused=True)"


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    seen.need_kernels()
    known = find_removable_kernels(seen, "per_tensor_optimizer", "the optimizer launches kernels tensor by tensor")
    _, elapsed_ns = seen.measure_phase(OPTIMIZER)
    if known is None or not elapsed_ns or seen.has_startup:
        return known
    return ChangeEvidence(elapsed_ns, elapsed_ns, known.evidence, "high: the same arithmetic in few kernels")
