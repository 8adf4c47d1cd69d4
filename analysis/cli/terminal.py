"""What the commands share about what is given and what is printed."""

import sys

import typer

from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.exit_codes import ExitCode


def exit_code_of(error: Exception) -> ExitCode:
    """Return the exit code of a command that ends with an error; one of the operating system is of its output."""
    return error.exit_code if isinstance(error, ProfilerError) else ExitCode.CANNOT_WRITE


def describe_error(error: Exception) -> str:
    """What an error says; of one of the operating system which file, why and what to do."""
    if not isinstance(error, OSError):
        return str(error)
    return (
        f"{error.filename or 'a file'}: {error.strerror or error}; free some space, or allow writing, and run it again"
    )


def show_what_can_be() -> None:
    """A terminal of another encoding shows what it can, and the rest as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def is_given(context: typer.Context, name: str) -> bool:
    """Whether a parameter of the command was given, and not left at its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"
