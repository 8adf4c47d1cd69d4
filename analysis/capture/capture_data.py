"""What one nsys export holds, as tables, and the error for an export that cannot be read."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import limits
from profiler_job.analysis.capture.python_samples import SAMPLE_COLUMNS, Stack
from profiler_job.jobs.contract.errors import CodedError
from profiler_job.jobs.contract.exit_codes import ExitCode

MOST_DEVICES = 1024  # of one process, so that process and device fit into one number
UNKNOWN_PROCESS = 0
NOT_USED = "not used"
"""Version of nsys in a capture that it did not make."""
UNKNOWN_THREAD, UNKNOWN_RANGE_THREAD = -1, -2  # differ, so that an unknown launcher is in no unknown thread's range


class ExportProblem(StrEnum):
    """Why a file cannot be read as an nsys export, or a part of it cannot be shown."""

    MISSING = "missing"
    EMPTY = "empty"
    NOT_AN_EXPORT = "not_an_export"
    UNFINISHED = "unfinished"
    DAMAGED = "damaged"
    TOO_LARGE = "too_large"
    NO_EVENTS = "no_events"
    NOTHING_SELECTED = "nothing_selected"
    NSYS_MISSING = "nsys_missing"
    NSYS_FAILED = "nsys_failed"


class ExportError(CodedError[ExportProblem]):
    """A file that cannot be read as an nsys export. The message is one line: file, what is wrong, what to do. code: the
    reason."""

    def __init__(
        self,
        code: ExportProblem,
        path: Path | str,
        problem: str,
        remedy: str,
        exit_code: ExitCode = ExitCode.DAMAGED,
    ):
        super().__init__(code, f"{path}: {problem}; {remedy}", exit_code)
        self.problem = problem


LOCK_COLUMNS = PAUSE_COLUMNS = ("start_ns", "end_ns", "process", "thread")
MESSAGE_COLUMNS = ("start_ns", "thread", "bytes", "communicator")


@dataclass(kw_only=True)
class Capture:
    """What one nsys export holds. Times are int64 nanoseconds on the capture's own clock; `process` is the serialised
    process id (unique over machines of one capture), `thread` the serialised thread id that contains it.

    kernels: start_ns, end_ns, process, device, stream, correlation, kernel_name, graph_node (0 none)
             (+ grid_x..z, block_x..z, registers, static_shared_bytes, dynamic_shared_bytes when read with details)
    graphs:  start_ns, end_ns, process, device, stream, correlation, graph
             whole CUDA graph executions (traced with --cuda-graph-trace=graph: the kernels inside are not visible)
    memops:  start_ns, end_ns, process, device, stream, correlation, graph_node, operation, bytes,
             host_memory (of a copy from or to the host: pageable | pinned | managed; empty if not known)
    api:     start_ns, end_ns, process, thread, correlation, name (as cuda_api.strip_version gives it); sorted by start
    ranges:  start_ns, end_ns (an open range ends with the capture, `is_open`), process, thread, domain, name,
             style (PushPop | StartEnd)
    syncs:   start_ns, end_ns, process, device, stream, correlation, kind
    messages: of NCCL's ranges with a payload: start_ns and thread of the range, bytes (of the message), communicator
             (number of the group of ranks, the same on all of them)
    samples: of Python: start_ns, process, thread, stack (place in stacks); sorted by start
    stacks:  the different Python stacks, innermost frame first
    lock_waits: when a thread waits for Python's lock, if nsys traced it: start_ns, end_ns, process, thread
    pauses:  when a thread sleeps, or waits for a disk or a child, likewise; see `os_calls`
    gpus:    facts of each GPU of the machine; gpu_of: (process id, device) -> id in gpus
    events_ns: from the start of the first to the end of the last of the events above
    duration_ns: how long nsys collected, which may be long before and after the events; events_ns if not known
    recorded_at: when nsys began to collect, in the form of `datetime.isoformat` in UTC; "" if not known
    missing: table, column or event that is absent -> what is unknown without it
    problems: what is wrong with the data -> how it was handled
    path: the export or report itself
    """

    source: str
    path: Path = Path()
    kernels: pd.DataFrame
    graphs: pd.DataFrame
    memops: pd.DataFrame
    api: pd.DataFrame
    ranges: pd.DataFrame
    syncs: pd.DataFrame
    messages: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(MESSAGE_COLUMNS), dtype=np.int64))
    samples: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(SAMPLE_COLUMNS), dtype=np.int64))
    stacks: list[Stack] = field(default_factory=list)
    lock_waits: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(LOCK_COLUMNS), dtype=np.int64))
    pauses: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(PAUSE_COLUMNS), dtype=np.int64))
    nsys_version: str = ""
    schema_version: str = ""
    gpus: list[dict[str, Any]] = field(default_factory=list)
    gpu_of: dict[tuple[int, int], int] = field(default_factory=dict)
    events_ns: int = 0
    duration_ns: int = 0
    recorded_at: str = ""
    missing: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def make_limit_error(path: Path, error: limits.LimitError) -> ExportError:
    """The error for a user whose capture is beyond a limit."""
    return ExportError(
        ExportProblem.TOO_LARGE, path, str(error), "record less at once: the page Output for programs lists the limits"
    )


EXPORT_AGAIN = "export the report again with `nsys export --type sqlite --force-overwrite=true REPORT.nsys-rep`"
GIVE_AN_EXPORT = "give an .nsys-rep, .sqlite or parquetdir export of nsys"


def join_lines(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def get_process_id(process: int) -> int:
    """The operating system's process id in a `process` of a Capture."""
    return int(process) & 0xFFFFFF


def get_thread_id(thread: int) -> int:
    """The operating system's thread id in a `thread` of a Capture."""
    return int(thread) & 0xFFFFFF
