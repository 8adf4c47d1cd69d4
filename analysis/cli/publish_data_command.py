"""The command `publish-data`: publish a recording."""

from pathlib import Path
from typing import Annotated

import typer

from profiler_job.analysis.cli.terminal import describe_error, find_exit_code, print_lines
from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.printable import print_line


def publish_data(
    source: Annotated[Path, typer.Argument(metavar="RESULTS", help="Results folder of a sweep, or a recording.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the recording, such as h100-bf16.")],
    data: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the published recordings.")] = Path(
        "site/data"
    ),
    study: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="File it under a study, such as `again`, another recording of the same runs."
        ),
    ] = None,
    without_captures: Annotated[
        bool, typer.Option("--without-captures", help="Leave out what nsys recorded: times, memory, energy stay.")
    ] = False,
    private: Annotated[
        bool, typer.Option("--private", help="Leave out which files and functions of a script the GPU waits for.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Put a recording into site/data, to be published. It shows what becomes public, and asks.

    Exit code: 0 it is there, 1 not confirmed, 2 it cannot be published (something private in it, too large, not whole).
    """
    from profiler_job.analysis.insight.recorded_compiling import TABLES_OF_SCRIPTS
    from profiler_job.analysis.recording import publish_data as publishing
    from profiler_job.analysis.site import data_readme

    try:
        data_readme.check_readme(data)
        folder = publishing.publish_data(
            source,
            name,
            data,
            lambda text: yes or typer.confirm(text),
            study=study,
            with_captures=not without_captures,
            is_private=private,
            more_tables=TABLES_OF_SCRIPTS,
        )
        if folder is not None:
            data_readme.write_readme(data)
    except (ProfilerError, OSError) as error:
        print_line(f"error: {describe_error(error)}")
        raise typer.Exit(find_exit_code(error)) from error
    if folder is None:
        print_line("nothing was published")
        raise typer.Exit(ExitCode.FAILED)
    print_lines(
        f"{folder} is ready: commit it with {data / data_readme.NAME}, and the site shows it after the next push"
    )
