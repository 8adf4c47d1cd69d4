"""Waiting for events. No test says how long something may take: a busy machine takes longer."""

import time
from collections.abc import Callable
from pathlib import Path

HANGS_S = 1800
"""What is not done by then hangs for ever: the test fails, and says what it waited for."""


def eventually(condition: Callable[[], object], what: str = "", said: Callable[[], str] = str) -> None:
    """Wait until `condition()` holds. Fails if it never does, with what was awaited and what is `said()` by then."""
    deadline = time.monotonic() + HANGS_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {HANGS_S} s: {what or condition}\n{said()}"
        time.sleep(0.02)


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or only waits for its parent to look."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
