"""The plain run: the same run with nothing done to make it faster. Losses after training are compared with its loss."""

from collections.abc import Mapping
from typing import Any

from profiler_job.jobs.contract.axes import find_default
from profiler_job.jobs.contract.modes import MODES

PLAIN = {axis: find_default(axis) for axis in ("precision", "attention", "optimizer", "compile")}

TRAINED_STEPS = 3
"""Losses are compared after this number of steps, which are part of warm-up."""


def count_plain_steps(run: Mapping[str, Any], warmup_steps: int) -> int:
    """Return the number of steps of the plain run before a run with these fields: TRAINED_STEPS and one step that
    gives the loss. 0 for a run that is plain itself, does not train, has several ranks, or has too few warm-up
    steps."""
    is_plain = all(run[axis] == value for axis, value in PLAIN.items())
    compares = run["mode"] == MODES[-1] and not is_plain and run["gpus"] == 1
    return TRAINED_STEPS + 1 if compares and warmup_steps > TRAINED_STEPS + 1 else 0
