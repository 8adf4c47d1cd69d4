"""Show a result of `tune`, read from its folder."""

from collections.abc import Callable
from pathlib import Path

from profiler_job.analysis.insight.tuned_ladder import interpret_tuning
from profiler_job.analysis.render.terminal_text import measure_terminal
from profiler_job.analysis.show.tuned_forms import FORMS, format_tuned
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.outputs import TargetError, is_page, write_file
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.tuning import TuningError, read_tuning


def show_tuned(
    folder: Path,
    form: str,
    out: Callable[[str], None],
    err: Callable[[str], None],
    *,
    top: int = 20,
    usd_per_hour: float | None = None,
    html: Path | None = None,
    force: bool = False,
) -> int:
    """Give the result of `tune` in a folder to `out`, in one of FORMS, or write its page to the file `html`. top: 0 for
    text that may be wider than the terminal. usd_per_hour: price of the GPU, in place of the listed one. Returns the
    exit code."""
    if form not in FORMS:
        err(f"error: --format {form} is for captures: choose from {', '.join(FORMS)} for a result of `tune`")
        return ExitCode.USAGE
    try:
        ladder = interpret_tuning(read_tuning(folder), usd_per_hour)
    except (TuningError, FileNotFoundError) as error:
        err(make_printable(f"error: {error}"))
        return ExitCode.DAMAGED
    if html is None:
        out(format_tuned(ladder, form, measure_terminal(), is_whole=not top))
        return ExitCode.OK
    from profiler_job.analysis.show.tuned_page import render_tuned  # what draws takes time to import

    target = html / "tune.html" if html.is_dir() else html
    try:
        write_file(target, render_tuned(ladder), is_page, force=force, advice="give another --html, or --force")
    except TargetError as error:
        err(make_printable(f"error: {error}"))
        return error.exit_code
    out(make_printable(str(target)))
    return ExitCode.OK
