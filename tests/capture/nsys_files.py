"""Small exports in the schema that nsys writes, for tests: SQLite or parquetdir, only the tables that have rows."""

import json
import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

PUSH_POP, START_END, DOMAIN_CREATE, THREAD_SAMPLE = 59, 60, 75, 34

_OPERATION = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
_SHAPE = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread")
_SHAPE += ("staticSharedMemory", "dynamicSharedMemory")
_SCHEMA = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (*_OPERATION, "demangledName", "shortName", *_SHAPE, "graphNodeId"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (*_OPERATION, "graphId"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (*_OPERATION, "bytes", "copyKind", "srcKind", "dstKind", "graphNodeId"),
    "CUPTI_ACTIVITY_KIND_MEMSET": (*_OPERATION, "bytes", "graphNodeId"),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (*_OPERATION, "syncType"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "eventClass", "globalTid", "correlationId", "nameId"),
    "OSRT_API": ("start", "end", "globalTid", "nameId"),
    "NVTX_EVENTS": ("start", "end", "eventType", "text", "globalTid", "textId", "domainId"),
    "StringIds": ("id", "value"),
    "TARGET_INFO_GPU": ("id", "name", "totalMemory", "memoryBandwidth", "clockRate", "smCount"),
    "TARGET_INFO_CUDA_DEVICE": ("gpuId", "cudaId", "pid"),
    "META_DATA_EXPORT": ("name", "value"),
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs", "utcTime", "localTime"),
    "ANALYSIS_DETAILS": ("globalVid", "duration", "startTime", "stopTime"),
}
_TEXT = {"text", "value", "name", "jsonText"}


def global_pid(process: int) -> int:
    """Serialised id of a process, as nsys writes it."""
    return (0x1000000 + process) << 24


def global_tid(process: int, thread: int) -> int:
    """Serialised id of a thread: its number may come again in another process."""
    return global_pid(process) + thread


class Export:
    """Collects events; `sqlite` and `parquetdir` write them. Times are nanoseconds."""

    def __init__(self):
        self.rows: dict[str, list[dict]] = {table: [] for table in _SCHEMA}
        self._strings: dict[str, int] = {}
        self._correlation = 0
        self.rows["META_DATA_EXPORT"] += [
            {"name": "EXPORT_PRODUCT_VERSION", "value": "2025.3.2.0"},
            {"name": "EXPORT_SCHEMA_VERSION", "value": "3.20.3"},
        ]

    def string(self, text: str) -> int:
        """Id of a registered string."""
        if text not in self._strings:
            self._strings[text] = 100 + len(self._strings)
            self.rows["StringIds"].append({"id": self._strings[text], "value": text})
        return self._strings[text]

    def call(self, start, end, *, process=1, thread=1, name="cudaLaunchKernel_v7000", correlation=None) -> int:
        """An API call; returns its correlation id."""
        if correlation is None:
            self._correlation += 1
            correlation = self._correlation
        self.rows["CUPTI_ACTIVITY_KIND_RUNTIME"].append(
            {
                "start": start,
                "end": end,
                "eventClass": 0,
                "globalTid": global_tid(process, thread),
                "correlationId": correlation,
                "nameId": self.string(name),
            }
        )
        return correlation

    def _operation(self, table, start, end, correlation, process, device, stream, **more):
        row = {"start": start, "end": end, "deviceId": device, "contextId": 1, "streamId": stream}
        self.rows[table].append(row | {"correlationId": correlation, "globalPid": global_pid(process)} | more)

    def kernel(
        self, start, end, correlation, *, name="kernel", process=1, device=0, stream=7, graph_node=None, blocks=1
    ):
        """A kernel of the call with that correlation id."""
        shape = dict.fromkeys(_SHAPE, 1) | {"gridX": blocks}
        names = {"demangledName": self.string(name), "shortName": self.string(name)}
        table = "CUPTI_ACTIVITY_KIND_KERNEL"
        more = names | shape | {"graphNodeId": graph_node}
        self._operation(table, start, end, correlation, process, device, stream, **more)

    def launch(
        self, at, *, start=None, end=None, name="kernel", process=1, thread=1, device=0, stream=7, blocks=1, **call
    ) -> int:
        """A call at `at` that takes 2 ns, and its kernel (by default 10 ns later, 5 ns long)."""
        correlation = self.call(at, at + 2, process=process, thread=thread, **call)
        start = at + 10 if start is None else start
        end = start + 5 if end is None else end
        of = {"process": process, "device": device, "stream": stream, "blocks": blocks}
        self.kernel(start, end, correlation, name=name, **of)
        return correlation

    def copy(self, start, end, correlation, *, bytes=1024, kind=1, host=0, process=1, device=0, stream=7):
        """A memory copy; kind 1 is host to device, 2 device to host; host 0 is pageable memory, 1 pinned."""
        source, destination = host if kind == 1 else 2, host if kind == 2 else 2
        more = {"bytes": bytes, "copyKind": kind, "srcKind": source, "dstKind": destination}
        self._operation("CUPTI_ACTIVITY_KIND_MEMCPY", start, end, correlation, process, device, stream, **more)

    def memset(self, start, end, correlation, *, bytes=1024, process=1, device=0, stream=7):
        """A memory set."""
        self._operation("CUPTI_ACTIVITY_KIND_MEMSET", start, end, correlation, process, device, stream, bytes=bytes)

    def graph(self, start, end, correlation, *, process=1, device=0, stream=7):
        """A CUDA graph execution traced as a whole."""
        table = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
        self._operation(table, start, end, correlation, process, device, stream, graphId=1)

    def sync(self, start, end, correlation, *, kind=4, process=1, device=0):
        """A synchronisation; kind 4 is of the whole context."""
        table = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
        self._operation(table, start, end, correlation, process, device, 0, syncType=kind)

    def push(self, name, start, end, *, process=1, thread=1, domain=0, registered=False, kind=PUSH_POP):
        """An NVTX range; end None leaves it open; registered puts its name into the string table."""
        self.rows["NVTX_EVENTS"].append(
            {
                "start": start,
                "end": end,
                "eventType": kind,
                "text": None if registered else name,
                "textId": self.string(name) if registered else None,
                "globalTid": global_tid(process, thread),
                "domainId": domain,
            }
        )

    def span(self, name, start, end, **more):
        """A start/end range."""
        self.push(name, start, end, kind=START_END, **more)

    def domain(self, number, name, *, process=1):
        """An NVTX domain."""
        self.push(name, 0, None, process=process, domain=number, kind=DOMAIN_CREATE)

    def os_call(self, name, start, end, *, process=1, thread=1):
        """A call of the operating system."""
        row = {"start": start, "end": end, "globalTid": global_tid(process, thread), "nameId": self.string(name)}
        self.rows["OSRT_API"].append(row)

    def sample(self, at, *frames, process=1, thread=1):
        """A Python stack of a thread; frames: (function, file, line), innermost first."""
        inside = [{"Function": self.string(f), "File": self.string(file), "Line": line} for f, file, line in frames]
        payload = {"Thread state ID": 0, "Thread state": "Running", "Frames count": len(frames), "Frames": inside}
        row = {"start": at, "end": None, "eventType": THREAD_SAMPLE, "globalTid": global_tid(process, thread)}
        self.rows["NVTX_EVENTS"].append(row | {"jsonText": json.dumps({"Python Periodic Sampling": payload})})

    def collected(self, duration):
        """How long nsys collected."""
        row = {"globalVid": 1, "duration": duration, "startTime": 0, "stopTime": duration}
        self.rows["ANALYSIS_DETAILS"].append(row)

    def gpu(self, name="NVIDIA Test GPU", number=0, *, process=None, device=0):
        """A GPU of the machine; `process` calls it `device`."""
        facts = {"totalMemory": 80 << 30, "memoryBandwidth": 10**12, "clockRate": 10**9, "smCount": 100}
        self.rows["TARGET_INFO_GPU"].append({"id": number, "name": name} | facts)
        if process is not None:
            known_as = {"gpuId": number, "cudaId": device, "pid": process}
            self.rows["TARGET_INFO_CUDA_DEVICE"].append(known_as)

    def drop(self, table: str, column: str | None = None) -> None:
        """Leave out a table, or one of its columns, as older versions of nsys do."""
        if column is None:
            self.rows.pop(table)
        else:
            self.rows[table] = [{k: v for k, v in row.items() if k != column} for row in self.rows[table]]
            self._dropped = {*getattr(self, "_dropped", ()), (table, column)}

    def _tables(self):
        for table, rows in self.rows.items():
            columns = [c for c in _SCHEMA[table] if (table, c) not in getattr(self, "_dropped", ())]
            columns += ["jsonText"] * any("jsonText" in row for row in rows)
            if rows:
                yield table, columns, rows

    def sqlite(self, path: Path) -> Path:
        """Write the export as SQLite; returns its path."""
        connection = sqlite3.connect(path)
        for table, columns, rows in self._tables():
            typed = ", ".join(f'"{c}" {"TEXT" if c in _TEXT else "INTEGER"}' for c in columns)
            connection.execute(f'CREATE TABLE "{table}" ({typed})')
            marks = ", ".join("?" * len(columns))
            values = [tuple(row.get(c) for c in columns) for row in rows]
            connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', values)
        connection.commit()
        connection.close()
        return path

    def parquetdir(self, folder: Path) -> Path:
        """Write the export as a folder of Parquet files; returns its path. Ids are unsigned, as nsys writes them."""
        folder.mkdir()
        for table, columns, rows in self._tables():
            arrays = {}
            for column in columns:
                kind = (
                    pa.large_string() if column in _TEXT else pa.int64() if column in ("start", "end") else pa.uint64()
                )
                arrays[column] = pa.array([row.get(column) for row in rows], kind)
            pq.write_table(pa.table(arrays), folder / f"{table}.parquet")
        return folder
