"""The command `show`: summarise captures."""

from pathlib import Path
from typing import Annotated

import typer

from profiler_job.analysis import show as showing
from profiler_job.analysis.capture import nsys_reports
from profiler_job.analysis.capture import selection as selecting
from profiler_job.analysis.cli.terminal import escape_unencodable, is_given
from profiler_job.analysis.recording import ingest as ingesting
from profiler_job.analysis.show import explain as explaining
from profiler_job.jobs.contract.exit_codes import ExitCode


def show(
    context: typer.Context,
    profiles: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PROFILE...", help=".nsys-rep, .sqlite, a parquetdir export, or a folder that holds some."
        ),
    ] = None,
    form: Annotated[showing.Format, typer.Option("--format", "-f", help="How to print it.")] = "text",
    top: Annotated[int, typer.Option(min=0, help="Rows of a section in text and md; 0 for all.")] = 20,
    rules: Annotated[Path | None, typer.Option(help="TOML file with your own rules for kernel families.")] = None,
    phase: Annotated[
        list[str] | None,
        typer.Option(metavar="PHASE=RANGE", help="Ranges of that name mark this phase, such as optimizer=my_opt."),
    ] = None,
    report: Annotated[
        nsys_reports.ReportName | None,
        typer.Option(help="Instead, this table of `nsys stats`, as CSV with nsys's columns."),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Instead, what this kernel, API call or kernel family is; needs no PROFILE."),
    ] = None,
    section: Annotated[
        list[str] | None, typer.Option(help="Only this section; repeat for several. One in csv has columns of its own.")
    ] = None,
    in_range: Annotated[
        str | None, typer.Option("--range", metavar="NAME", help="Only what was launched inside ranges of that name.")
    ] = None,
    gpu: Annotated[int | None, typer.Option(help="Only what ran on the GPU of that number.")] = None,
    between: Annotated[
        str | None,
        typer.Option(
            metavar="START,END", help="Only what starts then, after the first event: ms, or with s, ms or us."
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Instead of printing, write a page there; of several profiles a folder of pages."),
    ] = None,
) -> None:
    """Summarise nsys captures of any program: where does the GPU time go, and what to change first?"""
    escape_unencodable()
    of_summaries = {"form": "--format", "top": "--top", "rules": "--rules", "phase": "--phase"}
    of_summaries |= {"section": "--section", "in_range": "--range", "gpu": "--gpu", "between": "--between"}
    of_summaries |= {"html": "--html"}
    given = [option for name, option in of_summaries.items() if is_given(context, name)]
    not_explained = [option for option in given if option not in ("--top", "--rules")] + ["--report"] * bool(report)
    if explain is not None and not_explained:
        ingesting.print_line(f"error: --explain prints text and no tables: leave out {not_explained[0]}")
        raise typer.Exit(ExitCode.USAGE)
    if explain is None and not profiles:
        ingesting.print_line("error: no PROFILE: give an .nsys-rep, an .sqlite or a parquetdir export")
        raise typer.Exit(ExitCode.USAGE)
    if report and given:
        ingesting.print_line(f"error: {given[0]} is for summaries, and --report prints nsys's CSV: leave one out")
        raise typer.Exit(ExitCode.USAGE)
    if html and "--format" in given:
        ingesting.print_line("error: --html writes pages, and --format is for printing: leave one out")
        raise typer.Exit(ExitCode.USAGE)
    profiles = profiles or []
    if explain is not None:
        code = explaining.explain(explain, profiles, top, print, ingesting.print_line, rules)
    elif report:
        code = showing.show_report(profiles, report, print, ingesting.print_line)
    else:
        try:
            moments = selecting.parse_moments(between) if between is not None else None
        except ValueError as error:
            ingesting.print_line(f"error: --between {error}")
            raise typer.Exit(ExitCode.USAGE) from error
        selection = selecting.Selection(
            gpu=gpu, range=in_range, between=moments, sections=(*dict.fromkeys(section or ()),)
        )
        from profiler_job.analysis.prediction.captures import add_gains

        code = showing.show(
            profiles,
            form,
            top,
            print,
            ingesting.print_line,
            rules,
            phase or (),
            selection=selection,
            html=html,
            predict=add_gains,
        )
    if code:
        raise typer.Exit(code)
