"""Read an Nsight Systems export, SQLite or parquetdir. This module and `export_schema` alone know the schema of nsys.

`read(path)` gives a `Capture`: pandas frames with one row an event, integer nanoseconds on the capture's clock, names
resolved to categoricals, sorted by start. Tables and columns that a capture or an nsys version does not have become
empty frames and neutral values, and are listed in `Capture.missing`; nothing is filled in silently.
"""

import re
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from profiler_job.analysis.capture import limits, nsys_warnings
from profiler_job.analysis.capture.capture_data import (
    EXPORT_AGAIN,
    LOCK_COLUMNS,
    MESSAGE_COLUMNS,
    MOST_DEVICES,
    UNKNOWN_PROCESS,
    UNKNOWN_RANGE_THREAD,
    UNKNOWN_THREAD,
    Capture,
    ExportError,
    ExportProblem,
    join_lines,
    make_limit_error,
)
from profiler_job.analysis.capture.distinct_values import encode, find_distinct, make_categorical
from profiler_job.analysis.capture.export_columns import (
    ExportTables,
    check_times,
    decode_process,
    fill_neutral,
    name_constants,
    narrow_to_int32,
    read_columns,
    read_operations,
    sort_frame,
)
from profiler_job.analysis.capture.export_files import PAYLOADS, open_export
from profiler_job.analysis.capture.export_schema import (
    ABOUT,
    API,
    CONSEQUENCES,
    CONTEXT_SYNC,
    COPY_KINDS,
    DOMAIN_CREATE,
    FACT_TABLES,
    GPU_COLUMNS,
    GRAPH,
    GRID_COLUMNS,
    HOST_MEMORIES,
    HOST_MEMORY,
    KERNEL,
    KERNEL_COLUMNS,
    LAST_MOMENT,
    LOCK_DOMAIN,
    LOCK_WAIT,
    MEMCPY,
    MEMSET,
    MOST_EXACT,
    NCCL,
    NO_ID,
    NO_VALUE,
    NVTX,
    PUSH_POP,
    SESSION,
    START_END,
    STRINGS,
    SYNC,
    SYNC_CALLS,
    SYNC_TYPES,
    THREAD_SAMPLE,
)
from profiler_job.analysis.capture.os_calls import read_pauses
from profiler_job.analysis.capture.python_samples import Stack, make_samples
from profiler_job.analysis.capture.pytorch_ranges import strip_numbers
from profiler_job.analysis.capture.trace_files import is_json
from profiler_job.analysis.reference import cuda_api

_MESSAGE = re.compile(r'"NCCL communicator ID": ?(\d{1,20})\b.*?"Message size \[bytes\]": ?(\d{1,18})\b')
_LONGEST_PAYLOAD = 1000


def read(path: Path | str, *, details: bool = True, grids: bool = False) -> Capture:
    """Read `path`: an `.sqlite` export, a parquetdir export (a folder), or an `.nsys-rep` report (needs `nsys` on
    PATH).

    details=False leaves out the launch shapes of kernels, which summaries do not need; grids=True keeps their grids.
    A trace of torch.profiler is read, too: see `torch_trace`. Raises ExportError, whose message is one line for the
    user, for anything that is neither.
    """
    path = Path(path)
    if is_json(path):
        from profiler_job.analysis.capture.torch_trace import read_trace

        return read_trace(path, details=details, grids=grids)
    try:
        with open_export(path) as source:
            return _read_capture(source, path, KERNEL_COLUMNS if details else GRID_COLUMNS if grids else {})
    except ExportError:
        raise
    except limits.LimitError as error:
        raise make_limit_error(path, error) from error
    except (sqlite3.Error, pa.ArrowException, OSError) as error:
        raise ExportError(
            ExportProblem.DAMAGED, path, f"is damaged or unreadable ({join_lines(error)})", EXPORT_AGAIN
        ) from error
    except (ValueError, TypeError, OverflowError, KeyError, IndexError, MemoryError) as error:
        raise ExportError(
            ExportProblem.DAMAGED, path, f"holds values that no nsys writes ({join_lines(error)})", EXPORT_AGAIN
        ) from error


class _Strings:
    """The export's string table: ids to names."""

    def __init__(self, tables: ExportTables) -> None:
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


