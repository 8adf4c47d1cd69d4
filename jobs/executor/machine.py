"""What is recorded of the machine and the programs that measure. No host, user or path."""

import os
import secrets
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jobs.contract.layout import Machine
from jobs.contract.privacy import hash_names, names_of_machine
from jobs.executor.nsys_cli import nsys


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
    """The commit of this program: from the environment (an image has no git), else from git, else empty."""
    if "PROFILER_COMMIT" in os.environ:
        return os.environ["PROFILER_COMMIT"]
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


@cache
def hashed_names() -> list[str]:
    """Names of this machine and its user, hashed with a salt of this process."""
    return hash_names(names_of_machine(), secrets.token_hex(8))
