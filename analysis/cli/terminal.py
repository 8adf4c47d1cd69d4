"""The options, errors and output of commands, in functions that they share."""

import sys

import typer

from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.printable import fit_terminal, make_lines_printable


def find_exit_code(error: Exception) -> ExitCode:
    """Return the exit code of a command that ends with an error; an error of the operating system means that its
    output cannot be written."""
    return error.exit_code if isinstance(error, ProfilerError) else ExitCode.CANNOT_WRITE


def describe_error(error: Exception) -> str:
    """Return the message of an error; for one of the operating system which file, why and what to do."""
    if not isinstance(error, OSError):
        return str(error)
    return (
        f"{error.filename or 'a file'}: {error.strerror or error}; free some space, or allow writing, and run it again"
    )


def escape_unencodable() -> None:
    """Print characters that the encoding of the terminal lacks as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def print_lines(text: str) -> None:
    """Print text that may hold names of somebody else, which cannot drive the terminal."""
    print(fit_terminal(make_lines_printable(text), sys.stdout))


def print_form(text: str) -> None:
    """Print the text, JSON or CSV that a command makes: as it is, but what somebody else wrote drives no terminal."""
    print(make_lines_printable(text))


def is_given(context: typer.Context, name: str) -> bool:
    """Return whether a parameter of the command was given, and not left at its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"