def _read_kernels(
    tables: ExportTables, strings: _Strings, shapes: dict[str, str], missing: dict[str, str]
) -> pd.DataFrame:
    have = set(tables.list_columns(KERNEL))
    name = next((column for column in ("demangledName", "shortName", "mangledName") if column in have), "demangledName")
    more = {"name": name, "graph_node": "graphNodeId"} | shapes
    arrays = read_operations(tables, KERNEL, more, missing)
    missing.pop(f"{KERNEL}.graphNodeId", None)  # older versions; such captures have no node traces either
    names = arrays.pop("name")
    arrays["graph_node"] = fill_neutral(arrays["graph_node"])
    for column in shapes:
        arrays[column] = narrow_to_int32(arrays[column])
    kernel_names = strings.name_ids(names, "kernel")
    limits.KERNEL_NAMES.check(len(kernel_names.categories))
    arrays["kernel_name"] = kernel_names
    return sort_frame(arrays)


def _read_memops(tables: ExportTables, missing: dict[str, str]) -> pd.DataFrame:
    frames = []
    for table, kind in ((MEMCPY, "copyKind"), (MEMSET, None)):
        more = {"graph_node": "graphNodeId", "bytes": "bytes"}
        more |= {"kind": kind, "source": "srcKind", "destination": "dstKind"} if kind else {}
        arrays = read_operations(tables, table, more, missing)
        for optional in ("graphNodeId", "srcKind", "dstKind"):
            missing.pop(f"{table}.{optional}", None)
        kinds = arrays.pop("kind", None)
        arrays["graph_node"], arrays["bytes"] = fill_neutral(arrays["graph_node"]), fill_neutral(arrays["bytes"])
        if (arrays["bytes"] < 0).any() or arrays["bytes"].sum(dtype=np.float64) > MOST_EXACT:
            raise ValueError(f"{table} has a size out of range")
        if kinds is None:
            operation = make_categorical(np.zeros(len(arrays["start_ns"]), np.int64), ["memset"])
            host_memory = pd.Categorical.from_codes(np.zeros(len(operation), np.int8), HOST_MEMORIES)
        else:
            operation = name_constants(kinds, COPY_KINDS, "memcpy {}")
            host_memory = _find_host_memory(kinds, arrays.pop("source"), arrays.pop("destination"))
        frames.append(pd.DataFrame(arrays | {"operation": operation.astype(object), "host_memory": host_memory}))
    both = pd.concat(frames, ignore_index=True)
    both["operation"] = pd.Categorical(both["operation"])
    return both.sort_values(["start_ns", "end_ns"], kind="stable", ignore_index=True)


def _find_host_memory(kinds: np.ndarray, source: np.ndarray, destination: np.ndarray) -> pd.Categorical:
    """Find the kind of host memory that each copy reads or writes; empty if neither side is the host."""
    at_host = np.select([np.isin(kinds, (1, 3, 11)), np.isin(kinds, (2, 4, 12))], [source, destination], NO_VALUE)
    codes = np.zeros(len(kinds), np.int8)
    for value, name in HOST_MEMORY.items():
        codes[at_host == value] = HOST_MEMORIES.index(name)
    return pd.Categorical.from_codes(codes, HOST_MEMORIES)


def _read_api(tables: ExportTables, strings: _Strings, missing: dict[str, str]) -> pd.DataFrame:
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
        arrays = read_columns(tables, API, wanted, missing)
    check_times(arrays["start_ns"], arrays["end_ns"], API)
    names = strings.name_ids(arrays.pop("name"), "API call")
    arrays["process"] = decode_process(arrays["thread"])
    arrays["thread"] = fill_neutral(arrays["thread"], UNKNOWN_THREAD)
    arrays["correlation"] = fill_neutral(arrays["correlation"], -1)
    arrays["name"] = make_categorical(names.codes, [cuda_api.strip_version(name) for name in names.categories])
    return sort_frame(arrays)


