"""Temporary folders of a job. They are removed with the job, or by the next job if this one was killed."""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "profiler-"
HELD = ".held"
"""Name of a file in each temporary folder that is locked while its job runs. The lock ends with the process. Other
containers on the same machine see it, which is not so for a process number."""


class TemporaryFolder:
    """A new folder in the temporary folder of the machine, held until it is removed."""

    def __init__(self, kind: str = ""):
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX + kind))
        draft = self.path / f"{HELD}.new"
        self._held = open(draft, "x")  # noqa: SIM115 as long as the folder is there
        fcntl.flock(self._held, fcntl.LOCK_EX)
        draft.rename(self.path / HELD)  # nobody sees it unlocked

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._held.close()


@contextmanager
def create_temporary_folder(kind: str) -> Iterator[Path]:
    """Create a TemporaryFolder, and remove it at the end."""
    folder = TemporaryFolder(kind)
    try:
        yield folder.path
    finally:
        folder.remove()


def remove_abandoned() -> None:
    """Remove the temporary folders that jobs of this user left when they were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another job removes it, or there is no such file in it: not of a job
            about = folder.lstat()
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
                continue
            with open(os.open(folder / HELD, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where the job lives
                shutil.rmtree(folder, ignore_errors=True)
