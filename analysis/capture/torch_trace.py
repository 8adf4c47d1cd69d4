"""Read a trace of torch.profiler (Kineto) into the tables of a capture. This module and `trace_events` alone know its
form.

- kernels, copies and fills are events of the GPU; `correlation` joins them with the call that launched them
- operators (`cpu_op`) become ranges as `emit_nvtx` names them: with the number that links a node of backward with its
  operation of forward, and the sizes of matmuls if shapes were recorded
- `record_function` (`user_annotation`) and steps (`ProfilerStep#3`) become ranges of the user
- calls of modules (`nn.Module: Linear_0`, recorded with Python stacks) become ranges, too, as do those of TorchScript
  ("Module Hierarchy", recorded with `with_modules`)

Times are microseconds with up to three digits after the point: whole nanoseconds, and none is rounded.
"""

import re
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import limits
from profiler_job.analysis.capture.capture_data import (
    MESSAGE_COLUMNS,
    MOST_DEVICES,
    NOT_USED,
    Capture,
    ExportError,
    ExportProblem,
    join_lines,
    make_limit_error,
)
from profiler_job.analysis.capture.distinct_values import make_categorical
from profiler_job.analysis.capture.export_columns import check_times, narrow_to_int32, sort_frame
from profiler_job.analysis.capture.export_schema import (
    API,
    COPY_KINDS,
    GPU_COLUMNS,
    HOST_MEMORIES,
    KERNEL,
    LAST_MOMENT,
    MEMCPY,
    MOST_EXACT,
    NVTX,
    SYNC_CALLS,
)
from profiler_job.analysis.capture.python_samples import Stack
from profiler_job.analysis.capture.trace_columns import (
    CALLS,
    COPIES,
    FILLS,
    KERNELS,
    PYTHON,
    RANGES,
    SYNCS,
    EventColumns,
    TraceColumns,
    to_int,
)
from profiler_job.analysis.capture.trace_events import CutOffError, Facts, TraceError, TraceEvents
from profiler_job.analysis.capture.trace_files import open_trace
from profiler_job.analysis.capture.trace_stacks import make_samples
from profiler_job.analysis.reference import cuda_api
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.garbage import pausing_collector
from profiler_job.jobs.contract.quantities import format_time
from profiler_job.jobs.contract.words import format_count

EXPORTER = "torch.profiler"
EXPORT_TRACE_AGAIN = (
    "export it again with `prof.export_chrome_trace`, let the program end by itself, and copy the whole file; if the "
    "disk was full, record fewer steps"
)
GIVE_A_TRACE = "give the file that `prof.export_chrome_trace` or `tensorboard_trace_handler` wrote"
_NCCL = "nccl:"
_COPY = re.compile(r"(?:Memcpy|Copy) ?(\w+?)(?: \((\w+) -> (\w+)\))?$")
_SIDES = {"H": "Host", "D": "Device", "A": "Array", "P": "Peer"}
_GPU_FACTS = {
    "id": "id",
    "memory_bytes": "totalGlobalMem",
    "sm_count": "numSms",
    "compute_major": "computeMajor",
    "compute_minor": "computeMinor",
}
_LARGE_OVERHEAD = 0.01
"""Part of the capture that the profiler's own work may take without a word."""
_OF_PYTORCH = re.compile(r"Optimizer\.(?:step|zero_grad)#|Torch-Compiled Region: |## Call CompiledFxGraph ")
"""Ranges of PyTorch around the calls of optimizers and compiled graphs. `profile` has ranges of its own for these: a
step that it follows ends inside an optimizer, and it names the modules in a graph."""
_GRAPH_COLUMNS = ("start_ns", "end_ns", "process", "device", "stream", "correlation", "graph")

CANNOT_SEE = {
    "other processes, and work that does not come through PyTorch's process": (
        f"{EXPORTER} records its own process: record with nsys to see all of them"
    ),
    "the CPU's own time": (
        f"{EXPORTER} records each operator, which makes the CPU slower: idle time of the GPU is an upper limit"
    ),
}
"""What no trace of torch.profiler shows."""


