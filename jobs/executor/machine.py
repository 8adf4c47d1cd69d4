"""What is recorded of the machine and the programs that measure. No host, user or path."""

import os
import secrets
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from jobs.contract.layout import Machine
from jobs.contract.privacy import hash_names, names_of_machine
from jobs.executor.nsys_cli import nsys

PROGRAM = Path(__file__).parents[2]
"""Where the packages of this program lie: its checkout, or where it was installed."""


def machine_facts(worker_facts: Mapping[str, Any], *, with_nsys: bool) -> Machine:
    """GPU, driver, CUDA, torch, nsys (empty where it is not used), Python and the commit of this program.

    Raises CollectorError where nsys is missing.
    """
    nsys_used = nsys_version() if with_nsys else ""
    return Machine(**worker_facts, driver=driver_version(), nsys=nsys_used, commit=commit())


def driver_version() -> str:
    import pynvml

    try:
        pynvml.nvmlInit()
        return pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return ""


def nsys_version() -> str:
    return nsys("--version").strip().rpartition("version ")[2]


def commit() -> str:
    """The commit of this program: from the environment (an image has no git), else from git; of one that was installed
    its version; else empty."""
    if "PROFILER_COMMIT" in os.environ:
        return os.environ["PROFILER_COMMIT"]
    return commit_of(PROGRAM) or version_in(PROGRAM)


def commit_of(folder: Path) -> str:
    """The commit of the checkout that `folder` is, empty where it is none: one around it is of another program, as
    around an environment in somebody's project."""
    command = ["git", "-C", str(folder), "rev-parse", "--show-toplevel", "--short=12", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        checkout, head = done.stdout.splitlines()
        return head if os.path.samefile(checkout, folder) else ""
    except (OSError, ValueError, subprocess.CalledProcessError):
        return ""


def version_in(folder: Path) -> str:
    """The version of this program that is installed in `folder`, such as `version 1.0`; empty where none is."""
    versions = [installed.version for installed in metadata.distributions(name="profiler-job", path=[str(folder)])]
    return f"version {versions[0]}" if versions else ""


@cache
def hashed_names() -> list[str]:
    """Names of this machine and its user, hashed with a salt of this process."""
    return hash_names(names_of_machine(), secrets.token_hex(8))
