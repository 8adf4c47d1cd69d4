"""A program that has to end removes its temporary files first."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def end_tidily() -> Iterator[None]:
    """Make a signal that ends the program an exception inside this context, so that what opened temporary folders
    removes them; a second one ends it at once. A signal that is ignored, as under nohup, stays so."""
    if threading.current_thread() is not threading.main_thread():  # others may set no handler
        yield
        return
    numbers = [number for number in ENDING if signal.getsignal(number) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, frame: object) -> None:
    """End the program with the exit code of a signal."""
    signal.signal(number, signal.SIG_DFL)
    sys.exit(128 + number)
