"""Checks whether files are still as they were written, and replaces folders as a whole. A record holds a digest of
itself and the size and SHA-256 of each file in its folder.

This detects accidents (a truncated copy, a flipped bit, a number edited by hand), not somebody who computes the digests
anew.
"""

import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

from pydantic import BaseModel, ConfigDict

DIGEST = "digest"
"""Key of the digest of a record: the SHA-256 of the rest, as JSON with sorted keys and without spaces."""


class FileFacts(BaseModel):
    """Size and digest of a file when it was written."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    bytes: int
    sha256: str


def load_json(file: Path) -> Any:
    """Return the JSON value in a regular file.

    Raises OSError, also for a pipe, which may never end. Raises ValueError if it is not JSON, is nested too deep for
    Python, or has text that cannot be written again (half of a surrogate pair).
    """
    _check_is_file(file)
    text = file.read_text(encoding="utf-8")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if "\\ud" in text.lower():
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _check_is_file(file: Path) -> None:
    if not stat.S_ISREG(file.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(file))


def read_facts(file: Path) -> FileFacts:
    """Return the facts of the file as it is now. Raises OSError, also for a pipe."""
    _check_is_file(file)
    with open(file, "rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
        return FileFacts(bytes=opened.tell(), sha256=digest)


def read_all_facts(files: Iterable[Path]) -> dict[str, FileFacts]:
    """Return the facts of files by name. Raises OSError."""
    return {file.name: read_facts(file) for file in sorted(files)}


def find_damage(folder: Path, files: Mapping[str, FileFacts]) -> str:
    """Return the first file of `folder` that changed, and how; "" if none did."""
    for name, written in files.items():
        try:
            facts = read_facts(folder / name)
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        if facts.bytes != written.bytes:
            return f"{name} has {facts.bytes} bytes, and {written.bytes} were written"
        if facts != written:
            return f"{name} is not what was written (its SHA-256 differs)"
    return ""


def add_digest(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of plain JSON with its digest as the last key."""
    rest = {key: value for key, value in content.items() if key != DIGEST}
    return rest | {DIGEST: _compute_digest(rest)}


def is_intact(content: Mapping[str, Any]) -> bool:
    """Return whether a record matches its digest; False without a digest."""
    return content.get(DIGEST) == _compute_digest({key: value for key, value in content.items() if key != DIGEST})


def _compute_digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk. Raises OSError."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def create(path: Path) -> TextIO:
    """Create a text file for writing. An existing file or link of this name is removed first. Raises OSError."""
    path.unlink(missing_ok=True)
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    return open(opened, "w", encoding="utf-8")


def clear(path: Path) -> None:
    """Remove a folder with its content, or a file. A link is removed, and its target stays."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def replace(draft: Path, target: Path) -> None:
    """Replace the folder `target` by `draft` as a whole; if that fails, `target` stays. A link stays: the folder that
    it leads to is replaced. Whether it may be is for `outputs.replace_folder` to judge. Raises OSError."""
    target = Path(os.path.realpath(target))
    old = _name_old(target)
    try:
        if draft.stat().st_dev != target.parent.stat().st_dev:
            draft = _copy_near(draft, target)
        for path in (*draft.iterdir(), draft):
            sync(path)
        if target.exists():
            clear(old)
            target.rename(old)
        draft.rename(target)
        sync(target.parent)
    except BaseException:  # a signal, too
        if old.exists() and not target.exists():
            old.rename(target)
        raise
    clear(old)


def _copy_near(draft: Path, target: Path) -> Path:
    """Copy a draft next to `target`, which is on another disk, and return the copy. Raises OSError."""
    near = target.with_name(f".{target.name}.draft")
    clear(near)
    try:
        shutil.copytree(draft, near)
    except BaseException:
        clear(near)
        raise
    clear(draft)
    return near


def restore(target: Path) -> None:
    """Move back the old folder if `replace` was killed between its two renames.

    The draft of the new folder is not finished: only its writer knows it, and the writer runs again anyway. Raises
    OSError.
    """
    target = Path(os.path.realpath(target))
    if not target.exists() and (old := _name_old(target)).is_dir():
        old.rename(target)


def find_folders(parent: Path, file: str) -> list[Path]:
    """Return the folders in `parent` that hold `file`, after restoring those that a killed `replace` had moved. Names
    that begin with a dot are drafts. Raises OSError."""
    for held in parent.glob(f".*.old/{file}"):
        restore(parent / held.parent.name.removeprefix(".").removesuffix(".old"))
    return sorted(held.parent for held in parent.glob(f"[!.]*/{file}"))


def _name_old(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")
