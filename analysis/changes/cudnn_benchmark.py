"""A search for the fastest convolutions: cuDNN times each algorithm in the first step. A capture does not show what the
others would take, so it is never advised; `tune` measures it."""

from profiler_job.analysis.changes.code_places import set_flag
from profiler_job.analysis.changes.script_code import FoundEdits, Program

CODE = "torch.backends.cudnn.benchmark = True"
ACTION = "Let cuDNN choose kernels"
LINE = "torch.backends.cudnn.benchmark = True"


def find_edits(program: Program) -> FoundEdits:
    return set_flag(program, "torch.backends.cudnn.benchmark", "True")
