"""The commands of the side that needs no GPU. Each only calls the function that does the work."""

import os
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from profiler_job.analysis import show as showing
from profiler_job.analysis.capture import nsys_reports
from profiler_job.analysis.capture import selection as selecting
from profiler_job.analysis.comparison import compare_command as comparing
from profiler_job.analysis.comparison import history_command as histories
from profiler_job.analysis.malloc import keep_freed_memory
from profiler_job.analysis.recording import ingest as ingesting
from profiler_job.analysis.recording import merge as merging
from profiler_job.analysis.recording.store import RecordingError
from profiler_job.analysis.show import explain as explaining
from profiler_job.jobs.contract.layout import RECORD
from profiler_job.jobs.contract.words import counted

RunsOfA = Annotated[
    list[str] | None, typer.Option("--a", metavar="KEY=VALUE,...", help="Some of the runs of A: axes, or run_id.")
]
RunsOfB = Annotated[list[str] | None, typer.Option("--b", metavar="KEY=VALUE,...", help="Some of the runs of B.")]
NoisePair = Annotated[
    tuple[Path, Path] | None,
    typer.Option(metavar="C D", help="Two recordings of the same runs, for the noise band."),
]
Skip = Annotated[int, typer.Option(min=0, help="Leave out the first steps of captures, such as warm-up.")]


def ingest(
    results: Annotated[Path, typer.Argument(help="Results folder of one sweep, as the profiling job wrote it.")],
    out: Annotated[Path, typer.Option(help="Folder of the recording to write.")],
    label: Annotated[
        str, typer.Option(help="Tells it from other recordings of the same runs. Default: the folder's name.")
    ] = "",
) -> None:
    """Turn the results of a sweep into a recording: tidy Parquet tables and a manifest.

    Exit code: 0 every run that was measured is in it, 1 files of some are damaged or their captures cannot be used (it
    names them, and the others are in it), 2 there is nothing to ingest.
    """
    try:
        manifest = ingesting.ingest(results, out, emit=ingesting.print_line, label=label)
    except (ingesting.ResultsError, RecordingError, OSError) as error:
        ingesting.print_line(f"error: {describe_error(error)}")
        raise typer.Exit(2) from error
    size = sum(table["bytes"] for table in manifest["tables"].values())
    num_ok = sum(run["status"] == "ok" for run in manifest["runs"])
    kernels = manifest["tables"]["kernels"]["rows"]
    num_runs, num_kernels = counted(len(manifest["runs"]), "run"), counted(kernels, "kernel")
    print(f"{out}: {num_runs}, {num_ok} ok, {num_kernels}, {size / 2**20:.1f} MiB")
    if lost := ingesting.lost_runs(manifest):
        were = "was" if len(lost) == 1 else "were"
        ingesting.print_line(f"error: {len(lost)} of {num_runs} {were} measured and cannot be recorded, see above")
        raise typer.Exit(1)


def describe_error(error: Exception) -> str:
    """What an error says; of one of the operating system which file, why and what to do."""
    if not isinstance(error, OSError):
        return str(error)
    return f"{error.filename or 'a file'}: {error.strerror or error}; mend this (free some space?) and run it again"


def merge(
    shards: Annotated[
        list[Path], typer.Argument(metavar="SHARD...", help="Folders of shards, or the folder that holds them.")
    ],
    out: Annotated[Path, typer.Option(help="Results folder to write, for `ingest`.")],
    allow_mix: Annotated[
        bool, typer.Option("--allow-mix", help="Join shards that were measured with different versions, too.")
    ] = False,
) -> None:
    """Join the results that several machines measured of one sweep.

    Exit code: 0 every run is there, 1 runs are missing (the others are merged), 2 these folders cannot be merged, or
    only with --allow-mix: runs were measured with different versions.
    """
    try:
        merged = merging.merge(shards, out, emit=ingesting.print_line, allow_mix=allow_mix)
    except (ingesting.ResultsError, OSError) as error:
        ingesting.print_line(f"error: {describe_error(error)}")
        raise typer.Exit(2) from error
    num_runs = counted(len(merged.runs), "run")
    print(f"{out}: {num_runs}, {len(merged.missing)} missing, {len(merged.copies)} held more than once")
    raise typer.Exit(1 if merged.missing else 0)


