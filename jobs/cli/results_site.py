"""The site of the recordings in a folder of results."""

import os
from collections.abc import Sequence
from pathlib import Path

from profiler_job.jobs.cli.console import fail
from profiler_job.jobs.cli.follow_up import build_site, own_recordings, shipped_recordings
from profiler_job.jobs.cli.report_lock import reporting, reports
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.integrity import restore
from profiler_job.jobs.contract.layout import MANIFEST
from profiler_job.jobs.executor.events import JsonEvents, Terminal
from profiler_job.jobs.executor.preflight import check_writable


def build_results_site(
    results: Path,
    recordings: Sequence[Path] = (),
    shipped: bool = False,
    log_format: str = "text",
    page_options: Sequence[str] = (),
) -> bool:
    """Build the site of some recordings in RESULTS/site, by default that of those in RESULTS/recordings, and return
    whether its pages hold what `page_options` ask for. Ends the program if it cannot be built."""
    shown = recordings_to_show(results, [*recordings], shipped)
    emit = JsonEvents() if log_format == "json" else Terminal()
    writable = check_writable(results, reports(results).folder, results / "site")
    if writable.state == "failed":
        raise fail(f"{writable.found}; {writable.fix}", ExitCode.CANNOT_WRITE)
    with reporting(reports(results), "check the recording with `profiler-job verify`"):
        return build_site(shown, results / "site", emit, page_options=page_options)


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
