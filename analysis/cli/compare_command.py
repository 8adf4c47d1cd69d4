"""The command `compare`: compare two recordings or captures."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from profiler_job.analysis.cli.kept_output import Print, print_kept
from profiler_job.analysis.cli.shared_options import NoCache, NoisePair, RunsOfA, RunsOfB, Skip
from profiler_job.analysis.cli.terminal import escape_unencodable
from profiler_job.analysis.comparison.choices import CompareFormat


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
    form: Annotated[CompareFormat, typer.Option("--format", "-f", help="How to print it.")] = "text",
    top: Annotated[
        int, typer.Option(min=0, metavar="N", help="Parts of the difference in text and md; 0 for all.")
    ] = 10,
    no_cache: NoCache = False,
) -> None:
    """Compare B with A: is it faster, by how much, and why?

    Exit code: 0, or with --fail-if 1 a limit is exceeded, 3 there is not enough data; 2 these cannot be compared.
    """
    escape_unencodable()
    options: dict[str, Any] = {"only_first": a or (), "only_second": b or (), "skip": skip, "per_token": per_token}
    options |= {"conditions": fail_if or (), "form": form, "top": top}
    make = partial(_print_comparison, options | {"first": first, "second": second, "noise": noise}, not no_cache)
    kept = {"command": "compare", **options}
    if code := print_kept([first, second], kept, make, is_wanted=not no_cache and noise is None):
        raise typer.Exit(code)


def _print_comparison(options: dict[str, Any], caches: bool, out: Print, err: Print) -> int:
    from profiler_job.analysis.comparison import print_comparison as comparing  # takes time to import

    return comparing.run(comparing.Request(**options, caches=caches), out, err)
