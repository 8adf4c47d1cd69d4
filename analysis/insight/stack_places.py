"""Where Python stacks are: the innermost line of the user's own files, and the part of a library below it."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.python_samples import PythonFrame, Stack
from profiler_job.analysis.insight.stack_samples import NOT_SAMPLED, STATES
from profiler_job.analysis.reference import python_libraries
from profiler_job.analysis.reference.python_libraries import (
    CAUSES,
    NO_WORKERS,
    OWN,
    OWN_LAUNCHES,
    OWN_OF_MODULE,
    SLEEP,
    WAITING,
)
from profiler_job.jobs.contract.step_limit import DATA

LEAST_COMPUTED_NS = 200_000
"""Own code that calls no CUDA for so long computes itself: an operation takes 5 to 50 µs to launch, even under nsys."""


class Place(NamedTuple):
    """Where a stack is: the innermost line of the user's files, the part of a library below it, the innermost frame,
    and whether a module calls the line, in its forward."""

    file: str
    line: int
    function: str
    below: str
    innermost: PythonFrame
    is_in_forward: bool = False


_NOWHERE = Place("", 0, "", "", PythonFrame("", "", 0))


class Places:
    """The place of each stack. In the state s (of `STATES`) of a thread, s times the number of stacks is added to the
    number of its stack. launching: of `find_launching`."""

    def __init__(self, stacks: list[Stack], launching: frozenset[int] = frozenset()):
        self._stacks, self._launching = stacks, launching
        self._known: dict[int, Place] = {}

    def __getitem__(self, number: int) -> Place:
        if number not in self._known:
            stack, state = self.get_stack(number)
            place = find_place(stack)
            is_data = state == SLEEP and CAUSES.get(place.below) == DATA  # as in a data set that waits for its disk
            if place.below == OWN and number in self._launching:
                place = place._replace(below=OWN_LAUNCHES)
            self._known[number] = place._replace(below=state) if state and not is_data else place
        return self._known[number]

    def get_stack(self, number: int) -> tuple[Stack, str]:
        """Return the frames of a stack, and the state of its thread; "" while its own code runs."""
        state, stack = divmod(number, len(self._stacks))
        return self._stacks[stack], STATES[state]

    def name_lines(self, stacks: np.ndarray) -> pd.DataFrame:
        """Name the line of each stack, where and function; empty for NOT_SAMPLED."""
        at = [self[number] if number != NOT_SAMPLED else _NOWHERE for number in stacks.tolist()]
        where = [format_line(place.file, place.line) for place in at]
        return pd.DataFrame({"where": where, "function": [place.function for place in at]}, dtype=object)

    def number_lines(self) -> np.ndarray:
        """Number the user's lines: for each stack the number of its line."""
        return pd.factorize(pd.Series([self[number][:2] for number in range(len(self._stacks))], dtype=object))[0]


def find_launching(samples: pd.DataFrame, api: pd.DataFrame) -> frozenset[int]:
    """Find the stacks whose thread, around most of their samples, calls CUDA within LEAST_COMPUTED_NS. samples, api: of
    a capture."""
    near = np.zeros(len(samples), bool)
    time, thread = samples["start_ns"].to_numpy(), samples["thread"].to_numpy()
    for number in np.unique(thread).tolist():
        calls = api[api["thread"] == number].sort_values("start_ns", kind="stable")
        mine, start = np.flatnonzero(thread == number), calls["start_ns"].to_numpy()
        following = np.searchsorted(start, time[mine])
        inside = (following > 0) & (following < len(start))
        mine, following = mine[inside], following[inside]
        last_end = np.maximum.accumulate(calls["end_ns"].to_numpy())
        near[mine] = start[following] - last_end[following - 1] < LEAST_COMPUTED_NS
    share = pd.Series(near).groupby(samples["stack"].to_numpy()).mean()
    return frozenset(share.index[share > 0.5].tolist())


def find_place(stack: Stack) -> Place:
    """Find where a stack is. Without a line of the user it is where Python was entered."""
    frames = [frame for frame in stack if not python_libraries.is_profiler(frame.file)]
    if not frames:
        return _NOWHERE
    depth = next((i for i, frame in enumerate(frames) if not python_libraries.is_library(frame.file)), len(frames) - 1)
    here = frames[depth]
    below = [frame for frame in frames[:depth] if not frame.file.startswith("<")]
    parts = [python_libraries.name_part(frame.function, frame.file) for frame in below]
    part = next((name for name in parts if name not in ("", WAITING)), WAITING if WAITING in parts else "")
    is_in_forward = any(python_libraries.calls_module(frame.file) for frame in frames[depth + 1 :])
    if not part and below:
        part = python_libraries.name_package(below[0].file)
    elif not part:
        part = OWN_OF_MODULE if is_in_forward else OWN
    if any(python_libraries.fetches_data(frame.file) for frame in frames):
        part = NO_WORKERS
    return Place(here.file, here.line, here.function, part, frames[0], is_in_forward)


def format_line(file: str, line: int) -> str:
    return f"{file}:{line}" if line else file


def format_frames(stack: Stack) -> Iterable[str]:
    """Format the frames of a stack, outermost first, but not the frames of the profiler."""
    for frame in reversed(stack):
        if not python_libraries.is_profiler(frame.file):
            yield f"{frame.function} ({format_line(frame.file, frame.line)})".replace(";", ",")
