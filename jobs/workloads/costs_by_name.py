"""What a workload can predict of itself before it runs. Optional: for a workload that offers nothing, every prediction
is absent, and whoever asked does without: there is no memory in a plan, one timeout for all runs, no expected count."""

from typing import Protocol

from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.workloads import REFERENCE
from profiler_job.jobs.workloads.transformer import costs as transformer


class Costs(Protocol):
    """Predictions from the fields of a run; plain arithmetic, no torch."""

    def step_seconds(self, run: Run) -> float:
        """One step on a modest GPU, in seconds."""

    def step_events(self, run: Run) -> float:
        """Events that a capture holds of one step: kernels, API calls, copies and ranges."""


def find_costs(workload: str) -> Costs | None:
    """The costs of a workload; None where it offers none."""
    return transformer if workload == REFERENCE else None