def verify(
    folder: Annotated[Path, typer.Argument(help="Results folder of jobs, or one of its sweeps, or a recording.")],
) -> None:
    """Check that results and recordings are what was written: every file of finished runs, every table.

    Exit code: 0 all are, 1 some are damaged (it names them), 2 there is no run and no recording.
    """
    from profiler_job.analysis.recording import verify as verifying

    verified = verifying.verify(folder)
    if not verified.num_runs and not verified.num_recordings:
        ingesting.print_line(f"error: {folder} holds no finished run and no recording")
        raise typer.Exit(2)
    for place, damage in verified.damage.items():
        print(f"{place}: {damage}")
    for place in verified.unsealed:
        print(f"{place}: cannot be checked: an older version wrote it, without SHA-256")
    for place in verified.unfinished:
        print(f"{place}: not finished: it has no {RECORD}, and `run` measures it")
    looked_at = f"{counted(verified.num_runs, 'finished run')} and {counted(verified.num_recordings, 'recording')}"
    print(f"{looked_at}: {len(verified.damage)} damaged, {len(verified.unsealed)} cannot be checked")
    raise typer.Exit(1 if verified.damage else 0)


def show(
    context: typer.Context,
    profiles: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PROFILE...", help=".nsys-rep, .sqlite, a parquetdir export, or a folder that holds some."
        ),
    ] = None,
    form: Annotated[showing.Format, typer.Option("--format", help="How to print it.")] = "text",
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
    """Summarise nsys profiles of any program: kernels, ranges, phases, API calls, copies, and what is missing."""
    show_what_can_be()
    of_summaries = {"form": "--format", "top": "--top", "rules": "--rules", "phase": "--phase"}
    of_summaries |= {"section": "--section", "in_range": "--range", "gpu": "--gpu", "between": "--between"}
    of_summaries |= {"html": "--html"}
    given = [option for name, option in of_summaries.items() if is_given(context, name)]
    not_explained = [option for option in given if option not in ("--top", "--rules")] + ["--report"] * bool(report)
    if explain is not None and not_explained:
        ingesting.print_line(f"error: --explain prints text and no tables: leave out {not_explained[0]}")
        raise typer.Exit(2)
    if explain is None and not profiles:
        ingesting.print_line("error: no PROFILE: give an .nsys-rep, an .sqlite or a parquetdir export")
        raise typer.Exit(2)
    if report and given:
        ingesting.print_line(f"error: {given[0]} is of summaries, and --report prints nsys's CSV: leave one out")
        raise typer.Exit(2)
    if html and "--format" in given:
        ingesting.print_line("error: --html writes pages, and --format is of what is printed: leave one out")
        raise typer.Exit(2)
    profiles = profiles or []
    keep_freed_memory()
    if explain is not None:
        code = explaining.explain(explain, profiles, top, print, ingesting.print_line, rules)
    elif report:
        code = showing.show_report(profiles, report, print, ingesting.print_line)
    else:
        try:
            moments = selecting.between(between) if between is not None else None
        except ValueError as error:
            ingesting.print_line(f"error: --between {error}")
            raise typer.Exit(2) from error
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


def compare(
    first: Annotated[
        Path, typer.Argument(metavar="A", help="A recording, the results folder of a sweep, or one capture.")
    ],
    second: Annotated[Path, typer.Argument(metavar="B", help="The same, held against A.")],
    a: RunsOfA = None,
    b: RunsOfB = None,
    noise: NoisePair = None,
    skip: Skip = 0,
    per_token: Annotated[
        bool, typer.Option("--per-token", help="Hold a token against a token: context and batch may differ.")
    ] = False,
    fail_if: Annotated[
        list[str] | None, typer.Option(metavar="CONDITION", help='Such as "step > 3%"; repeat for several.')
    ] = None,
    form: Annotated[comparing.Format, typer.Option("--format", help="How to print it.")] = "text",
    top: Annotated[int, typer.Option(min=0, help="Parts of the difference in text and md; 0 for all.")] = 10,
) -> None:
    """Hold B against A: is it faster, by how much, why, and is that more than noise?

    Exit code: 0, or with --fail-if 1 beyond a limit, 3 not enough data to tell; 2 these cannot be compared.
    """
    show_what_can_be()
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
    )
    if code := comparing.run(request, print, ingesting.print_line):
        raise typer.Exit(code)


def history(
    context: typer.Context,
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...", help="Holds recordings, results of sweeps or captures; or these themselves."
        ),
    ],
    metric: Annotated[histories.Followed, typer.Option(help="What is followed.")] = "step",
    part: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE,...", help="Only kernels of this phase, module or family; of --metric kernel."),
    ] = None,
    by: Annotated[
        histories.By, typer.Option(help="Order of the entries; commits in the order of their dates.")
    ] = "date",
    runs: Annotated[
        list[str] | None, typer.Option("--run", metavar="KEY=VALUE,...", help="Some of the runs: axes, or run_id.")
    ] = None,
    noise: NoisePair = None,
    skip: Skip = 0,
    form: Annotated[histories.Format, typer.Option("--format", help="How to print it.")] = "text",
    html: Annotated[Path | None, typer.Option(help="Instead of printing, write a page with charts there.")] = None,
) -> None:
    """Follow one metric over many recordings or captures, and mark changes that exceed the noise band.

    Exit code: 0, or 2 where an entry cannot be read (the others are shown), or nothing can be shown.
    """
    show_what_can_be()
    if html and is_given(context, "form"):
        ingesting.print_line("error: --html writes a page, and --format is of what is printed: leave one out")
        raise typer.Exit(2)
    request = histories.Request(
        paths=paths,
        metric=metric,
        part=part or (),
        by=by,
        only=runs or (),
        noise=noise,
        skip=skip,
        form=form,
        html=html,
    )
    if code := histories.run(request, print, ingesting.print_line):
        raise typer.Exit(code)


