"""Read an Nsight Systems export, SQLite or parquetdir: the only file that knows the nsys schema.

`read(path)` gives a `Capture`: pandas frames with one row an event, integer nanoseconds on the capture's clock, names
resolved to categoricals, sorted by start. Tables and columns that a capture or an nsys version does not have become
empty frames and neutral values, and are listed in `Capture.missing`; nothing is filled in silently.
"""

import os
import re
import signal
import sqlite3
import stat
import subprocess
import tempfile
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, compress, islice
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from profiler_job.analysis.capture import limits, parquet_pages
from profiler_job.analysis.capture.blocks import BLOCK, split_into_blocks
from profiler_job.analysis.capture.pytorch_ranges import strip_numbers
from profiler_job.analysis.reference import cuda_api
from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.find_nsys import HOW_TO_INSTALL, find_nsys

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
SYNC = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
API = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX = "NVTX_EVENTS"
NCCL = "NCCL"
"""Domain of NCCL's own ranges."""
PAYLOADS = "--include-json=true"
"""Option of `nsys export` that writes what NVTX ranges carry, such as the size of a message, as JSON."""
_MESSAGE = re.compile(r'"NCCL communicator ID": ?(\d{1,20})\b.*?"Message size \[bytes\]": ?(\d{1,18})\b')
_LONGEST_PAYLOAD = 1000
STRINGS = "StringIds"

# What cannot be said when a table is absent; the keys are the tables that `read` looks for.
CONSEQUENCES = {
    KERNEL: "no kernel times: no statement about GPU work, families, phases or idle share",
    API: "no CUDA API calls: no launch latency, no queue depth, and kernels cannot be attributed to ranges",
    NVTX: "no NVTX ranges: kernels cannot be attributed to ranges or modules, and phases can only be inferred",
    STRINGS: "no string table: kernels, API calls and registered ranges have no names",
    MEMCPY: "no memory copies: either none happened or they were not traced",
    MEMSET: "no memory sets: either none happened or they were not traced",
    SYNC: "no synchronisation events: either none happened or they were not traced",
    "TARGET_INFO_GPU": "no GPU facts: name, SMs, memory and clocks are unknown",
}

SESSION = "TARGET_INFO_SESSION_START_TIME"
_FACTS = ("META_DATA_EXPORT", "ANALYSIS_DETAILS", SESSION, "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE")
READ = (*dict.fromkeys((*CONSEQUENCES, GRAPH, *_FACTS)),)
"""The tables that are looked at; of others not even the damage matters."""

PUSH_POP, START_END, DOMAIN_CREATE = 59, 60, 75
MOST_DEVICES = 1024  # of one process, so that process and device fit into one number
UNKNOWN_PROCESS = 0
UNKNOWN_THREAD, _UNKNOWN_RANGE_THREAD = -1, -2  # differ, so that an unknown launcher is in no unknown thread's range
_MOST_EXACT = 2**53  # sums up to here are exact whichever way they are made; as nanoseconds, 104 days
_LAST_MOMENT = 2**62  # nanoseconds since 1970, in the year 2116: no capture is later
_NO_VALUE = -(2**63)  # stands for NULL while columns are fetched; no timestamp or id has this value

_COPY_KINDS = {
    0: "Unknown",
    1: "Host-to-Device",
    2: "Device-to-Host",
    3: "Host-to-Array",
    4: "Array-to-Host",
    5: "Array-to-Array",
    6: "Array-to-Device",
    7: "Device-to-Array",
    8: "Device-to-Device",
    9: "Host-to-Host",
    10: "Peer-to-Peer",
    11: "Unified Host-to-Device",
    12: "Unified Device-to-Host",
    13: "Unified Device-to-Device",
}
_HOST_MEMORY = {0: "pageable", 1: "pinned", 4: "managed", 6: "managed"}
_HOST_MEMORIES = ["", "pageable", "pinned", "managed"]
_SYNC_TYPES = {0: "Unknown", 1: "Event sync", 2: "Stream wait sync", 3: "Stream sync", 4: "Context sync"}

_GRID = {"grid_x": "gridX", "grid_y": "gridY", "grid_z": "gridZ"}
_KERNEL_DETAILS = _GRID | {
    "block_x": "blockX",
    "block_y": "blockY",
    "block_z": "blockZ",
    "registers": "registersPerThread",
    "static_shared_bytes": "staticSharedMemory",
    "dynamic_shared_bytes": "dynamicSharedMemory",
}
_GPU_FACTS = {
    "id": "id",
    "name": "name",
    "memory_bytes": "totalMemory",
    "memory_bandwidth": "memoryBandwidth",
    "clock_hz": "clockRate",
    "sm_count": "smCount",
    "l2_bytes": "l2CacheSize",
    "compute_major": "computeMajor",
    "compute_minor": "computeMinor",
}


class ExportError(ProfilerError, ValueError):
    """A file that cannot be read as an nsys export. The message is one line: file, what is wrong, what to do."""

    def __init__(self, path: Path | str, problem: str, remedy: str, exit_code: ExitCode = ExitCode.DAMAGED):
        super().__init__(f"{path}: {problem}; {remedy}", exit_code=exit_code)
        self.problem = problem


MESSAGE_COLUMNS = ("start_ns", "thread", "bytes", "communicator")


