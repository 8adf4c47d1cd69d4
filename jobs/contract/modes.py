"""What one step of a run does."""

from jobs.contract.ranges import BACKWARD, FORWARD, LOSS, PHASES

MODE_PHASES = {
    "forward": (FORWARD,),
    "forward_backward": (FORWARD, LOSS, BACKWARD),
    "train_step": PHASES,
}
"""The phases of each mode, in their order within a step."""

MODES = tuple(MODE_PHASES)
