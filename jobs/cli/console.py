"""The consoles that commands print on, and the ways in which they end."""

import signal
from collections.abc import Callable
from typing import Any

import typer
from rich.console import Console

out, err = Console(highlight=False), Console(stderr=True, highlight=False, soft_wrap=True)


def fail(message: str, code: int) -> typer.Exit:
    """Print an error, and return the exception that ends the program with `code`."""
    err.print(f"error: {message}", style="red", markup=False)
    return typer.Exit(code)


def handle_termination(handler: Callable[[int, Any], None]) -> None:
    """Call `handler` when a signal asks this program to end. A hang-up that is ignored stays so: nohup asks for it."""
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        signal.signal(number, handler)
