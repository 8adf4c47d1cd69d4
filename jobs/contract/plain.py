"""The run that the loss of another one after training is held against: the same with nothing done to make it faster."""

from collections.abc import Mapping
from typing import Any

from profiler_job.jobs.contract.axes import find_default
from profiler_job.jobs.contract.modes import MODES

PLAIN = {axis: find_default(axis) for axis in ("precision", "attention", "optimizer", "compile")}

TRAINED_STEPS = 3
"""After so many steps losses are compared; of a run they are part of warm-up."""


def count_plain_steps(run: Mapping[str, Any], warmup_steps: int) -> int:
    """How many steps of the plain run are done before a run of these fields: those after which losses are compared,
    and the one whose loss it is. 0 for a run that is plain itself, does not train, has several ranks or does not warm
    up for more steps than that."""
    is_plain = all(run[axis] == value for axis, value in PLAIN.items())
    compares = run["mode"] == MODES[-1] and not is_plain and run["gpus"] == 1
    return TRAINED_STEPS + 1 if compares and warmup_steps > TRAINED_STEPS + 1 else 0
