"""A part of a long task in another process, while the rest goes on."""

import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from profiler_job.jobs.contract.garbage import pausing_collector


class Later:
    """What is to be done once the rest is."""

    def __init__(self) -> None:
        self._given: list[Callable[[], Any]] = []

    def give(self, work: Callable[..., Any], *args: Any) -> None:
        """Have `work` called with `args`."""
        self._given.append(partial(work, *args))

    def result(self) -> Any:
        """What the first work gave whose result was not asked for yet. Raises what it raised."""
        return self._given.pop(0)()

    def close(self) -> None:
        """Leaves undone what was not asked for."""
        self._given.clear()


class Helper:
    """As `Later`, in a process that does what it is given one after another. Work and results are pickled, and wait on
    either side until they are asked for: neither process waits for the other to take them."""

    def __init__(self) -> None:
        # Not a copy of this process, which may hold locks of threads that a copy has not.
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other,), daemon=True)
        self._process.start()
        other.close()
        self._results = SimpleQueue[bytes | None]()
        receiving = (self._pipe, self._results.put, partial(self._results.put, None))
        self._receiver = threading.Thread(target=_receive, args=receiving, daemon=True)
        self._receiver.start()

    def give(self, work: Callable[..., Any], *args: Any) -> None:
        """Raises ChildProcessError where the process was killed, as `result` does."""
        with self._raise_if_killed():
            self._pipe.send((work, args))

    def result(self) -> Any:
        with self._raise_if_killed():
            received = self._results.get()
            if received is None:
                self._results.put(None)
                raise EOFError
        has_failed, result = pickle.loads(received)
        if has_failed:
            raise result
        return result

    @contextmanager
    def _raise_if_killed(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, ConnectionError):
            self._process.join()
            raise ChildProcessError(f"a helping process ended with exit code {self._process.exitcode}") from None

    def close(self) -> None:
        """Ends the process, whatever it does; again, nothing."""
        self._process.kill()
        self._process.join()
        self._receiver.join()
        self._pipe.close()


@contextmanager
def helping(is_worth_it: bool) -> Iterator[Helper | Later]:
    """A helper that ends with the block, whatever it does then. Where it is not worth it, or there is one processor,
    work is done when its result is asked for."""
    if not is_worth_it or (os.cpu_count() or 1) < 2:
        yield Later()
        return
    helper = Helper()
    try:
        yield helper
    finally:
        helper.close()


def _serve(pipe: Connection) -> None:
    given = SimpleQueue[bytes]()
    # Ends the process with its parent.
    threading.Thread(target=_receive, args=(pipe, given.put, partial(os._exit, 1)), daemon=True).start()
    with pausing_collector():
        while True:
            work, args = pickle.loads(given.get())
            try:
                result = False, work(*args)
            except Exception as error:
                result = True, error
            pipe.send(result)


def _receive(pipe: Connection, take: Callable[[bytes], None], end: Callable[[], None]) -> None:
    """Take what comes while work goes on, and call `end` once the other process has ended."""
    while True:
        try:
            content = pipe.recv_bytes()
        except (OSError, EOFError):
            return end()
        take(content)
