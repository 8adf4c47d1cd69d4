"""Memory of workloads that this program did not write: two steps of each run are simulated on tensors without data, in
a process of its own, which imports torch and the workload's code. This process imports neither.

Unlike the reference Transformer's, these peaks are without workspaces of libraries.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.memory.failure import Failure

if TYPE_CHECKING:
    from profiler_job.jobs.contract.axes import Run

SIMULATION = "profiler_job.jobs.worker.simulation"
LONGEST_S, PATIENT_S = 60.0, 600.0  # for all runs of a plan, and where their memory is asked for


class FakeStepError(ProfilerError, ValueError):
    """A workload does not take an option of the sweep; the message says which and why."""


@dataclass(frozen=True)
class Simulation:
    """Peak of allocated bytes by phase of two steps, what the second step's are made of, by phase and
    `Owner`, and the number of parameters (0: not known); or the `problem`, why there are none."""

    peaks: list[dict[str, int]] = field(default_factory=list)
    owners: dict[str, dict[str, int]] = field(default_factory=dict)
    num_parameters: int = 0
    problem: str = ""

    @property
    def peak_bytes(self) -> int | None:
        return max((peak for step in self.peaks for peak in step.values()), default=None)

    @property
    def peak_owners(self) -> dict[str, int]:
        """Bytes by `Owner` at the largest peak of the second step; empty if it is not known."""
        return self.owners[max(self.owners, key=self.peaks[-1].__getitem__)] if self.owners else {}

    def failure(self, limit_bytes: float) -> Failure | None:
        """Step and phase that need more than `limit_bytes` first; None where all fit, or where that is not known."""
        phases = ((step, phase, peak) for step, peaks in enumerate(self.peaks) for phase, peak in peaks.items())
        return next((Failure(step, phase) for step, phase, peak in phases if peak > limit_bytes), None)


def simulate_runs(runs: Sequence["Run"], patient: bool = False) -> list[Simulation]:
    """The simulation of each run, as far as they come in LONGEST_S, or in PATIENT_S where one is `patient`. Raises
    FakeStepError."""
    plain = [run.model_copy(update={"repeat": 0, "fresh_process": False, "memory_limit_gib": 0.0}) for run in runs]
    distinct = list(dict.fromkeys(plain))
    answers = dict(zip(distinct, _ask([run.model_dump() for run in distinct], PATIENT_S if patient else LONGEST_S)))
    return [answers[run] for run in plain]


def _ask(runs: list[dict[str, Any]], limit_s: float) -> list[Simulation]:
    problem = ""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", SIMULATION],
            input=json.dumps(runs),
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
        lines = done.stdout
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            problem = "torch is not installed here" if "No module named 'torch'" in said else f"it ended: {said[:300]}"
    except subprocess.TimeoutExpired as error:
        lines = (error.stdout or b"").decode()
        problem = f"not simulated within {limit_s:.0f} s; --memory waits longer"
    ended_lines, _, _ = lines.rpartition("\n")
    answers = [json.loads(line) for line in ended_lines.splitlines()]
    if refused := next((answer["refused"] for answer in answers if "refused" in answer), None):
        raise FakeStepError(refused)
    return [Simulation(**answer) for answer in answers] + [Simulation(problem=problem)] * (len(runs) - len(answers))
