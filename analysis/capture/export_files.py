"""Open an nsys export: an SQLite file, a folder of Parquet files, or a report, which nsys exports first."""

import os
import signal
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from profiler_job.analysis.capture.capture_cache import REPORTS
from profiler_job.analysis.capture.capture_data import GIVE_AN_EXPORT, ExportError, ExportProblem, join_lines
from profiler_job.analysis.capture.parquet_tables import ParquetTables
from profiler_job.analysis.capture.sqlite_tables import SqliteTables
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.find_nsys import HOW_TO_INSTALL, find_nsys

PAYLOADS = "--include-json=true"
"""Option of `nsys export` that writes what NVTX ranges carry, such as the size of a message, as JSON."""
_RECORD_AGAIN = "record it again, or use a newer nsys"
EXPORT_LIMIT_S = 3600


@contextmanager
def open_export(path: Path) -> Iterator["SqliteTables | ParquetTables"]:
    if not path.exists():
        raise ExportError(ExportProblem.MISSING, path, "does not exist", "check the path", exit_code=ExitCode.USAGE)
    if path.is_dir():
        yield ParquetTables(path)
    elif not path.is_file():
        raise ExportError(
            ExportProblem.NOT_AN_EXPORT,
            path,
            "is neither a file nor a folder",
            GIVE_AN_EXPORT,
            exit_code=ExitCode.USAGE,
        )
    elif path.suffix in REPORTS:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            exported = _export(path, Path(folder))
            try:
                tables = stack.enter_context(SqliteTables.open(exported, path))
            except (ExportError, sqlite3.Error) as error:
                problem = error.problem if isinstance(error, ExportError) else f"is damaged ({join_lines(error)})"
                raise ExportError(
                    ExportProblem.NSYS_FAILED, path, f"nsys exported it to a file that {problem}", _RECORD_AGAIN
                ) from error
            yield tables
    else:
        with SqliteTables.open(path, path) as tables:
            yield tables


def _export(report: Path, folder: Path) -> Path:
    """Let nsys export a report afresh: an existing export next to it may be older than the report."""
    if report.stat().st_size == 0:
        raise ExportError(ExportProblem.EMPTY, report, "is empty", "record it again")
    nsys = find_nsys()
    if nsys is None:
        raise ExportError(
            ExportProblem.NSYS_MISSING,
            report,
            "is an nsys report, and nsys is not installed here to export it",
            f"{HOW_TO_INSTALL}; or where nsys is, run `nsys export --type sqlite --force-overwrite=true {report.name}` "
            "and give the .sqlite file",
            exit_code=ExitCode.MISSING,
        )
    target = folder / "export.sqlite"
    command = [str(nsys), "export", "--type", "sqlite", "--force-overwrite=true", "--output", str(target), str(report)]
    try:
        code, said = _run([*command, PAYLOADS], folder / "said.txt", EXPORT_LIMIT_S)
        if code > 0 and not target.is_file():  # an nsys that does not know the option
            code, said = _run(command, folder / "said.txt", EXPORT_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        problem = f"nsys had not exported it after {EXPORT_LIMIT_S} s"
        raise ExportError(
            ExportProblem.NSYS_FAILED, report, problem, "export it by hand and give the .sqlite file"
        ) from error
    except OSError as error:
        raise ExportError(
            ExportProblem.NSYS_MISSING,
            report,
            f"nsys could not be started ({join_lines(error)})",
            "install nsys again",
            exit_code=ExitCode.MISSING,
        ) from error
    said = f"it said: {said}" if said else "it said nothing"
    if code:
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        raise ExportError(ExportProblem.NSYS_FAILED, report, f"nsys could not export it ({how}; {said})", _RECORD_AGAIN)
    if not target.is_file():
        raise ExportError(ExportProblem.NSYS_FAILED, report, f"nsys exported nothing ({said})", _RECORD_AGAIN)
    return target


def _run(command: Sequence[str], log: Path, limit_s: float) -> tuple[int, str]:
    """Run a program without input; return its exit code and the end of its output on one line. If it is not done in
    `limit_s` seconds (subprocess.TimeoutExpired) or the user interrupts, it ends with all processes that it started."""
    with log.open("wb") as said:  # a file, because a pipe stays open as long as any process that the program started
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, process_group=0)
        try:
            code = process.wait(limit_s)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    return code, " ".join(log.read_text("utf-8", "replace").split())[-200:]
