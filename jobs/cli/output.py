"""Standard streams that lose their reader without an error."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from profiler_job.jobs.contract.errors import OutputError


def open_streams() -> None:
    """Go on when nobody reads what is printed. A standard stream that the shell closed becomes the null device: no file
    gets its number, and what this program starts finds it open."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
        setattr(sys, name, Output(stream))


class Output:
    """A standard stream whose reader may go away, such as a terminal or a log shipper: the rest is dropped. Raises
    OutputError once if it cannot be written for another reason, such as a full disk."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        with self._read_or_not():
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._read_or_not():
            self.stream.flush()

    @contextmanager
    def _read_or_not(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self.stream.fileno())
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise OutputError(f"standard output cannot be written ({error.strerror or error})") from error
