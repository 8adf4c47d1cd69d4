"""The command `merge`: join the results of several machines."""

from pathlib import Path
from typing import Annotated

import typer

from profiler_job.analysis.cli.terminal import describe_error, find_exit_code, print_lines
from profiler_job.analysis.recording import merge as merging
from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.layout import ANSWERS
from profiler_job.jobs.contract.printable import print_line
from profiler_job.jobs.contract.words import format_count


def merge(
    shards: Annotated[
        list[Path], typer.Argument(metavar="SHARD", help="Folders of shards, or the folder that holds them.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Results folder to write, for `ingest`.")],
    allow_mix: Annotated[
        bool, typer.Option("--allow-mix", help="Join shards that were measured with different versions, too.")
    ] = False,
) -> None:
    """Join the results of one sweep from several machines.

    FOLDER/answers holds the class's five questions, as `answers` writes them.

    Exit code: 0 every run is there, 1 runs are missing (the others are merged), 2 these folders cannot be merged, or
    only with --allow-mix: runs were measured with different versions.
    """
    try:
        merged = merging.merge(shards, out, emit=print_line, allow_mix=allow_mix)
        if merged.modes:
            from profiler_job.analysis.answers.write_answers import answer_recording

            answer_recording(out, out / ANSWERS, print_line)
    except (ProfilerError, OSError) as error:
        print_line(f"error: {describe_error(error)}")
        raise typer.Exit(find_exit_code(error)) from error
    num_runs = format_count(len(merged.runs), "run")
    print_lines(f"{out}: {num_runs}, {len(merged.missing)} missing, {len(merged.copies)} held more than once")
    raise typer.Exit(ExitCode.FAILED if merged.missing else ExitCode.OK)