def _read_ranges(tables: ExportTables, strings: _Strings, last_ns: int, missing: dict[str, str]) -> pd.DataFrame:
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
        texts: list[Any] = []
    else:
        arrays = read_columns(tables, NVTX, wanted, missing)
        texts = (
            tables.read_objects(NVTX, ["text"])[0]
            if "text" in tables.list_columns(NVTX)
            else [None] * len(arrays["kind"])
        )
        for optional in ("domainId", "textId"):
            missing.pop(f"{NVTX}.{optional}", None)  # not in older versions
    arrays["domain"] = fill_neutral(arrays["domain"])
    domains = arrays["kind"] == DOMAIN_CREATE
    named = _name_ranges([*compress(texts, domains)], arrays["text_id"][domains], strings)
    domain_names = dict(zip(zip(decode_process(arrays["thread"][domains]), arrays["domain"][domains]), named))

    kept = (arrays["kind"] == PUSH_POP) | (arrays["kind"] == START_END)
    texts = [*compress(texts, kept)]
    keep = np.flatnonzero(kept)
    arrays = {name: values[keep] for name, values in arrays.items()}
    names = _name_ranges(texts, arrays["text_id"], strings)
    start, end = arrays["start_ns"], arrays["end_ns"]
    is_open = end == NO_VALUE
    end = np.where(is_open, np.maximum(last_ns, start), end)
    check_times(start, end, NVTX)
    process = decode_process(arrays["thread"])
    frame = {
        "start_ns": start,
        "end_ns": end,
        "is_open": is_open,
        "process": process,
        "thread": fill_neutral(arrays["thread"], UNKNOWN_RANGE_THREAD),
        "domain": _name_domains(process, arrays["domain"], domain_names),
        "name": names,
        "style": make_categorical((arrays["kind"] == START_END).astype(np.int64), ["PushPop", "StartEnd"]),
    }
    if not len(start):
        return pd.DataFrame(frame)
    order = np.lexsort((-end, start))  # the outer of two ranges that start together comes first
    return pd.DataFrame({name: values[order] for name, values in frame.items()}, copy=False)


