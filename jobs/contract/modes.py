"""What one step of a run does."""

from profiler_job.jobs.contract.ranges import BACKWARD, FORWARD, LOSS, OPTIMIZER, PHASES

MODE_PHASES = {
    "forward": (FORWARD,),
    "forward_backward": (FORWARD, LOSS, BACKWARD),
    "train_step": PHASES,
}
"""The phases of each mode, in their order within a step."""

MODES = tuple(MODE_PHASES)


def list_phases(mode: str, accumulation: int) -> list[str]:
    """The phases of a step as they follow each other: those of each micro-batch, and the optimizer at the end."""
    of_micro_batch = [phase for phase in MODE_PHASES[mode] if phase != OPTIMIZER]
    return of_micro_batch * accumulation + [phase for phase in MODE_PHASES[mode] if phase == OPTIMIZER]