def read_trace(path: Path, *, details: bool = True, grids: bool = False) -> Capture:
    """Read the trace at `path`, plain or gzipped, with the arguments and errors of `nsys_export.read`."""
    try:
        with open_trace(path) as file, pausing_collector():
            return _read_events(path, TraceEvents(file), TraceColumns(details, grids))
    except ExportError:
        raise
    except limits.LimitError as error:
        raise make_limit_error(path, error) from error
    except (CutOffError, EOFError) as error:
        raise ExportError(
            ExportProblem.UNFINISHED, path, "is a trace that is cut off before its end", EXPORT_TRACE_AGAIN
        ) from error
    except TraceError as error:
        raise ExportError(
            ExportProblem.NOT_AN_EXPORT, path, f"is JSON, and no trace: it {error}", GIVE_A_TRACE, ExitCode.USAGE
        ) from error
    except (
        OSError,
        zlib.error,
        ValueError,
        TypeError,
        OverflowError,
        ArithmeticError,
        LookupError,
        RecursionError,
        MemoryError,
    ) as error:
        raise ExportError(
            ExportProblem.DAMAGED, path, f"is a damaged trace ({join_lines(error)})", EXPORT_TRACE_AGAIN
        ) from error


def _read_events(path: Path, source: TraceEvents, columns: TraceColumns) -> Capture:
    num_events = 0
    for events in source:
        num_events += len(events)
        limits.ROWS.check(num_events)
        columns.has_frames = columns.has_frames or bool(source.facts.with_modules)
        columns.add(events)
    return _CaptureMaker(path, columns).make(source.facts, source.num_refused)


