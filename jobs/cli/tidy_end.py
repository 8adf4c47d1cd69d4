"""A program that has to end removes its temporary files first."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = {
    signal.SIGTERM: (signal.SIG_DFL,),
    signal.SIGHUP: (signal.SIG_DFL,),
    signal.SIGINT: (signal.default_int_handler, signal.SIG_DFL),
}
"""Signals that end a program, with the handlers that Python and the entry of the program start with."""
AGAIN_S = 0.005


@contextmanager
def end_tidily() -> Iterator[list[int]]:
    """Make a signal that ends the program an exception inside this context, so that what opened temporary folders
    removes them; a second one ends it at once. A signal that is ignored, as under nohup, stays so. Yields the list of
    the signals that came: what receives the exception may raise another."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # others may set no handler
        yield received
        return

    def end(number: int, frame: FrameType | None) -> None:
        if _is_in_destructor(frame):  # Python would ignore it
            signal.signal(signal.SIGALRM, lambda _, later: end(number, later))
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
            return
        received.append(number)
        signal.signal(number, signal.SIG_DFL)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    handlers = {number: signal.getsignal(number) for number in ENDING}
    handled = {number: handler for number, handler in handlers.items() if handler in ENDING[number]}
    for number in handled:
        signal.signal(number, end)
    try:
        yield received
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)


def _is_in_destructor(frame: FrameType | None) -> bool:
    """Whether code runs in the destructor of an object, whose exceptions Python ignores."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None
