"""The way from a folder to what is printed of its history, and the exit code."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiler_job.analysis.comparison.choices import By, HistoryFormat, Metric
from profiler_job.analysis.comparison.errors import ComparisonProblem, NotComparableError
from profiler_job.analysis.comparison.history import History, make_history, parse_part
from profiler_job.analysis.comparison.history_forms import as_csv, as_json, as_markdown, as_text
from profiler_job.analysis.comparison.load_sides import load_side
from profiler_job.analysis.comparison.noise import fit_recordings
from profiler_job.analysis.comparison.sides import parse_selection
from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.outputs import TargetError, check_file, is_page, write_file
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.words import format_count

ADVICE = "give another --html, or --force"
"""What to do if the page cannot be written."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """paths: folders that hold entries, or entries. part: KEY=VALUE of kernels. only: KEY=VALUE of runs. noise: a pair
    of recordings of the same runs. skip: steps of captures that are left out. html: a page to write instead;
    force: in place of any file."""

    paths: Sequence[Path]
    metric: Metric = "step"
    part: Sequence[str] = ()
    by: By = "date"
    only: Sequence[str] = ()
    noise: tuple[Path, Path] | None = None
    skip: int = 0
    form: HistoryFormat = "text"
    html: Path | None = None
    force: bool = False
    caches: bool = True


def run(request: Request, out: Callable[[str], None], err: Callable[[str], None]) -> int:
    """Give the history to `out`, and a line to `err` for each entry that cannot be read. Returns the exit code: 0, or
    that of such an entry, as DAMAGED, or the code of the error if nothing can be shown."""
    try:
        if request.html:
            check_file(request.html, is_page, force=request.force, advice=ADVICE)  # before any reading
        if request.part and request.metric != "kernel":
            raise NotComparableError(
                ComparisonProblem.BAD_OPTION, "--part is of kernel time: give --metric kernel with it"
            )
        parse_selection(request.only)
        noise = fit_recordings(*map(load_side, request.noise)) if request.noise else None
        part = parse_part(request.part)
        history = make_history(
            request.paths, request.metric, part, request.by, request.only, noise, request.skip, caches=request.caches
        )
    except (ProfilerError, OSError) as error:
        err(make_printable(f"error: {error}"))
        return error.exit_code if isinstance(error, ProfilerError) else ExitCode.USAGE
    for why in history.unreadable.values():
        err(make_printable(f"error: {why}"))
    code = history.exit_code
    if request.html:
        return _write_page(history, request.html, request.force, out, err) or code
    match request.form:
        case "json":
            out(as_json(history, code))
        case "csv":
            out(as_csv(history))
        case "md":
            out(as_markdown(history))
        case "text":
            out(as_text(history))
    return code


def _write_page(
    history: History, target: Path, force: bool, out: Callable[[str], None], err: Callable[[str], None]
) -> int:
    from profiler_job.analysis.comparison.history_page import render_history  # what draws takes time to import

    try:
        write_file(target, render_history(history), is_page, force=force, advice=ADVICE)
    except TargetError as error:
        err(make_printable(f"error: {error}"))
        return error.exit_code
    out(make_printable(f"{target}: {format_count(len(history.entries), 'entry')}"))
    return 0
