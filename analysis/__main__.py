"""The command line of the analysis: `python -m analysis COMMAND`. Each command only calls the function that does the work."""

from pathlib import Path
from typing import Annotated

import typer

from analysis.reading import ingest as ingesting
from analysis.reading.recording import RecordingError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)


@app.callback()
def _commands() -> None:
    """Analyse what the profiling job measured; needs no GPU and no torch."""


@app.command()
def ingest(
    results: Annotated[Path, typer.Argument(help="Results folder of one sweep, as the profiling job wrote it.")],
    out: Annotated[Path, typer.Option(help="Folder of the recording to write.")],
) -> None:
    """Turn the results of a sweep into a recording: tidy Parquet tables and a manifest."""
    try:
        manifest = ingesting.ingest(results, out, report=ingesting.print_line)
    except (ingesting.ResultsError, RecordingError) as error:
        ingesting.print_line(f"error: {error}")
        raise typer.Exit(2) from error
    size = sum(table["bytes"] for table in manifest["tables"].values())
    num_ok = sum(run["status"] == "ok" for run in manifest["runs"])
    kernels = manifest["tables"]["kernels"]["rows"]
    print(f"{out}: {len(manifest['runs'])} runs, {num_ok} ok, {kernels} kernels, {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    app()
