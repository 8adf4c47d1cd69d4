"""Build the HTML of a site whose pages are written, with MkDocs: `python -m profiler_job.analysis.site.build_html`.

`build`, `serve` and their options are MkDocs's own. `copy SOURCES WORK OUT` builds a copy of the site's sources that
has some of its pages only. No other module starts MkDocs, so another generator of sites begins here.
"""

import os
import re
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from profiler_job.jobs.contract.errors import end_with
from profiler_job.jobs.contract.program import PACKAGE

SETTINGS = "mkdocs.yml"
NAV_PAGE = re.compile(r": (\S+\.(?:md|ipynb))$", re.MULTILINE)
"""The page of an entry of the navigation."""
NOTEBOOK_PLUGIN = re.compile(r"^  mkdocs-jupyter:\n(?:    .*\n)*", re.MULTILINE)
"""What renders notebooks. To import it is half of the build of a site that has none."""


def fit_settings(settings: str, docs: Path) -> str:
    """Return the text of the settings for the pages below `docs`: without the entries of the navigation that have no
    page there, without headings that have no entry left, and without what renders notebooks where there is none."""
    before, nav, after = settings.partition("\nnav:\n")
    kept: list[str] = []
    for line in reversed(after.splitlines(keepends=True)):
        indent = len(line) - len(line.lstrip())
        page = NAV_PAGE.search(line)
        below = len(kept[-1]) - len(kept[-1].lstrip()) if kept else 0
        if (docs / page[1]).is_file() if page else below > indent:
            kept.append(line)
    if not any(docs.rglob("*.ipynb")):
        before = NOTEBOOK_PLUGIN.sub("", before)
    return before + nav + "".join(reversed(kept))


def build_copy(sources: Path, work: Path, out: Path) -> None:
    """Build the pages below WORK/site into the folder `out`, with the settings of `sources`. Ends the program as MkDocs
    does."""
    (work / "analysis").symlink_to(PACKAGE / "analysis")  # the settings name files of it, relative to themselves
    settings = (sources / SETTINGS).read_text(encoding="utf-8")
    (work / SETTINGS).write_text(fit_settings(settings, work / "site"), encoding="utf-8")
    run(["build", "--quiet", "--config-file", str(work / SETTINGS), "--site-dir", str(out)])


def run(arguments: Sequence[str]) -> None:
    """Run a command of MkDocs and end the program as it does."""
    os.environ["NO_MKDOCS_2_WARNING"] = "1"
    sys.argv = ["mkdocs", *arguments]
    runpy.run_module("mkdocs", run_name="__main__", alter_sys=True)


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["copy"]:
        sources, work, out = map(Path, arguments[1:])
        build_copy(sources, work, out)
    else:
        run(arguments)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Exception as error:
        sys.exit(end_with(error))
