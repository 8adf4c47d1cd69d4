"""A program that has to end removes its temporary files first."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

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
        received.append(number)
        signal.signal(number, signal.SIG_DFL)
        throw()

    def throw(*_: Any) -> None:
        if received[0] == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + received[0])

    def throw_again(ignored: "sys.UnraisableHookArgs") -> None:
        """Python ignores what is raised in a destructor, and pydantic what is raised while it builds a class."""
        if not received or not isinstance(ignored.exc_value, KeyboardInterrupt | SystemExit):
            print_ignored(ignored)
            return
        signal.signal(signal.SIGALRM, throw)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)

    handlers = {number: signal.getsignal(number) for number in ENDING}
    handled = {number: handler for number, handler in handlers.items() if handler in ENDING[number]}
    for number in handled:
        signal.signal(number, end)
    print_ignored, sys.unraisablehook = sys.unraisablehook, throw_again
    try:
        yield received
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = print_ignored
        for number, handler in handled.items():
            signal.signal(number, handler)
