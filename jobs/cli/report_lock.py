"""The lock that a job holds while it makes the recording and the site."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from profiler_job.jobs.cli.console import err, fail, handle_termination
from profiler_job.jobs.cli.follow_up import StepError
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.executor.result_store import LockedError, Results


def find_report_folder(results: Path) -> Results:
    """Return the folder that a job locks while it makes the recording and the site."""
    return Results(results, "recordings")


@contextmanager
def hold_report_folder(held: Results, advice: str, wait_s: float = 0) -> Iterator[None]:
    """Lock a folder while the recording and the site are made, after waiting at most `wait_s` for another job. An
    error ends the program with a message, which has `advice`, and an exit code."""

    def terminate(number: int, frame: object) -> None:
        raise fail(f"terminated while the recording or the site was made; {advice}", 128 + number)

    handle_termination(terminate)
    try:
        if wait_s and held.is_locked():
            err.print("another job makes its site there: waiting for it")
        with held.lock(wait_s):
            yield
    except LockedError as error:
        raise fail(f"{error}; wait for it, then run this again: what was measured is kept", ExitCode.LOCKED) from None
    except StepError as error:
        raise fail(f"{error}; {advice}", error.exit_code) from None
    except OSError as error:
        raise fail(
            f"{error.filename or held.folder}: {error.strerror or error}; {advice}", ExitCode.CANNOT_WRITE
        ) from None
