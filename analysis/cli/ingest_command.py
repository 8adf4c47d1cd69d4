"""The command `ingest`: turn the results of a sweep into a recording."""

from pathlib import Path
from typing import Annotated

import typer

from profiler_job.analysis.cli.terminal import describe_error, find_exit_code, print_lines
from profiler_job.analysis.insight.recorded_compiling import TABLES_OF_SCRIPTS
from profiler_job.analysis.recording import ingest as ingesting
from profiler_job.analysis.recording.store import RecordingError
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.printable import print_line
from profiler_job.jobs.contract.quantities import format_size
from profiler_job.jobs.contract.words import format_count


def ingest(
    results: Annotated[
        Path, typer.Argument(metavar="RESULTS", help="Results folder of one sweep, as the profiling job wrote it.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder of the recording to write.")],
    label: Annotated[
        str,
        typer.Option(
            metavar="LABEL", help="Distinguishes it from other recordings of the same runs. Default: the folder's name."
        ),
    ] = "",
) -> None:
    """Turn the results of a sweep into a recording: tidy Parquet tables and a manifest.

    Exit code: 0 every run that was measured is in it, 1 files of some are damaged or their captures cannot be used (it
    names them, and the others are in it), 2 there is nothing to ingest.
    """
    try:
        manifest = ingesting.ingest(results, out, emit=print_line, label=label, more_tables=TABLES_OF_SCRIPTS)
    except (ingesting.ResultsError, RecordingError, OSError) as error:
        print_line(f"error: {describe_error(error)}")
        raise typer.Exit(find_exit_code(error)) from error
    size = sum(table["bytes"] for table in manifest["tables"].values())
    num_ok = sum(run["status"] == "ok" for run in manifest["runs"])
    kernels = manifest["tables"].get("kernels", {}).get("rows", 0)
    num_runs, num_kernels = format_count(len(manifest["runs"]), "run"), format_count(kernels, "kernel")
    print_lines(f"{out}: {num_runs}, {num_ok} ok, {num_kernels}, {format_size(size)}")
    if lost := ingesting.lost_runs(manifest):
        were = "was" if len(lost) == 1 else "were"
        print_line(f"error: {len(lost)} of {num_runs} {were} measured and cannot be recorded, see above")
        raise typer.Exit(ExitCode.FAILED)
