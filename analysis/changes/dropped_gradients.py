"""Gradients that are dropped in place of being filled with zeros: PyTorch's default. A capture does not show which
calls fill gradients, so it is never advised; `tune` measures it."""

from profiler_job.analysis.changes.optimizer_code import set_gradients_to_none
from profiler_job.analysis.changes.script_code import FoundEdits, Program

CODE = "optimizer.zero_grad(set_to_none=True)"
ACTION = "Drop the gradients"
LINE = "optimizer.zero_grad(set_to_none=True)"


def find_edits(program: Program) -> FoundEdits:
    return set_gradients_to_none(program)
