"""The command `report`: the pages of recordings."""

from pathlib import Path
from typing import Annotated

import typer

from profiler_job.analysis.cli.shared_options import NoisePair, RunsOfA, RunsOfB, Skip
from profiler_job.analysis.comparison import print_comparison as comparing
from profiler_job.analysis.malloc import keep_freed_memory
from profiler_job.analysis.recording import ingest as ingesting
from profiler_job.analysis.recording.store import RecordingError
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.words import format_count


def report(
    recording: Annotated[
        list[Path] | None, typer.Option(help="Folder of a recording; repeat for several. Default: those in site/data.")
    ] = None,
    docs: Annotated[Path, typer.Option(help="MkDocs source folder to write the pages into.")] = Path("site"),
    strict: Annotated[bool, typer.Option(help="Exit with 1 where a check of the reconciliation page fails.")] = False,
    compared: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--compare", metavar="A B", help="Add pages that hold B against A, each as `compare` takes it."),
    ] = None,
    a: RunsOfA = None,
    b: RunsOfB = None,
    noise: NoisePair = None,
    skip: Skip = 0,
    per_token: Annotated[
        bool, typer.Option("--per-token", help="Of --compare: hold a token against a token, as `compare` does.")
    ] = False,
    price_per_hour: Annotated[
        float | None, typer.Option(min=0, help="Price of the GPUs of one run, to show that of tokens.")
    ] = None,
) -> None:
    """Write the pages of a recording; `mkdocs build` then makes the site.

    Exit code: 0 they are written, 1 a check fails (with --strict), 2 there is no recording, or A and B cannot be
    compared.
    """
    from profiler_job.analysis.site import write_site

    keep_freed_memory()
    comparison = None
    if compared is None and (a or b or noise or skip or per_token):
        options = "--a, --b, --noise, --skip and --per-token"
        ingesting.print_line(f"error: {options} are of --compare A B: give it, or leave them out")
        raise typer.Exit(ExitCode.USAGE)
    if compared is not None:
        first, second = compared
        request = comparing.Request(
            first=first,
            second=second,
            only_first=a or (),
            only_second=b or (),
            noise=noise,
            skip=skip,
            per_token=per_token,
        )
        loaded = comparing.attempt(request, ingesting.print_line, lambda: comparing.load(request))
        if isinstance(loaded, ExitCode):
            raise typer.Exit(loaded)
        comparison = loaded
    try:
        folders = recording or write_site.recordings_in(docs / "data")
        published = write_site.publish(folders, docs, comparison, price_per_hour)
    except RecordingError as error:
        ingesting.print_line(f"error: {error}")
        raise typer.Exit(error.exit_code) from error
    if published.verdict:
        print(published.verdict)
    pages, files = format_count(published.pages, "page"), format_count(published.files, "file")
    print(f"{docs}: {pages}, {files}, {format_count(published.breaches, 'breach')} of the checks")
    raise typer.Exit(ExitCode.FAILED if strict and published.breaches else ExitCode.OK)
