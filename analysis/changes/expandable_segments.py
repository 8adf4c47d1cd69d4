"""Expandable segments of the caching allocator: fewer of its searches and less fragmentation. A capture does not show
these, so it is never advised; `tune` measures it."""

from profiler_job.analysis.changes.code_places import set_environment
from profiler_job.analysis.changes.script_code import FoundEdits, Program

CODE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the environment"
ACTION = "Let memory segments grow"
LINE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def find_edits(program: Program) -> FoundEdits:
    return set_environment(program, "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
