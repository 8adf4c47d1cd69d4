"""Times of a script's steps: warm-up, a turn, and as many as are wanted at once. Each `yield` lets the script take one.

Loaded into other people's scripts, as `follow` is.
"""

from collections.abc import Generator
from time import monotonic, perf_counter_ns
from typing import Any

import torch

from .step_clock import StepClock

Steps = Generator[None, None, Any]
"""Code that runs between steps: each `yield` lets the script take one."""
FEWEST_WARMUP, MOST_WARMUP = 3, 12
SETTLED = 1.3
"""A variant is warm once a step takes at most so many times its fastest."""
LEAST_STEPS, MOST_STEPS = 2, 10
MOST_AT_GATE = 100
"""Steps of a turn at the gate, at most."""
TIMED_S, MOST_TIMED = 0.5, 10
"""How long a process of one variant is timed, as far as so many times the steps that are planned are enough."""


def synchronize() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def settle() -> Steps:
    """Take steps until they are as fast as they get: a variant may be compiled in the first."""
    fastest = float("inf")
    for number in range(1, MOST_WARMUP + 1):
        synchronize()
        begin = perf_counter_ns()
        yield
        synchronize()
        took = perf_counter_ns() - begin
        fastest = min(fastest, took)
        if number >= FEWEST_WARMUP and took <= SETTLED * fastest:
            break


def time_turn(num_steps: int, least_s: float = 0.0, most: int = MOST_AT_GATE) -> Steps:
    """Return the time of each of the next steps, in ns; the GPU's where there is one. They are more than num_steps if
    these take less than least_s, up to `most`."""
    clock, begin, number = StepClock(), monotonic(), 0
    while number < num_steps or (monotonic() - begin < least_s and number < most):
        yield
        clock.note_end()
        number += 1
    synchronize()
    return [step["wall_ns"] for step in clock.list_steps()[1]]


def time_steps(num_steps: int, num_ranks: int, facts: dict[str, Any]) -> Steps:
    """Note the times of the next num_steps (`steps` of the facts), and of more if these are short: what the CPU limits
    is slower at one moment than at another. Ranks end with the same step."""
    clock, begin = StepClock(), monotonic()
    most = num_steps if num_ranks > 1 else MOST_TIMED * num_steps
    for number in range(1, most + 1):
        yield
        clock.note_end()
        is_last = number == most or (number >= num_steps and monotonic() - begin >= TIMED_S)
        if is_last or number == num_steps:  # the script may end before more
            synchronize()
            _, facts["steps"] = clock.list_steps()
        if is_last:
            return
