"""The extras of pyproject.toml: what is not installed, and the command that installs it.

The base reads captures, follows scripts and plans. A command that needs more checks it before it measures anything.
"""

import json
import shlex
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.program import PROGRAM

Extra = Literal["site", "gpu", "hf"]

MODULES: dict[Extra, tuple[str, ...]] = {
    "site": ("jinja2", "altair", "vl_convert", "mkdocs", "material", "mkdocs_jupyter", "detect_secrets"),
    "gpu": ("torch",),
    "hf": ("transformers",),
}
"""Modules that this program imports, by extra."""


class MissingExtraError(ProfilerError, ImportError):
    """An extra that a command needs is not installed; the message names what is missing and how to install it."""

    exit_code = ExitCode.MISSING


def check_extra(extra: Extra) -> None:
    """Raise MissingExtraError if a module of the extra is not installed. Imports none of them."""
    if missing := find_missing(extra):
        names = ", ".join(missing)
        raise MissingExtraError(f"{names}: not installed. The extra `{extra}` has it: {install_command(extra)}")


def find_missing(extra: Extra) -> list[str]:
    """Return the modules of an extra that are not installed. A folder without `__init__.py` does not count."""
    specs = {module: find_spec(module) for module in MODULES[extra]}
    return [module for module, spec in specs.items() if spec is None or spec.origin is None]


def install_command(*extras: Extra) -> str:
    """Return the command that installs this program again with extras, from where it was installed the first time. For
    a tool of uv, which is then made anew, it names this Python and the extras that are there, too."""
    program = f"{shlex.quote(sys.executable)} -m pip install"
    if (Path(sys.prefix) / "uv-receipt.toml").is_file():
        program = f"uv tool install --python {sys.version_info.major}.{sys.version_info.minor}"
        extras = (*(each for each in MODULES if each not in extras and not find_missing(each)), *extras)
    return f"{program} {_requirement(','.join(extras))}"


def _requirement(extras: str) -> str:
    """Return the requirement of this program with extras for pip: the checkout, file or repository that it comes from
    (PEP 610), or its name in an index of packages."""
    if (PROGRAM / "pyproject.toml").is_file():
        return f"--editable {shlex.quote(f'{PROGRAM}[{extras}]')}"
    origin: dict[str, Any] = {}
    for distribution in metadata.distributions(name="profiler-job", path=[str(PROGRAM.parent)]):
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    url = origin.get("url", "")
    if (vcs := origin.get("vcs_info")) and url:
        url = f"{vcs['vcs']}+{url}@{vcs.get('requested_revision') or vcs['commit_id']}"
    return shlex.quote(f"profiler-job[{extras}] @ {url}" if url else f"profiler-job[{extras}]")
