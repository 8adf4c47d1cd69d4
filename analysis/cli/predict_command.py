"""The command `predict`: predict what changes would give."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from profiler_job.analysis.cli.terminal import escape_unencodable, print_lines
from profiler_job.jobs.contract.printable import print_line


def predict(
    recording: Annotated[
        Path, typer.Argument(metavar="RECORDING", help="A recording, or the results folder of a sweep.")
    ],
    change: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,...", help="Changes that are made together; repeat for several such sets."),
    ] = None,
    runs: Annotated[
        list[str] | None, typer.Option("--run", metavar="KEY=VALUE,...", help="Some of the runs: axes, or run_id.")
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep the predictions there; the file must be new.")
    ] = None,
    form: Annotated[Literal["text", "json"], typer.Option("--format", "-f", help="How to print it.")] = "text",
) -> None:
    """Predict how long a step takes with a change, such as BF16.

    Exit code: 0, or 2 if nothing can be predicted from this recording.
    """
    from profiler_job.analysis.prediction import print_predictions as predicting

    escape_unencodable()
    request = predicting.Request(recording=recording, sets=change or (), only=runs or (), ledger=ledger, form=form)
    if code := predicting.run(request, print_lines, print_line):
        raise typer.Exit(code)
