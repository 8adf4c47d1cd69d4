"""Larger micro-batches, and so fewer of them in a step. The program starts the script with other numbers (see
`jobs.executor.larger_micro_batches`); this only notes whether it takes as many samples in a step as before."""

import os
from collections.abc import Sequence
from statistics import median_low
from typing import Any

from ..applied_change import AppliedChange

WANTED = "PROFILER_JOB_MICRO_BATCHES"
"""Variable with the rows of a micro-batch and the backward passes of a step, joined by a comma."""


class FewerAccumulations(AppliedChange):
    needs_calls = True

    def __init__(self) -> None:
        self.rows = 0
        self.num_passes: list[int] = []

    def note_inputs(self, inputs: Sequence[dict[str, Any]]) -> None:
        self.rows = self.rows or next((each["shape"][0] for each in inputs if each["shape"]), 0)

    def note_step(self, num_backwards: int) -> None:
        self.num_passes.append(num_backwards)

    def outcome(self) -> str:
        seen = self.rows, median_low(self.num_passes or [0])
        if f"{seen[0]},{seen[1]}" == os.environ.get(WANTED):
            return ""
        passes = "1 backward pass" if seen[1] == 1 else f"{seen[1]} backward passes"
        return f"with other numbers in its code, a step has {passes} of {seen[0]} rows"


CHANGE = FewerAccumulations
