"""Pages of captures as files."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from profiler_job.analysis.show.page import render_index, render_page
from profiler_job.analysis.show.reader import Reader
from profiler_job.jobs.contract.outputs import TargetError, check_file, is_page, write_files
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.words import format_count

INDEX = "index.html"
ADVICE = "give another --html, or --force"
"""What to do if a page cannot be written."""


def write_pages(
    reader: Reader,
    profiles: Sequence[Path],
    target: Path,
    top: int,
    several: bool,
    out: Callable[[str], None],
    err: Callable[[str], None],
    force: bool = False,
) -> int:
    """Write a page for each profile. One profile is written to the file `target`. With `several`, or if `target` is a
    folder, each profile gets a page in that folder, and INDEX a row and a link each. Gives the written paths to `out`.
    force: replace files that are not such pages, too. Returns the exit code."""
    in_folder = several or target.is_dir()
    link = INDEX if in_folder else ""
    try:
        check_file(target / INDEX if in_folder else target, is_page, force=force, advice=ADVICE)  # before any reading
        made = list(reader.make_each(profiles, lambda summary: (summary, render_page(summary, top, link))))
        if not made:
            return reader.code
        files = _choose_file_names([summary.capture["source"] for summary, _ in made])
        pages = dict(zip(files, (page for _, page in made))) if in_folder else {target.name: made[0][1]}
        if in_folder:
            pages[INDEX] = render_index([summary for summary, _ in made], files)
        folder = target if in_folder else target.parent
        write_files({folder / name: page for name, page in pages.items()}, is_page, force=force, advice=ADVICE)
    except TargetError as error:
        err(make_printable(f"error: {error}"))
        return error.exit_code
    out(make_printable(f"{target / INDEX if in_folder else target}: {format_count(len(made), 'capture')}"))
    return reader.code


def _choose_file_names(sources: Sequence[str]) -> list[str]:
    """Choose a file for each source, no two the same and none INDEX, whether or not the file system distinguishes
    capitals."""
    used = {INDEX}
    names = []
    for source in sources:
        stem = re.sub(r"[^0-9A-Za-z._-]+", "_", Path(source).stem).strip(".")[:100] or "capture"
        name, number = f"{stem}.html", 1
        while name.lower() in used:
            number += 1
            name = f"{stem}-{number}.html"
        used.add(name.lower())
        names.append(name)
    return names