def predict(
    recording: Annotated[Path, typer.Argument(help="A recording, or the results folder of a sweep.")],
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
) -> None:
    """Predict a step of recorded runs with a change, such as BF16, fused attention, CUDA graphs or a larger batch.

    Exit code: 0, or 2 where nothing can be predicted of this recording.
    """
    from profiler_job.analysis.prediction import predict_command as predicting

    show_what_can_be()
    request = predicting.Request(recording=recording, sets=change or (), only=runs or (), ledger=ledger)
    if code := predicting.run(request, print, ingesting.print_line):
        raise typer.Exit(code)


def show_what_can_be() -> None:
    """A terminal of another encoding shows what it can, and the rest as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def is_given(context: typer.Context, name: str) -> bool:
    """Whether a parameter of the command was given, and not left at its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


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
        raise typer.Exit(2)
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
        comparison = comparing.attempt(request, ingesting.print_line, lambda: comparing.load(request))
        if comparison is None:
            raise typer.Exit(comparing.NOT_COMPARABLE)
    try:
        folders = recording or write_site.recordings_in(docs / "data")
        published = write_site.publish(folders, docs, comparison, price_per_hour)
    except RecordingError as error:
        ingesting.print_line(f"error: {error}")
        raise typer.Exit(2) from error
    if published.verdict:
        print(published.verdict)
    pages, files = counted(published.pages, "page"), counted(published.files, "file")
    print(f"{docs}: {pages}, {files}, {counted(published.breaches, 'breach')} of the checks")
    raise typer.Exit(1 if strict and published.breaches else 0)


def publish_data(
    source: Annotated[Path, typer.Argument(metavar="RESULTS", help="Results folder of a sweep, or a recording.")],
    name: Annotated[str, typer.Argument(help="Name of the recording, such as h100-bf16.")],
    data: Annotated[Path, typer.Option(help="Folder of the published recordings.")] = Path("site/data"),
    study: Annotated[
        str | None, typer.Option(help="File it under a study, such as `again`, another recording of the same runs.")
    ] = None,
    without_captures: Annotated[
        bool, typer.Option("--without-captures", help="Leave out what nsys recorded: times, memory, energy stay.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Put a recording into site/data, after showing what becomes public.

    Exit code: 0 it is there, 1 not confirmed, 2 it cannot be published (something private in it, too large, not whole).
    """
    from profiler_job.analysis.recording import publish_data as publishing

    try:
        folder = publishing.publish_data(
            source, name, data, lambda text: yes or typer.confirm(text), study=study, with_captures=not without_captures
        )
    except (publishing.PublishError, ingesting.ResultsError, RecordingError, OSError) as error:
        ingesting.print_line(f"error: {describe_error(error)}")
        raise typer.Exit(2) from error
    if folder is None:
        ingesting.print_line("nothing was published")
        raise typer.Exit(1)
    print(f"{folder} is ready: commit it, and the site shows it after the next push")


def check_public(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Recordings, or a built site.")],
) -> None:
    """Check folders that are to become public: nothing in them looks private, and no link of a page leads nowhere.

    Links that begin with / are those of SITE_URL. Exit code: 0 all is well, 1 something was found, 2 a folder is
    missing or a file in it cannot be read.
    """
    from profiler_job.analysis.recording import scan
    from profiler_job.analysis.render import links

    num_found = 0
    for folder in folders:
        try:
            findings = [str(finding) for finding in scan.scan_public(folder)]
        except (OSError, ValueError) as error:
            ingesting.print_line(f"error: {folder} cannot be checked: {error}")
            raise typer.Exit(2) from error
        broken = links.check_links(folder, urlsplit(os.environ.get("SITE_URL", "")).path or "/")
        for line in [*findings, *(f"link that leads nowhere in {link}" for link in broken)]:
            print(f"{folder}: {line}")
        num_found += len(findings) + len(broken)
    print(f"{counted(len(folders), 'folder')}: {num_found} found that must not become public")
    raise typer.Exit(1 if num_found else 0)
