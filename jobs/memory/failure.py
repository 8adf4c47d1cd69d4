"""Where a run runs out of memory."""

from typing import NamedTuple


class Failure(NamedTuple):
    """step: from 0; phase: `build` before the first step."""

    step: int
    phase: str
