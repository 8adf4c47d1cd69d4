"""The command `history`: follow one metric over many recordings."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from profiler_job.analysis.cli.kept_output import Print, print_kept
from profiler_job.analysis.cli.shared_options import Force, NoCache, NoisePair, Skip
from profiler_job.analysis.cli.terminal import escape_unencodable, is_given
from profiler_job.analysis.comparison.choices import By, HistoryFormat, Metric
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.extras import check_extra
from profiler_job.jobs.contract.printable import print_line


def history(
    context: typer.Context,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER", help="Holds recordings, results of sweeps or captures; or these themselves."),
    ],
    metric: Annotated[
        Metric,
        typer.Option(metavar="NAME", help=f"What is followed: {', '.join(get_args(Metric))}."),
    ] = "step",
    part: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE,...", help="Kernels of this phase, module or family; for --metric kernel."),
    ] = None,
    by: Annotated[By, typer.Option(help="Order of the entries; commits in the order of their dates.")] = "date",
    runs: Annotated[
        list[str] | None, typer.Option("--run", metavar="KEY=VALUE,...", help="Some of the runs: axes, or run_id.")
    ] = None,
    noise: NoisePair = None,
    skip: Skip = 0,
    form: Annotated[HistoryFormat, typer.Option("--format", "-f", help="How to print it.")] = "text",
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Instead of printing, write a page with charts.")
    ] = None,
    force: Force = False,
    no_cache: NoCache = False,
) -> None:
    """Follow one metric over many recordings or captures. Measurable changes are marked.

    Exit code: 65 an entry is damaged, 69 one needs nsys, which is not here (the others are shown), 2 there is nothing
    to show, 74 the page cannot be written.
    """
    escape_unencodable()
    if html:
        check_extra("site")
    if html and is_given(context, "form"):
        print_line("error: --html writes a page, and --format is for printing: leave one out")
        raise typer.Exit(ExitCode.USAGE)
    if force and not html:
        print_line("error: --force replaces what --html names: give both")
        raise typer.Exit(ExitCode.USAGE)
    options: dict[str, Any] = {
        "metric": metric,
        "part": part or (),
        "by": by,
        "only": runs or (),
        "skip": skip,
        "form": form,
    }
    make = partial(
        _print_history, options | {"paths": paths, "noise": noise, "html": html, "force": force}, not no_cache
    )
    kept = {"command": "history", **options}
    if code := print_kept(paths, kept, make, is_wanted=not (no_cache or noise or html)):
        raise typer.Exit(code)


def _print_history(options: dict[str, Any], caches: bool, out: Print, err: Print) -> int:
    from profiler_job.analysis.comparison import print_history as histories  # takes time to import

    return histories.run(histories.Request(**options, caches=caches), out, err)
