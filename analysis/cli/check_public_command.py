"""The command `check-public`: check that folders may become public."""

import os
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from profiler_job.analysis.cli.terminal import print_lines
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.printable import print_line
from profiler_job.jobs.contract.words import format_count


def check_public(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER", help="Recordings, or a built site.")],
) -> None:
    """Check folders before they become public. Nothing looks private, and every link leads somewhere.

    Links that begin with / are relative to SITE_URL. Exit code: 0 all is well, 1 something was found, 2 a folder is
    missing or a file in it cannot be read.
    """
    from profiler_job.analysis.recording import scan
    from profiler_job.analysis.render import links

    num_found = 0
    for folder in folders:
        try:
            findings = [str(finding) for finding in scan.scan_public(folder)]
        except (OSError, ValueError) as error:
            print_line(f"error: {folder} cannot be checked: {error}")
            raise typer.Exit(ExitCode.USAGE) from error
        broken = links.check_links(folder, urlsplit(os.environ.get("SITE_URL", "")).path or "/")
        for line in [*findings, *(f"link that leads nowhere in {link}" for link in broken)]:
            print_lines(f"{folder}: {line}")
        num_found += len(findings) + len(broken)
    print_lines(f"{format_count(len(folders), 'folder')}: {num_found} found that must not become public")
    raise typer.Exit(ExitCode.FAILED if num_found else ExitCode.OK)