class _CaptureMaker:
    """Makes a capture of the columns of a trace."""

    def __init__(self, path: Path, columns: TraceColumns):
        self._path, self._read = path, columns

    def make(self, facts: Facts, num_refused: int) -> Capture:
        problems: dict[str, str] = {}
        api = self._make_api()
        ranges = self._make_ranges(self._read.add_modules())
        process = _find_process(api, ranges, problems)
        kernels = self._make_kernels(process)
        memops = self._make_memops(process)
        syncs = self._make_syncs(process, api)
        frames = [frame for frame in (kernels, memops, api, ranges, syncs) if len(frame)]
        if not frames:
            others = f" (only {', '.join(sorted(self._read.others)[:5])})" if self._read.others else ""
            raise ExportError(
                ExportProblem.NO_EVENTS,
                self._path,
                f"is a trace without operators, calls and kernels{others}",
                "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
            )
        first = min(int(frame["start_ns"].min()) for frame in frames)
        last = max(int(frame["end_ns"].max()) for frame in frames)
        if last - first > MOST_EXACT:
            raise ValueError("the first and the last event are years apart")
        for frame in frames:
            frame["start_ns"] -= first
            frame["end_ns"] -= first
        for frame, table in ((kernels, KERNEL), (memops, MEMCPY), (api, API), (ranges, NVTX)):
            check_times(frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy(), table)
        samples, stacks = self._make_samples(first)
        problems |= self._list_problems(kernels, api, last - first, num_refused)
        return Capture(
            source=self._path.name,
            path=self._path,
            kernels=kernels,
            graphs=pd.DataFrame({name: np.empty(0, np.int64) for name in _GRAPH_COLUMNS}),
            memops=memops,
            api=api,
            ranges=ranges,
            syncs=syncs,
            messages=self._make_messages(ranges, first),
            samples=samples,
            stacks=stacks,
            nsys_version=NOT_USED,
            schema_version=_describe_exporter(facts),
            gpus=_read_gpus(facts.devices),
            events_ns=last - first,
            duration_ns=last - first,
            recorded_at=_find_date(facts, first),
            missing=self._list_missing(memops, api, ranges, facts),
            problems=problems,
        )

    def _make_kernels(self, process: int) -> pd.DataFrame:
        columns = self._read.columns[KERNELS]
        arrays = _take_operation(columns, process)
        names = self._make_names(columns.take("name"), "a kernel")
        limits.KERNEL_NAMES.check(len(names.categories))
        node = columns.take("graph_node")
        if self._read.has_details:
            arrays["graph_node"] = node
        for shape in self._read.shapes:
            arrays[shape] = (
                columns.take(shape).astype(np.int32)
                if shape != "static_shared_bytes"
                else np.zeros(columns.rows, np.int32)
            )
        return sort_frame(arrays | {"kernel_name": names})

    def _make_memops(self, process: int) -> pd.DataFrame:
        frames = []
        for kind in (COPIES, FILLS):
            columns = self._read.columns[kind]
            arrays = _take_operation(columns, process)
            arrays |= {name: columns.take(name) for name in ("graph_node", "bytes")}
            if arrays["bytes"].min(initial=0) < 0 or arrays["bytes"].sum(dtype=np.float64) > MOST_EXACT:
                raise ValueError("a copy has a size out of range")
            code = columns.take("name")
            known = {
                int(c): _describe_copy(self._read.texts[c]) if kind == COPIES else ("memset", "") for c in set(code)
            }
            arrays["operation"] = np.array([known[c][0] for c in code.tolist()], object)
            memory = [HOST_MEMORIES.index(known[c][1]) for c in code.tolist()]
            arrays["host_memory"] = pd.Categorical.from_codes(np.array(memory, np.int8), HOST_MEMORIES)
            frames.append(pd.DataFrame(arrays))
        both = pd.concat(frames, ignore_index=True)
        both["operation"] = pd.Categorical(both["operation"])
        return both.sort_values(["start_ns", "end_ns"], kind="stable", ignore_index=True)

    def _make_api(self) -> pd.DataFrame:
        columns = self._read.columns[CALLS]
        start, end, thread = columns.take("start"), columns.take("end"), columns.take("thread")
        names = self._make_names(columns.take("name"), "an API call")
        stripped = [cuda_api.strip_version(str(name)) for name in names.categories]
        arrays = {"start_ns": start, "end_ns": end, "thread": thread, "correlation": columns.take("correlation")}
        return sort_frame(arrays | {"process": thread >> 24, "name": make_categorical(names.codes, stripped)})

    def _make_ranges(self, num_scripted: int) -> pd.DataFrame:
        """Make the ranges; the last `num_scripted` are of modules of TorchScript."""
        columns = self._read.columns[RANGES]
        start, end, thread = columns.take("start"), columns.take("end"), columns.take("thread")
        names = self._make_names(columns.take("name"), "a range")
        is_started = columns.take("is_started").astype(np.int8)
        order = np.lexsort((-end, start))  # the outer of two ranges that start together comes first
        if num_scripted:  # modules lie in the methods of TorchScript, and around its operators
            depth = np.array([2 * ("::" in name) for name in names.categories], np.int8)[names.codes]
            depth[-num_scripted:] = 1
            order = np.lexsort((depth, -end, start))
        if is_started.any():
            is_around = np.array([bool(_OF_PYTORCH.match(str(name))) for name in names.categories], bool)
            order = order[~is_around[names.codes[order]]]
        rows = len(order)
        return pd.DataFrame(
            {
                "start_ns": start[order],
                "end_ns": end[order],
                "is_open": np.zeros(rows, bool),
                "process": (thread >> 24)[order],
                "thread": thread[order],
                "domain": make_categorical(np.zeros(rows, np.int64), [""]),
                "name": names[order],
                "style": pd.Categorical.from_codes(is_started[order], ["PushPop", "StartEnd"]),
            },
            copy=False,
        )

    def _make_syncs(self, process: int, api: pd.DataFrame) -> pd.DataFrame:
        """Make the waits for the GPU: the trace's own, or else the calls that wait."""
        columns = self._read.columns[SYNCS]
        if columns.rows:
            arrays = _take_operation(columns, process)
            return sort_frame(arrays | {"kind": self._make_names(columns.take("name"), "a synchronisation")})
        kinds = [_find_sync_kind(str(name)) for name in api["name"].cat.categories]
        codes = api["name"].cat.codes.to_numpy()
        rows = np.flatnonzero(np.array([kind != "" for kind in kinds], bool)[codes]) if len(api) else np.empty(0, int)
        calls = api.iloc[rows]
        arrays = {name: calls[name].to_numpy().copy() for name in ("start_ns", "end_ns", "process", "correlation")}
        arrays |= {name: np.zeros(len(rows), np.int32) for name in ("device", "stream")}
        used, inverse = np.unique(codes[rows], return_inverse=True)
        return sort_frame(arrays | {"kind": make_categorical(inverse, [kinds[code] for code in used])})

    def _make_samples(self, first: int) -> tuple[pd.DataFrame, list[Stack]]:
        columns = self._read.columns[PYTHON]
        start, end, thread, name = (columns.take(of) for of in ("start", "end", "thread", "name"))
        return make_samples(start - first, end - first, thread, name, self._read.texts)

    def _make_names(self, codes: np.ndarray, what: str) -> pd.Categorical:
        used, inverse = np.unique(codes, return_inverse=True)
        return make_categorical(inverse.astype(np.int64), [self._read.texts[code] for code in used.tolist()])

    def _make_messages(self, ranges: pd.DataFrame, first: int) -> pd.DataFrame:
        """Make the messages of collectives, of the operator's range and of NCCL's range inside it."""
        messages = pd.DataFrame(self._read.messages, columns=list(MESSAGE_COLUMNS))
        messages["communicator"] = pd.factorize(messages["communicator"])[0]
        messages = messages.astype(np.int64).assign(start_ns=messages["start_ns"].astype(np.int64) - first)
        is_inner = np.array([str(name).startswith(_NCCL) for name in ranges["name"].cat.categories], bool)
        inner = ranges[is_inner[ranges["name"].cat.codes.to_numpy()]] if len(ranges) else ranges
        if not len(messages) or not len(inner):
            return messages
        messages = messages.sort_values("start_ns")
        inside = pd.merge_asof(
            inner[["start_ns", "thread"]].rename(columns={"start_ns": "inner_ns"}).sort_values("inner_ns"),
            messages,
            left_on="inner_ns",
            right_on="start_ns",
            by="thread",
        ).dropna()
        inside = inside.assign(start_ns=inside["inner_ns"])[list(MESSAGE_COLUMNS)].astype(np.int64)
        return pd.concat([messages, inside], ignore_index=True)

    # ------------------------------------------------------------------------------------------------ what is not known

    def _list_problems(
        self, kernels: pd.DataFrame, api: pd.DataFrame, events_ns: int, num_refused: int
    ) -> dict[str, str]:
        problems = {}
        if num_refused:
            problems[f"{format_count(num_refused, 'event')} could not be read"] = "they are left out"
        if self._read.num_untimed:
            problems[f"{format_count(self._read.num_untimed, 'event')} without a name or a time"] = "they are left out"
        if self._read.num_backwards:
            what = f"{format_count(self._read.num_backwards, 'event')} of negative duration"
            problems[what] = "they count as 0 ns long"
        if self._read.overhead_ns > _LARGE_OVERHEAD * events_ns:
            what = f"the profiler itself took {format_time(self._read.overhead_ns)}"
            problems[what] = "the GPU may have waited for it: record after some warm-up steps (`schedule(warmup=...)`)"
        if not len(kernels):
            launches = sum(cuda_api.find_group(str(name)) == "launch" for name in api["name"])
            if launches:
                what = f"{format_count(launches, 'launch')} and no kernel"
                remedy = "the trace ended before they ran, or it was recorded without the activities of the GPU"
            elif self._read.others:
                what, remedy = "no kernel of a kind that is read", "there is no verdict"
            else:
                what = "a trace without kernels: it is of the CPU only"
                remedy = (
                    "there is no verdict; if the program uses a GPU, record with "
                    "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
                )
            problems[what] = remedy
        return problems

    def _list_missing(
        self, memops: pd.DataFrame, api: pd.DataFrame, ranges: pd.DataFrame, facts: Facts
    ) -> dict[str, str]:
        missing = dict(CANNOT_SEE)
        if not self._read.num_modules:
            missing["calls of modules"] = "modules are known from ranges only: record with with_stack=True to see them"
        if not self._read.has_shapes and len(ranges):
            missing["sizes of tensors"] = "matmul sizes are unknown: record with record_shapes=True to see them"
        if not len(ranges):
            missing["operators and ranges"] = "kernels cannot be attributed: record with ProfilerActivity.CPU, too"
        if len(memops) and not memops["bytes"].any():
            missing["bytes of copies"] = "this exporter does not write them"
        is_rocm = any(str(name).startswith("hip") for name in api["name"].cat.categories)
        if is_rocm or facts.hip is not None or facts.roctracer is not None:
            missing["families of some ROCm kernels"] = "names of AMD's libraries are known only in part"
        if self._read.others:
            names = ", ".join(f"{name} ({num:,})" for name, num in self._read.others.most_common(5))
            missing[f"events of other kinds: {names}"] = "they are not read"
        return missing