def _take_lock_waits(ranges: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Take the ranges of Python's lock, which nsys pushes, out of those of the program; return the others, and the
    waits (LOCK_COLUMNS)."""
    is_lock = (ranges["domain"] == LOCK_DOMAIN).to_numpy()
    if not is_lock.any():
        return ranges, pd.DataFrame(columns=list(LOCK_COLUMNS), dtype=np.int64)
    waits = ranges.loc[is_lock & (ranges["name"] == LOCK_WAIT).to_numpy(), list(LOCK_COLUMNS)]
    others = ranges[~is_lock].reset_index(drop=True)
    unused = {name: others[name].cat.remove_unused_categories() for name in ("domain", "name")}
    return others.assign(**unused), waits.reset_index(drop=True)


def _read_messages(tables: ExportTables, ranges: pd.DataFrame) -> pd.DataFrame:
    """Read the payloads of NCCL's ranges, with columns MESSAGE_COLUMNS; see `--include-json`."""
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


def _read_samples(tables: ExportTables, strings: _Strings, missing: dict[str, str]) -> tuple[pd.DataFrame, list[Stack]]:
    """Read the Python stacks that nsys sampled; see `make_samples`."""
    nothing = np.empty(0, np.int64)
    columns = set(tables.list_columns(NVTX))
    if not {"start", "eventType", "globalTid"} <= columns:
        return make_samples(nothing, nothing, nothing, [], strings.__getitem__)
    start, kind, thread = tables.read_integers(NVTX, ["start", "eventType", "globalTid"])
    sampled = np.flatnonzero(kind == THREAD_SAMPLE)
    texts = tables.read_objects(NVTX, ["jsonText"])[0] if len(sampled) and "jsonText" in columns else [None] * len(kind)
    rows = np.array([row for row in sampled if isinstance(texts[row], str)], np.int64)
    if len(sampled) and not len(rows):
        missing["stacks of Python samples"] = (
            f"the lines that the GPU waits for are unknown: export again with `nsys export -t sqlite {PAYLOADS}`"
        )
    start, thread = start[rows], fill_neutral(thread[rows], UNKNOWN_THREAD)
    check_times(start, start, NVTX)
    return make_samples(start, decode_process(thread), thread, [texts[row] for row in rows], strings.__getitem__)


def _name_ranges(texts: list[Any], text_ids: np.ndarray, strings: _Strings) -> pd.Categorical:
    """Return the names of ranges: their own text if there is one, else the registered string. Raises LimitError if
    there are more names than the limit of paths, for each is a path: to place two million ranges first took 20 s and
    1.1 GB."""
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
        name = strings[text_id] if text_id != NO_VALUE else ""
        if name is None and strings.known:
            raise ValueError(f"{NVTX} refers to string {text_id}, which {STRINGS} does not have")
        add(name if name is not None else f"<unnamed range {text_id}>")
    limits.check_names(values, "a range")
    return make_categorical(codes, values)


def _name_domains(process: np.ndarray, domain: np.ndarray, names: dict[tuple[int, int], str]) -> pd.Categorical:
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


def _read_graphs(tables: ExportTables, missing: dict[str, str]) -> pd.DataFrame:
    return sort_frame(read_operations(tables, GRAPH, {"graph": "graphId"}, missing))


def _read_syncs(tables: ExportTables, missing: dict[str, str]) -> pd.DataFrame:
    known = tables.list_columns(SYNC) if SYNC in tables.list_tables() else []
    more = {"event": "eventId"} if "eventId" in known else {}
    arrays = read_operations(tables, SYNC, {"kind": "syncType"} | more, missing)
    event = arrays.pop("event", np.full(len(arrays["kind"]), NO_ID))
    of_context = (arrays["kind"] == 0) & (arrays["stream"] == NO_ID) & (event == NO_ID)
    arrays["kind"] = np.where(of_context, CONTEXT_SYNC, arrays["kind"])
    arrays["kind"] = name_constants(arrays["kind"], SYNC_TYPES, "{}")
    return sort_frame(arrays)


def _name_unknown_syncs(syncs: pd.DataFrame, api: pd.DataFrame) -> pd.DataFrame:
    """Name synchronisations whose kind the export does not give by the call that made them: nsys 2025.1 gives the type
    in a deprecated column, or not at all."""
    unknown = np.flatnonzero(syncs["kind"].astype(str) == SYNC_TYPES[0])
    if not len(unknown):
        return syncs
    calls = api[api["correlation"].isin(syncs["correlation"].iloc[unknown])]
    named = {(row.process, row.correlation): str(row.name) for row in calls.itertuples(index=False)}
    kinds = syncs["kind"].astype(str).to_numpy(dtype=object)
    for row in unknown:
        name = named.get((syncs["process"].iat[row], syncs["correlation"].iat[row]), "")
        kinds[row] = next((kind for pattern, kind in SYNC_CALLS.items() if re.search(pattern, name)), SYNC_TYPES[0])
    return syncs.assign(kind=pd.Categorical(kinds))


def _fill_process(operations: Sequence[pd.DataFrame], hosts: Sequence[pd.DataFrame], missing: dict[str, str]) -> None:
    """Assign operations without a process in the export to the capture's only process, if it has only one. Raises
    LimitError if it has too many, or too many GPUs."""
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


def _read_key_values(tables: ExportTables, table: str, key: str, value: str) -> dict[str, Any]:
    if not {key, value} <= set(tables.list_columns(table)):
        return {}
    return dict(zip(*tables.read_objects(table, [key, value])))


def _read_gpu_facts(tables: ExportTables) -> list[dict[str, Any]]:
    have = {ours: theirs for ours, theirs in GPU_COLUMNS.items() if theirs in tables.list_columns("TARGET_INFO_GPU")}
    if not have:
        return []
    columns = tables.read_objects("TARGET_INFO_GPU", list(have.values()))
    rows = ({name: _check_gpu_fact(name, value) for name, value in zip(have, row)} for row in zip(*columns))
    return sorted(rows, key=lambda gpu: str(gpu.get("id")))


def _check_gpu_fact(name: str, value: object) -> str | int | None:
    if value is None or name == "name":
        return None if value is None else str(value)
    if not isinstance(value, (int, float)):
        raise ValueError(f"{GPU_COLUMNS[name]} in TARGET_INFO_GPU is not a number")
    if not 0 <= value <= MOST_EXACT:
        raise ValueError(f"{GPU_COLUMNS[name]} in TARGET_INFO_GPU is out of range")
    return int(value)


def _read_gpu_numbers(tables: ExportTables) -> dict[tuple[int, int], int]:
    """Number of the GPU by (process id, CUDA device)."""
    if not {"gpuId", "cudaId", "pid"} <= set(tables.list_columns("TARGET_INFO_CUDA_DEVICE")):
        return {}
    gpu, device, process = tables.read_objects("TARGET_INFO_CUDA_DEVICE", ["gpuId", "cudaId", "pid"])
    if any(number is not None and number < 0 for number in gpu):
        raise ValueError("gpuId in TARGET_INFO_CUDA_DEVICE is out of range")
    return {(int(p), int(d)): int(g) for p, d, g in zip(process, device, gpu) if g is not None}


def _read_duration(tables: ExportTables, events_ns: int) -> tuple[int, dict[str, str]]:
    """Read how long nsys collected, and the problems of that value."""
    table = "ANALYSIS_DETAILS"
    has_duration = "duration" in tables.list_columns(table)
    said = tables.read_integers(table, ["duration"])[0].tolist() if has_duration else []
    if not said or said[0] in (0, NO_VALUE):
        return events_ns, {}
    if said[0] < 0:
        return events_ns, {f"a collection of {said[0]} ns": "how long nsys collected is unknown"}
    return said[0], {}


def _read_recorded_at(tables: ExportTables) -> str:
    has_start = "utcEpochNs" in tables.list_columns(SESSION)
    said = tables.read_integers(SESSION, ["utcEpochNs"])[0].tolist() if has_start else []
    if not said or not 0 < said[0] < LAST_MOMENT:
        return ""
    return datetime.fromtimestamp(said[0] // 10**9, UTC).isoformat()


def _read_capture(tables: ExportTables, path: Path, shapes: dict[str, str]) -> Capture:
    known = set(CONSEQUENCES) & tables.list_tables()
    if not known:
        problem = "has none of the tables of an nsys export"
        raise ExportError(ExportProblem.NOT_AN_EXPORT, path, problem, "give an export that nsys wrote (2022 or newer)")
    missing = {table: text for table, text in CONSEQUENCES.items() if table not in known}
    for table in tables.list_tables() & set(FACT_TABLES):
        limits.FACT_ROWS.check(tables.num_rows(table), table)
    limits.ROWS.check(sum(tables.num_rows(table) for table in tables.list_tables()))
    strings = _Strings(tables)
    kernels = _read_kernels(tables, strings, shapes, missing)
    graphs = _read_graphs(tables, missing)
    memops = _read_memops(tables, missing)
    api = _read_api(tables, strings, missing)
    syncs = _read_syncs(tables, missing)
    frames = [frame for frame in (kernels, graphs, memops, api, syncs) if len(frame)]
    last = max((int(frame["end_ns"].max()) for frame in frames), default=0)
    ranges, lock_waits = _take_lock_waits(_read_ranges(tables, strings, last, missing))
    messages = _read_messages(tables, ranges)
    pauses = read_pauses(tables, strings.__getitem__, ranges)
    samples, stacks = _read_samples(tables, strings, missing)
    _fill_process((kernels, graphs, memops, syncs), (api, ranges), missing)
    syncs = _name_unknown_syncs(syncs, api)
    frames += [ranges] if len(ranges) else []
    if not frames:
        raise ExportError(ExportProblem.NO_EVENTS, path, *nsys_warnings.describe_no_events(tables))
    first, last = min(int(f["start_ns"].min()) for f in frames), max(int(f["end_ns"].max()) for f in frames)
    if last - first > MOST_EXACT:
        raise ValueError("the first and the last event are years apart")
    duration, problems = _read_duration(tables, last - first)
    if len(graphs):
        missing[f"kernels inside {len(graphs)} CUDA graph executions"] = (
            "graphs were traced as a whole: record with --cuda-graph-trace=node to see their kernels"
        )
    if not len(kernels) and not len(graphs):
        problems |= nsys_warnings.explain_no_kernels(tables, api)
    about = {name: value for table in ABOUT for name, value in _read_key_values(tables, table, "name", "value").items()}
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
        samples=samples,
        stacks=stacks,
        lock_waits=lock_waits,
        pauses=pauses,
        nsys_version=str(about.get("EXPORT_PRODUCT_VERSION", "")),
        schema_version=str(about.get("EXPORT_SCHEMA_VERSION", "")),
        gpus=_read_gpu_facts(tables),
        gpu_of=_read_gpu_numbers(tables),
        events_ns=last - first,
        duration_ns=duration,
        recorded_at=_read_recorded_at(tables),
        missing=missing,
        problems=tables.list_problems() | problems,
    )
