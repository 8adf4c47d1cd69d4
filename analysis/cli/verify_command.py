"""The command `verify`: check that results and recordings are what was written."""

from pathlib import Path
from typing import Annotated

import typer

from profiler_job.analysis.cli.terminal import print_lines
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.layout import RECORD
from profiler_job.jobs.contract.printable import print_line
from profiler_job.jobs.contract.words import format_count


def verify(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Results folder of jobs, or one of its sweeps, or a recording.")
    ],
) -> None:
    """Check that results and recordings are undamaged: every file of finished runs, every table.

    Exit code: 0 all are, 1 some are damaged (it names them), 2 there is no run and no recording.
    """
    from profiler_job.analysis.recording import verify as verifying

    verified = verifying.verify(folder)
    if not verified.num_runs and not verified.num_recordings:
        print_line(f"error: {folder} holds no finished run and no recording")
        raise typer.Exit(ExitCode.USAGE)
    for place, damage in verified.damage.items():
        print_lines(f"{place}: {damage}")
    for place in verified.unsealed:
        print_lines(f"{place}: cannot be checked: an older version wrote it, without SHA-256")
    for place in verified.unfinished:
        print_lines(f"{place}: not finished: it has no {RECORD}, and `run` measures it")
    looked_at = (
        f"{format_count(verified.num_runs, 'finished run')} and {format_count(verified.num_recordings, 'recording')}"
    )
    print_lines(f"{looked_at}: {len(verified.damage)} damaged, {len(verified.unsealed)} cannot be checked")
    raise typer.Exit(ExitCode.FAILED if verified.damage else ExitCode.OK)
