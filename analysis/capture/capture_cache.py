"""What captures came to, kept in a folder next to them, so that to show them again takes no reading.

An entry is one file for one result: captures, what was made of them, and the options that change it. `cached_tables`
and the commands know what is in it. It counts only if nothing could have changed the result:

- the captures: names, sizes, times and inodes of their files, and a hash of their content. If one had just been
  written when it was read, a clock cannot show a later change, and the hash is of all of the content; else of samples.
- the program: a hash of the source files that make results, and the versions of the libraries that compute; of a
  report, also the nsys that exports it
- the entry itself: its name has a hash of its content

An entry that is damaged, or of another time, is ignored: the capture is read, and the entry written anew. The folder
belongs to one user, since who can write an entry chooses what is shown. Whatever fails here, the capture is read.
This module imports no library, since to import one takes longer than to load an entry.
"""

import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from profiler_job.jobs.contract.find_nsys import find_nsys

REPORTS = (".nsys-rep", ".qdrep")
"""Endings of reports, which nsys exports first."""
FOLDER = ".profiler-cache"
"""Name of the folder of entries, next to the captures."""
OFF = "PROFILER_JOB_NO_CACHE"
"""Environment variable that, unless empty, turns the cache off."""
LEAST_BYTES = 4 << 20
"""Size from which on a capture has entries: a smaller one is read in a moment."""
MOST_BYTES, MOST_ENTRY_BYTES = 64 << 20, 8 << 20
"""Most bytes of all entries in a folder, and of one."""
SETTLED_S = 3.0
"""Age at which a change of a file has another time than the next one, on every file system."""
_SAMPLES, _SAMPLE_BYTES, _ALL_BYTES = 64, 16 << 10, 1 << 20
"""How many parts of a file are hashed, how long each is, and up to which size all of it is hashed."""
_SOURCES = (".py", ".toml", ".json")
_LIBRARIES = ("numpy", "pandas", "pyarrow")
_LOGS = ("-wal", "-journal")

Result = TypeVar("Result")
About = dict[str, Any]
"""What an entry says of the captures and the program that it was made of."""


class FileState(NamedTuple):
    """What changes with the content of a file. Times are nanoseconds; atime is left out, since reading changes it."""

    is_regular: bool
    num_bytes: int
    modified: int
    changed: int
    inode: int
    device: int


class CacheEntry:
    """The place of one result of some captures, which may be empty."""

    def __init__(self, captures: Sequence[Path], options: Mapping[str, Any], ending: str):
        """Describe the captures as they are now, before they are read. Raises OSError."""
        self._captures = [Path(os.path.realpath(capture)) for capture in captures]
        self._files = [_list_files(capture) for capture in self._captures]
        self._exporters = [_find_exporter(capture) for capture in self._captures]
        states = [state for files in self._files for state in files.values()]
        last_change = max(max(state.modified, state.changed) for state in states)
        self._is_settled = last_change < time.time_ns() - SETTLED_S * 1e9
        self._num_bytes = sum(state.num_bytes for state in states)
        first = self._captures[0]
        self._folder, self._ending = first.parent / FOLDER, ending
        names = [os.path.relpath(capture, first.parent) for capture in self._captures]
        given = [capture.name for capture in captures]  # of a link, its own name is printed
        key = json.dumps([names, given, options], sort_keys=True).encode()
        name = re.sub(r"[^\w.-]+", "_", first.name, flags=re.ASCII)[:60]
        self._start = f"{name}.{hashlib.sha256(key).hexdigest()[:16]}."

    @property
    def is_useful(self) -> bool:
        """Whether the captures are so large that an entry saves time."""
        return self._num_bytes >= LEAST_BYTES

    def load(self, decode: Callable[[bytes], tuple[About, Result]]) -> Result | None:
        """Return what was kept; None if there is nothing that counts."""
        try:
            for file in self._list_entries():
                about, result = decode(_read_entry(file))
                if about == self._describe(has_all=about["has_all"]):
                    return result
        except Exception:  # whatever a damaged entry raises: the captures themselves are there
            return None
        return None

    def keep(self, encode: Callable[[About], bytes]) -> None:
        """Write a result of the captures, unless one changed since, or writing fails."""
        draft = self._folder / f".{secrets.token_hex(8)}.draft"
        try:
            content = encode(self._describe(has_all=not self._is_settled))
            if len(content) > MOST_ENTRY_BYTES or [_list_files(capture) for capture in self._captures] != self._files:
                return
            self._make_folder()
            former = self._list_entries()
            with open(draft, "xb") as opened:
                opened.write(content)
            target = self._folder / f"{self._start}{_digest(content)}{self._ending}"
            os.replace(draft, target)
            for file in former:
                if file != target:
                    file.unlink(missing_ok=True)
            _remove_oldest(self._folder)
        except Exception:  # a full disk, a folder that cannot be written: the result is printed all the same
            try:
                draft.unlink(missing_ok=True)
            except OSError:
                return

    def _describe(self, *, has_all: bool) -> About:
        """Describe all that a result depends on. has_all: whether all of the content is hashed."""
        both = list(zip(self._captures, self._files))
        return {
            "files": [{name: list(state) for name, state in files.items()} for files in self._files],
            "hash": [_hash_files(capture, files, has_all=has_all) for capture, files in both],
            "has_all": has_all,
            "program": _hash_program(),
            "exporter": self._exporters,
        }

    def _list_entries(self) -> list[Path]:
        if not _is_own_folder(self._folder):
            return []
        return [self._folder / name for name in os.listdir(self._folder) if name.startswith(self._start)]

    def _make_folder(self) -> None:
        try:
            self._folder.mkdir(mode=0o700)
            (self._folder / ".gitignore").write_text("*\n", encoding="utf-8")
        except FileExistsError:
            if not _is_own_folder(self._folder):
                raise


