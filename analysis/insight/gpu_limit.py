"""Divide the time of each GPU, to the nanosecond, into what runs on it and why nothing runs.

Elapsed is the same for all GPUs of a capture: from the start of its first event, of whatever kind, to the end of its
last. Each moment of it counts once. If several operations run at the same time, the first of these counts: compute
kernels, whole graph executions, communication kernels, copies and fills. So communication and copies are the ones that
nothing hides.

Idle time before an operation is late until the CPU has launched it (`idle_time`), and synchronisation while a thread of
the launching process is in a synchronisation call. In the rest of it the operation waits for earlier launches, or for
the GPU itself. Before its first and after its last operation a GPU has no work.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import idle_time, intervals
from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.believed_launches import have_shared_launch
from profiler_job.analysis.capture.blocks import sum_by
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.capture.distinct_values import find_distinct
from profiler_job.analysis.capture.os_calls import find_idle_pauses
from profiler_job.analysis.insight.limit_columns import COLUMNS, OF_PARTS, PARTS, PHASE_COLUMNS
from profiler_job.analysis.reference import cuda_api, kernel_families
from profiler_job.analysis.reference.rules import Taxonomy
from profiler_job.jobs.contract.ranges import ALL_PHASES, DATA

_KERNELS, _GRAPHS, _COMMUNICATION, COPIES, _LATE, _SYNC, _BETWEEN, _UNKNOWN, _NO_WORK = range(len(PARTS))
_COMPUTE, _DATA, _NOTHING, _HOST_COPIES = range(len(PARTS), len(PARTS) + len(OF_PARTS))
PHASES = (*ALL_PHASES, "")
_DATA_PHASE = PHASES.index(DATA)


def split_elapsed(
    capture: Capture, attribution: Attribution, gpus: dict[str, np.ndarray], taxonomy: Taxonomy
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split the elapsed time into its PARTS (int64): for each GPU (gpu, elapsed_ns, parts), and by phase (gpu, phase,
    elapsed_ns, parts; no rows if no phase is known).

    gpus: the GPU of each row of kernels, graphs and memops. An idle time has the phase of the operation that ends it.
    If several operations of one kind run at once, the time has the phase of the one that started first.
    """
    timelines = Timelines(capture, attribution, gpus, taxonomy)
    by_phase = {int(number): timelines.split(number) for number in find_distinct(np.concatenate([*gpus.values()]))}
    totals = [(number, table.sum(axis=1)) for number, table in by_phase.items()]
    of_gpus = pd.DataFrame([[number, _sum_elapsed(of), *of] for number, of in totals], columns=list(COLUMNS))
    rows = []
    if any((getattr(attribution, name)["phase"] != "").any() for name in gpus):
        for number, table in by_phase.items():
            rows += [[number, name, _sum_elapsed(of), *of] for name, of in zip(PHASES, table.T) if of.any()]
    return of_gpus, pd.DataFrame(rows, columns=list(PHASE_COLUMNS))


def _sum_elapsed(values: np.ndarray) -> int:
    return int(values[: len(PARTS)].sum())


@dataclass(frozen=True, kw_only=True)
class Operations:
    """What one GPU does, by start: start, end (ns), kind (of `classify_families`, graphs or COPIES), phase (code in
    PHASES), call, the number of the launch (below 0: not known), whether it is a matmul or attention, whether it copies
    from the host, and whether it copies from or to the host."""

    start: np.ndarray
    end: np.ndarray
    kind: np.ndarray
    phase: np.ndarray
    call: np.ndarray
    is_compute: np.ndarray
    is_upload: np.ndarray
    is_host_copy: np.ndarray

    @classmethod
    def sort_by_start(cls, **columns: np.ndarray) -> "Operations":
        order = np.argsort(columns["start"], kind="stable")
        return cls(**{name: values[order] for name, values in columns.items()})