def _take_operation(columns: EventColumns, process: int) -> dict[str, np.ndarray]:
    arrays = {"start_ns": columns.take("start"), "end_ns": columns.take("end")}
    arrays["process"] = np.full(columns.rows, process, np.int64)
    for name in ("device", "stream"):
        arrays[name] = narrow_to_int32(columns.take(name))
    if columns.rows and not 0 <= arrays["device"].min() <= arrays["device"].max() < MOST_DEVICES:
        raise ValueError("a device number is out of range")
    arrays["correlation"] = columns.take("correlation")
    return arrays


def _find_process(api: pd.DataFrame, ranges: pd.DataFrame, problems: dict[str, str]) -> int:
    """Find the process that launched everything: torch.profiler records one."""
    frame = api if len(api) else ranges
    if not len(frame):
        return 0
    processes, counts = np.unique(frame["process"].to_numpy(), return_counts=True)
    if len(processes) > 1 and len(api):
        problems[f"calls of {len(processes)} processes"] = (
            "which of them a kernel is of is not known: all count as launched by the one with the most calls"
        )
    return int(processes[counts.argmax()])


def _describe_copy(name: str) -> tuple[str, str]:
    """Return what kind of copy it is, as nsys names it, and the host memory of it ("" if there is none)."""
    match = _COPY.match(name)
    kind = COPY_KINDS[0]
    if match is None:
        return f"memcpy {kind}", ""
    sides = re.fullmatch(r"(\w)to(\w)", match[1]) or re.fullmatch(r"(\w)\w*To(\w)\w*", match[1])
    if sides is not None and {sides[1], sides[2]} <= set(_SIDES):
        kind = "Peer-to-Peer" if "P" in (sides[1], sides[2]) else f"{_SIDES[sides[1]]}-to-{_SIDES[sides[2]]}"
    host = {"Host-to-Device": match[2], "Device-to-Host": match[3]}.get(kind) or ""
    memory = host.lower()
    return f"memcpy {kind}", memory if memory in HOST_MEMORIES else ""


