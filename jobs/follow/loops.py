"""What a script does when no optimizer steps: model calls and backward passes, and the loops that these make. A
benchmark often has several: forward alone, then forward and backward.

Loaded into other people's scripts, as `follow` is. It needs nothing else.
"""

from statistics import median
from typing import TypedDict

FEWEST = 7
"""Steps of a loop that can be measured: one skipped, two timed, two captured, two with modules."""

MOST_BATCHES = 1000
"""Backward passes after which a step does not wait any more for an optimizer that has not stepped."""

FORWARD, BACKWARD = "forward", "backward"


class Loop(TypedDict):
    """A loop of a script. kind: what ends its steps, FORWARD, BACKWARD or `optimizer`. num: of its steps. before: how
    many steps of that kind, whether of a loop or not, come before it."""

    kind: str
    num: int
    before: int


class CallCounts:
    """Numbers of model calls between the backward passes of a script, in order. The last is of calls that no backward
    pass has followed yet."""

    def __init__(self) -> None:
        self.between = [0]

    @property
    def num_backward(self) -> int:
        return len(self.between) - 1

    def note_call(self) -> None:
        self.between[-1] += 1

    def note_backward(self) -> None:
        self.between.append(0)

    def list_loops(self) -> list[Loop]:
        """List the loops with at least FEWEST steps, in the order of the script. A backward pass usually follows the
        same number of calls: more of them are a loop of forward passes before it."""
        *passes, rest = self.between
        usual = int(median(passes)) if passes else 0
        loops: list[Loop] = []
        num_calls, first_backward = 0, 0

        def add(kind: str, num: int, before: int) -> None:
            if num >= FEWEST:
                loops.append(Loop(kind=kind, num=num, before=before))

        for number, num in enumerate(passes):
            if num - usual >= FEWEST:
                add(BACKWARD, number - first_backward, first_backward)
                add(FORWARD, num - usual, num_calls)
                first_backward = number
            num_calls += num
        add(BACKWARD, len(passes) - first_backward, first_backward)
        add(FORWARD, rest, num_calls)
        return loops
