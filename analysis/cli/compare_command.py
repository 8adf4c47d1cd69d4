"""The command `compare`: compare two recordings or captures."""

from pathlib import Path
from typing import Annotated

import typer

from profiler_job.analysis.cli.shared_options import NoCache, NoisePair, RunsOfA, RunsOfB, Skip
from profiler_job.analysis.cli.terminal import escape_unencodable, print_form
from profiler_job.analysis.comparison import print_comparison as comparing
from profiler_job.jobs.contract.printable import print_line


def compare(
    first: Annotated[
        Path, typer.Argument(metavar="A", help="A recording, the results folder of a sweep, or one capture.")
    ],
    second: Annotated[Path, typer.Argument(metavar="B", help="The same; it is compared with A.")],
    a: RunsOfA = None,
    b: RunsOfB = None,
    noise: NoisePair = None,
    skip: Skip = 0,
    per_token: Annotated[
        bool, typer.Option("--per-token", help="Compare the time of a token: context and batch may differ.")
    ] = False,
    fail_if: Annotated[
        list[str] | None, typer.Option(metavar="CONDITION", help='Such as "step > 3%"; repeat for several.')
    ] = None,
    form: Annotated[comparing.Format, typer.Option("--format", "-f", help="How to print it.")] = "text",
    top: Annotated[
        int, typer.Option(min=0, metavar="N", help="Parts of the difference in text and md; 0 for all.")
    ] = 10,
    no_cache: NoCache = False,
) -> None:
    """Compare B with A: is it faster, by how much, and why?

    Exit code: 0, or with --fail-if 1 a limit is exceeded, 3 there is not enough data; 2 these cannot be compared.
    """
    escape_unencodable()
    request = comparing.Request(
        first=first,
        second=second,
        only_first=a or (),
        only_second=b or (),
        noise=noise,
        skip=skip,
        per_token=per_token,
        conditions=fail_if or (),
        form=form,
        top=top,
        caches=not no_cache,
    )
    if code := comparing.run(request, print_form, print_line):
        raise typer.Exit(code)
