"""Larger micro-batches, and fewer of them in a step: more work for each launch, and as many samples for each update."""

from profiler_job.analysis.changes import accumulation_code
from profiler_job.analysis.changes.script_code import FoundEdits, Program

CODE = "larger micro-batches, and as many times fewer of them in a step"
ACTION = "Make larger micro-batches"
LINE = "batch_size *= 2; accumulation_steps //= 2"


def find_edits(program: Program) -> FoundEdits:
    return accumulation_code.find_edits(program)
