"""What a capture came to, kept in a folder next to it, so that to show it again takes no reading.

An entry is one Parquet file for one result: a capture, what was made of it, and the options that change it. It has one
row; a column for each table, which is a list of the table's rows; and the facts, as JSON. It counts only if nothing
could have changed the result:

- the capture: names, sizes, times and inodes of its files, and a hash of their content. If the capture had just been
  written when it was read, a clock cannot show a later change, and the hash is of all of the content; else of samples.
- the program: a hash of the source files that make results, and the versions of the libraries that compute; of a
  report, also the nsys that exports it
- the entry itself: its name has a hash of its content

An entry that is damaged, or of another time, is ignored: the capture is read, and the entry written anew. The folder
belongs to one user, since who can write an entry chooses what is shown. Whatever fails here, the capture is read.
"""

import hashlib
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

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
_LOGS = ("-wal", "-journal")


class CachedResult(NamedTuple):
    """facts: what JSON can hold. tables: by name; categories come back as text."""

    facts: dict[str, Any]
    tables: dict[str, pd.DataFrame]


class FileState(NamedTuple):
    """What changes with the content of a file. Times are nanoseconds; atime is left out, since reading changes it."""

    is_regular: bool
    num_bytes: int
    modified: int
    changed: int
    inode: int
    device: int


class CacheEntry:
    """The place of one result of one capture, which may be empty."""

    def __init__(self, capture: Path, options: Mapping[str, Any]):
        """Describe the capture as it is now, before it is read. Raises OSError."""
        self._capture = Path(os.path.realpath(capture))
        self._files = _list_files(self._capture)
        self._exporter = _find_exporter(self._capture)
        last_change = max(max(state.modified, state.changed) for state in self._files.values())
        self._is_settled = last_change < time.time_ns() - SETTLED_S * 1e9
        self._folder = self._capture.parent / FOLDER
        key = json.dumps([self._capture.name, options], sort_keys=True).encode()
        name = re.sub(r"[^\w.-]+", "_", self._capture.name, flags=re.ASCII)[:60]
        self._start = f"{name}.{hashlib.sha256(key).hexdigest()[:16]}."

    @property
    def is_useful(self) -> bool:
        """Whether the capture is so large that an entry saves time."""
        return sum(state.num_bytes for state in self._files.values()) >= LEAST_BYTES

    def load(self) -> CachedResult | None:
        """Return what was kept; None if there is nothing that counts."""
        try:
            for file in self._list_entries():
                content = _read_entry(file)
                about, result = _decode(content)
                if about == self._describe(has_all=about["has_all"]):
                    return result
        except Exception:  # whatever a damaged entry raises: the capture itself is there
            return None
        return None

    def keep(self, result: CachedResult) -> None:
        """Write a result of the capture, unless the capture changed since, or writing fails."""
        draft = self._folder / f".{secrets.token_hex(8)}.draft"
        try:
            content = _encode(self._describe(has_all=not self._is_settled), result)
            if len(content) > MOST_ENTRY_BYTES or _list_files(self._capture) != self._files:
                return
            self._make_folder()
            former = self._list_entries()
            with open(draft, "xb") as opened:
                opened.write(content)
            target = self._folder / f"{self._start}{_digest(content)}.parquet"
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

    def _describe(self, *, has_all: bool) -> dict[str, Any]:
        """Describe all that a result depends on. has_all: whether all of the content is hashed."""
        return {
            "files": {name: list(state) for name, state in self._files.items()},
            "hash": _hash_files(self._capture, self._files, has_all=has_all),
            "has_all": has_all,
            "program": _hash_program(),
            "exporter": self._exporter,
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


def open_entry(capture: Path, options: Mapping[str, Any], *, is_wanted: bool = True) -> CacheEntry | None:
    """Return the place of a result, or None if none is kept: it is not wanted, the capture is small, cannot be found,
    or is a database with a log next to it, which would change it."""
    if not is_wanted or os.environ.get(OFF):
        return None
    try:
        if any(os.path.lexists(f"{capture}{log}") for log in _LOGS):
            return None
        entry = CacheEntry(capture, options)
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
            for place in np.linspace(0, state.num_bytes - _SAMPLE_BYTES, _SAMPLES, dtype=np.int64).tolist():
                file.seek(place)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


@cache
def _hash_program() -> str:
    """Hash the sources of all that makes results."""
    rooms = [Path(__file__).parents[1], Path(__file__).parents[1].parent / "jobs" / "contract"]
    digest = hashlib.sha256(f"{np.__version__} {pd.__version__} {pa.__version__}".encode())
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
    if not file.name.endswith(f".{_digest(content)}.parquet"):
        raise ValueError(f"{file} is damaged")
    return content


def _encode(about: Mapping[str, Any], result: CachedResult) -> bytes:
    columns, formats = {}, {}
    for name, frame in result.tables.items():
        categories = [column for column in frame if isinstance(frame[column].dtype, pd.CategoricalDtype)]
        batch = pa.RecordBatch.from_pandas(frame.astype(dict.fromkeys(categories, str)))
        formats[name] = batch.schema.metadata[b"pandas"].decode()
        columns[name] = pa.ListArray.from_arrays(pa.array([0, len(frame)], pa.int32()), batch.to_struct_array())
    facts = json.dumps({"about": about, "formats": formats, "facts": result.facts})
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"": pa.array([facts]), **columns}), sink, compression="zstd")
    return bytes(sink.getvalue())


def _decode(content: bytes) -> tuple[dict[str, Any], CachedResult]:
    table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
    kept = json.loads(table[""][0].as_py())
    tables = {}
    for name, pandas_format in kept["formats"].items():
        batch = pa.RecordBatch.from_struct_array(table[name].chunk(0).flatten())
        tables[name] = batch.replace_schema_metadata({b"pandas": pandas_format.encode()}).to_pandas()
    return kept["about"], CachedResult(kept["facts"], tables)


def _remove_oldest(folder: Path) -> None:
    """Remove the oldest entries, and drafts of programs that were killed, until the rest is small enough. Raises
    OSError."""
    by_age = [(file.stat().st_mtime_ns, file.stat().st_size, file.path) for file in os.scandir(folder)]
    kept_bytes = 0
    for _, size, path in sorted(by_age, reverse=True):
        kept_bytes += size
        if kept_bytes > MOST_BYTES:
            Path(path).unlink(missing_ok=True)
