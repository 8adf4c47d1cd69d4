"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

RunsOfA = Annotated[
    list[str] | None, typer.Option("--a", metavar="KEY=VALUE,...", help="Some of the runs of A: axes, or run_id.")
]
RunsOfB = Annotated[list[str] | None, typer.Option("--b", metavar="KEY=VALUE,...", help="Some of the runs of B.")]
NoisePair = Annotated[
    tuple[Path, Path] | None,
    typer.Option(metavar="C D", help="Two recordings of the same runs, for the noise band."),
]
Force = Annotated[bool, typer.Option("--force", help="Let --html replace any file, not only its own pages.")]
Skip = Annotated[
    int, typer.Option("--skip", "--warmup", min=0, metavar="N", help="Leave out the first steps of captures.")
]
NoCache = Annotated[
    bool, typer.Option("--no-cache", help="Read the captures, and keep nothing of them in .profiler-cache.")
]
