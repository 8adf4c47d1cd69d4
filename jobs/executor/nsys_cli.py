"""Commands of nsys, their output, and what an export of its report may keep."""

import math
import os
import selectors
import sqlite3
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGKILL
from typing import IO, Any, cast

from profiler_job.jobs.contract.excerpt import Excerpt, shorten
from profiler_job.jobs.contract.find_nsys import NSYS_MISSING
from profiler_job.jobs.contract.layout import NSYS_SUMS, NSYS_SUMS_FILE
from profiler_job.jobs.contract.privacy import FOLDERS, GPU_IDS, KEPT_TABLES, STRING_COLUMNS
from profiler_job.jobs.contract.ranges import STEP
from profiler_job.jobs.executor.failures import CollectorError

TIMEOUT_S = 300  # of a command that writes or reads a report
POLL_S = 0.5
MOST_PRINTED = 32 * 2**20  # bytes kept of the beginning, and of the end, of what a command prints
KEPT_OF_COMMAND = 2**17  # the same, in the log
MOST_DIAGNOSTICS, LONGEST_DIAGNOSTIC = 100, 1000  # texts of a capture about itself, and characters of one
NUMBERS_OF_THREADS = 2**24
"""How many values of `globalTid` each process has for its threads."""

PAYLOADS = "--include-json=true"
"""Option of `nsys export` that writes the payloads of NVTX ranges. NCCL's payloads, the message sizes, are kept."""
OF_NCCL = '{"NCCL communicator ID"%'
"""Beginning of the payloads of NCCL's ranges, for LIKE."""

SAMPLE = 34
"""Type of an event that is a sample of Python."""
IDS_OF_SAMPLES = """
    SELECT json_extract(frame.value, '$.' || name.value) AS id
    FROM (SELECT DISTINCT jsonText FROM NVTX_EVENTS WHERE eventType = ? AND json_valid(jsonText)),
         json_each(jsonText) AS part, json_each(part.value, '$.Frames') AS frame,
         json_each('["Function", "File"]') AS name
"""
"""Query for the strings that frames of samples are of."""
SEVERITIES = {2: "warning", 3: "error"}  # of the rows of DIAGNOSTIC_EVENT; the others inform


