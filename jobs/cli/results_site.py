"""The site of the recordings in a folder of results."""

import os
from collections.abc import Sequence
from pathlib import Path

from profiler_job.jobs.cli.console import fail
from profiler_job.jobs.cli.follow_up import build_site, find_own_recordings, find_shipped_recordings
from profiler_job.jobs.cli.report_lock import find_report_folder, hold_report_folder
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.integrity import restore
from profiler_job.jobs.contract.layout import MANIFEST, SITE
from profiler_job.jobs.contract.outputs import check_folder, is_site
from profiler_job.jobs.executor.events import JsonEvents, Terminal
from profiler_job.jobs.executor.preflight import check_writable


def build_results_site(
    results: Path,
    recordings: Sequence[Path] = (),
    shipped: bool = False,
    log_format: str = "text",
    page_options: Sequence[str] = (),
) -> bool:
    """Build a site in RESULTS/site, by default of all recordings in RESULTS/recordings. Return whether its pages pass
    the checks that `page_options` make strict. Ends the program if it cannot be built."""
    shown = select_recordings(results, [*recordings], shipped)
    check_folder(results / SITE, is_site)
    emit = JsonEvents() if log_format == "json" else Terminal()
    writable = check_writable(results, find_report_folder(results).folder, results / "site")
    if writable.state == "failed":
        raise fail(f"{writable.found}; {writable.fix}", ExitCode.CANNOT_WRITE)
    with hold_report_folder(find_report_folder(results), "check the recording with `profiler-job verify`"):
        return build_site(shown, results / "site", emit, page_options=page_options)


def select_recordings(results: Path, named: list[Path], shipped: bool) -> list[Path]:
    """Return the named recordings, the shipped ones on request, or else the ones of `results`. Ends the program if
    there are none, if two have one name, or if the shipped ones would replace a site or hide what was measured."""
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
        if shown := named or find_own_recordings(results):
            return shown
        ways = "`job` makes one, --recording names another folder, --shipped shows those that come with this program"
        raise fail(f"{results / 'recordings'} holds no recording: {ways}", ExitCode.USAGE)
    if named:
        raise fail("--shipped and --recording: give one of them", ExitCode.USAGE)
    own = [*find_own_recordings(results), *filter(Path.exists, [results / "site"])]
    if own:
        raise fail(f"--shipped: {own[0]} is there already, which stays; give another --results", ExitCode.USAGE)
    return find_shipped_recordings()