def open_entry(
    captures: Sequence[Path], options: Mapping[str, Any], ending: str, *, is_wanted: bool = True
) -> CacheEntry | None:
    """Return the place of a result, or None if none is kept: it is not wanted, the captures are small, one cannot be
    found, or is a database with a log next to it, which would change it."""
    if not is_wanted or not captures or os.environ.get(OFF):
        return None
    try:
        if any(os.path.lexists(f"{capture}{log}") for capture in captures for log in _LOGS):
            return None
        entry = CacheEntry(captures, options, ending)
    except (OSError, ValueError):
        return None
    return entry if entry.is_useful else None


def _find_exporter(capture: Path) -> list[str | int]:
    """Describe the program that exports a report; nothing for an export."""
    if capture.suffix not in REPORTS:
        return []
    nsys = find_nsys()
    return [str(nsys), nsys.stat().st_size, nsys.stat().st_mtime_ns] if nsys else ["none"]


def _is_own_folder(folder: Path) -> bool:
    """Whether entries may be trusted: a folder, not a link to one, that only this user can write."""
    try:
        state = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and not state.st_mode & 0o022


def _list_files(capture: Path) -> dict[str, FileState]:
    """Return the state of each file of a capture, by name. Raises OSError."""
    if not capture.is_dir():
        return {capture.name: _read_state(capture)}
    return {name: _read_state(capture / name) for name in sorted(os.listdir(capture))}


def _read_state(file: Path) -> FileState:
    state = file.stat()
    is_regular = stat.S_ISREG(state.st_mode)
    return FileState(is_regular, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino, state.st_dev)


def _hash_files(capture: Path, files: Mapping[str, FileState], *, has_all: bool) -> str:
    digest = hashlib.sha256()
    for name, state in files.items():
        path = capture / name if capture.is_dir() else capture
        if not state.is_regular:
            continue
        with open(path, "rb") as file:
            if has_all or state.num_bytes <= _ALL_BYTES:
                digest.update(hashlib.file_digest(file, "sha256").digest())
                continue
            for number in range(_SAMPLES):
                file.seek((state.num_bytes - _SAMPLE_BYTES) * number // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


@cache
def _hash_program() -> str:
    """Hash the sources of all that makes results."""
    rooms = [Path(__file__).parents[1], Path(__file__).parents[1].parent / "jobs" / "contract"]
    digest = hashlib.sha256(" ".join(map(version, _LIBRARIES)).encode())
    for folder, folders, names in (step for room in rooms for step in os.walk(room)):
        folders.sort()
        for name in sorted(names):
            if name.endswith(_SOURCES):
                content = Path(folder, name).read_bytes()
                digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _read_entry(file: Path) -> bytes:
    """Raises ValueError if the content is not what was written, and OSError."""
    with open(file, "rb") as opened:
        content = opened.read(MOST_ENTRY_BYTES + 1)
    if not file.name.endswith(f".{_digest(content)}{file.suffix}"):
        raise ValueError(f"{file} is damaged")
    return content


def _remove_oldest(folder: Path) -> None:
    """Remove the oldest entries, and drafts of programs that were killed, until the rest is small enough. Raises
    OSError."""
    by_age = [(file.stat().st_mtime_ns, file.stat().st_size, file.path) for file in os.scandir(folder)]
    kept_bytes = 0
    for _, size, path in sorted(by_age, reverse=True):
        kept_bytes += size
        if kept_bytes > MOST_BYTES:
            Path(path).unlink(missing_ok=True)
