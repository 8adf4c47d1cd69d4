"""Stop of a sweep: measuring stops at once, the end of a capture within seconds, and everything within STOP_S.

The engines that stop a job give it 30 s or more before they kill it.
"""

import math
import threading
import time

CAPTURE_S = 8.0
"""Time for nsys to end and export a capture. On an H200 the end took 3.0 to 3.7 s; how long exports of large captures
take there was not measured. A capture that is not ended is lost, and its run is profiled again."""
SHUTDOWN_S = 12.0
"""Time after a stop at which the last session of nsys is given up and its processes are killed."""
STOP_S = 25.0
"""The most that a stop may take, whatever hangs."""


class Stop:
    """The request to stop a sweep, and how long what goes on may still take."""

    def __init__(self) -> None:
        self._event, self._at = threading.Event(), math.inf

    def set(self) -> None:
        if not self._event.is_set():
            self._at = time.monotonic()
            self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the request, and return whether it came."""
        return self._event.wait(timeout_s)

    def left(self, allowed_s: float) -> float:
        """Return the seconds left to work that may go on for `allowed_s` after a stop; infinity before one."""
        return max(0.0, self._at + allowed_s - time.monotonic()) if self.is_set() else math.inf