@dataclass(frozen=True, kw_only=True)
class Calls:
    """The launches: start, end (ns), process and thread of each, and whether it launched several operations. syncs:
    when a thread of a process was in a synchronisation call. pauses: when a thread paused."""

    start: np.ndarray
    end: np.ndarray
    process: np.ndarray
    thread: np.ndarray
    is_shared: np.ndarray
    syncs: Mapping[int, intervals.Union]
    pauses: Mapping[int, intervals.Union]


def classify_families(families: Iterable[str]) -> np.ndarray:
    """Return the kind of kernels of these families (int8)."""
    communicates = [name == kernel_families.COMMUNICATION for name in families]
    return np.where(communicates, _COMMUNICATION, _KERNELS).astype(np.int8)


def are_compute(families: Iterable[str]) -> np.ndarray:
    """Whether kernels of these families are matmuls or attention (bool)."""
    return np.array([name in kernel_families.COMPUTE_FAMILIES for name in families], bool)


def split(ops: Operations, calls: Calls) -> np.ndarray:
    """Nanoseconds of each of PARTS, then of OF_PARTS (rows) in each of PHASES (columns) from the first start to the
    last end, so without `no_work_ns` (int64)."""
    table = np.zeros((len(PARTS) + len(OF_PARTS), len(PHASES)), np.int64)
    _add_busy(table, ops)
    table[_COMPUTE] = np.minimum(_measure_compute(ops), table[_KERNELS])
    _add_idle(table, ops, calls)
    return table


class Timelines:
    """The operations of a capture, GPU by GPU."""

    def __init__(
        self,
        capture: Capture,
        attribution: Attribution,
        gpus: dict[str, np.ndarray],
        taxonomy: Taxonomy,
    ):
        self._gpus = gpus
        self._frames = {name: getattr(capture, name) for name in gpus}
        self._call = {name: getattr(attribution, name)["api"].to_numpy() for name in gpus}
        self._phase = {name: getattr(attribution, name)["phase"].cat.codes.to_numpy() for name in gpus}
        self._step = {name: getattr(attribution, name)["step"].to_numpy() for name in gpus}
        names = capture.kernels["kernel_name"].cat
        families = [taxonomy.family(str(name)) for name in names.categories]
        self._is_compute = {
            "kernels": are_compute(families)[names.codes],
            "graphs": np.zeros(len(capture.graphs), bool),
            "memops": np.zeros(len(capture.memops), bool),
        }
        self._is_upload = _find_copies(capture, (cuda_api.UPLOAD,))
        self._is_host_copy = _find_copies(capture, cuda_api.HOST_COPIES)
        self._kind = {
            "kernels": classify_families(families)[names.codes],
            "graphs": np.full(len(capture.graphs), _GRAPHS, np.int8),
            "memops": np.full(len(capture.memops), COPIES, np.int8),
        }
        self.calls = Calls(
            **{name: capture.api[column].to_numpy() for name, column in _COLUMNS_OF_CALLS.items()},
            is_shared=have_shared_launch(np.concatenate([*self._call.values()]), len(capture.api)),
            syncs=find_syncs(capture),
            pauses=_unite(find_idle_pauses(capture, attribution), "thread"),
        )
        frames = (capture.kernels, capture.graphs, capture.memops, capture.api, capture.ranges, capture.syncs)
        self._begin = min((int(frame["start_ns"].iloc[0]) for frame in frames if len(frame)), default=0)
        self._end = self._begin + capture.events_ns

    def split(self, gpu: int) -> np.ndarray:
        """Nanoseconds of each of PARTS in each of PHASES (int64)."""
        ops = self.list_operations(gpu)
        table = split(ops, self.calls)
        table[_NO_WORK, -1] += ops.start[0] - self._begin + self._end - ops.end.max()
        return table

    def list_steps(self, gpu: int) -> np.ndarray:
        """List the step of each of `list_operations`, -1 outside every step (int32)."""
        rows = {name: np.flatnonzero(numbers == gpu) for name, numbers in self._gpus.items()}
        start = np.concatenate([self._frames[name]["start_ns"].to_numpy()[mine] for name, mine in rows.items()])
        step = np.concatenate([self._step[name][mine] for name, mine in rows.items()])
        return np.asarray(step[np.argsort(start, kind="stable")])

    def list_operations(self, gpu: int) -> Operations:
        """List what one GPU does."""
        rows = {name: np.flatnonzero(numbers == gpu) for name, numbers in self._gpus.items()}
        times = {
            edge: np.concatenate([self._frames[name][f"{edge}_ns"].to_numpy()[mine] for name, mine in rows.items()])
            for edge in ("start", "end")
        }
        others = {
            column: np.concatenate([values[name][mine] for name, mine in rows.items()])
            for column, values in (
                ("kind", self._kind),
                ("phase", self._phase),
                ("call", self._call),
                ("is_compute", self._is_compute),
                ("is_upload", self._is_upload),
                ("is_host_copy", self._is_host_copy),
            )
        }
        return Operations.sort_by_start(**times, **others)