@dataclass(kw_only=True)
class Capture:
    """What one nsys export holds. Times are int64 nanoseconds on the capture's own clock; `process` is the serialised
    process id (unique over machines of one capture), `thread` the serialised thread id that contains it.

    kernels: start_ns, end_ns, process, device, stream, correlation, kernel_name (+ graph_node (0 none),
             grid_x..z, block_x..z, registers, static_shared_bytes, dynamic_shared_bytes when read with details)
    graphs:  start_ns, end_ns, process, device, stream, correlation, graph
             whole CUDA graph executions (traced with --cuda-graph-trace=graph: the kernels inside are not visible)
    memops:  start_ns, end_ns, process, device, stream, correlation, graph_node, operation, bytes,
             host_memory (of a copy from or to the host: pageable | pinned | managed; empty where it is not said)
    api:     start_ns, end_ns, process, thread, correlation, name (as cuda_api.base_name has it); sorted by start
    ranges:  start_ns, end_ns (an open range ends with the capture, `is_open`), process, thread, domain, name,
             style (PushPop | StartEnd)
    syncs:   start_ns, end_ns, process, device, stream, correlation, kind
    messages: of NCCL's ranges with a payload: start_ns and thread of the range, bytes (of the message), communicator
             (number of the group of ranks, the same on all of them)
    gpus:    facts of each GPU of the machine; gpu_of: (process id, device) -> id in gpus
    events_ns: from the start of the first to the end of the last of the events above
    duration_ns: how long nsys collected, which may be long before and after the events; events_ns where it does not say
    recorded_at: when nsys began to collect, as of `datetime.isoformat` in UTC; "" where it does not say
    missing: table, column or event that is absent -> what cannot be said without it
    problems: what is wrong with what is there -> what was made of it
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
    nsys_version: str = ""
    schema_version: str = ""
    gpus: list[dict] = field(default_factory=list)
    gpu_of: dict[tuple[int, int], int] = field(default_factory=dict)
    events_ns: int = 0
    duration_ns: int = 0
    recorded_at: str = ""
    missing: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def read(path: Path | str, *, details: bool = True, grids: bool = False) -> Capture:
    """Read `path`: an `.sqlite` export, a parquetdir export (a folder), or an `.nsys-rep` report (needs `nsys` on
    PATH).

    details=False leaves out the launch shapes of kernels, which summaries do not need; grids=True keeps their grids.
    Raises ExportError, whose message is one line for the user, for anything that is not a readable nsys export.
    """
    path = Path(path)
    try:
        with _open(path) as source:
            return _read_capture(source, path, details, _KERNEL_DETAILS if details else _GRID if grids else {})
    except ExportError:
        raise
    except limits.LimitError as error:
        raise make_limit_error(path, error) from error
    except (sqlite3.Error, pa.ArrowException, OSError) as error:
        raise ExportError(path, f"is damaged or unreadable ({_join_lines(error)})", _EXPORT_AGAIN) from error
    except (ValueError, TypeError, OverflowError, KeyError, IndexError, MemoryError) as error:
        raise ExportError(path, f"holds values that no nsys writes ({_join_lines(error)})", _EXPORT_AGAIN) from error


def make_limit_error(path: Path, error: limits.LimitError) -> ExportError:
    """The error for a user whose capture is beyond a limit."""
    return ExportError(path, str(error), "record less at once: the guide's page on `show` lists what is read")


_EXPORT_AGAIN = "export the report again with `nsys export --type sqlite --force-overwrite=true REPORT.nsys-rep`"
_GIVE_AN_EXPORT = "give an .nsys-rep, .sqlite or parquetdir export of nsys"
_RECORD_AGAIN = "record it again, or use a newer nsys"
EXPORT_LIMIT_S = 3600


def _join_lines(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


@contextmanager
def _open(path: Path) -> Iterator["_SqliteTables | _ParquetTables"]:
    if not path.exists():
        raise ExportError(path, "does not exist", "check the path", exit_code=ExitCode.USAGE)
    if path.is_dir():
        yield _ParquetTables(path)
    elif not path.is_file():
        raise ExportError(path, "is neither a file nor a folder", _GIVE_AN_EXPORT, exit_code=ExitCode.USAGE)
    elif path.suffix in (".nsys-rep", ".qdrep"):
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            exported = _export(path, Path(folder))
            try:
                tables = stack.enter_context(_SqliteTables.open(exported, path))
            except (ExportError, sqlite3.Error) as error:
                problem = error.problem if isinstance(error, ExportError) else f"is damaged ({_join_lines(error)})"
                raise ExportError(path, f"nsys exported it to a file that {problem}", _RECORD_AGAIN) from error
            yield tables
    else:
        with _SqliteTables.open(path, path) as tables:
            yield tables


def _export(report: Path, folder: Path) -> Path:
    """Let nsys export a report afresh: an export that lies beside it may be older than the report."""
    if report.stat().st_size == 0:
        raise ExportError(report, "is empty", "record it again")
    nsys = find_nsys()
    if nsys is None:
        raise ExportError(
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
        raise ExportError(report, problem, "export it by hand and give the .sqlite file") from error
    except OSError as error:
        raise ExportError(
            report,
            f"nsys could not be started ({_join_lines(error)})",
            "install nsys again",
            exit_code=ExitCode.MISSING,
        ) from error
    said = f"it said: {said}" if said else "it said nothing"
    if code:
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        raise ExportError(report, f"nsys could not export it ({how}; {said})", _RECORD_AGAIN)
    if not target.is_file():
        raise ExportError(report, f"nsys exported nothing ({said})", _RECORD_AGAIN)
    return target


def _run(command: Sequence[str], log: Path, limit_s: float) -> tuple[int, str]:
    """Exit code of a program without input, and the end of what it said on one line. Where it is not done in `limit_s`
    seconds (subprocess.TimeoutExpired) or the user interrupts, it ends with all that it has started."""
    with log.open("wb") as said:  # a file, because a pipe stays open as long as any process that the program started
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, process_group=0)
        try:
            code = process.wait(limit_s)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    return code, " ".join(log.read_text("utf-8", "replace").split())[-200:]


# --------------------------------------------------------------------------------------------------- the two containers


class _SqliteTables:
    """Columns of an export in SQLite. Python's own sqlite3, read in flat chunks: 1 M rows of seven columns take a
    second."""

    CHUNK = 1 << 9  # what is no number takes memory until it is refused: half a GiB of limits.ROW_BYTES

    def __init__(self, connection: sqlite3.Connection, shown: Path):
        self._connection = connection
        self._names = limits.UniqueNames()
        connection.text_factory = self._decode_text
        (num_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        limits.TABLES.check(num_tables)
        self._columns = {table: columns for table in READ if (columns := self._list_plain_columns(table, shown))}
        # One by one: what lies in other tables is nothing to us, and costs what their author wants.
        for table in self._columns:
            verdict = connection.execute(f'PRAGMA quick_check("{table}")').fetchone()
            if verdict is None or verdict[0] != "ok":
                problem = f"is damaged ({_join_lines(ValueError(verdict))})"
                raise ExportError(shown, problem, _EXPORT_AGAIN)
        counts = {table: connection.execute(f'SELECT count(*) FROM "{table}" NOT INDEXED') for table in self._columns}
        self._num_rows = {table: count.fetchone()[0] for table, count in counts.items()}

    @classmethod
    @contextmanager
    def open(cls, path: Path, shown: Path) -> Iterator["_SqliteTables"]:
        _check_sqlite_file(path, shown)
        # immutable: the file may lie on a read-only disk, and nothing else writes it
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            _limit_sqlite(connection)
            deadline = time.thread_time() + limits.check_s(path.stat())
            connection.set_progress_handler(lambda: time.thread_time() > deadline, 10_000)
            try:
                tables = cls(connection, shown)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                    raise
                raise ExportError(shown, "takes too long to check for damage", _EXPORT_AGAIN) from error
            connection.set_progress_handler(None, 0)
            yield tables
        finally:
            connection.close()

    def _decode_text(self, raw: bytes) -> str:
        return self._names(raw.decode("utf-8", "replace"))  # what is not UTF-8 must not stop all the rest

    def _list_plain_columns(self, table: str, shown: Path) -> list[str]:
        """Names of the columns; none where there is no such table. What computes is refused: a view, a virtual table,
        a generated column."""
        query = "SELECT type, rootpage FROM sqlite_master WHERE name = ? COLLATE NOCASE AND type IN ('table', 'view')"
        kind, root = self._connection.execute(query, (table,)).fetchone() or ("", 0)
        if not kind:
            return []
        columns = self._connection.execute(f'PRAGMA table_xinfo("{table}")').fetchall()
        if kind == "view" or not root or any(column[6] for column in columns):
            kind = "view" if kind == "view" else "table with computed columns" if root else "virtual table"
            raise ExportError(shown, f"has {table} as a {kind}, which nsys never writes", _EXPORT_AGAIN)
        return [column[1] for column in columns]

    def list_tables(self) -> set[str]:
        return set(self._columns)

    def list_columns(self, table: str) -> list[str]:
        return self._columns.get(table, [])

    def num_rows(self, table: str) -> int:
        return self._num_rows[table]

    def read_integers(self, table: str, columns: Sequence[str]) -> list[np.ndarray]:
        """The named columns as int64 arrays, NULL as _NO_VALUE, in the table's own order."""
        wanted = ", ".join(f'COALESCE("{column}", {_NO_VALUE})' for column in columns)
        query = f'SELECT {wanted} FROM "{table}" NOT INDEXED'
        return _gather(table, columns, self.num_rows(table), self._read_chunks(table, query, len(columns)))

    def _read_chunks(self, table: str, query: str, num_columns: int) -> Iterator[np.ndarray]:
        cursor = self._connection.execute(query)
        flat = array("q")
        try:
            # Rows are used up one by one, so that Python makes no million tuples. An array takes no fractions.
            while values := list(chain.from_iterable(islice(cursor, self.CHUNK))):
                flat.extend(array("q", values))
                if len(flat) >= BLOCK * num_columns:
                    yield _split_columns(flat, num_columns)
                    flat = array("q")
        except TypeError as error:
            raise ValueError(f"{table} has a value that is no whole number") from error
        if flat:
            yield _split_columns(flat, num_columns)

    def read_objects(self, table: str, columns: Sequence[str]) -> list[list]:
        """The named columns as lists of Python values, in the table's own order."""
        wanted = ", ".join(f'"{column}"' for column in columns)
        lists: list[list] = [[] for _ in columns]
        cursor = self._connection.execute(f'SELECT {wanted} FROM "{table}" NOT INDEXED')
        while rows := list(chain.from_iterable(islice(cursor, self.CHUNK))):
            flat = [self._decode_text(value) if isinstance(value, bytes) else value for value in rows]
            for number, values in enumerate(lists):
                values.extend(flat[number :: len(columns)])
        return lists


