"""The results folder of a sweep on disk, as `jobs.contract.layout` describes it: what is finished, what was
interrupted, who is writing.
"""

import errno
import fcntl
import json
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.excerpt import trim
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.integrity import add_digest, clear, create, find_damage, load_json, read_all_facts, sync
from profiler_job.jobs.contract.layout import (
    IN_FLIGHT,
    LOCK,
    LOG,
    NSYS_LOG,
    RAW,
    RECORD,
    RECORDINGS,
    REPORT,
    SALT,
    SITE,
    SWEEP,
    TIMED,
    AnyRecord,
    Protocol,
    RecordError,
    RunRecord,
    name_timings_file,
    read_record,
)
from profiler_job.jobs.contract.outputs import check_file, is_plan
from profiler_job.jobs.sweep.plan import Sweep

LEAST_FREE_BYTES = 32 * 2**20  # less, and a failed run failed for lack of space
FULL = ("No space left on device", "disk is full", "Disk quota exceeded")  # messages of programs about it
KEPT_OF_LOG = 2 * 2**20  # bytes of its beginning, and as many of its end
DRAFT = ".draft"  # ending of a file that is being written
REMOVED_LAST = (IN_FLIGHT, TIMED)  # after the record of a finished run is written
LOCK_S = 1.0  # `is_locked` holds the lock for an instant, too


class LockedError(ProfilerError, RuntimeError):
    """Another job writes to this results folder."""

    exit_code = ExitCode.LOCKED


class NoResultsError(ProfilerError, ValueError):
    """There is no such folder of results; the message says what there is instead."""


Kind = TypeVar("Kind", dict[str, Any], list[Any])


def write_json(path: Path, content: dict[str, Any] | list[Any]) -> None:
    """Write atomically: whoever reads sees the old file or the whole new one."""
    draft = path.with_name(path.name + DRAFT)
    with create(draft) as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    sync(path.parent)


def read_json(path: Path, kind: type[Kind]) -> Kind | None:
    """The object (dict), or the list, in a JSON file; None where it is missing, cut short or of another kind."""
    try:
        content = load_json(path)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, kind) else None


def find_record(path: Path) -> RunRecord | None:
    """The record in a file; None where it is missing, cut short or not one."""
    try:
        return read_record(path, RunRecord)
    except RecordError:
        return None


def open_lock(path: Path) -> IO[str]:
    """The file to lock, made where it is missing. Raises OSError, also where it is a link: a job empties its lock."""
    try:
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "is a symbolic link, which no job makes", str(path)) from None
        raise
    return open(opened, "r+")


def try_lock(file: IO[Any], how: int) -> bool:
    """Take a lock on a file (fcntl.LOCK_EX or LOCK_SH) without waiting for it; False where another holds it."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_same_file(file: IO[Any], path: Path) -> bool:
    """Return whether an open file is the one at `path`."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path, follow_symlinks=False))
    except OSError:
        return False


def list_sweeps(root: Path) -> list[str]:
    """List the names of the sweeps that have files in a results folder."""
    return sorted(folder.name for folder in root.iterdir() if (folder / SWEEP).exists() or list_shards(folder))


def list_shards(folder: Path) -> list[str]:
    """List the names of the folders of shards in the folder of a sweep."""
    names = [plan.parent.name for plan in folder.glob(f"shard-*-of-*/{SWEEP}")]
    return sorted(names, key=lambda name: (len(name), name))


