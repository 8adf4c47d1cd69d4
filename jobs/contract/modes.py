"""Modes: the phases in one step of a run."""

from profiler_job.jobs.contract.ranges import BACKWARD, FORWARD, LOSS, OPTIMIZER, PHASES

MODE_PHASES = {
    "forward": (FORWARD,),
    "forward_backward": (FORWARD, LOSS, BACKWARD),
    "train_step": PHASES,
}
"""The phases of each mode, in their order within a step."""

MODES = tuple(MODE_PHASES)


def list_phases(mode: str, accumulation: int) -> list[str]:
    """Return the phases of a step in order: forward to backward for each micro-batch, then the optimizer."""
    repeated = [phase for phase in MODE_PHASES[mode] if phase != OPTIMIZER]
    return repeated * accumulation + [phase for phase in MODE_PHASES[mode] if phase == OPTIMIZER]
