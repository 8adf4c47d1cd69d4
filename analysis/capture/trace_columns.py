"""Gather the events of a trace of torch.profiler as columns of numbers, kind by kind, and their names."""

import re
import sys
from collections import Counter, defaultdict
from decimal import Decimal
from typing import Any

import numpy as np

from profiler_job.analysis.capture import limits
from profiler_job.analysis.capture.export_schema import KERNEL_COLUMNS, MOST_EXACT
from profiler_job.analysis.capture.trace_events import Arguments, Event
from profiler_job.analysis.capture.trace_hierarchy import NO_FRAMES, make_ranges
from profiler_job.jobs.contract import ranges

KERNELS, COPIES, FILLS, CALLS, SYNCS, OPERATORS, RANGES, PYTHON, MODULES = range(9)
_OVERHEAD, _IGNORED = -1, -2
_KINDS = {
    "kernel": KERNELS,
    "gpu_memcpy": COPIES,
    "memcpy": COPIES,
    "gpu_memset": FILLS,
    "memset": FILLS,
    "cuda_runtime": CALLS,
    "cuda_driver": CALLS,
    "runtime": CALLS,
    "xpu_runtime": CALLS,
    "xpu_driver": CALLS,
    "cuda_sync": SYNCS,
    "cpu_op": OPERATORS,
    "operator": OPERATORS,
    "user_annotation": RANGES,
    "python_function": PYTHON,
    "overhead": _OVERHEAD,
    "gpu_user_annotation": _IGNORED,
    "trace": _IGNORED,
}
"""What is read, by category in lower case; older versions write other names."""
_MODULE = "nn.Module: "
_OLD_OPERATOR = "Operator"
"""Category of operators before PyTorch 1.12."""
_STARTED = {f"loop:{name}": name for name in (ranges.STEP, ranges.FOLLOWED_STEP)}
"""Ranges that `profile` begins and ends in the middle of others, and their names."""
_PLAIN_OPERATORS = {
    *("detach", "detach_", "PythonDispatchMode", "PythonSubclass"),
    *("<forward op>", "<backward op>", "_grad_sum_to_size"),
}
"""Operators that PyTorch writes without a namespace, its ways through Python, and parts of graphs of TorchScript: none
is a range of the user."""
_METHOD, _NO_NODE = "forward", 10**17
"""Method of TorchScript, which PyTorch writes as an operator, and a number that no node has: with it the method is an
operation, and no range by which a user marks forward."""
_GENERATED = re.compile(r"triton_[a-z]{2,4}_")
"""Beginning of the names of kernels that Inductor makes: their launches have these names, too."""
_AROUND_NODE = "autograd::engine::evaluate_function"
_SIZED = re.compile(r"aten::(?:mm|addmm|bmm|baddbmm|linear|matmul|_scaled_mm|scaled_dot_product_attention|embedding)")
"""Operators whose names keep the sizes of their tensors: matmuls, and the look-up of the tokens of a batch."""
_BYTES_OF = {
    **dict.fromkeys(("char", "byte", "bool", "int8", "uint8", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("half", "bfloat16", "short", "int16", "float16"), 2),
    **dict.fromkeys(("float", "int", "float32", "int32"), 4),
    **dict.fromkeys(("double", "long", "float64", "int64"), 8),
}
_BY_PART = ("allgather", "_allgather_base", "reduce_scatter", "_reduce_scatter_base")
_NOTHING = Arguments()
_LONGEST_CATEGORY = 60
_LARGEST_ID = 1 << 24
"""Ids of processes and threads are below it in a Capture; others get a number of their own."""


class EventColumns:
    """Columns of one kind of event, gathered piece by piece."""

    def __init__(self) -> None:
        self._parts: dict[str, list[np.ndarray]] = defaultdict(list)
        self.rows = 0

    def add(self, rows: int, **columns: np.ndarray | list[int]) -> None:
        for name, values in columns.items():
            self._parts[name].append(np.asarray(values, np.int64))
        self.rows += rows

    def take(self, name: str) -> np.ndarray:
        """Join the parts of a column (int64), and forget them."""
        parts = self._parts.pop(name, [])
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


class TraceColumns:
    """Columns of the events of a trace.

    columns: by kind; names are places in `texts`. shapes: columns of the kernels' sizes that are read. messages: of
    collectives, as MESSAGE_COLUMNS. others: how many events of each category are not read. overhead_ns: what the
    profiler itself took. num_modules: calls of modules. num_backwards, num_untimed: events with a negative duration, or
    without a time or a name. has_shapes: whether operators have the sizes of their tensors. has_frames: whether they
    may have the frames of TorchScript; MODULES holds all of them then.
    """

    def __init__(self, details: bool, grids: bool):
        self.has_details = details
        self.shapes = list(KERNEL_COLUMNS) if details else ["grid_x", "grid_y", "grid_z"] if grids else []
        self.columns = {kind: EventColumns() for kind in range(9)}
        self.texts: list[str] = []
        self.messages: list[tuple[int, int, int, str]] = []
        self.others: Counter[str] = Counter()
        self.overhead_ns = self.num_modules = self.num_backwards = self.num_untimed = 0
        self.has_shapes = self.has_frames = False
        self._names: dict[Any, int] = {}
        self._num_bytes = 0
        self._plain: set[str] = set()
        self._threads: dict[tuple[Any, Any], int] = {}
        self._large_ids: dict[Any, int] = {}
        self._kinds: dict[Any, int | None] = {}

    def add(self, events: list[Event]) -> None:
        kinds = self._kinds
        by_kind: dict[int, list[Event]] = defaultdict(list)
        for event in events:
            if event.ph != "X":
                continue
            cat = event.cat
            if cat not in kinds:
                kinds[cat] = _KINDS.get(str(cat).lower())
            kind = kinds[cat]
            if kind is None:
                self.others[_replace_surrogates(str(cat)[:_LONGEST_CATEGORY])] += 1
            elif event.ts is None or event.name is None:
                self.num_untimed += 1
            else:
                by_kind[kind].append(event)
        by_kind.pop(_IGNORED, None)
        self.overhead_ns += sum(round(float(event.dur or 0) * 1000) for event in by_kind.pop(_OVERHEAD, []))
        if functions := by_kind.pop(PYTHON, None):
            self._add_functions(functions)
        self._add_frames(by_kind[OPERATORS] + by_kind[RANGES])
        for kind in (OPERATORS, RANGES):
            self._add_ranges(kind, by_kind.pop(kind))
        for kind, mine in by_kind.items():
            self._add_operations(kind, mine)

    def _add_operations(self, kind: int, events: list[Event]) -> None:
        """Add kernels, copies, fills, calls or synchronisations."""
        arguments = [event.args or _NOTHING for event in events]
        columns = self._make_times(events) | {"correlation": _to_ints([of.correlation for of in arguments], -1)}
        if kind == CALLS:
            columns["thread"] = self._number_threads(events)
            columns["name"] = self._name_all(events)
        elif kind == SYNCS:
            columns["device"], columns["stream"] = self._place(events)
            columns["name"] = [self._name(of.sync_kind or event.name) for of, event in zip(arguments, events)]
        else:
            columns["device"], columns["stream"] = self._place(events)
            columns["name"] = self._name_all(events)
            columns["graph_node"] = _to_ints([of.graph_node for of in arguments], 0)
        if kind in (COPIES, FILLS):
            columns["bytes"] = _to_ints([of.bytes for of in arguments], 0)
        if kind == KERNELS and self.shapes:
            for shape in ("grid", "block")[: 1 + self.has_details]:
                axes = [getattr(of, shape) for of in arguments]
                for number, axis in enumerate("xyz"):
                    columns[f"{shape}_{axis}"] = [_get_axis(sizes, number) for sizes in axes]
        if kind == KERNELS and self.has_details:
            columns["registers"] = _to_ints([of.registers for of in arguments], 0)
            columns["dynamic_shared_bytes"] = _to_ints([of.shared_bytes for of in arguments], 0)
        self.columns[kind].add(len(events), **columns)

    def _place(self, events: list[Event]) -> tuple[np.ndarray, np.ndarray]:
        """Find the device and the stream of each event."""
        pairs = [(event, event.args or _NOTHING) for event in events]
        return (
            _to_ints([event.pid if of.device is None else of.device for event, of in pairs], 0),
            _to_ints([event.tid if of.stream is None else of.stream for event, of in pairs], 0),
        )

    def _add_functions(self, functions: list[Event]) -> None:
        """Add calls of Python: of modules as ranges, of others as frames."""
        modules = [event for event in functions if str(event.name).startswith(_MODULE)]
        self.num_modules += len(modules)
        self._add_ranges(PYTHON, modules)
        frames = [event for event in functions if not str(event.name).startswith(_MODULE)]
        names = self._name_all(frames)
        self.columns[PYTHON].add(
            len(frames), **self._make_times(frames), thread=self._number_threads(frames), name=names
        )

    def _add_frames(self, events: list[Event]) -> None:
        frames = [None if event.args is None else event.args.frames for event in events]
        if not self.has_frames and all(of is None for of in frames):
            return
        self.has_frames = True
        self.columns[MODULES].add(
            len(events),
            **self._make_times(events, has_counted=True),
            thread=self._number_threads(events),
            name=self._name_all(events),
            frames=[self._name(of) if of else NO_FRAMES for of in frames],
        )

    def add_modules(self) -> int:
        """Add the calls of modules that the frames of all events show, see `trace_hierarchy`; return how many."""
        columns = self.columns[MODULES]
        parts = {name: columns.take(name) for name in ("start", "end", "thread", "name", "frames")}
        if (parts["frames"] == NO_FRAMES).all():
            return 0
        calls = make_ranges(**parts, is_shifted=_OLD_OPERATOR not in self._kinds, texts=self.texts)
        count = len(calls.name)
        self.num_modules += count
        times = {"start": calls.start, "end": calls.end, "is_started": np.zeros(count, np.int64)}
        name = np.array([self._name_range(name) for name in calls.names], np.int64)[calls.name]
        self.columns[RANGES].add(count, **times, thread=calls.thread, name=name)
        return count

    def _add_ranges(self, kind: int, events: list[Event]) -> None:
        if kind == OPERATORS:
            kept, names = [], []
            for event in events:
                name = self._name_operator(event)
                if name >= 0:
                    kept.append(event)
                    names.append(name)
            events = kept
        else:
            names = [self._name_range(str(event.name).removeprefix(_MODULE)) for event in events]
        if events:
            times = self._make_times(events)
            threads = self._number_threads(events)
            is_started = [int(kind == RANGES and event.name in _STARTED) for event in events]
            self.columns[RANGES].add(len(events), **times, thread=threads, name=names, is_started=is_started)
            if kind == OPERATORS:
                for number, event in enumerate(events):
                    if event.args is not None and event.args.collective is not None:
                        self._add_message(int(times["start"][number]), threads[number], event)

    def _name_operator(self, event: Event) -> int:
        """Number the name of an operator as `emit_nvtx` writes it; -1 for one that is left out."""
        arguments = event.args or _NOTHING
        key: tuple[Any, ...] = (event.name, arguments.sequence)
        if arguments.shapes is not None:
            self.has_shapes = True
            if _SIZED.fullmatch(str(event.name)):
                key = (event.name, arguments.sequence, str(arguments.shapes))
        if (number := self._names.get(key)) is not None:
            return number
        name = str(event.name)
        # What autograd does around a node adds the gradients of several operations: the node inside has the number.
        sequence = -1 if name.startswith(_AROUND_NODE) else to_int(arguments.sequence, -1)
        if name == _METHOD and event.cat == "cpu_op":
            sequence = _NO_NODE
        if name not in self._plain:
            self._check_plain(name)
        if sequence >= 0:
            text = f"{name}, seq = {sequence}"
        elif "::" in name:
            text = f"{name}, op_id = 0"
        elif arguments.stream is not None or name in _PLAIN_OPERATORS or _GENERATED.match(name):
            self._names[key] = -1
            return -1
        else:
            text = name
        self._names[key] = number = self._add_text(f"{text}, sizes = {key[2]}" if len(key) > 2 else text)
        return number

    def _name_range(self, name: str) -> int:
        name = _STARTED.get(name, name)
        key = (name,)
        if key not in self._names:
            self._check_plain(name)
            self._names[key] = self._add_text(name)
        return self._names[key]

    def _check_plain(self, name: str) -> None:
        limits.check_names([name], "a range")
        self._plain.add(name)
        limits.PATHS.check(len(self._plain))

    def _name_all(self, events: list[Event]) -> list[int]:
        for name in {event.name for event in events}:
            self._name(name)
        known = self._names
        return [known[event.name] for event in events]

    def _name(self, name: Any) -> int:
        if (number := self._names.get(name)) is None:
            limits.check_names([str(name)], "an event")
            number = self._names[name] = self._add_text(str(name))
        return number

    def _add_text(self, text: str) -> int:
        text = _replace_surrogates(text)
        self._num_bytes += sys.getsizeof(text)
        limits.NAMES_BYTES.check(self._num_bytes)
        self.texts.append(text)
        return len(self.texts) - 1

    def _number_threads(self, events: list[Event]) -> list[int]:
        """Return the serialised thread of each event: process id, then thread id, in 24 bits each."""
        known, threads = self._threads, []
        for event in events:
            key = event.pid, event.tid
            if key not in known:
                known[key] = self._number_id(event.pid) << 24 | self._number_id(event.tid)
            threads.append(known[key])
        return threads

    def _number_id(self, value: Any) -> int:
        number = to_int(value, -1)
        if 0 <= number < _LARGEST_ID:
            return number
        return self._large_ids.setdefault(value, _LARGEST_ID - 1 - len(self._large_ids))

    def _make_times(self, events: list[Event], has_counted: bool = False) -> dict[str, Any]:
        start, took = _to_ns([event.ts for event in events]), _to_ns([event.dur or 0 for event in events])
        if (backwards := took < 0).any():
            self.num_backwards += 0 if has_counted else int(backwards.sum())
            took = np.maximum(took, 0)
        return {"start": start, "end": start + took}

    def _add_message(self, start: int, thread: int, event: Event) -> None:
        """Note the size of a collective's message: of an all-gather and a reduce-scatter one rank's part."""
        assert event.args is not None
        sizes = [to_int(event.args.num_in, 0), to_int(event.args.num_out, 0)]
        name, dtype = str(event.args.collective).lower(), str(event.args.dtype).lower()
        elements = min(sizes) if name in _BY_PART and min(sizes) > 0 else max(sizes)
        if elements > 0 and dtype in _BYTES_OF:
            group = f"{event.args.group} {event.args.group_ranks}"
            self.messages.append((start, thread, elements * _BYTES_OF[dtype], group))


def to_int(value: Any, default: int) -> int:
    if type(value) is int:
        return value if -(2**62) < value < 2**62 else default
    if isinstance(value, float):
        return int(value) if value == value and abs(value) < MOST_EXACT else default
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    return default


def _replace_surrogates(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _to_ints(values: list[Any], default: int) -> np.ndarray:
    array = np.array(values)
    if array.dtype == np.int64 and (not len(array) or -(2**62) < array.min() <= array.max() < 2**62):
        return array
    return np.array([to_int(value, default) for value in values], np.int64)


def _get_axis(sizes: Any, number: int) -> int:
    size = sizes[number] if isinstance(sizes, list) and len(sizes) > number else 1
    return size if isinstance(size, int) and 0 <= size < 2**31 else 1


def _to_ns(values: list[Any]) -> np.ndarray:
    """Convert microseconds to whole nanoseconds (int64): floats below 2^43 hold them exactly once rounded."""
    array = np.array(values)
    if array.dtype.kind == "f" and not (np.abs(array) >= 2.0**43).any():
        return np.rint(array * 1000).astype(np.int64)
    if array.dtype.kind in "iu":
        if np.abs(array).max(initial=0) > 2**52:
            raise ValueError("a time is out of range")
        return array.astype(np.int64) * 1000
    return np.array([round(Decimal(str(value)) * 1000) for value in values], np.int64)
