"""The consoles that commands print on, and the ways in which they end."""

import signal
from collections.abc import Callable
from typing import Any

import typer
from rich.console import Console

from profiler_job.jobs.contract.printable import fit_terminal, make_lines_printable


class PlainConsole(Console):
    """A console on which no text can drive the terminal: what is printed may be a name that somebody else chose. Lines
    that are not to be broken elsewhere are broken between words on a terminal."""

    def print(self, *objects: Any, **options: Any) -> None:
        fits = options.get("soft_wrap", self.soft_wrap)
        texts = (make_lines_printable(each) if isinstance(each, str) else each for each in objects)
        fitted = (fit_terminal(each, self.file) if fits and isinstance(each, str) else each for each in texts)
        super().print(*fitted, **options)


out, err = PlainConsole(highlight=False), PlainConsole(stderr=True, highlight=False, soft_wrap=True)


def fail(message: str, code: int) -> typer.Exit:
    """Print an error, and return the exception that ends the program with `code`."""
    err.print(f"error: {message}", style="red", markup=False)
    return typer.Exit(code)


def handle_termination(handler: Callable[[int, Any], None]) -> None:
    """Call `handler` when a signal asks this program to end. An ignored hang-up or interrupt stays so: nohup asks for
    it, and a shell that starts a command in the background."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)
