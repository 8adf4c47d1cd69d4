"""Step and phase in which a run exceeds its memory."""

from typing import NamedTuple


class Failure(NamedTuple):
    """step: from 0; phase: `build` before the first step."""

    step: int
    phase: str
