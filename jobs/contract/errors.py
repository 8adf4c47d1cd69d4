"""The base of this project's errors, and what becomes of those that nobody expected."""

import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from typing import Any, Generic, TypeVar

from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.printable import fit_terminal, make_lines_printable


class ProfilerError(Exception):
    """An error for the user. Its message is one line: what is wrong, where, and what to do.

    `exit_code` is how a command ends with it; a class has a default, and one error may have another.
    """

    exit_code: ExitCode = ExitCode.USAGE

    def __init__(self, *arguments: object, exit_code: ExitCode | None = None):
        super().__init__(*arguments)
        if exit_code is not None:
            self.exit_code = exit_code

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """Pickle the error with all its attributes, whatever the arguments of its class are: a process that helps
        another passes on what it raised."""
        return _restore_error, (type(self), self.args), self.__dict__


def _restore_error(kind: type[ProfilerError], arguments: tuple[Any, ...]) -> ProfilerError:
    error = kind.__new__(kind)
    ProfilerError.__init__(error, *arguments)
    return error


Code = TypeVar("Code", bound=StrEnum)


class CodedError(ProfilerError, ValueError, Generic[Code]):
    """An error whose reason has a code, for programs and tests."""

    def __init__(self, code: Code, message: str, exit_code: ExitCode | None = None):
        super().__init__(message, exit_code=exit_code)
        self.code = code


class OutputError(ProfilerError, OSError):
    """Standard output or standard error cannot be written, as when it is a file on a full disk."""

    exit_code = ExitCode.CANNOT_WRITE


def describe_bug(error: BaseException) -> str:
    """Keep the traceback of an error that nobody expected in a file of the temporary folder, and return one line that
    names the error, the file, and what to do."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    place = f" in {os.path.basename(last[0].filename)}, line {last[0].lineno}" if last else ""
    message = " ".join(str(error).split())
    what = f"{type(error).__name__}{f': {message}' if message else ''}{place}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", errors="backslashreplace", prefix="profiler-job-", suffix=".traceback", delete=False
        ) as file:
            file.write(f"{' '.join(sys.argv[:2])}\n")
            traceback.print_exception(error, file=file)
    except OSError as problem:
        kept = f"its traceback could not be kept ({problem.strerror or problem})"
    else:
        kept = f"its traceback is in {file.name}"
    return f"this is a mistake of profiler-job ({what}); {kept}: please report it with that file"


def end_with(error: Exception) -> ExitCode:
    """Print one line about an error that ends the program, and return its exit code."""
    if isinstance(error, ProfilerError):
        line, code = str(error), error.exit_code
    elif isinstance(error, OSError) and error.errno is not None:
        line, code = f"{error.filename2 or error.filename or 'an output'}: {error.strerror}", ExitCode.CANNOT_WRITE
    else:
        line, code = describe_bug(error), ExitCode.BUG
    with suppress(OSError):
        print(fit_terminal(make_lines_printable(f"error: {line}"), sys.stderr), file=sys.stderr, flush=True)
    return code
