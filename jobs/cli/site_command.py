"""The command `render`: the site of some recordings."""

import os
from pathlib import Path
from typing import Annotated

import typer

from profiler_job.jobs.cli.console import fail
from profiler_job.jobs.cli.follow_up import build_site, own_recordings, shipped_recordings
from profiler_job.jobs.cli.report_lock import reporting, reports
from profiler_job.jobs.cli.sweep_options import LogFormat, ResultsFolder
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.integrity import restore
from profiler_job.jobs.contract.layout import MANIFEST
from profiler_job.jobs.executor.events import JsonEvents, Terminal
from profiler_job.jobs.executor.preflight import check_writable


def render(
    results: ResultsFolder = Path("results"),
    recording: Annotated[
        list[Path] | None,
        typer.Option(help="Recording to show; repeat for several. Default: those in RESULTS/recordings."),
    ] = None,
    shipped: Annotated[
        bool, typer.Option("--shipped", help="Show the recordings that come with this program; replaces no report.")
    ] = False,
    log_format: LogFormat = "text",
) -> None:
    """Build the site of the recordings in RESULTS/recordings, where `job` puts them, in RESULTS/site. Needs no GPU.

    Exit code: 2 there is no recording, two have one name, or --shipped would replace a report, 70 the site cannot be
    built, 74 it cannot be written, 75 another job makes its report there.
    """
    shown = recordings_to_show(results, recording or [], shipped)
    emit = JsonEvents() if log_format == "json" else Terminal()
    writable = check_writable(results, reports(results).folder, results / "site")
    if writable.state == "failed":
        raise fail(f"{writable.found}; {writable.fix}", ExitCode.CANNOT_WRITE)
    with reporting(reports(results), "check the recording with `profiler-job report --recording`"):
        build_site(shown, results / "site", emit)


def recordings_to_show(results: Path, named: list[Path], shipped: bool) -> list[Path]:
    """Those named, the shipped ones on request, or else those of `results`. Ends the program where there are none,
    where two have one name, and where the shipped ones would replace a report or hide what was measured."""
    for folder in named:
        restore(folder)
    if not shipped:
        if absent := [folder for folder in named if not (folder / MANIFEST).is_file()]:
            raise fail(f"--recording {absent[0]}: no recording is there; `ingest` makes one", ExitCode.USAGE)
        named = [Path(os.path.abspath(folder)) for folder in named]  # `.` has no name
        by_name = {folder.name: folder for folder in named}
        if same := [folder for folder in named if by_name[folder.name] is not folder]:
            both = f"--recording {same[0]} and {by_name[same[0].name]}"
            raise fail(f"{both}: a site holds one recording of a name; rename one of the folders", ExitCode.USAGE)
        if shown := named or own_recordings(results):
            return shown
        ways = "`job` makes one, --recording names another folder, --shipped shows those that come with this program"
        raise fail(f"{results / 'recordings'} holds no recording: {ways}", ExitCode.USAGE)
    if named:
        raise fail("--shipped and --recording: give one of them", ExitCode.USAGE)
    own = [*own_recordings(results), *filter(Path.exists, [results / "site"])]
    if own:
        raise fail(f"--shipped: {own[0]} is there already, which stays; give another --results", ExitCode.USAGE)
    return shipped_recordings()