def _find_sync_kind(call: str) -> str:
    """Return what a call waits for, "" if it does not wait. ROCm's calls are named after CUDA's."""
    call = re.sub(r"^hip", "cuda", call)
    if cuda_api.find_group(call) != cuda_api.SYNCHRONISATION:
        return ""
    return next((kind for pattern, kind in SYNC_CALLS.items() if re.search(pattern, call)), "")


def _read_gpus(devices: Any) -> list[dict[str, Any]]:
    gpus = []
    for device in devices if isinstance(devices, list) else []:
        if isinstance(device, dict) and isinstance(device.get("id"), int):
            numbers = {ours: device.get(theirs) for ours, theirs in _GPU_FACTS.items()}
            facts = {
                name: value for name, value in numbers.items() if isinstance(value, int) and 0 <= value <= MOST_EXACT
            }
            gpus.append(dict.fromkeys(GPU_COLUMNS) | {"name": str(device.get("name") or "") or None} | facts)
    limits.GPUS.check(len(gpus))
    return sorted(gpus, key=lambda gpu: str(gpu["id"]))


def _describe_exporter(facts: Facts) -> str:
    parts = [f"{EXPORTER} trace, schema {facts.schema if facts.schema is not None else 'unknown'}"]
    if isinstance(facts.cuda, int):
        parts.append(f"CUDA {facts.cuda // 1000}.{facts.cuda % 1000 // 10}")
    elif facts.hip is not None or facts.roctracer is not None:
        parts.append("ROCm")
    known = facts.distributed if isinstance(facts.distributed, dict) else {}
    if isinstance(known.get("rank"), int) and isinstance(known.get("world_size"), int):
        parts.append(f"rank {known['rank']} of {known['world_size']}")
    return ", ".join(parts)


def _find_date(facts: Facts, first: int) -> str:
    base = to_int(facts.base_ns, 0)
    moment = base + first
    if not 10**18 < moment < LAST_MOMENT:
        return ""
    return datetime.fromtimestamp(moment // 10**9, UTC).isoformat()
