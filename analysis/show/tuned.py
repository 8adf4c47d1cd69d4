"""Show a result of `tune`, read from its folder.

    python -m profiler_job.analysis.show.tuned FOLDER FORM

prints it in one of FORMS, and writes its page to FOLDER/tune.html.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from profiler_job.analysis.insight.tuned_ladder import interpret_tuning
from profiler_job.analysis.render.terminal_text import measure_terminal
from profiler_job.analysis.show.tuned_forms import FORMS, format_tuned
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.extras import find_missing
from profiler_job.jobs.contract.outputs import TargetError, is_page, write_file
from profiler_job.jobs.contract.printable import make_printable, print_line
from profiler_job.jobs.contract.tuning import TuningError, read_tuning

PAGE = "tune.html"
"""File of the page in the folder of a result."""


def show_tuned(
    folder: Path,
    form: str,
    out: Callable[[str], None],
    err: Callable[[str], None],
    *,
    top: int = 20,
    html: Path | None = None,
    force: bool = False,
) -> int:
    """Give the result of `tune` in a folder to `out`, in one of FORMS, or write its page to the file `html`. top: 0 for
    text that may be wider than the terminal. Returns the exit code."""
    if form not in FORMS:
        err(f"error: --format {form} is for captures: choose from {', '.join(FORMS)} for a result of `tune`")
        return ExitCode.USAGE
    try:
        ladder = interpret_tuning(read_tuning(folder))
    except (TuningError, FileNotFoundError) as error:
        err(make_printable(f"error: {error}"))
        return ExitCode.DAMAGED
    if html is None:
        out(format_tuned(ladder, form, measure_terminal(), is_whole=not top))
        return ExitCode.OK
    from profiler_job.analysis.insight.tuned_parts import read_tuned_steps  # what draws takes time to import
    from profiler_job.analysis.show.tuned_page import render_tuned

    target = html / PAGE if html.is_dir() else html
    try:
        steps = read_tuned_steps(folder if folder.is_dir() else folder.parent, ladder)
        write_file(target, render_tuned(ladder, steps), is_page, force=force, advice="give another --html, or --force")
    except TargetError as error:
        err(make_printable(f"error: {error}"))
        return error.exit_code
    out(make_printable(str(target)))
    return ExitCode.OK


def main(folder: Path, form: str) -> int:
    """Print a result, and write its page if what draws is installed. Returns the exit code."""
    code = show_tuned(folder, form, _print, print_line)
    if code or find_missing("site"):
        return code
    quiet = form != "text"
    return show_tuned(folder, form, print_line if quiet else _print_page, print_line, html=folder / PAGE)


def _print(text: str) -> None:
    """Print, and go on if nobody reads it any more, as after `| head`: there is a page to write."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_page(path: str) -> None:
    _print(f"\nAs a page: {path}")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