def _find_copies(capture: Capture, names: Collection[str]) -> dict[str, np.ndarray]:
    """Find which rows of each table are copies of these names (bool)."""
    is_named = np.array([name in names for name in capture.memops["operation"].cat.categories], bool)
    nothing = {name: np.zeros(len(getattr(capture, name)), bool) for name in ("kernels", "graphs")}
    return nothing | {"memops": is_named[capture.memops["operation"].cat.codes]}


_COLUMNS_OF_CALLS = {"start": "start_ns", "end": "end_ns", "process": "process", "thread": "thread"}


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """Idle times of one GPU whose next operation has a known launch. row: that operation. covered: when the gap begins
    (ns). late: how long the operation is not launched. least: shortest way from a launch to its start."""

    row: np.ndarray
    covered: np.ndarray
    late: np.ndarray
    least: np.ndarray


def find_gaps(ops: Operations, calls: Calls) -> tuple[Gaps, np.ndarray, np.ndarray]:
    """Find the idle times of one GPU: those before operations whose launch is known; and the rows and lengths (ns) of
    the others."""
    covered = intervals.find_covered_before(np.zeros(len(ops.start), np.int8), ops.start, ops.end)
    gaps = np.flatnonzero(ops.start > covered)[1:]  # before the first operation there is no work
    unknown, gaps = gaps[ops.call[gaps] < 0], gaps[ops.call[gaps] >= 0]
    length = ops.start[unknown] - covered[unknown]
    covered = covered[gaps]
    if not len(gaps):
        return Gaps(row=gaps, covered=covered, late=covered, least=covered), unknown, length
    ready, is_later, least = _find_ready(ops, calls, gaps)
    late = idle_time.compute_late_times(covered, ready, is_later)
    return Gaps(row=gaps, covered=covered, late=late, least=least), unknown, length


def _add_idle(table: np.ndarray, ops: Operations, calls: Calls) -> None:
    idle, unknown, length = find_gaps(ops, calls)
    table[_UNKNOWN] += _sum_phases(ops.phase[unknown], length)
    gaps, covered, late, least = idle.row, idle.covered, idle.late, idle.least
    if not len(gaps):
        return
    phase = ops.phase[gaps]
    call, on_host = ops.call[gaps], covered - least
    waits = _measure_late(calls.syncs, calls.process[call], on_host, late)
    paused = _measure_late(calls.pauses, calls.thread[call], on_host, late)
    paused = np.minimum(paused, late - waits)
    is_data = are_before_data(ops, gaps)
    table[_LATE] += _sum_phases(phase, late - waits)
    table[_DATA] += _sum_phases(phase[is_data], (late - waits - paused)[is_data])
    table[_NOTHING] += _sum_phases(phase, paused)
    table[_SYNC] += _sum_phases(phase, waits)
    table[_BETWEEN] += _sum_phases(phase, ops.start[gaps] - covered - late)


def _measure_late(
    known: Mapping[int, intervals.Union], owner: np.ndarray, start: np.ndarray, late: np.ndarray
) -> np.ndarray:
    """How long of each late launch lies in the known times of its owner, in ns. start: when it was due, on the CPU's
    clock; late: by how much it is late."""
    inside = np.zeros(len(late), np.int64)
    for key, times in known.items():
        mine = np.flatnonzero((owner == key) & (late > 0))
        inside[mine] = times.measure_covered(start[mine], (start + late)[mine])
    return inside


