"""The command `site`: write the pages of recordings, and build their site."""

from pathlib import Path
from typing import Annotated

import typer

from profiler_job.analysis.cli.shared_options import NoisePair, RunsOfA, RunsOfB, Skip
from profiler_job.analysis.cli.terminal import is_given, print_lines
from profiler_job.analysis.comparison import print_comparison as comparing
from profiler_job.jobs.cli.results_site import build_results_site
from profiler_job.jobs.cli.sweep_options import LogFormat, ResultsFolder
from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.printable import print_line
from profiler_job.jobs.contract.words import format_count

DOCS = Path("site")


def site(
    context: typer.Context,
    results: ResultsFolder = Path("results"),
    recording: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="Recording to show; repeatable. Default: all in RESULTS/recordings."),
    ] = None,
    shipped: Annotated[
        bool, typer.Option("--shipped", help="Show the recordings that come with this program; replaces no site.")
    ] = False,
    pages_only: Annotated[
        bool, typer.Option("--pages-only", help="Write the Markdown into --docs and build nothing, for `mkdocs`.")
    ] = False,
    docs: Annotated[Path, typer.Option(metavar="FOLDER", help="MkDocs folder for --pages-only; has DOCS/data.")] = DOCS,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if a check of the numbers fails.")] = False,
    compared: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--compare", metavar="A B", help="Add pages that compare B with A, as `compare` does."),
    ] = None,
    a: RunsOfA = None,
    b: RunsOfB = None,
    noise: NoisePair = None,
    skip: Skip = 0,
    per_token: Annotated[
        bool, typer.Option("--per-token", help="Compare the time of a token, as `compare` does.")
    ] = False,
    price_per_hour: Annotated[
        float | None, typer.Option(min=0, metavar="PRICE", help="Price of the GPUs of one run, to price tokens.")
    ] = None,
    log_format: LogFormat = "text",
) -> None:
    """Write the pages of recordings and build their site, in RESULTS/site. Needs no GPU.

    Exit code: 1 a check fails (with --strict), 2 there is no recording, two have one name, or A and B cannot be
    compared, 74 the site cannot be written, 75 another job makes its site there.
    """
    if compared is None and (a or b or noise or skip or per_token):
        raise ProfilerError("--a, --b, --noise, --skip and --per-token need --compare A B: give it or leave them out")
    request = None
    if compared is not None:
        request = comparing.Request(
            first=compared[0],
            second=compared[1],
            only_first=a or (),
            only_second=b or (),
            noise=noise,
            skip=skip,
            per_token=per_token,
        )
    if pages_only:
        if shipped:
            raise ProfilerError("--shipped and --pages-only: pages are written from DOCS/data or --recording")
        write_pages(recording or [], docs, request, price_per_hour, strict)
    elif is_given(context, "docs"):
        raise ProfilerError("--docs needs --pages-only; --results names the folder that receives the site")
    else:
        options = describe_pages(request, price_per_hour, strict)
        if not build_results_site(results, recording or [], shipped, log_format, options):
            raise typer.Exit(ExitCode.FAILED)


def describe_pages(request: comparing.Request | None, price_per_hour: float | None, strict: bool) -> list[str]:
    """Return what the pages show in addition to recordings, as options for the process that writes them."""
    options = ["--strict"] if strict else []
    if price_per_hour is not None:
        options += ["--price-per-hour", str(price_per_hour)]
    if request is not None:
        options += ["--compare", *(str(path.absolute()) for path in (request.first, request.second))]
        options += [text for only in request.only_first for text in ("--a", only)]
        options += [text for only in request.only_second for text in ("--b", only)]
        options += ["--noise", *(str(path.absolute()) for path in request.noise)] if request.noise else []
        options += ["--skip", str(request.skip)] if request.skip else []
        options += ["--per-token"] if request.per_token else []
    return options


def write_pages(
    recordings: list[Path],
    docs: Path,
    request: comparing.Request | None,
    price_per_hour: float | None,
    strict: bool,
) -> None:
    """Write the pages of recordings, by default of those in DOCS/data, into a MkDocs folder. Ends the program if a
    check fails and they are strict. Raises RecordingError."""
    from profiler_job.analysis.site import write_site

    docs.mkdir(parents=True, exist_ok=True)  # what cannot be one is told before all pages are made
    comparison = None
    if request is not None:
        loaded = comparing.attempt(request, print_line, lambda: comparing.load(request))
        if isinstance(loaded, ExitCode):
            raise typer.Exit(loaded)
        comparison = loaded
    folders = recordings or write_site.recordings_in(docs / "data")
    published = write_site.publish(folders, docs, comparison, price_per_hour)
    if published.verdict:
        print_lines(published.verdict)
    pages, files = format_count(published.pages, "page"), format_count(published.files, "file")
    where = ", which report/reconciliation lists" if published.breaches else ""
    print_lines(f"{docs}: {pages}, {files}, {format_count(published.breaches, 'breach')} of the checks{where}")
    raise typer.Exit(ExitCode.FAILED if strict and published.breaches else ExitCode.OK)
