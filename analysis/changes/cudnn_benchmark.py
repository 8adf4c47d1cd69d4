"""A search for the fastest convolutions: cuDNN times each algorithm in the first step. A capture does not show what the
others would take, so it is never advised; `tune` measures it."""

from profiler_job.analysis.changes.evidence import CaptureEvidence, ChangeEvidence

CODE = "torch.backends.cudnn.benchmark = True"
ACTION = "Let cuDNN choose kernels"
LINE = "torch.backends.cudnn.benchmark = True"


def find_evidence(seen: CaptureEvidence) -> ChangeEvidence | None:
    return None
