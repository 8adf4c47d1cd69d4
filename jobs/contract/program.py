"""The commit of this program, as recordings and stored predictions hold it."""

import hashlib
import os
import subprocess
from importlib import metadata
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[2]
"""The folder that holds `jobs`: the checkout, or the package `profiler_job` where it was installed."""
PACKAGE = Path(__file__).parents[2]
"""The folder of the package `profiler_job` as it was imported: in a checkout `src/profiler_job`, which holds links."""
MEASURES = "jobs"
"""The package that measures; a change of other files changes no measurement."""


def find_site_sources() -> Path:
    """Return the folder of `mkdocs.yml` and `site`, from which a site is built: links in a checkout, files in an
    installed package. It may be read-only."""
    return PACKAGE / "site_sources"


def find_shipped_data() -> Path:
    """Return the folder of the recordings that come with a checkout and with the image; an installed package alone has
    no such folder."""
    return find_site_sources() / "site" / "data"


def find_commit() -> str:
    """Return the commit of this program: from the environment (an image has no git), from git, or the installed
    version; else "".

    The start of a digest follows if the code differs from the commit, or if only a version is known. So a sweep that
    continues after a change of the code shows the difference.
    """
    if "PROFILER_COMMIT" in os.environ:
        return os.environ["PROFILER_COMMIT"]
    return read_commit(PROGRAM) or read_version(PROGRAM)


def read_commit(folder: Path) -> str:
    """Return the commit of the checkout at `folder`; "" if it is not the root of a checkout. A checkout around it
    belongs to another program, such as a project that holds an environment."""
    command = ["git", "-C", str(folder), "rev-parse", "--show-toplevel", "--short=12", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        checkout, head = done.stdout.splitlines()
        if not os.path.samefile(checkout, folder):
            return ""
        compare = [*command[:3], "diff", "--binary", "HEAD", "--", MEASURES]
        changes = subprocess.run(compare, capture_output=True, check=True).stdout
        return f"{head}+{_compute_digest(changes)}" if changes else head
    except (OSError, ValueError, subprocess.CalledProcessError):
        return ""


def read_version(package: Path) -> str:
    """Return the version of the installed package, such as `version 1.0+0f3a9c27`; "" if it is not installed."""
    versions = [each.version for each in metadata.distributions(name="profiler-job", path=[str(package.parent)])]
    if not versions:
        return ""
    sources = b"".join(file.read_bytes() for file in sorted((package / MEASURES).rglob("*.py")))
    return f"version {versions[0]}+{_compute_digest(sources)}"


def _compute_digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]
