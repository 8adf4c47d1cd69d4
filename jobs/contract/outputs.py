"""What a command may replace, and how. Every writer of a file or folder that a user can name goes through here.

A command replaces what it wrote itself earlier, an empty file or an empty folder; anything else only if the user forces
it, and a folder never. What is written is drafted in the same folder and renamed, so that a reader finds the old or the
new one. A link stays: the file that it leads to is judged and replaced.
"""

import errno
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from profiler_job.jobs.contract import integrity
from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.layout import CALIBRATION, MANIFEST, MERGED, RECORD, RESERVED_NAMES, SCRIPT, SWEEP

IsOwn = Callable[[Path], bool]
"""Whether an existing file or folder is of the kind that is to be written. May raise OSError."""

PAGE_FOOTER = "<footer>Made by profiler-job"
"""Last element of every page that is one file."""
PAGE_START = b"<!doctype html>"
_LONGEST_END = 1000
SITE_MARK = b'<meta property="og:site_name" content="profiler-job">'
"""Part of the head of every page of a built site."""
_LONGEST_HEAD = 100_000


class TargetError(ProfilerError):
    """An output cannot be written: something else is there (exit code USAGE), or the system refuses (CANNOT_WRITE)."""


def write_file(
    target: Path, content: str | bytes, is_own: IsOwn, *, force: bool = False, advice: str = "give another name"
) -> None:
    """Write one file, see `write_files`."""
    write_files({target: content}, is_own, force=force, advice=advice)


def write_files(
    contents: Mapping[Path, str | bytes], is_own: IsOwn, *, force: bool = False, advice: str = "give another name"
) -> None:
    """Write files, or none of them if one may not be replaced. A device or a pipe, such as /dev/stdout, is written to.
    advice: end of the message of an error. Raises TargetError."""
    for target in contents:
        check_file(target, is_own, force=force, advice=advice)
    for target, content in contents.items():
        data = content.encode("utf-8") if isinstance(content, str) else content
        try:
            if target.exists() and not target.is_file():
                target.write_bytes(data)
            else:
                _write_draft(Path(os.path.realpath(target)), data)
        except FileExistsError:
            raise TargetError(f"{target} appeared while it was being made: {advice}") from None
        except OSError as error:
            raise _refuse(error, target, advice) from error


def check_file(target: Path, is_own: IsOwn, *, force: bool = False, advice: str = "give another name") -> None:
    """Raise TargetError if a file may not be written: it is there, is neither empty nor our own, and nothing is
    forced; or it is a folder."""
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
        if force or not target.is_file() or target.stat().st_size == 0 or is_own(target):
            return
    except OSError as error:
        raise _refuse(error, target, advice) from error
    where = f"{target} (a link to {os.path.realpath(target)})" if target.is_symlink() else str(target)
    raise TargetError(f"{where} is there already, and is not what this command writes: {advice}")


def check_folder(target: Path, is_own: IsOwn) -> None:
    """Raise TargetError if a folder may not be replaced: something is there that is neither empty nor our own."""
    try:
        if not target.exists() or (target.is_dir() and (is_own(target) or not any(target.iterdir()))):
            return
    except OSError as error:
        raise _refuse(error, target, "give another folder") from error
    raise TargetError(
        f"{target} is there already, and is not what this command writes: give another folder, or move it away"
    )


def replace_folder(draft: Path, target: Path, is_own: IsOwn) -> None:
    """Replace a folder by a draft as a whole, see `integrity.replace`. Raises TargetError, and OSError."""
    check_folder(target, is_own)
    integrity.replace(draft, target)


def is_page(file: Path) -> bool:
    """Whether a file is an HTML page that `show` or `history` wrote."""
    with open(file, "rb") as opened:
        if opened.read(len(PAGE_START)) != PAGE_START:
            return False
        opened.seek(max(0, file.stat().st_size - _LONGEST_END))
        return PAGE_FOOTER.encode() in opened.read()


def is_site(folder: Path) -> bool:
    """Whether a folder is a built site of recordings, also if its first page is lost."""
    return any(_has_site_mark(folder / page) for page in ("index.html", "404.html"))


def _has_site_mark(page: Path) -> bool:
    if not page.is_file():
        return False
    with open(page, "rb") as opened:
        return SITE_MARK in opened.read(_LONGEST_HEAD)


def is_generated(page: Path) -> bool:
    """Whether a Markdown page was written about a recording: its front matter names one."""
    with open(page, encoding="utf-8", errors="replace") as opened:
        front = opened.read(_LONGEST_HEAD).partition("\n---\n")[0]
    return front.startswith("---\n") and "\nrecording: {" in front


def is_recording(folder: Path) -> bool:
    """Whether a folder is a recording, whole or not, and holds nothing else. Programs of others call their manifest so,
    too."""
    if not (folder / MANIFEST).is_file() or any(
        file.name != MANIFEST and (file.suffix != ".parquet" or not file.is_file()) for file in folder.iterdir()
    ):
        return False
    return (folder / "runs.parquet").is_file() or "tables" in _load_object(folder / MANIFEST)


def is_merged(folder: Path) -> bool:
    """Whether a folder holds results that `merge` joined, with what was made of them, and nothing else."""
    if not isinstance(_load_object(folder / MERGED).get("shards"), list):
        return False
    own = (MERGED, SWEEP, CALIBRATION, *RESERVED_NAMES)
    return all(file.name in own or (file / RECORD).is_file() for file in folder.iterdir())


def is_profiled_script(folder: Path) -> bool:
    """Whether a folder holds the results of a script, and not of a sweep, which may have its name."""
    return bool(_load_object(folder / SWEEP).get(SCRIPT))


def is_plan(file: Path) -> bool:
    """Whether a file is the sweep.json of a job, or lies next to runs, whatever became of it."""
    return {"sweep", "runs"} <= _load_object(file).keys() or any(file.parent.glob(f"*/{RECORD}"))


def is_tuning(file: Path) -> bool:
    """Whether a file holds a result of `tune`."""
    return {"budget_s", "ladder", "tried"} <= _load_object(file).keys()


def _load_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file, {} if there is none."""
    try:
        content = integrity.load_json(file)
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _refuse(error: OSError, target: Path, advice: str) -> TargetError:
    why = f"{error.filename or target} cannot be written ({error.strerror or error}): {advice}"
    return TargetError(why, exit_code=ExitCode.CANNOT_WRITE)


def _write_draft(target: Path, data: bytes) -> None:
    """Write a file that appears as a whole. Raises FileExistsError if it appeared meanwhile, and OSError."""
    is_new = not target.exists()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:  # a file is in the place of the folder
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(target.parent)) from error
    draft = target.with_name(f".{secrets.token_hex(8)}.draft")
    try:
        with integrity.create(draft) as file:
            file.buffer.write(data)
            file.flush()
            os.fsync(file.fileno())
        if is_new and _link(draft, target):
            return
        if not is_new:
            draft.chmod(target.stat().st_mode & 0o777)
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)


def _link(draft: Path, target: Path) -> bool:
    """Give a draft its name. Returns False if the file system knows no hard links. Raises FileExistsError."""
    try:
        os.link(draft, target)
    except FileExistsError:
        raise
    except OSError:
        return False
    return True