class NsysLog:
    """Log of nsys's output about the captures of a run, in a file next to the run, without folders of the machine.

    `complaints`: warnings and errors about the last capture.
    """

    def __init__(self, path: Path):
        self.path = path
        self.complaints: list[str] = []

    def __call__(self, command: str, said: str) -> None:
        """Append each line of the output of `command`; of a progress bar only its end."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        said = FOLDERS.sub("", shorten(said, KEPT_OF_COMMAND))
        lines = [line.strip().rpartition("\r")[2] for line in said.split("\n")]
        with open(self.path, "a") as file:
            file.writelines(f"{now} {command}: {line}\n" for line in lines if line)

    def diagnose(self, database: Path) -> None:
        """Append nsys's diagnostics of a capture, from its export: how many events were produced and collected, and
        what may be missing. Append nothing if the export has no such table."""
        query = f"""SELECT severity, substr(text, 1, {LONGEST_DIAGNOSTIC}) AS said FROM DIAGNOSTIC_EVENT
                    GROUP BY severity, said ORDER BY min(timestamp) LIMIT {MOST_DIAGNOSTICS}"""
        with suppress(sqlite3.Error), closing(sqlite3.connect(database)) as connection:
            for severity, text in connection.execute(query).fetchall():
                self(SEVERITIES.get(severity, "information"), text)
                if severity in SEVERITIES:
                    self.complaints.append(" ".join(FOLDERS.sub("", text).split()))


def run_nsys(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    log: NsysLog | None = None,
    timeout_s: float = TIMEOUT_S,
    left_s: Callable[[], float] = lambda: math.inf,
) -> str:
    """Run an nsys command, append its output to `log`, and return it. nsys finds sessions only in the environment
    they were started in. The command is killed after `timeout_s`, and when `left_s()` is 0.

    Raises CollectorError with nsys's last line.
    """
    command, failure = arguments[0], ""
    try:
        # In a new session: what it started ends with it, and a signal to this program's group does not reach it.
        process = subprocess.Popen(
            ["nsys", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise CollectorError(NSYS_MISSING) from None
    with process:
        outputs = {pipe: Excerpt(MOST_PRINTED) for pipe in (process.stdout, process.stderr) if pipe}
        deadline = time.monotonic() + timeout_s
        try:
            ended = _read(process, outputs, POLL_S)
            while not ended and (rest := min(deadline - time.monotonic(), left_s())) > 0:
                ended = _read(process, outputs, min(rest, POLL_S))
        except BaseException:  # a signal ends this program
            kill_group(process.pid)
            raise
        if not ended:
            late = time.monotonic() >= deadline
            failure = f"did not end within {timeout_s:g} s" if late else "was killed, as the sweep stops"
            kill_group(process.pid)
            _read(process, outputs, POLL_S)
        if not failure and process.returncode:
            failure = f"failed (exit {process.returncode})"
    printed, complained = (output.text for output in outputs.values())
    if not failure and not log and any(output.is_cut for output in outputs.values()):
        failure = f"printed more than {2 * MOST_PRINTED >> 20} MiB"
    if log:
        log(command, f"{printed}\n{complained}\n{failure or 'done'}")
    if failure:
        said = (complained.strip() or printed.strip()).splitlines()
        raise CollectorError(": ".join([f"nsys {command} {failure}", *said[-1:]]))
    return printed


def _read(process: subprocess.Popen[bytes], outputs: Mapping[IO[bytes], Excerpt], timeout_s: float) -> bool:
    """Read what a process prints, and return whether it ended in time, and so did all that has its outputs."""
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        for pipe in outputs:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            if (rest := deadline - time.monotonic()) <= 0:
                return False
            for key, _ in selector.select(rest):
                if chunk := os.read(key.fd, 2**16):
                    outputs[cast(IO[bytes], key.fileobj)].add(chunk)
                else:
                    selector.unregister(key.fileobj)
    with suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, deadline - time.monotonic()))
    return process.returncode is not None


def kill_group(pid: int) -> None:
    """Kill a process that leads a group, and the others in it."""
    with suppress(OSError):
        os.killpg(pid, SIGKILL)


def export(
    report: Path,
    environment: Mapping[str, str] | None = None,
    log: NsysLog | None = None,
    left_s: Callable[[], float] = lambda: math.inf,
    with_samples: bool = False,
) -> Path:
    """Export a report to SQLite next to it, without what names the machine, and return its path. Also write nsys's
    statistics, for the reconciliation. `left_s`: see `run_nsys`. with_samples: keep Python stacks, whose paths are as
    nsys gives them, and write no statistics. Raises CollectorError."""
    database = report.with_suffix(".sqlite")
    options = ["--type=sqlite", "--force-overwrite=true", "--quiet=true", f"--output={database}"]
    settings: dict[str, Any] = {"environment": environment, "log": log, "left_s": left_s}
    try:
        run_nsys("export", *options, PAYLOADS, str(report), **settings)
    except CollectorError as error:
        if PAYLOADS.partition("=")[0] not in str(error):
            raise
        run_nsys("export", *options, str(report), **settings)  # an older one, which does not know the option
    if log:
        log.diagnose(database)
    try:
        (scrub_but_samples if with_samples else scrub)(database)
    except sqlite3.Error as error:
        raise CollectorError(f"the export of nsys cannot be used: {error}") from None
    if with_samples:
        return database
    options = ["--quiet", f"--report={NSYS_SUMS}", "--format=csv", "--output=-"]
    try:
        sums = run_nsys("stats", *options, str(database), environment=environment, left_s=left_s)
        report.with_name(NSYS_SUMS_FILE).write_text(sums)
    except CollectorError:  # an nsys without its statistics scripts still measures
        if left_s() <= 0:  # the sweep stops: in the next job the run has its statistics
            raise
    return database


def scrub(database: Path, with_samples: bool = False) -> None:
    """Remove from an export everything that names the machine: other tables, unreferenced strings, device ids, and what
    ranges of programs carry, which may be anything. with_samples: keep the Python stacks."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        referenced = []
        for table in tables:
            if not table.startswith(KEPT_TABLES):
                connection.execute(f'DROP TABLE "{table}"')
            elif table.startswith(("CUPTI_", "NVTX_EVENTS")):
                columns = {row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')}
                referenced += [
                    f'SELECT "{column}" FROM "{table}" WHERE "{column}" IS NOT NULL'
                    for column in STRING_COLUMNS
                    if column in columns
                ]
        if "NVTX_EVENTS" in tables:
            columns = {row[1] for row in connection.execute("PRAGMA table_info(NVTX_EVENTS)")}
            if "jsonText" in columns:
                kept = f" AND eventType != {SAMPLE}" if with_samples else ""
                connection.execute(
                    f"UPDATE NVTX_EVENTS SET jsonText = NULL WHERE jsonText NOT LIKE ?{kept}", (OF_NCCL,)
                )
                if with_samples:
                    connection.execute("CREATE TEMP TABLE of_samples AS " + IDS_OF_SAMPLES, (SAMPLE,))
                    referenced.append("SELECT id FROM of_samples WHERE id IS NOT NULL")
        if "StringIds" in tables and referenced:
            connection.execute(f"DELETE FROM StringIds WHERE id NOT IN ({' UNION '.join(referenced)})")
        if "TARGET_INFO_GPU" in tables:
            columns = {row[1] for row in connection.execute("PRAGMA table_info(TARGET_INFO_GPU)")}
            for column in columns & GPU_IDS:
                connection.execute(f"UPDATE TARGET_INFO_GPU SET {column} = NULL")
        if "META_DATA_EXPORT" in tables:
            named = "name LIKE '%PATH%' OR name IN ('EXPORT_HOST', 'EXPORT_USER')"
            connection.execute(f"DELETE FROM META_DATA_EXPORT WHERE {named}")
        connection.execute("VACUUM")


def scrub_but_samples(database: Path) -> None:
    """Scrub an export, but keep its Python stacks, with paths as nsys gives them."""
    scrub(database, with_samples=True)


STEP_RANGE = f"""SELECT start, "end" FROM NVTX_EVENTS LEFT JOIN StringIds ON textId = StringIds.id
                 WHERE coalesce(text, value) = '{STEP}' AND "end" IS NOT NULL"""
"""Query for the complete ranges of steps."""


def count_kernels_and_steps(database: Path) -> tuple[int, int]:
    """Count the kernels of an export since its first step began (warm-up is in the capture, too), and its complete
    ranges named `step`."""
    steps = """SELECT count(*), coalesce(min(start), 0) FROM NVTX_EVENTS LEFT JOIN StringIds ON textId = StringIds.id
               WHERE coalesce(text, value) = ? AND "end" IS NOT NULL"""
    kernels = "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE start >= ?"
    with closing(sqlite3.connect(database)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        num_kernels = num_steps = first = 0
        if "NVTX_EVENTS" in tables:
            num_steps, first = connection.execute(steps, (STEP,)).fetchone()
        if "CUPTI_ACTIVITY_KIND_KERNEL" in tables:
            (num_kernels,) = connection.execute(kernels, (first,)).fetchone()
    return num_kernels, num_steps


def count_steps_of_processes(database: Path) -> list[int]:
    """Count the complete ranges named `step` of each process in an export that has one."""
    query = f"""SELECT count(*) FROM NVTX_EVENTS LEFT JOIN StringIds ON textId = StringIds.id
                WHERE coalesce(text, value) = ? AND "end" IS NOT NULL GROUP BY globalTid / {NUMBERS_OF_THREADS}"""
    with closing(sqlite3.connect(database)) as connection:
        has_ranges = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'NVTX_EVENTS'").fetchone()
        return [count for (count,) in connection.execute(query, (STEP,))] if has_ranges else []
