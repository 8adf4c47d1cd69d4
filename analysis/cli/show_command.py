"""The command `show`: summarise captures."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from profiler_job.analysis.capture import chosen_part
from profiler_job.analysis.cli.kept_output import Print, print_kept
from profiler_job.analysis.cli.shared_options import Force, NoCache
from profiler_job.analysis.cli.terminal import escape_unencodable, is_given, print_form
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.printable import print_line

MarkedPhases = Annotated[
    list[str] | None,
    typer.Option(metavar="PHASE=RANGE", help="Ranges of that name mark this phase, such as optimizer=my_opt."),
]
Moments = Annotated[
    str | None,
    typer.Option(metavar="START,END", help="Only what starts then, after the first event: ms, or with s, ms or us."),
]


def show(
    context: typer.Context,
    profiles: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PROFILE",
            help=".nsys-rep, .sqlite, a parquetdir export, a trace of torch.profiler, or a folder of them.",
        ),
    ] = None,
    form: Annotated[
        chosen_part.ShowFormat,
        typer.Option("--format", "-f", metavar="FORMAT", help="text, json, csv, md or speedscope."),
    ] = "text",
    top: Annotated[int, typer.Option(min=0, metavar="N", help="Rows of a section; 0 for all.")] = 20,
    rules: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML file with rules for kernel families.")
    ] = None,
    phase: MarkedPhases = None,
    report: Annotated[
        chosen_part.ReportName | None,
        typer.Option(
            metavar="NAME",
            help=f"Instead, this table of `nsys stats`, as CSV: {', '.join(get_args(chosen_part.ReportName))}.",
        ),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Explain a kernel, API call or kernel family, without PROFILE."),
    ] = None,
    section: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this section; repeat for several. One in csv has columns of its own."),
    ] = None,
    in_range: Annotated[
        str | None, typer.Option("--range", metavar="NAME", help="Only what was launched inside ranges of that name.")
    ] = None,
    gpu: Annotated[int | None, typer.Option(metavar="N", help="Only what ran on GPU number N.")] = None,
    between: Moments = None,
    is_whole: Annotated[bool, typer.Option("--whole", help="Keep start-up, too.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Write a page there; of several profiles a folder of pages."),
    ] = None,
    force: Force = False,
    no_cache: NoCache = False,
) -> None:
    """Summarise captures: where GPU time goes, what to change first. They may be of any program under nsys."""
    escape_unencodable()
    refuse_contradictions(context, bool(profiles), explain is not None, bool(report), bool(html))
    profiles = profiles or []
    if explain is not None:
        from profiler_job.analysis.show import explain as explaining

        code = explaining.explain(explain, profiles, top, print_form, print_line, rules)
    elif report:
        from profiler_job.analysis import show as showing

        code = showing.show_report(profiles, report, print_form, print_line)
    else:
        try:
            moments = chosen_part.parse_moments(between) if between is not None else None
        except ValueError as error:
            raise refuse(f"--between {error}") from error
        selection = chosen_part.Selection(
            gpu=gpu, range=in_range, between=moments, sections=(*dict.fromkeys(section or ()),)
        )
        options: dict[str, Any] = {
            "form": form,
            "top": top,
            "phases": phase or (),
            "selection": selection,
            "is_whole": is_whole,
        }
        caches = not no_cache
        make = partial(_print_summaries, profiles, options | {"rules": rules, "html": html}, force, caches)
        kept = {"command": "show", **options, "selection": selection.as_json() | {"sections": selection.sections}}
        code = print_kept(profiles, kept, make, is_wanted=caches and not rules and not html)
    if code:
        raise typer.Exit(code)


def _print_summaries(
    profiles: list[Path], options: dict[str, Any], force: bool, caches: bool, out: Print, err: Print
) -> int:
    from profiler_job.analysis import show as showing  # takes time to import

    return showing.show(profiles, out=out, err=err, force=force, caches=caches, **options)


def refuse_contradictions(
    context: typer.Context, has_profiles: bool, explains: bool, has_report: bool, has_html: bool
) -> None:
    """Raises typer.Exit, after a line that says why, if options contradict each other or no profile is given."""
    options = {"form": "--format", "top": "--top", "rules": "--rules", "phase": "--phase", "section": "--section"}
    options |= {"in_range": "--range", "gpu": "--gpu", "between": "--between", "is_whole": "--whole", "html": "--html"}
    given = [option for name, option in options.items() if is_given(context, name)]
    not_explained = [option for option in given if option not in ("--top", "--rules")] + ["--report"] * has_report
    if explains and not_explained:
        raise refuse(f"--explain prints text and no tables: leave out {not_explained[0]}")
    if not explains and not has_profiles:
        raise refuse("no PROFILE: give an .nsys-rep, an .sqlite or a parquetdir export")
    if has_report and given:
        raise refuse(f"{given[0]} is for summaries, and --report prints nsys's CSV: leave one out")
    if not has_html and is_given(context, "force"):
        raise refuse("--force replaces what --html names: give both")
    if has_html and "--format" in given:
        raise refuse("--html writes pages, and --format is for printing: leave one out")


def refuse(reason: str) -> typer.Exit:
    """Print why the command line is refused, and return the exit to raise."""
    print_line(f"error: {reason}")
    return typer.Exit(ExitCode.USAGE)