def are_before_data(ops: Operations, rows: np.ndarray) -> np.ndarray:
    """Whether these operations copy from the host, or are of the phase of data (bool): what is late before them is
    data."""
    return np.asarray(ops.is_upload[rows] | (ops.phase[rows] == _DATA_PHASE))


def _find_ready(ops: Operations, calls: Calls, gaps: np.ndarray) -> tuple[np.ndarray, ...]:
    """Find when the operations `gaps`, whose launches are known, are ready, whether they are later ones of their
    launch, and the shortest way from launch to start."""
    known = np.flatnonzero(ops.call >= 0)
    gaps = np.searchsorted(known, gaps)
    start, kind, call = ops.start[known], ops.kind[known], ops.call[known]
    is_node = calls.is_shared[call] | (kind == _GRAPHS)
    is_later = is_node.copy()
    nodes = np.flatnonzero(is_node)
    is_later[nodes[np.unique(call[nodes], return_index=True)[1]]] = False
    launch, launch_end = calls.start[call], calls.end[call]
    least = idle_time.find_least_lag(start, launch, launch_end, is_node, is_later, drifts=True)[gaps]
    usual = int(np.median(launch_end - launch))
    start, kind, launch, launch_end, is_node = (values[gaps] for values in (start, kind, launch, launch_end, is_node))
    # A call of a kernel that takes longer than usual (it loads code) launches it later by as much. The call of a
    # copy may take long because it waits for the copy.
    launch += np.where(kind == COPIES, 0, np.maximum(launch_end - launch - usual, 0))
    return idle_time.compute_ready_times(start, launch, launch_end, is_node, least), is_later[gaps], least


def find_syncs(capture: Capture) -> dict[int, intervals.Union]:
    """When a thread of each process was in a synchronisation call."""
    names = capture.api["name"].cat
    waits = np.array([cuda_api.find_group(str(name)) == cuda_api.SYNCHRONISATION for name in names.categories], bool)
    calls = capture.api[waits[names.codes]]
    return _unite(calls, "process")


def _unite(events: pd.DataFrame, owner: str) -> dict[int, intervals.Union]:
    """Unite the times of the events of each process or thread (owner)."""
    return {
        int(number): intervals.Union(mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy())
        for number, mine in events.groupby(owner, sort=False)
    }


def _add_busy(table: np.ndarray, ops: Operations) -> None:
    """Add, by kind and phase, the time in which operations of that kind run and none of an earlier kind."""
    earlier = intervals.Union(ops.start[:0], ops.end[:0])
    present = [number for number in (_KERNELS, _GRAPHS, _COMMUNICATION, COPIES) if (ops.kind == number).any()]
    for number in present:
        mine = ops.kind == number
        begins, ends = ops.start[mine], ops.end[mine]
        begins = np.maximum(begins, intervals.find_covered_before(np.zeros(len(begins), np.int8), begins, ends))
        np.maximum(ends, begins, out=ends)
        alone = ends - begins - earlier.measure_covered(begins, ends)
        table[number] += _sum_phases(ops.phase[mine], alone)
        if number == COPIES:
            table[_HOST_COPIES] += _sum_phases(ops.phase[mine], np.where(ops.is_host_copy[mine], alone, 0))
        if number != present[-1]:
            both = (begins, ends) if number == present[0] else (np.r_[earlier.start, begins], np.r_[earlier.end, ends])
            earlier = intervals.Union(*both)


def _measure_compute(ops: Operations) -> np.ndarray:
    """Return by phase the time in which matmuls or attention run."""
    start, end = ops.start[ops.is_compute], ops.end[ops.is_compute]
    begin = np.maximum(start, intervals.find_covered_before(np.zeros(len(start), np.int8), start, end))
    return _sum_phases(ops.phase[ops.is_compute], np.maximum(end, begin) - begin)


def _sum_phases(phase: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Sum for each of PHASES (int64)."""
    return sum_by(phase, values, len(PHASES))
