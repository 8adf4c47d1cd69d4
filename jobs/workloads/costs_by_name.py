"""Costs that a workload can predict before it runs. They are optional. Without them a plan shows no memory, all runs
have one timeout, and there is no expected count of events."""

from typing import Protocol

from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.workloads import LLAMA, REFERENCE
from profiler_job.jobs.workloads.llama import costs as llama
from profiler_job.jobs.workloads.transformer import costs as transformer


class Costs(Protocol):
    """Predictions from the fields of a run; plain arithmetic, no torch."""

    def step_seconds(self, run: Run) -> float:
        """One step on an H200, in seconds."""

    def build_seconds(self, run: Run) -> float:
        """Seconds to make the model and give it up again."""

    def is_limited_by_cpu(self, run: Run) -> bool:
        """Whether launching a step takes longer than computing it, on an H200."""

    def compile_seconds(self, run: Run, is_known: bool) -> float:
        """Seconds to compile the model; 0 if it is not compiled. is_known: whether another process has compiled it."""

    def step_events(self, run: Run) -> float:
        """Predict the events in a capture of one step: kernels, API calls, copies and ranges."""


def find_costs(workload: str) -> Costs | None:
    """The costs of a workload; None where it offers none."""
    known: dict[str, Costs] = {REFERENCE: transformer, LLAMA: llama}
    return known.get(workload)