def _split_columns(flat: array, num_columns: int) -> np.ndarray:
    return np.frombuffer(flat, np.int64).reshape(-1, num_columns).T


def _limit_sqlite(connection: sqlite3.Connection) -> None:
    """Let nothing but plain tables of usual sizes be read."""
    for kind, most in (
        (sqlite3.SQLITE_LIMIT_LENGTH, limits.ROW_BYTES.most),
        (sqlite3.SQLITE_LIMIT_SQL_LENGTH, limits.DEFINITION_BYTES.most),
        (sqlite3.SQLITE_LIMIT_COLUMN, limits.COLUMNS.most),
        (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
    ):
        connection.setlimit(kind, most)
    for setting in ("trusted_schema = OFF", "cell_size_check = ON", "ignore_check_constraints = ON", "mmap_size = 0"):
        connection.execute(f"PRAGMA {setting}")


def _check_sqlite_file(path: Path, shown: Path) -> None:
    size = path.stat().st_size
    if size == 0:
        raise ExportError(shown, "is empty", _EXPORT_AGAIN)
    with path.open("rb") as file:
        header = file.read(100)
    if header[:4] == b"PAR1":
        raise ExportError(
            shown, "is a single Parquet file", "give the parquetdir folder that holds it", exit_code=ExitCode.USAGE
        )
    if header[:16] != b"SQLite format 3\x00":
        raise ExportError(shown, "is not an SQLite file", _GIVE_AN_EXPORT)
    for ending in ("-wal", "-journal"):
        beside = path.with_name(path.name + ending)
        if beside.exists() and beside.stat().st_size:
            problem = f"is being written, or its writing was broken off ({beside.name} lies beside it)"
            raise ExportError(shown, problem, "wait until nsys is done, or " + _EXPORT_AGAIN)
    page = int.from_bytes(header[16:18], "big")
    expected = (65536 if page == 1 else page) * int.from_bytes(header[28:32], "big")
    if size < expected:
        raise ExportError(shown, f"is cut off ({size} of {expected} bytes)", _EXPORT_AGAIN)


class _ParquetTables:
    """Columns of an export in a folder with one Parquet file a table, named as the SQLite tables are."""

    def __init__(self, folder: Path):
        if next(folder.glob("*.parquet"), None) is None:
            raise ExportError(
                folder,
                "is a folder without .parquet files",
                "give the folder that nsys export wrote",
                exit_code=ExitCode.USAGE,
            )
        files = {table: folder / f"{table}.parquet" for table in READ}
        self._files = {table: file for table, file in files.items() if file.exists()}
        self._names = limits.UniqueNames()
        self._about = {table: _read_footer(file, table, folder) for table, file in self._files.items()}

    def list_tables(self) -> set[str]:
        return set(self._files)

    def list_columns(self, table: str) -> list[str]:
        about = self._about.get(table)
        return [about.schema.column(i).path for i in range(about.num_columns)] if about else []

    def num_rows(self, table: str) -> int:
        return self._about[table].num_rows

    def read_integers(self, table: str, columns: Sequence[str]) -> list[np.ndarray]:
        self._check(table, columns, _NUMBERS)
        with pq.ParquetFile(self._files[table]) as file:
            batches = file.iter_batches(BLOCK, columns=list(columns))
            chunks = ([_convert_integers(batch.column(name), table) for name in columns] for batch in batches)
            return _gather(table, columns, self.num_rows(table), chunks)

    def read_objects(self, table: str, columns: Sequence[str]) -> list[list]:
        self._check(table, columns, (*_NUMBERS, "BYTE_ARRAY"))
        # Strings stay with their numbers: one string under a million rows is one string.
        with pq.ParquetFile(self._files[table], read_dictionary=list(columns)) as file:
            data = file.read(columns=list(columns))
        return [[*chain.from_iterable(map(self._unpack, data.column(name).chunks))] for name in columns]

    def _unpack(self, chunk: pa.Array) -> Iterable:
        if not pa.types.is_dictionary(chunk.type):
            return chunk.to_pylist()
        limits.NAMES_BYTES.check(chunk.dictionary.nbytes)
        values = [*map(self._decode_object, chunk.dictionary.to_pylist()), None]
        return map(values.__getitem__, pc.fill_null(chunk.indices, -1).to_pylist())

    def _decode_object(self, value):
        value = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        return self._names(value) if isinstance(value, str) else value

    def _check(self, table: str, columns: Sequence[str], kinds: Sequence[str]) -> None:
        """Raises ValueError where the columns are not plain ones of these physical types, or their pages are beyond
        the limits."""
        about = self._about[table]
        numbers = [i for i in range(about.num_columns) if about.schema.column(i).path in columns]
        for column in map(about.schema.column, numbers):
            if column.physical_type not in kinds or column.max_repetition_level or column.max_definition_level > 1:
                raise ValueError(f"{table} has a value that is no whole number in column {column.path}")
        with self._files[table].open("rb") as file:
            parquet_pages.check(file, about, numbers, table)


_NUMBERS = ("INT32", "INT64", "BOOLEAN", "FLOAT", "DOUBLE")


def _read_footer(file: Path, table: str, folder: Path) -> pq.FileMetaData:
    """What a table's footer says. Raises ExportError for what is no file, and LimitError."""
    if not stat.S_ISREG(file.stat().st_mode):
        raise ExportError(folder, f"holds {file.name}, which is no file", "give the folder that nsys export wrote")
    size = file.stat().st_size
    with file.open("rb") as opened:
        opened.seek(max(size - 8, 0))
        footer, magic = int.from_bytes(opened.read(4), "little"), opened.read(4)
    if magic == b"PAR1" and footer < size:
        limits.FOOTER_BYTES.check(footer, table)
    about = pq.read_metadata(file)
    limits.COLUMNS.check(about.num_columns, table)
    limits.check_density(about.num_rows, size, table)
    return about


def _convert_integers(column: pa.Array, table: str) -> np.ndarray:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.type == pa.uint64():
        column = column.view(pa.int64())  # ids beyond 2**63 wrap, as they do in SQLite
    try:
        return column.cast(pa.int64()).fill_null(_NO_VALUE).to_numpy()
    except pa.ArrowInvalid as error:
        raise ValueError(f"{table} has a value that is no whole number") from error


def _gather(
    table: str, columns: Sequence[str], rows: int, chunks: Iterable[np.ndarray | Sequence[np.ndarray]]
) -> list[np.ndarray]:
    """Whole columns of `rows` values from chunks of them: int64, and int32 of those of _SMALL that fit. Raises
    ValueError where there are more or fewer rows."""
    arrays = [np.empty(rows, np.int32 if column in _SMALL else np.int64) for column in columns]
    low = 0
    for chunk in chunks:
        high = low + len(chunk[0])
        if high > rows:
            break
        for number, part in enumerate(chunk):
            arrays[number][low:high] = part
            if arrays[number].dtype == np.int32 and (arrays[number][low:high] != part).any():
                arrays[number] = arrays[number].astype(np.int64)
                arrays[number][low:high] = part
        low = high
    if low != rows:
        raise ValueError(f"table {table} does not have the {rows} rows that it says it has")
    return arrays


_SMALL = {"deviceId", "streamId", "demangledName", "shortName", "mangledName", "nameId"}
"""Columns of operations and calls that are read as int32: half the memory to fill."""


# -------------------------------------------------------------------------------------------------- rows to tidy frames


class _Strings:
    """The export's string table: ids to names."""

    def __init__(self, tables):
        self._ids, self._values = np.empty(0, np.int64), []
        self.known = STRINGS in tables.list_tables() and {"id", "value"} <= set(tables.list_columns(STRINGS))
        if self.known:
            (ids,), (values,) = tables.read_integers(STRINGS, ["id"]), tables.read_objects(STRINGS, ["value"])
            order = np.argsort(ids, kind="stable")
            self._ids = ids[order]
            self._values = [str(values[i]) for i in order]

    def __getitem__(self, wanted: int) -> str | None:
        position = int(np.searchsorted(self._ids, wanted))
        is_known = position < len(self._ids) and self._ids[position] == wanted
        return self._values[position] if is_known else None

    def name_ids(self, ids: np.ndarray, what: str) -> pd.Categorical:
        """Categorical of the names of `ids`. Raises ValueError for an id that a present string table does not have."""
        unique, inverse = encode(ids)
        values = [self[int(text_id)] for text_id in unique]
        limits.check_names(filter(None, values), f"a {what}" if what == "kernel" else f"an {what}")
        if self.known and None in values:
            raise ValueError(f"{what} refers to string {unique[values.index(None)]}, which {STRINGS} does not have")
        return make_categorical(
            inverse, [value or f"<unnamed {what} {text_id}>" for value, text_id in zip(values, unique)]
        )


def encode(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values in order, and each value's place among them: np.unique, and without sorting where they lie
    close together, as ids do."""
    if len(values) == 0:
        return values, np.empty(0, np.int32)
    low, high = int(values.min()), int(values.max())
    if high - low > 4 * len(values) + 1_000_000:
        return np.unique(values, return_inverse=True)
    present = _mark_present(values, low, high)
    place = np.cumsum(present, dtype=np.int32) - 1
    codes = np.empty(len(values), np.int32)
    for rows in split_into_blocks(len(values)):
        codes[rows] = place[values[rows] - low]
    return np.flatnonzero(present) + low, codes


def find_distinct(values: np.ndarray) -> np.ndarray:
    """The distinct values in order: np.unique, and without sorting where they lie close together, as ids do."""
    if len(values) == 0:
        return values
    low, high = int(values.min()), int(values.max())
    if high - low > 4 * len(values) + 1_000_000:
        return np.unique(values)
    return np.flatnonzero(_mark_present(values, low, high)) + low


def _mark_present(values: np.ndarray, low: int, high: int) -> np.ndarray:
    """Of each number from `low` to `high` whether it is one of the values."""
    present = np.zeros(high - low + 1, bool)
    for rows in split_into_blocks(len(values)):
        present[values[rows] - low] = True
    return present


def make_categorical(codes: np.ndarray, values: Sequence[str]) -> pd.Categorical:
    """Categorical from codes into `values`, which may hold equal names under several codes."""
    merged, categories = pd.factorize(np.array(values, dtype=object)) if len(values) else (np.empty(0, np.int64), [])
    codes = merged.astype(np.int32)[codes] if len(values) else np.empty(0, np.int32)
    return pd.Categorical.from_codes(codes, categories=pd.Index(categories, dtype=object))


def _name_constants(codes: np.ndarray, texts: dict[int, str], form: str) -> pd.Categorical:
    unique, inverse = encode(codes)
    return make_categorical(inverse, [form.format(texts.get(int(code), f"kind {code}")) for code in unique])


def _read_columns(tables, table: str, wanted: dict[str, str], missing: dict[str, str]) -> dict[str, np.ndarray]:
    """`wanted` (our name -> nsys column) of `table` as int64 arrays without gaps in the frame; columns that this
    export does not have are listed in `missing` and come back as _NO_VALUE. start and end are indispensable."""
    have = set(tables.list_columns(table))
    for column in ("start", "end"):
        if column in wanted.values() and column not in have:
            raise ValueError(f"table {table} has no column {column}")
    present = {ours: theirs for ours, theirs in wanted.items() if theirs in have}
    arrays = dict(zip(present, tables.read_integers(table, list(present.values()))))
    rows = len(next(iter(arrays.values())))
    for ours, theirs in wanted.items():
        if ours not in arrays:
            arrays[ours] = np.full(rows, _NO_VALUE)
            missing[f"{table}.{theirs}"] = _explain_missing_column(theirs)
    return {ours: arrays[ours] for ours in wanted}


def _explain_missing_column(column: str) -> str:
    return {
        "correlationId": "the launch of these operations is unknown, so they cannot be attributed to ranges",
        "globalPid": "the process of these operations is unknown, so they cannot be attributed to ranges",
        "globalTid": "the thread of these events is unknown, so ranges cannot hold them",
        "graphNodeId": "operations inside CUDA graphs cannot be told from others",
    }.get(column, f"{column} is unknown")


def _fill_neutral(values: np.ndarray, value: int = 0) -> np.ndarray:
    absent = values == _NO_VALUE
    return np.where(absent, value, values) if absent.any() else values


def _narrow(values: np.ndarray, value: int = 0) -> np.ndarray:
    """int32 of `values`, NULL as `value`. Raises ValueError where one does not fit."""
    values = _fill_neutral(values, value)
    if len(values) and (values.max() > 2**32 - 1 or values.min() < -(2**31)):
        raise ValueError("an id or size is out of range")
    return values.astype(np.int32, copy=False) if not len(values) or values.max() < 2**31 else values


def _check_times(start: np.ndarray, end: np.ndarray, table: str) -> None:
    if not len(start):
        return
    if start.min() == _NO_VALUE or end.min() == _NO_VALUE:
        raise ValueError(f"{table} has an event without a time")
    if max(abs(int(start.min())), abs(int(end.max()))) > 2**61:
        raise ValueError(f"{table} has a time out of range")
    total = 0.0
    for low in range(0, len(start), BLOCK):
        duration = end[low : low + BLOCK] - start[low : low + BLOCK]
        if duration.min() < 0:
            raise ValueError(f"{table} has an event that ends before it starts")
        total += duration.sum(dtype=np.float64)
    # The work of one GPU cannot take longer than the capture, but many threads may wait at the same time.
    most = 2**62 if table in (API, NVTX) else _MOST_EXACT
    if total > most:
        raise ValueError(f"{table} has events that take years")


def _sort_frame(arrays: dict) -> pd.DataFrame:
    """Frame of the arrays by start, then end; moves their values in place."""
    rows, order = _find_order(arrays["start_ns"], arrays["end_ns"])
    if len(order):
        for values in arrays.values():
            values[rows] = values[order]
    return pd.DataFrame(arrays, copy=False)


def _find_order(start: np.ndarray, end: np.ndarray) -> tuple[slice | np.ndarray, np.ndarray]:
    """Places to fill and the rows that belong there, by start, then end. nsys mostly writes rows in order, and then
    only those that start together can be in a wrong place."""
    if (start[1:] < start[:-1]).any():
        return slice(None), np.lexsort((end, start))
    same = np.flatnonzero(start[1:] == start[:-1])
    rows = np.union1d(same, same + 1)
    return rows, rows[np.lexsort((end[rows], start[rows]))]


_GPU_OPERATION = {
    "start_ns": "start",
    "end_ns": "end",
    "process": "globalPid",
    "device": "deviceId",
    "stream": "streamId",
    "correlation": "correlationId",
}


def _read_operations(tables, table: str, more: dict[str, str], missing: dict[str, str]) -> dict[str, np.ndarray]:
    """Columns that every kind of GPU operation has, and `more`, as arrays."""
    if table not in tables.list_tables():
        return {name: np.empty(0, np.int64) for name in (_GPU_OPERATION | more)}
    arrays = _read_columns(tables, table, _GPU_OPERATION | more, missing)
    _check_times(arrays["start_ns"], arrays["end_ns"], table)
    arrays["process"] = _decode_process(arrays["process"])
    for name in ("device", "stream"):
        arrays[name] = _narrow(arrays[name])
    if len(arrays["device"]) and not 0 <= arrays["device"].min() <= arrays["device"].max() < MOST_DEVICES:
        raise ValueError(f"{table} has a device number out of range")
    arrays["correlation"] = _fill_neutral(arrays["correlation"], -1)
    return arrays


def _decode_process(serialised: np.ndarray) -> np.ndarray:
    """Process part of a serialised process or thread id; UNKNOWN_PROCESS where the export does not say."""
    absent = serialised == _NO_VALUE
    return np.where(absent, UNKNOWN_PROCESS, serialised >> 24) if absent.any() else serialised >> 24


def get_process_id(process: int) -> int:
    """The operating system's process id in a `process` of a Capture."""
    return int(process) & 0xFFFFFF


def get_thread_id(thread: int) -> int:
    """The operating system's thread id in a `thread` of a Capture."""
    return int(thread) & 0xFFFFFF


def _read_kernels(
    tables, strings: _Strings, details: bool, shapes: dict[str, str], missing: dict[str, str]
) -> pd.DataFrame:
    have = set(tables.list_columns(KERNEL))
    name = next((column for column in ("demangledName", "shortName", "mangledName") if column in have), "demangledName")
    more = {"name": name} | shapes | ({"graph_node": "graphNodeId"} if details else {})
    arrays = _read_operations(tables, KERNEL, more, missing)
    missing.pop(f"{KERNEL}.graphNodeId", None)  # older versions; such captures have no node traces either
    names = arrays.pop("name")
    if details:
        arrays["graph_node"] = _fill_neutral(arrays["graph_node"])
    for column in shapes:
        arrays[column] = _narrow(arrays[column])
    kernel_names = strings.name_ids(names, "kernel")
    limits.KERNEL_NAMES.check(len(kernel_names.categories))
    arrays["kernel_name"] = kernel_names
    return _sort_frame(arrays)


def _read_memops(tables, missing: dict[str, str]) -> pd.DataFrame:
    frames = []
    for table, kind in ((MEMCPY, "copyKind"), (MEMSET, None)):
        more = {"graph_node": "graphNodeId", "bytes": "bytes"}
        more |= {"kind": kind, "source": "srcKind", "destination": "dstKind"} if kind else {}
        arrays = _read_operations(tables, table, more, missing)
        for optional in ("graphNodeId", "srcKind", "dstKind"):
            missing.pop(f"{table}.{optional}", None)
        kinds = arrays.pop("kind", None)
        arrays["graph_node"], arrays["bytes"] = _fill_neutral(arrays["graph_node"]), _fill_neutral(arrays["bytes"])
        if (arrays["bytes"] < 0).any() or arrays["bytes"].sum(dtype=np.float64) > _MOST_EXACT:
            raise ValueError(f"{table} has a size out of range")
        if kinds is None:
            operation = make_categorical(np.zeros(len(arrays["start_ns"]), np.int64), ["memset"])
            host_memory = pd.Categorical.from_codes(np.zeros(len(operation), np.int8), _HOST_MEMORIES)
        else:
            operation = _name_constants(kinds, _COPY_KINDS, "memcpy {}")
            host_memory = _find_host_memory(kinds, arrays.pop("source"), arrays.pop("destination"))
        frames.append(pd.DataFrame(arrays | {"operation": operation.astype(object), "host_memory": host_memory}))
    both = pd.concat(frames, ignore_index=True)
    both["operation"] = pd.Categorical(both["operation"])
    return both.sort_values(["start_ns", "end_ns"], kind="stable", ignore_index=True)


def _find_host_memory(kinds: np.ndarray, source: np.ndarray, destination: np.ndarray) -> pd.Categorical:
    """The kind of host memory that each copy reads or writes; empty where neither side is the host."""
    at_host = np.select([np.isin(kinds, (1, 3, 11)), np.isin(kinds, (2, 4, 12))], [source, destination], _NO_VALUE)
    codes = np.zeros(len(kinds), np.int8)
    for value, name in _HOST_MEMORY.items():
        codes[at_host == value] = _HOST_MEMORIES.index(name)
    return pd.Categorical.from_codes(codes, _HOST_MEMORIES)


def _read_api(tables, strings: _Strings, missing: dict[str, str]) -> pd.DataFrame:
    wanted = {
        "start_ns": "start",
        "end_ns": "end",
        "thread": "globalTid",
        "correlation": "correlationId",
        "name": "nameId",
    }
    if API not in tables.list_tables():
        arrays = {name: np.empty(0, np.int64) for name in wanted}
    else:
        arrays = _read_columns(tables, API, wanted, missing)
    _check_times(arrays["start_ns"], arrays["end_ns"], API)
    names = strings.name_ids(arrays.pop("name"), "API call")
    arrays["process"] = _decode_process(arrays["thread"])
    arrays["thread"] = _fill_neutral(arrays["thread"], UNKNOWN_THREAD)
    arrays["correlation"] = _fill_neutral(arrays["correlation"], -1)
    arrays["name"] = make_categorical(names.codes, [cuda_api.strip_version(name) for name in names.categories])
    return _sort_frame(arrays)


def _read_ranges(tables, strings: _Strings, last_ns: int, missing: dict[str, str]) -> pd.DataFrame:
    wanted = {
        "start_ns": "start",
        "end_ns": "end",
        "kind": "eventType",
        "thread": "globalTid",
        "domain": "domainId",
        "text_id": "textId",
    }
    if NVTX not in tables.list_tables():
        arrays = {name: np.empty(0, np.int64) for name in wanted}
        texts: list = []
    else:
        arrays = _read_columns(tables, NVTX, wanted, missing)
        texts = (
            tables.read_objects(NVTX, ["text"])[0]
            if "text" in tables.list_columns(NVTX)
            else [None] * len(arrays["kind"])
        )
        for optional in ("domainId", "textId"):
            missing.pop(f"{NVTX}.{optional}", None)  # not in older versions
    arrays["domain"] = _fill_neutral(arrays["domain"])
    domains = arrays["kind"] == DOMAIN_CREATE
    named = _name_ranges([*compress(texts, domains)], arrays["text_id"][domains], strings)
    domain_names = dict(zip(zip(_decode_process(arrays["thread"][domains]), arrays["domain"][domains]), named))

    kept = (arrays["kind"] == PUSH_POP) | (arrays["kind"] == START_END)
    texts = [*compress(texts, kept)]
    keep = np.flatnonzero(kept)
    arrays = {name: values[keep] for name, values in arrays.items()}
    names = _name_ranges(texts, arrays["text_id"], strings)
    start, end = arrays["start_ns"], arrays["end_ns"]
    is_open = end == _NO_VALUE
    end = np.where(is_open, np.maximum(last_ns, start), end)
    _check_times(start, end, NVTX)
    process = _decode_process(arrays["thread"])
    frame = {
        "start_ns": start,
        "end_ns": end,
        "is_open": is_open,
        "process": process,
        "thread": _fill_neutral(arrays["thread"], _UNKNOWN_RANGE_THREAD),
        "domain": _name_domains(process, arrays["domain"], domain_names),
        "name": names,
        "style": make_categorical((arrays["kind"] == START_END).astype(np.int64), ["PushPop", "StartEnd"]),
    }
    if not len(start):
        return pd.DataFrame(frame)
    order = np.lexsort((-end, start))  # the outer of two ranges that start together comes first
    return pd.DataFrame({name: values[order] for name, values in frame.items()}, copy=False)


def _read_messages(tables, ranges: pd.DataFrame) -> pd.DataFrame:
    """Of the ranges of NCCL that have a payload, what it says, with columns MESSAGE_COLUMNS; see `--include-json`."""
    rows = []
    if NCCL in set(ranges["domain"].cat.categories) and "jsonText" in tables.list_columns(NVTX):
        (texts,) = tables.read_objects(NVTX, ["jsonText"])
        start, thread = tables.read_integers(NVTX, ["start", "globalTid"])
        for row, text in enumerate(texts):
            if isinstance(text, str) and (said := _MESSAGE.search(text[:_LONGEST_PAYLOAD])):
                rows.append((int(start[row]), int(thread[row]), int(said[2]), said[1]))
    messages = pd.DataFrame(rows, columns=list(MESSAGE_COLUMNS))
    messages["communicator"] = pd.factorize(messages["communicator"])[0]
    return messages.astype(np.int64)


def _name_ranges(texts: list, text_ids: np.ndarray, strings: _Strings) -> pd.Categorical:
    """Names of ranges: their own text where there is one, else the registered string. Raises LimitError once there
    are more names than paths are read, for each is a path: to place two million ranges first took 20 s and 1.1 GB."""
    plain: set[str] = set()
    values: list[str] = []

    def add(name: str) -> None:
        plain.add(strip_numbers(name))
        limits.PATHS.check(len(plain))
        values.append(name)

    # Not pandas, which hashes a long text again in every row.
    places = {None: -1}
    for text in texts:
        if text not in places:
            places[text] = len(values)
            add(str(text))
    codes = np.fromiter(map(places.__getitem__, texts), np.int64, len(texts))
    bare = np.flatnonzero(codes < 0)
    registered, inverse = np.unique(text_ids[bare], return_inverse=True)
    codes[bare] = len(values) + inverse
    for text_id in registered.tolist():
        name = strings[text_id] if text_id != _NO_VALUE else ""
        if name is None and strings.known:
            raise ValueError(f"{NVTX} refers to string {text_id}, which {STRINGS} does not have")
        add(name if name is not None else f"<unnamed range {text_id}>")
    limits.check_names(values, "a range")
    return make_categorical(codes, values)


def _name_domains(process: np.ndarray, domain: np.ndarray, names: dict) -> pd.Categorical:
    """Domain names; the default domain (0) has the empty name."""
    of_process, process_code = encode(process)
    of_domain, domain_code = encode(domain)
    pairs, inverse = encode(process_code.astype(np.int64) * len(of_domain) + domain_code)
    values = []
    for pair in pairs.tolist():
        owner, number = int(of_process[pair // len(of_domain)]), int(of_domain[pair % len(of_domain)])
        values.append(names.get((owner, number), "" if number == 0 else f"domain {number}"))
    limits.DOMAINS.check(len(set(values)))
    return make_categorical(inverse, values)


def _read_graphs(tables, missing: dict[str, str]) -> pd.DataFrame:
    return _sort_frame(_read_operations(tables, GRAPH, {"graph": "graphId"}, missing))


def _read_syncs(tables, missing: dict[str, str]) -> pd.DataFrame:
    arrays = _read_operations(tables, SYNC, {"kind": "syncType"}, missing)
    arrays["kind"] = _name_constants(arrays["kind"], _SYNC_TYPES, "{}")
    return _sort_frame(arrays)


def _fill_process(operations: Sequence[pd.DataFrame], hosts: Sequence[pd.DataFrame], missing: dict[str, str]) -> None:
    """Operations whose process the export does not say belong to the capture's only process, where it has only one.
    Raises LimitError where it has too many, or too many GPUs."""
    frames = (*operations, *hosts)
    known = {int(owner) for frame in frames for owner in find_distinct(frame["process"].to_numpy())} - {UNKNOWN_PROCESS}
    limits.PROCESSES.check(len(known))
    gpus = [
        find_distinct(frame["process"].to_numpy() * MOST_DEVICES + frame["device"].to_numpy()) for frame in operations
    ]
    limits.GPUS.check(len(np.unique(np.concatenate(gpus))))
    if len(known) != 1:
        return
    (only,) = known
    for frame in operations:
        unknown = frame["process"].to_numpy() == UNKNOWN_PROCESS
        if unknown.any():
            frame["process"] = np.where(unknown, only, frame["process"])
    for column in missing:
        if column.endswith(".globalPid"):
            missing[column] = "these operations are taken to be of the capture's only process"


def _read_key_values(tables, table: str, key: str, value: str) -> dict:
    if not {key, value} <= set(tables.list_columns(table)):
        return {}
    return dict(zip(*tables.read_objects(table, [key, value])))


def _read_gpu_facts(tables) -> list[dict]:
    have = {ours: theirs for ours, theirs in _GPU_FACTS.items() if theirs in tables.list_columns("TARGET_INFO_GPU")}
    if not have:
        return []
    columns = tables.read_objects("TARGET_INFO_GPU", list(have.values()))
    rows = ({name: _check_gpu_fact(name, value) for name, value in zip(have, row)} for row in zip(*columns))
    return sorted(rows, key=lambda gpu: str(gpu.get("id")))


def _check_gpu_fact(name: str, value) -> str | int | None:
    if value is None or name == "name":
        return None if value is None else str(value)
    if not isinstance(value, (int, float)):
        raise ValueError(f"{_GPU_FACTS[name]} in TARGET_INFO_GPU is no number")
    if not 0 <= value <= _MOST_EXACT:
        raise ValueError(f"{_GPU_FACTS[name]} in TARGET_INFO_GPU is out of range")
    return int(value)


def _read_gpu_numbers(tables) -> dict[tuple[int, int], int]:
    """Number of the GPU by (process id, CUDA device)."""
    if not {"gpuId", "cudaId", "pid"} <= set(tables.list_columns("TARGET_INFO_CUDA_DEVICE")):
        return {}
    gpu, device, process = tables.read_objects("TARGET_INFO_CUDA_DEVICE", ["gpuId", "cudaId", "pid"])
    if any(number is not None and number < 0 for number in gpu):
        raise ValueError("gpuId in TARGET_INFO_CUDA_DEVICE is out of range")
    return {(int(p), int(d)): int(g) for p, d, g in zip(process, device, gpu) if g is not None}


def _read_duration(tables, events_ns: int) -> tuple[int, dict[str, str]]:
    """How long nsys collected, and what is wrong with what it says of it."""
    table = "ANALYSIS_DETAILS"
    said = tables.read_integers(table, ["duration"])[0] if "duration" in tables.list_columns(table) else []
    if not len(said) or said[0] in (0, _NO_VALUE):
        return events_ns, {}
    if said[0] < 0:
        return events_ns, {f"a collection of {said[0]} ns": "how long nsys collected is unknown"}
    return int(said[0]), {}


def _read_recorded_at(tables) -> str:
    said = tables.read_integers(SESSION, ["utcEpochNs"])[0] if "utcEpochNs" in tables.list_columns(SESSION) else []
    if not len(said) or not 0 < said[0] < _LAST_MOMENT:
        return ""
    return datetime.fromtimestamp(int(said[0]) // 10**9, UTC).isoformat()


def _read_capture(tables, path: Path, details: bool, shapes: dict[str, str]) -> Capture:
    known = set(CONSEQUENCES) & tables.list_tables()
    if not known:
        problem = "has none of the tables of an nsys export"
        raise ExportError(path, problem, "give an export that nsys wrote (2022 or newer)")
    missing = {table: text for table, text in CONSEQUENCES.items() if table not in known}
    for table in tables.list_tables() & set(_FACTS):
        limits.FACT_ROWS.check(tables.num_rows(table), table)
    limits.ROWS.check(sum(tables.num_rows(table) for table in tables.list_tables()))
    strings = _Strings(tables)
    kernels = _read_kernels(tables, strings, details, shapes, missing)
    graphs = _read_graphs(tables, missing)
    memops = _read_memops(tables, missing)
    api = _read_api(tables, strings, missing)
    syncs = _read_syncs(tables, missing)
    frames = [frame for frame in (kernels, graphs, memops, api, syncs) if len(frame)]
    last = max((int(frame["end_ns"].max()) for frame in frames), default=0)
    ranges = _read_ranges(tables, strings, last, missing)
    messages = _read_messages(tables, ranges)
    _fill_process((kernels, graphs, memops, syncs), (api, ranges), missing)
    frames += [ranges] if len(ranges) else []
    if not frames:
        raise ExportError(path, "holds no CUDA and no NVTX events", "record with `nsys profile --trace=cuda,nvtx`")
    first, last = min(int(f["start_ns"].min()) for f in frames), max(int(f["end_ns"].max()) for f in frames)
    if last - first > _MOST_EXACT:
        raise ValueError("the first and the last event are years apart")
    duration, problems = _read_duration(tables, last - first)
    if len(graphs):
        missing[f"kernels inside {len(graphs)} CUDA graph executions"] = (
            "graphs were traced as a whole: record with --cuda-graph-trace=node to see their kernels"
        )
    about = _read_key_values(tables, "META_DATA_EXPORT", "name", "value")
    return Capture(
        source=path.name,
        path=path,
        kernels=kernels,
        graphs=graphs,
        memops=memops,
        api=api,
        ranges=ranges,
        syncs=syncs,
        messages=messages,
        nsys_version=str(about.get("EXPORT_PRODUCT_VERSION", "")),
        schema_version=str(about.get("EXPORT_SCHEMA_VERSION", "")),
        gpus=_read_gpu_facts(tables),
        gpu_of=_read_gpu_numbers(tables),
        events_ns=last - first,
        duration_ns=duration,
        recorded_at=_read_recorded_at(tables),
        missing=missing,
        problems=problems,
    )
