"""Which program this is: its commit, as recordings and kept predictions say it."""

import os
import subprocess
from importlib import metadata
from pathlib import Path

PROGRAM = Path(__file__).parents[2]
"""Where the packages of this program lie: its checkout, or where it was installed."""


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