class Results:
    """`folder` is RESULTS/<sweep>, or RESULTS/<sweep>/shard-I-of-N for one shard."""

    def __init__(self, root: Path, sweep: str, shard: str = ""):
        self.root = root
        self.folder = root / sweep / shard
        self.raw = root / RAW / sweep / shard

    @property
    def written(self) -> tuple[Path, ...]:
        """The folders that a job writes."""
        return self.root, self.folder, self.raw, self.root / RECORDINGS, self.root / SITE

    @contextmanager
    def lock(self, wait_s: float = 0, is_removed: bool = False) -> Iterator[None]:
        """Hold the folder, after `wait_s` at most; the operating system releases it when the process ends, however it
        ends. is_removed: remove the lock afterwards, and the folder if it is empty.

        Raises LockedError naming the holder, OSError where the folder cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with open_lock(self.folder / LOCK) as file:
            deadline = time.monotonic() + max(LOCK_S, wait_s)
            while not try_lock(file, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    file.seek(0)
                    raise LockedError(f"{self.folder} is being written by another job ({file.read().strip()})")
                time.sleep(0.05)
            if is_removed and not is_same_file(file, self.folder / LOCK):  # its holder has just removed it
                raise LockedError(f"{self.folder} was being written by another job")
            file.truncate(0)
            file.write(f"pid {os.getpid()} on {socket.gethostname()}")
            file.flush()
            try:
                yield
            finally:
                file.truncate(0)  # a host's name stays no longer than needed
                if is_removed:
                    with suppress(OSError):
                        (self.folder / LOCK).unlink()
                        self.folder.rmdir()

    def check_exists(self) -> None:
        """Check that a job made this folder. Raises NoResultsError if not, or if jobs made folders of shards in it."""
        if not self.root.is_dir():
            raise NoResultsError(f"{self.root}: no such folder; give the results folder of a job with --results")
        sweep, *shard = self.folder.relative_to(self.root).parts
        for parent, name, others_in in zip((self.root, self.root / sweep), (sweep, *shard), (list_sweeps, list_shards)):
            if not (parent / name).is_dir():
                others = ", ".join(others_in(parent))
                there = f"it has {others}" if others else "no job has begun there"
                raise NoResultsError(f"{parent}: has no results of {name}; {there}")
        if (shards := list_shards(self.folder)) and not (self.folder / SWEEP).exists():
            raise NoResultsError(f"{self.folder}: measured in shards; give --shard I/N; it has {', '.join(shards)}")

    def is_locked(self) -> bool:
        lock = self.folder / LOCK
        if lock.is_symlink() or not lock.is_file():
            return False
        with open(lock) as file:
            return not try_lock(file, fcntl.LOCK_SH)

    def check_space(self, said: str = "") -> None:
        """Check that there is space. Raises OSError (ENOSPC) with the folder when the results or the temporary files
        have no room left, or with what something that failed `said` of it: by now it may have removed what filled the
        disk."""
        for folder in (self.folder, Path(tempfile.gettempdir())):
            if shutil.disk_usage(folder).free < LEAST_FREE_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        if any(words in said for words in FULL):
            raise OSError(errno.ENOSPC, said)

    def save_sweep(self, sweep: Sweep, runs: Iterable[Run], of_all_shards: Iterable[Run] | None = None) -> None:
        """Write the sweep as planned. `runs`: measured here. `of_all_shards`: if this is a shard, the runs of all
        shards."""
        plan = {**sweep.describe(), "runs": [run.run_id for run in runs]}
        if of_all_shards is not None:
            plan["runs_of_all_shards"] = [run.run_id for run in of_all_shards]
        check_file(self.folder / SWEEP, is_plan, advice="give another --results, or name the sweep otherwise")
        write_json(self.folder / SWEEP, plan)

    def find_protocol(self, planned: Protocol) -> Protocol:
        """Return the protocol of what is here, if a sweep was `planned`: without an nsys, nothing was captured."""
        saved = read_json(self.folder / SWEEP, dict) or {}
        return planned.model_copy(update={"profiled_steps": 0}) if saved.get("profiled_steps") == 0 else planned

    def salt(self) -> str:
        """Return the salt of hashed GPU identities, the same for all that is measured into this folder."""
        file = self.folder / SALT
        if not file.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            with create(file) as opened:
                opened.write(secrets.token_hex(16))
        return file.read_text()

    def record(self, run: Run) -> RunRecord | None:
        return find_record(self.folder / run.run_id / RECORD)

    def damage(self, run: Run) -> str:
        """Return what is wrong with the files of a run that was finished or timed; "" if nothing is."""
        folder = self.folder / run.run_id
        for file in (folder / RECORD, folder / TIMED):
            try:
                if file.exists() and (damage := find_damage(folder, read_record(file, AnyRecord).files)):
                    return damage
            except RecordError as error:
                return f"{file.name} is not a valid record of a run ({error.reason})"
        return ""

    def finished(self, run: Run, protocol: Protocol) -> RunRecord | None:
        """The record of a run if it was finished with these very parameters and its files are whole, else None."""
        record = self.record(run)
        return record if record and record.is_of(run, protocol) and not self.damage(run) else None

    def final(self, run: Run, protocol: Protocol, retry: bool) -> RunRecord | None:
        """The record of a finished run that is not to be measured again: those that the machine failed always are, with
        `retry` all that failed."""
        record = self.finished(run, protocol)
        again = record and (record.status == "machine" or (retry and record.status not in ("ok", "oom")))
        return None if again else record

    def reopen(self, run: Run, protocol: Protocol) -> None:
        """Make a run that failed after a process of the timer had measured it a timed one again: that stays."""
        record = self.finished(run, protocol)
        if record and record.timed and record.status != "ok":
            self.keep_processes(run, record, len(record.timed))

    def keep_processes(self, run: Run, record: RunRecord, num: int) -> RunRecord:
        """Make a run a timed one, which the first `num` of its processes measured. Return its record as written."""
        kept = {"status": "timed", "status_detail": None, "ended_at": None, "timed": record.timed[:num]}
        written = self.keep_timed(run, record.model_copy(update=kept))
        (self.folder / run.run_id / RECORD).unlink(missing_ok=True)
        return written

    def timed(self, run: Run, protocol: Protocol) -> RunRecord | None:
        """The record so far of a run that was timed with these very parameters, by some processes or all, and not
        finished, else None."""
        folder = self.folder / run.run_id
        record = find_record(folder / TIMED)
        if record is None or not record.timed or not record.is_of(run, protocol) or find_damage(folder, record.files):
            return None
        files = [name_timings_file(process) for process in range(len(record.timed))]
        has_steps = all("steps" in (read_json(folder / file, dict) or {}) for file in files)
        return record if has_steps and record.files.keys() == set(files) else None

    def begin(self, run: Run) -> Path:
        """A folder for a run, marked as in flight. What an earlier attempt left there is removed."""
        folder = self.folder / run.run_id
        clear(folder)
        (self.raw / f"{run.run_id}{Path(REPORT).suffix}").unlink(missing_ok=True)
        self.forget_lost_captures(run)
        folder.mkdir(parents=True, exist_ok=True)  # a shared folder may keep files that somebody has open
        for path in (folder / RECORD, folder / TIMED, *folder.glob("timings*.json")):
            path.unlink(missing_ok=True)
        self.mark(run, "running")
        return folder

    def keep_timings(self, run: Run, tables: dict[str, list[Any]], process: int = 0) -> None:
        write_json(self.folder / run.run_id / name_timings_file(process), tables)

    def read_timings(self, run: Run, process: int) -> dict[str, Any]:
        """Read the tables that an unprofiled process of a run measured."""
        return read_json(self.folder / run.run_id / name_timings_file(process), dict) or {}

    def read_steps(self, run: Run) -> list[dict[str, Any]]:
        """Read the steps that the first unprofiled process of a run measured."""
        return list(self.read_timings(run, 0).get("steps", []))

    def keep_timed(self, run: Run, record: RunRecord) -> RunRecord:
        """Save the record of a run that is timed by the processes in it, whose timings are written. Return the record
        as written."""
        folder = self.folder / run.run_id
        files = [folder / name_timings_file(process) for process in range(len(record.timed))]
        written = self._write_record(folder / TIMED, record, files)
        (folder / IN_FLIGHT).unlink(missing_ok=True)
        return written

    def resume(self, run: Run, record: RunRecord) -> Path:
        """The folder of a run with this record so far, marked as in flight. What an earlier attempt at its next stage
        left there is removed."""
        folder = self.folder / run.run_id
        for path in folder.iterdir():
            if path.name not in (TIMED, LOG, NSYS_LOG, *record.files) or path.is_symlink():
                clear(path)
        self.mark(run, "running")
        return folder

    def set_capture_aside(self, run: Run) -> None:
        """Move what there is of a lost capture's report to `raw`; the run is no longer in flight."""
        folder = self.folder / run.run_id
        for report in folder.glob(f"{Path(REPORT).stem}.*"):
            if report.suffix != ".sqlite":
                self.raw.mkdir(parents=True, exist_ok=True)
                shutil.move(report, self.raw / f"{run.run_id}.lost{report.suffix}")
        (folder / IN_FLIGHT).unlink(missing_ok=True)

    def forget_lost_captures(self, run: Run) -> None:
        for report in self.raw.glob(f"{run.run_id}.lost.*"):
            report.unlink()

    def mark(self, run: Run, state: str) -> None:
        folder = self.folder / run.run_id
        if folder.exists():
            write_json(folder / IN_FLIGHT, {"state": state, "pid": os.getpid()})

    def finish(self, run: Run, record: RunRecord) -> None:
        """Move the report to `raw` and write `run.json`: from here on the run is finished."""
        folder = self.folder / run.run_id
        report = folder / REPORT
        if report.exists():
            self.raw.mkdir(parents=True, exist_ok=True)
            shutil.move(report, self.raw / f"{run.run_id}{report.suffix}")
        for log in (LOG, NSYS_LOG):
            trim(folder / log, KEPT_OF_LOG)
        beside = [path for path in folder.iterdir() if path.name not in (RECORD, TIMED, IN_FLIGHT) and path.is_file()]
        self._write_record(folder / RECORD, record, [path for path in beside if path.suffix != DRAFT])
        self.tidy(run, record)

    def tidy(self, run: Run, record: RunRecord) -> None:
        """Remove what a finished run has no more use for, and a job that ended right after its record may have left."""
        if record.status == "ok":
            self.forget_lost_captures(run)
        for name in REMOVED_LAST:
            (self.folder / run.run_id / name).unlink(missing_ok=True)

    def _write_record(self, path: Path, record: RunRecord, files: Iterable[Path]) -> RunRecord:
        """Write a record with the facts of the files next to it, after these are on the disk. Return the record
        written."""
        known = read_all_facts(files)
        for name in known:
            sync(path.parent / name)
        written = record.model_copy(update={"files": known})
        write_json(path, add_digest(written.model_dump(mode="json")))
        return written

    def read_in_flight(self, run: Run) -> str | None:
        """`running` or `interrupted` for a run that was begun and not finished."""
        mark = read_json(self.folder / run.run_id / IN_FLIGHT, dict)
        if mark is None or self.record(run) is not None:
            return None
        return "running" if mark.get("state") == "running" and self.is_locked() else "interrupted"
