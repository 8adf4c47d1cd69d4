"""Waiting for events. No test says how long something may take: a busy machine takes longer."""

import time
from collections.abc import Callable

HANGS_S = 1800
"""What is not done by then hangs for ever: the test fails, and says what it waited for."""


def eventually(condition: Callable[[], object], what: str = "", said: Callable[[], str] = str) -> None:
    """Wait until `condition()` holds. Fails if it never does, with what was awaited and what is `said()` by then."""
    deadline = time.monotonic() + HANGS_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {HANGS_S} s: {what or condition}\n{said()}"
        time.sleep(0.02)
