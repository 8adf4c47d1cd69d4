"""The command `install-nsys`: give this machine an nsys, without root, or name the one that it has."""

import subprocess
from pathlib import Path
from typing import Annotated

import typer

from profiler_job.jobs.cli.console import err, fail, out
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.find_nsys import find_nsys, own_folder
from profiler_job.jobs.contract.outputs import check_folder
from profiler_job.jobs.executor.install_nsys import KEY, PACKAGE, REPOSITORY, FolderError, InstallError, is_installed
from profiler_job.jobs.executor.install_nsys import install_nsys as install

STARTS_S = 20.0
"""Longest that nsys may take to print its version."""


def install_nsys(
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FOLDER", help="Folder to install into; by default one of the user.")
    ] = None,
    package: Annotated[str, typer.Option(metavar="NAME", help="Package of NVIDIA's repository.")] = PACKAGE,
    repository: Annotated[
        str,
        typer.Option(metavar="URL", help="Address of the repository, or of a mirror.", show_default="that of NVIDIA"),
    ] = REPOSITORY,
    key: Annotated[str, typer.Option(metavar="HEX", help="Fingerprint of the key that signs it.")] = KEY,
    force: Annotated[bool, typer.Option("--force", help="Install it even if this machine has an nsys.")] = False,
) -> None:
    """Install nsys, the profiler of NVIDIA; needs no root. Exit code: 69 it cannot be had, 74 its folder cannot be
    written.

    It is the command line of Nsight Systems, for Debian and Ubuntu, in a container, too. If a CUDA toolkit or Nsight
    Compute has brought one, nothing is installed: profiler-job finds it there. The repository's signature and the
    package's SHA-256 are checked.
    """
    if not force and to is None and (known := find_nsys()) is not None and _starts(known):
        out.print(f"nsys is already here: {known} (--force installs {package} all the same)", soft_wrap=True)
        return
    folder = (to or own_folder()).absolute()
    check_folder(folder, is_installed)
    try:
        program = install(folder, package, repository, key, say=lambda line: err.print(line, markup=False))
    except FolderError as error:
        raise fail(str(error), ExitCode.CANNOT_WRITE) from error
    except InstallError as error:
        raise fail(str(error), ExitCode.MISSING) from error
    out.print(f"installed: {program}", soft_wrap=True)
    if folder != own_folder().absolute():
        out.print(f'profiler-job finds it there with: export PATH="{program.parent}:$PATH"', soft_wrap=True)


def _starts(program: Path) -> bool:
    """Whether an nsys starts: one of another platform or with a library missing is replaced."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, timeout=STARTS_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
