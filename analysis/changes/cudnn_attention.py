"""Fused attention by cuDNN: on some GPUs the fastest of PyTorch's backends. A capture does not show what it would take,
so it is never advised; `tune` measures it."""

from profiler_job.analysis.changes.model_code import prefer_cudnn
from profiler_job.analysis.changes.script_code import FoundEdits, Program

CODE = "with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True): around the steps"
ACTION = "Use cuDNN's attention"
LINE = "with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):"


def find_edits(program: Program) -> FoundEdits:
    return prefer_cudnn(program)
