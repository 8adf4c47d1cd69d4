"""The plan for following a script, and the stages that its steps go through."""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple


class Stage(Enum):
    """What is done with the steps of a script."""

    SKIPPED = 1
    TIMED = 2
    CAPTURED = 3
    FOLLOWED = 4
    DONE = 5

    @property
    def is_captured(self) -> bool:
        return self in (Stage.CAPTURED, Stage.FOLLOWED)


class Plan(NamedTuple):
    """Plan for following a script.

    out: folder for a file about the steps of each rank. skip: number of steps before the first timed one. steps: number
    of timed steps, and of captured steps. followed: number of further captured steps with a range for each module.
    step: what ends a step: `auto`, `optimizer`, `backward`, `forward`, or the name of an NVTX range of the script.
    goes_on: whether the script goes on afterwards. changes: names of changes to the script, of modules in `changes`.
    events: whether CUDA events time the captured steps, without nsys. trace: whether torch.profiler captures them,
    without nsys; with `turns` it does. prefills: how many of the last stages begin with a prefill, if the script
    generates text and `step` is `auto`. samples: whether Python is sampled in the captured steps, so that `time.sleep`
    gets ranges. turns: folder of the requests that variants of the script take turns; the script has no `changes` until
    one asks for them. times_only: whether the script ends after the timed steps. gate: folder of the requests for turns
    of this process, which waits between them; without one steps are timed as soon as they are warm. seed: of the random
    numbers of a script that sets none. bare: whether nothing is followed, and steps are only timed, with few losses.
    scratch: folder for what the script saves, in place of its own files (see `scratch_files`); without one it saves as
    ever.
    """

    out: str
    skip: int = 10
    steps: int = 5
    followed: int = 2
    step: str = "auto"
    goes_on: bool = False
    changes: Sequence[str] = ()
    events: bool = False
    trace: bool = False
    prefills: int = 3
    samples: bool = False
    turns: str = ""
    times_only: bool = False
    gate: str = ""
    seed: int | None = None
    bare: bool = False
    scratch: str = ""


NAMED_STEPS = ("auto", "optimizer", "backward", "forward")
"""What ends a step without a range of the script."""
