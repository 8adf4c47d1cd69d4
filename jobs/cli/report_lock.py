"""The lock that a job holds while it makes the recording and the site."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from profiler_job.jobs.cli.console import err, fail, when_terminated
from profiler_job.jobs.cli.follow_up import StepFailed
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.executor.result_store import Locked, Results


def reports(results: Path) -> Results:
    """What a job holds while it makes the recording and the site."""
    return Results(results, "recordings")


@contextmanager
def reporting(held: Results, advice: str, wait_s: float = 0) -> Iterator[None]:
    """Holds a folder, which it waits for, while the report is made, and turns what can go wrong into a message and an
    exit code."""

    def terminate(number: int, frame) -> None:
        raise fail(f"terminated while the report was made; {advice}", 128 + number)

    when_terminated(terminate)
    try:
        if wait_s and held.is_locked():
            err.print("another job makes its report there: waiting for it")
        with held.lock(wait_s):
            yield
    except Locked as error:
        raise fail(f"{error}; wait for it, then run this again: what was measured is kept", ExitCode.LOCKED) from None
    except StepFailed as error:
        raise fail(f"{error}; {advice}", error.exit_code) from None
    except OSError as error:
        raise fail(
            f"{error.filename or held.folder}: {error.strerror or error}; {advice}", ExitCode.CANNOT_WRITE
        ) from None
