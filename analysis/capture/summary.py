"""What a capture holds, summarised: the tables that `show` prints, and the JSON interface.

`summarise` returns one frame a section, and `Summary.as_json()` the stable interface; docs are in `SECTIONS`, one
line a column. Everything is vectorised: a capture of a million kernels takes about a second.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import capture_advice, collective_time, findings, intervals, limit_of_capture
from profiler_job.analysis.capture.attribution import ATTRIBUTIONS, Attribution, attribute
from profiler_job.analysis.capture.believed_launches import NO_CALL
from profiler_job.analysis.capture.blocks import BLOCK, count_by, split_into_blocks, sum_by
from profiler_job.analysis.capture.capture_data import UNKNOWN_PROCESS, Capture, get_process_id
from profiler_job.analysis.capture.communication import measure
from profiler_job.analysis.capture.distinct_values import encode, find_distinct
from profiler_job.analysis.capture.inferred import infer_phases
from profiler_job.analysis.capture.operations import summarise_operations
from profiler_job.analysis.capture.phase_names import parse_module
from profiler_job.analysis.capture.range_nesting import split_by_depth
from profiler_job.analysis.capture.selection import ALL, Selection, find_first_event, find_gpus, select
from profiler_job.analysis.reference import kernel_families
from profiler_job.jobs.contract.ranges import ALL_PHASES

SECTIONS: dict[str, dict[str, str]] = {
    "verdict": limit_of_capture.COLUMNS,
    "verdict_phases": limit_of_capture.PHASE_COLUMNS,
    "kernels": {
        "name": "full demangled name",
        "family": "kernel family",
        "rule": "rule of the taxonomy that says so; empty where none does",
        "calls": "kernels",
        "total_ns": "sum of their durations",
        "share": "part of all kernel time",
        "mean_ns": "mean duration of a kernel",
        "min_ns": "the shortest",
        "max_ns": "the longest",
    },
    "families": {
        "family": "kernel family",
        "calls": "kernels",
        "total_ns": "sum of their durations",
        "share": "part of all kernel time",
    },
    "ranges": {
        "name": "NVTX name, without the numbers of PyTorch; domain:name outside the default domain",
        "style": "PushPop or StartEnd",
        "instances": "ranges of that name; one inside another of the same name is not counted again",
        "kernel_calls": "kernels launched inside: by a push/pop range's thread, by a start/end range's process",
        "kernel_ns": "sum of their durations",
        "busy_ns": "time in which at least one of them ran, summed over GPUs; null where too many ranges overlap",
        "projected_ns": "from the start of the first GPU operation to the end of the last, summed over instances",
        "host_ns": "from the start to the end of the range on the host, summed over instances",
    },
    "phases": {
        "phase": f"{', '.join(ALL_PHASES)}; empty for kernels of no phase",
        "kernel_calls": "kernels",
        "kernel_ns": "sum of their durations",
        "share": "part of all kernel time",
        "busy_ns": "time in which at least one of them ran, summed over GPUs",
        "host_ns": "host time of the phase's outermost ranges, in the process that has most; null where it has none",
        "exact_share": "part of kernel_ns whose phase is known from the launching thread itself",
        "early_share": "part that is known so, but seems to begin before its launch",
        "linked_share": "part that is known from the launching thread and PyTorch's number of its operation of forward",
        "phase_share": "part whose phase is known by time, from ranges of other threads",
        "inferred_share": "part whose phase is inferred from kernels and threads, without a range",
    },
    "api": {
        "name": "CUDA runtime or driver function, without the version of its entry point",
        "calls": "calls",
        "total_ns": "host time inside them",
        "launches": "kernels launched by them",
        "latency_median_ns": "from the start of the call to the start of the kernel; null without kernels",
        "latency_max_ns": "the longest of these",
    },
    "syncs": {"kind": "kind of synchronisation", "count": "how many", "total_ns": "time waited"},
    "memops": {
        "operation": "memcpy with its direction, or memset",
        "count": "operations",
        "bytes": "bytes moved or set",
        "total_ns": "sum of durations",
    },
    "gpus": {
        "gpu": "number of the GPU",
        "name": "its name",
        "sm_count": "streaming multiprocessors",
        "memory_bytes": "memory",
        "clock_hz": "highest clock",
        "operations": "kernels, graph executions, copies and fills on it",
        "kernel_ns": "sum of kernel durations",
        "busy_ns": "time in which any operation ran",
        "span_ns": "from the start of its first operation to the end of its last",
        "idle_share": "part of span_ns in which nothing ran",
    },
    "communication": collective_time.GPU_COLUMNS,
    "collectives": collective_time.COLLECTIVE_COLUMNS,
    "messages": collective_time.MESSAGE_COLUMNS,
    "findings": findings.COLUMNS,
    "advice": capture_advice.COLUMNS,
    "problems": {"what": "what is wrong with the capture", "consequence": "what was made of it"},
    "missing": {"what": "table, column or event that the capture lacks", "consequence": "what cannot be said for it"},
}

NUM_MOMENTS = 240
"""Into which the time of a capture is cut, to see when its GPUs are busy."""


@dataclass(kw_only=True)
class Summary:
    """capture: facts; coverage: shares of kernel time by attribution; sections: a frame for each of SECTIONS; shown:
    the sections that are asked for; busy: of each GPU the share of NUM_MOMENTS equal pieces of the events' time in
    which it is busy, where `summarise` was asked for it; phases_ns: kernel time by phase without --between, where that
    leaves a part and gains are to be predicted."""

    capture: dict
    coverage: dict[str, float | None]
    launches: dict
    sections: dict[str, pd.DataFrame] = field(default_factory=dict)
    shown: tuple[str, ...] = tuple(SECTIONS)
    busy: dict[int, np.ndarray] = field(default_factory=dict)
    phases_ns: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict:
        """The stable interface: capture, coverage, launches, and one list of objects for each section that is shown."""
        rows = {name: _make_records(self.sections[name]) for name in self.shown}
        return {"capture": self.capture, "coverage": self.coverage, "launches": self.launches} | rows


Predict = Callable[[Summary, Callable[[], pd.DataFrame]], Summary]
"""Adds predicted gains to the advice of a summary; the second argument gives what `summarise_operations` gives of its
capture."""


def _make_records(frame: pd.DataFrame) -> list[dict]:
    plain = frame.astype(object).where(frame.notna(), None)
    return plain.to_dict("records")


def summarise(
    capture: Capture,
    attribution: Attribution | None = None,
    taxonomy: kernel_families.Taxonomy = kernel_families.BUILT_IN,
    chosen: Mapping[str, str] | None = None,
    selection: Selection = ALL,
    with_moments: bool = False,
    predict: Predict | None = None,
) -> Summary:
    """Summary of what `selection` leaves of `capture`, its kernels classified by `taxonomy`. chosen: phases of ranges
    that the user names; with_moments: `busy`, too, which is for drawing; predict: adds gains to the advice, where that
    is shown. Raises ExportError."""
    attribution = attribution or infer_phases(capture, attribute(capture, chosen))
    zero = find_first_event(capture)
    of_all_gpus = capture, attribution
    capture, attribution = select(*of_all_gpus, selection)
    kernels = capture.kernels
    duration = (kernels["end_ns"] - kernels["start_ns"]).to_numpy()
    gpu = find_gpus(capture, kernels)
    overlaps = _Overlaps(gpu, kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy())
    gpus = {"kernels": gpu} | {name: find_gpus(capture, getattr(capture, name)) for name in ("graphs", "memops")}
    of_gpus, of_phases = limit_of_capture.split_elapsed(capture, attribution, gpus, taxonomy)
    if selection.range is not None:  # of what else the GPU did meanwhile nothing is left: it would count as idle
        of_gpus, of_phases = of_gpus.head(0), of_phases.head(0)
    sections = {
        "verdict": of_gpus,
        "verdict_phases": of_phases,
        "kernels": _summarise_kernels(kernels, duration, taxonomy),
        "ranges": _summarise_ranges(capture, attribution, duration, overlaps),
        "phases": _summarise_phases(attribution, duration, overlaps),
        "api": _summarise_api(capture, attribution),
        "syncs": _summarise_syncs(capture),
        "memops": _summarise_memops(capture),
        "gpus": _summarise_gpus(capture, gpus, duration),
    }
    if selection.gpu is None:
        exchanged = measure(capture, attribution, gpu, taxonomy)
    else:  # who waits for whom shows in the kernels of the other GPUs
        every, places = select(*of_all_gpus, replace(selection, gpu=None))
        exchanged = measure(every, places, find_gpus(every, every.kernels), taxonomy).select_gpu(selection.gpu)
    sections |= {"communication": exchanged.of_gpus}
    sections |= {"collectives": exchanged.collectives, "messages": exchanged.messages}
    sections["families"] = _summarise_families(sections["kernels"])
    sections["findings"] = findings.find_findings(capture, attribution, sections["gpus"], taxonomy)
    if selection.range is not None:
        sections["gpus"]["idle_share"] = None
        sections |= {name: sections[name].head(0) for name in ("communication", "collectives", "messages")}
        of_idle = sections["findings"]["kind"].isin(findings.OF_IDLE_TIME)
        sections["findings"] = sections["findings"][~of_idle].reset_index(drop=True)
    sections["problems"] = _list_problems(capture, attribution)
    sections["missing"] = _list_missing(capture, attribution, chosen or {})
    total = int(duration.sum())
    codes = attribution.kernels["attribution"].cat.codes.to_numpy()
    time = sum_by(codes, duration, len(ATTRIBUTIONS))
    coverage = {name: (float(part / total) if total else None) for name, part in zip(ATTRIBUTIONS, time)}
    frames = (kernels, capture.graphs, capture.memops, capture.syncs, capture.api, capture.ranges)
    processes = {int(process) for frame in frames for process in find_distinct(frame["process"].to_numpy())}
    graph_ns = int((capture.graphs["end_ns"] - capture.graphs["start_ns"]).sum())
    facts = {
        "source": capture.source,
        "selection": selection.as_json(),
        "nsys_version": capture.nsys_version,
        "schema_version": capture.schema_version,
        "duration_ns": int(capture.duration_ns),
        "events_ns": int(capture.events_ns),
        "processes": sorted(get_process_id(process) for process in processes - {UNKNOWN_PROCESS}),
        **_find_work(capture, zero),
        "num_gpus": len(sections["gpus"]),
        "num_kernels": len(kernels),
        "num_graph_executions": len(capture.graphs),
        "num_api_calls": len(capture.api),
        "num_ranges": len(capture.ranges),
        "num_open_ranges": int(capture.ranges["is_open"].sum()),
        "kernel_ns": total,
        "graph_ns": graph_ns,
        "kernel_share": total / (total + graph_ns) if total + graph_ns else None,
        "unclassified_share": _sum_unclassified(sections["families"]),
        "unmatched_ranges": _find_unmatched_ranges(attribution, duration),
        "communication_ranks": exchanged.num_ranks,
        "ranks_apart_ns": exchanged.apart_ns,
        "no_waiting_because": exchanged.why_not,
        "no_gain_because": None,
    }
    sections["advice"] = capture_advice.advise(facts, sections)
    summary = Summary(
        capture=facts,
        coverage=coverage,
        launches=_summarise_launches(attribution, kernels, gpu, of_gpus),
        sections={name: sections[name] for name in SECTIONS},
        shown=selection.sections or tuple(SECTIONS),
        busy=_measure_busy_moments(capture, gpus) if with_moments else {},
    )
    if predict is None or "advice" not in summary.shown:
        return summary
    if selection.between:
        summary = replace(summary, phases_ns=_sum_phases(*select(*of_all_gpus, replace(selection, between=None))))
    return predict(summary, lambda: summarise_operations(capture, attribution, taxonomy))


def _sum_phases(capture: Capture, attribution: Attribution) -> dict[str, int]:
    duration = capture.kernels["end_ns"] - capture.kernels["start_ns"]
    sums = duration.groupby(attribution.kernels["phase"].astype(str).to_numpy()).sum()
    return {str(phase): int(time_ns) for phase, time_ns in sums.items()}


def _find_work(capture: Capture, zero: int) -> dict[str, int | None]:
    """When the work of the GPUs begins and ends, and until when meanwhile kernels' code is loaded; ns after `zero`."""
    frames = [frame for frame in (capture.kernels, capture.graphs, capture.memops) if len(frame)]
    if not frames:
        return dict.fromkeys(("work_start_ns", "work_end_ns", "loading_end_ns"))
    starts = min(int(frame["start_ns"].min()) for frame in frames)
    ends = max(int(frame["end_ns"].max()) for frame in frames)
    loads = capture.api["name"].cat.categories.str.contains(r"^cu(?:da)?(?:Library|Module)Load", regex=True)
    calls = capture.api[np.asarray(loads, bool)[capture.api["name"].cat.codes]] if len(capture.api) else capture.api
    during = calls["end_ns"][(calls["end_ns"] > starts) & (calls["end_ns"] < ends)]
    loading_end = int(during.max()) - zero if len(during) else None
    return {"work_start_ns": starts - zero, "work_end_ns": ends - zero, "loading_end_ns": loading_end}


# ------------------------------------------------------------------------------------------------------------ busy time


class _Overlaps:
    """The kernels that run at the same time as another kernel of their GPU. Kernels are given by start.

    GPU busy is the union of `intervals`, kernels only. Time without overlap is a sum, which is fast for any grouping,
    so only overlapping kernels need the union.
    """

    def __init__(self, gpu: np.ndarray, start: np.ndarray, end: np.ndarray):
        numbers, code = encode(gpu)
        self.num_gpus = max(len(numbers), 1)
        self.gpu, self.start, self.end = code.astype(np.min_scalar_type(self.num_gpus)), start, end
        self.shared = np.zeros(len(gpu), bool)
        self.blocks: list[np.ndarray] = []  # shared rows of one GPU, cut only where nothing runs on it
        for number in range(len(numbers)):
            rows = np.flatnonzero(self.gpu == number)
            latest = np.maximum.accumulate(end[rows])
            # A cluster of overlapping kernels: all from one that starts when none runs to the next such one.
            begins = np.flatnonzero(np.r_[True, start[rows[1:]] >= latest[:-1]])
            size = np.diff(np.r_[begins, len(rows)])
            rows = rows[np.repeat(size > 1, size)]
            self.shared[rows] = True
            ends = np.cumsum(size[size > 1])
            cuts = np.searchsorted(ends, np.arange(BLOCK, len(rows), BLOCK))
            self.blocks += [block for block in np.split(rows, ends[np.unique(cuts)]) if len(block)]

    def discount(self, busy: np.ndarray, group: np.ndarray, rows: np.ndarray) -> None:
        """Subtract from the sums of each group, in place, the time that kernels of one group and GPU overlap an earlier
        one. `rows`: all kernels of the groups, or of one block, by start on each GPU."""
        if not len(rows):
            return
        key = group.astype(np.int64) * self.num_gpus + self.gpu[rows]
        order = np.argsort(key.astype(np.min_scalar_type(len(busy) * self.num_gpus)), kind="stable")  # 16 bits: radix
        key, rows = key[order], rows[order]
        start, end = self.start[rows], self.end[rows]
        twice = end - start - intervals.measure_new(key, start, end)
        first = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])
        np.subtract.at(busy, key[first] // self.num_gpus, np.add.reduceat(twice, first))


# ------------------------------------------------------------------------------------------------------------- sections


def _compute_share(values: pd.Series) -> pd.Series:
    total = values.sum()
    return values / total if total else values.astype("float64")


def _make_frame(section: str, columns: dict, by: str | None = None) -> pd.DataFrame:
    frame = pd.DataFrame(columns)[list(SECTIONS[section])]
    return frame.sort_values(by, ascending=False, kind="stable", ignore_index=True) if by else frame


def _summarise_kernels(kernels: pd.DataFrame, duration: np.ndarray, taxonomy: kernel_families.Taxonomy) -> pd.DataFrame:
    names = kernels["kernel_name"].cat.categories
    code = kernels["kernel_name"].cat.codes.to_numpy()
    calls = count_by(code, len(names))
    total = sum_by(code, duration, len(names))
    shortest, longest = np.full(len(names), np.iinfo(np.int64).max), np.full(len(names), -1)
    np.minimum.at(shortest, code, duration)
    np.maximum.at(longest, code, duration)
    used = np.flatnonzero(calls)
    classifications = [taxonomy.classify(str(names[i])) for i in used]
    columns = {
        "name": [str(names[i]) for i in used],
        "family": [classification.family for classification in classifications],
        "rule": [classification.rule for classification in classifications],
        "calls": calls[used],
        "total_ns": total[used],
        "share": _compute_share(pd.Series(total[used])),
        "mean_ns": total[used] / calls[used],
        "min_ns": shortest[used],
        "max_ns": longest[used],
    }
    return _make_frame("kernels", columns, "total_ns")


def _summarise_families(kernels: pd.DataFrame) -> pd.DataFrame:
    totals = kernels.groupby("family", sort=True)[["calls", "total_ns"]].sum().reset_index()
    return _make_frame("families", totals.assign(share=_compute_share(totals["total_ns"])), "total_ns")


def _sum_unclassified(families: pd.DataFrame) -> float | None:
    if not len(families):
        return None
    return float(families["share"][families["family"] == kernel_families.OTHER].sum())


def _summarise_ranges(
    capture: Capture, attribution: Attribution, duration: np.ndarray, overlaps: _Overlaps
) -> pd.DataFrame:
    ranges = attribution.ranges
    keys = pd.DataFrame({name: ranges[name].cat.codes for name in ("domain", "plain_name", "style")})
    grouped = keys.groupby(list(keys), sort=True)
    group = grouped.ngroup().to_numpy()
    unique = keys.assign(group=group).drop_duplicates("group").sort_values("group")
    num_groups = len(unique)
    pushed = (ranges["style"] == "PushPop").to_numpy()
    outermost = _mark_outermost(ranges, group)
    sums = _PushPopSums(capture, attribution, duration)
    calls = np.bincount(group[outermost], sums.calls[outermost], num_groups).astype(np.int64)
    time = np.bincount(group[outermost], sums.time[outermost], num_groups).astype(np.int64)
    span = np.bincount(group[outermost], sums.projected[outermost], num_groups).astype(np.int64)
    busy = _measure_push_pop_busy(attribution, group, outermost, time, overlaps)
    if not pushed.all():
        sums = _sum_start_end(capture, attribution, group, np.flatnonzero(~pushed), overlaps)
        calls, time, busy, span = (own + other for own, other in zip((calls, time, busy, span), sums))
    host = (ranges["end_ns"] - ranges["start_ns"]).to_numpy()
    domain, name, style = (ranges[c].cat.categories[unique[c]] for c in ("domain", "plain_name", "style"))
    columns = {
        "name": [f"{d}:{n}" if d else str(n) for d, n in zip(domain, name)],
        "style": list(style),
        "instances": np.bincount(group[outermost], minlength=num_groups),
        "kernel_calls": calls,
        "kernel_ns": time,
        "busy_ns": pd.array(np.where(np.isnan(busy), 0, busy).astype(np.int64), "Int64"),
        "projected_ns": span,
        "host_ns": np.bincount(group[outermost], host[outermost], num_groups).astype(np.int64),
    }
    frame = _make_frame("ranges", columns)
    frame.loc[np.isnan(busy), "busy_ns"] = pd.NA
    return frame.sort_values(["kernel_ns", "host_ns"], ascending=False, kind="stable", ignore_index=True)


def _mark_outermost(ranges: pd.DataFrame, group: np.ndarray) -> np.ndarray:
    """Rows that lie in no other row of their group: push/pop ranges of one thread, and every start/end range."""
    outermost = np.ones(len(ranges), bool)
    rows = np.flatnonzero(ranges["style"] == "PushPop")
    if not len(rows):
        return outermost
    thread = np.unique(ranges["thread"].to_numpy()[rows], return_inverse=True)[1]
    key = thread * (int(group.max()) + 1) + group[rows]
    order = np.argsort(key, kind="stable")
    key, rows = key[order], rows[order]
    start, end = ranges["start_ns"].to_numpy()[rows], ranges["end_ns"].to_numpy()[rows]
    outermost[rows] = start >= intervals.find_covered_before(key, start, end)
    return outermost


class _PushPopSums:
    """Per push/pop range, what it and the ranges inside it launched: calls, time, projected (0 without GPU
    operations)."""

    def __init__(self, capture: Capture, attribution: Attribution, duration: np.ndarray):
        nesting, count = attribution.nesting, len(attribution.ranges)
        self.calls, self.time = np.zeros(count, np.int64), np.zeros(count, np.int64)
        first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
        for kind in ("kernels", "memops"):
            place, frame = getattr(attribution, kind), getattr(capture, kind)
            start, end = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
            for chain in attribution.find_chains(place):
                row = np.flatnonzero(chain >= 0)
                inside = chain[row]
                np.minimum.at(first, inside, start[row])
                np.maximum.at(last, inside, end[row])
                if kind == "kernels":
                    self.calls += np.bincount(inside, minlength=count)
                    self.time += np.bincount(inside, duration[row], count).astype(np.int64)
        parent = nesting.stack_parent
        for rows in split_by_depth(parent)[:0:-1]:
            above = parent[rows]
            np.add.at(self.calls, above, self.calls[rows])
            np.add.at(self.time, above, self.time[rows])
            np.minimum.at(first, above, first[rows])
            np.maximum.at(last, above, last[rows])
        self.projected = np.where(last >= first, last - np.where(last >= first, first, 0), 0)


def _measure_push_pop_busy(attribution, group, outermost, time, overlaps: _Overlaps) -> np.ndarray:
    """Measure the busy time of each group; NaN if overlapping kernels are in too many ranges to compute it. It differs
    from the sum `time` only for overlapping kernels."""
    busy = time.copy()
    parent = attribution.nesting.stack_parent
    counted, _ = _count_ranges(parent, outermost)
    pairs = int(counted.max(initial=0)) * max(map(len, overlaps.blocks), default=0)
    parts = pairs // _MOST_PAIRS + 1
    if parts > _MOST_PARTS:
        return np.where(time > 0, np.nan, 0)
    place = attribution.kernels[["range_id", "thread", "launch_ns"]]
    for part in range(parts):
        _, innermost = _count_ranges(parent, outermost & (group % parts == part))
        for rows in overlaps.blocks:
            held_in = []
            for chain in attribution.find_chains(place.iloc[rows]):
                chain = np.where(chain >= 0, innermost[chain], -1)
                while (chain >= 0).any():
                    held_in.append(chain)
                    above = np.where(chain >= 0, parent[chain], -1)
                    chain = np.where(above >= 0, innermost[above], -1)
            if held_in:
                ranges = np.column_stack(held_in).ravel()  # grouped by kernel, so that kernels stay in order
                held = np.flatnonzero(ranges >= 0)
                overlaps.discount(busy, group[ranges[held]], rows[held // len(held_in)])
    return busy.astype("float64")


def _count_ranges(parent: np.ndarray, outermost: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count, for each range, how many ranges that are outermost of their name hold it, itself included. Also return the
    innermost of them (-1 none)."""
    counted = outermost.astype(np.int64)
    innermost = np.where(outermost, np.arange(len(parent)), -1)
    for rows in split_by_depth(parent)[1:]:
        above = parent[rows]
        counted[rows] += counted[above]
        innermost[rows] = np.where(outermost[rows], rows, innermost[above])
    return counted, innermost


_MOST_PAIRS = 5_000_000  # of kernel and range, worked out at once: half a GiB
_MOST_PARTS = 4  # more than a second each


def _sum_start_end(capture: Capture, attribution: Attribution, group, rows, overlaps: _Overlaps):
    """calls, time, busy (NaN where too much overlaps) and projected time of each group of the start/end ranges `rows`:
    what their process launched while they were open. A kernel in two ranges of a group counts once."""
    ranges, place = attribution.ranges, attribution.kernels
    num_groups = int(group.max()) + 1
    calls, time, span = (np.zeros(num_groups, np.int64) for _ in range(3))
    starts, ends, processes = (ranges[name].to_numpy()[rows] for name in ("start_ns", "end_ns", "process"))
    owner, known = capture.kernels["process"].to_numpy(), place["api"].to_numpy() >= 0
    beside: list[tuple[np.ndarray, ...]] = []  # group, low and high of slices of `shared`
    shared = np.empty(0, np.int64)
    for process in np.unique(processes):
        mine = processes == process
        kernel = np.flatnonzero(known & (owner == process))
        kernel = kernel[np.argsort(place["launch_ns"].to_numpy()[kernel], kind="stable")]
        launch, start, end = place["launch_ns"].to_numpy()[kernel], overlaps.start[kernel], overlaps.end[kernel]
        low, high = np.searchsorted(launch, starts[mine]), np.searchsorted(launch, ends[mine])
        np.add.at(span, group[rows[mine]], _measure_projected(start, end, low, high))
        order = np.lexsort((low, group[rows[mine]]))
        number, low, high = group[rows[mine]][order], low[order], high[order]
        low = np.minimum(np.maximum(low, intervals.find_covered_before(number, low, high)), high)
        np.add.at(calls, number, high - low)
        until = np.r_[0, np.cumsum(end - start)]
        np.add.at(time, number, until[high] - until[low])
        num_before = np.r_[0, np.cumsum(overlaps.shared[kernel])] + len(shared)
        beside.append((number, num_before[low], num_before[high]))
        shared = np.concatenate([shared, kernel[overlaps.shared[kernel]]])
    busy = time.astype("float64")
    number, low, high = map(np.concatenate, zip(*beside))
    pairs = np.bincount(number, high - low, num_groups)
    ascending = np.argsort(pairs, kind="stable")
    too_many = np.zeros(num_groups, bool)
    too_many[ascending] = np.cumsum(pairs[ascending]) > _MOST_PARTS * _MOST_PAIRS
    too_many |= pairs > _MOST_PAIRS
    busy[too_many] = np.nan
    part = (np.cumsum(np.where(too_many, 0, pairs)) // _MOST_PAIRS)[number]
    for part_number in np.unique(part[high > low]):
        here = np.flatnonzero((part == part_number) & ~too_many[number])
        kernel, held_in = shared[_expand_slices(low[here], high[here])], np.repeat(number[here], (high - low)[here])
        order = np.argsort(kernel, kind="stable")
        counted = np.zeros(num_groups, np.int64)
        overlaps.discount(counted, held_in[order], kernel[order])
        busy += counted
    return calls, time, busy, span


def _expand_slices(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The numbers of all slices low:high, one slice after the other."""
    size = high - low
    return np.repeat(low - np.cumsum(size) + size, size) + np.arange(size.sum())


def _measure_projected(start: np.ndarray, end: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Latest end - earliest start of each slice low:high, 0 where it is empty. Doubling windows, so that long slices
    cost no more."""
    size, width = high - low, 1
    projected = np.zeros(len(low), np.int64)
    while len(start):
        fits = (size >= width) & (size < 2 * width)
        a, b = low[fits], high[fits] - width
        projected[fits] = np.maximum(end[a], end[b]) - np.minimum(start[a], start[b])
        if not (size >= 2 * width).any():
            break
        start, end = np.minimum(start[:-width], start[width:]), np.maximum(end[:-width], end[width:])
        width *= 2
    return projected


def _summarise_phases(attribution: Attribution, duration: np.ndarray, overlaps: _Overlaps) -> pd.DataFrame:
    place, ranges = attribution.kernels, attribution.ranges
    code, names = place["phase"].cat.codes.to_numpy(), [*ALL_PHASES, ""]
    num = len(names)
    calls = count_by(code, num)
    if not (ranges["phase"] != "").any() and not calls[:-1].any():
        return pd.DataFrame(columns=list(SECTIONS["phases"]))
    time = sum_by(code, duration, num)
    how = place["attribution"].cat.codes.to_numpy()
    parts = sum_by(code * np.int8(len(ATTRIBUTIONS)) + how, duration, num * len(ATTRIBUTIONS))
    shares = parts.reshape(num, -1) / np.where(time > 0, time, np.nan)[:, None]
    busy = time.copy()
    for rows in overlaps.blocks:
        overlaps.discount(busy, code[rows], rows)
    host, known = _measure_host_of_phases(ranges, num)
    columns = {
        "phase": names,
        "kernel_calls": calls,
        "kernel_ns": time,
        "share": _compute_share(pd.Series(time)),
        "busy_ns": busy,
        "host_ns": pd.Series(host, dtype="Int64").mask(~known),
    } | {f"{name}_share": shares[:, i] for i, name in enumerate(ATTRIBUTIONS) if name != "none"}
    frame = _make_frame("phases", columns)
    return frame[(calls > 0) | (host > 0)].reset_index(drop=True)


def _measure_host_of_phases(ranges: pd.DataFrame, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Measure the CPU time of each phase's outermost ranges, without other phases inside them, and whether the phase
    has any. Among several processes the largest counts: they run at the same time, so a sum has no meaning."""
    phase, parent = ranges["phase"].cat.codes.to_numpy(), ranges["parent_id"].to_numpy()
    own = np.array([parse_module(str(name)) is None for name in ranges["plain_name"].cat.categories], bool)
    around = np.where(parent >= 0, phase[parent], num - 1) if len(ranges) else phase
    root = (phase < num - 1) & own[ranges["plain_name"].cat.codes] & (phase != around)
    wall = (ranges["end_ns"] - ranges["start_ns"]).to_numpy()[root]
    owners, owner = np.unique(ranges["process"].to_numpy()[root], return_inverse=True)
    cells = max(len(owners), 1) * num
    by_owner = np.bincount(owner * num + phase[root], wall, cells) - np.bincount(
        owner * num + around[root], wall, cells
    )
    host = by_owner.reshape(-1, num).max(axis=0)
    return np.where(np.arange(num) < num - 1, host, 0).astype(np.int64), np.bincount(phase[root], minlength=num) > 0


def _summarise_api(capture: Capture, attribution: Attribution) -> pd.DataFrame:
    api, place = capture.api, attribution.kernels
    names = api["name"].cat.categories
    code = api["name"].cat.codes.to_numpy()
    launched = np.flatnonzero(place["api"].to_numpy() >= 0)
    row = place["api"].to_numpy()[launched]
    launches = np.bincount(code[row], minlength=len(names))
    # The first kernel of a graph launch is what the call led to; the later ones wait for it.
    called = np.zeros(len(api), bool)
    called[row] = True
    if called.sum() < len(row):
        row, first = np.unique(row, return_index=True)
        launched = launched[first]
    latency = capture.kernels["start_ns"].to_numpy()[launched] - place["launch_ns"].to_numpy()[launched]
    launcher = code[row]
    used = np.unique(launcher)
    median, longest = np.full(len(names), np.nan), np.full(len(names), -1)
    for function in used:
        mine = latency[launcher == function] if len(used) > 1 else latency
        median[function], longest[function] = np.median(mine), mine.max()
    columns = {
        "name": [str(name) for name in names],
        "calls": count_by(code, len(names)),
        "total_ns": _sum_durations(code, api, len(names)),
        "launches": launches,
        "latency_median_ns": median,
        "latency_max_ns": pd.Series(longest, dtype="Int64").mask(np.isnan(median)),
    }
    frame = _make_frame("api", columns, "total_ns")
    return frame[frame["calls"] > 0].reset_index(drop=True)


def _summarise_launches(
    attribution: Attribution, kernels: pd.DataFrame, gpu: np.ndarray, of_gpus: pd.DataFrame
) -> dict:
    """Launch latency and queue depth over all kernels: how many launched kernels of that GPU had not begun when one
    was launched. A mean says nothing of the time in which nothing is launched, which dry_ns is."""
    place = attribution.kernels
    known = place["api"].to_numpy() >= 0
    if not known.any():
        return {"kernels": 0} | dict.fromkeys(_LAUNCH_FIGURES)
    start, launch = kernels["start_ns"].to_numpy(), place["launch_ns"].to_numpy()
    latency = (start - launch)[known]
    depths = []
    for number in find_distinct(gpu[known]):
        rows = np.flatnonzero(known & (gpu == number))
        begun = np.searchsorted(start[rows], np.sort(launch[rows], kind="stable"), side="right")
        depths.append(np.maximum(np.arange(len(rows)) - begun, 0))
    depth = np.concatenate(depths)
    figures = (
        float(np.median(latency)),
        int(latency.max()),
        int(depth.sum()) / len(depth),
        float(np.median(depth)),
        int(depth.max()),
        int(of_gpus[["late_launch_ns", "sync_ns"]].to_numpy().sum()) if len(of_gpus) else None,
    )
    return {"kernels": len(depth)} | dict(zip(_LAUNCH_FIGURES, figures))


_LAUNCH_FIGURES = ("latency_median_ns", "latency_max_ns", "queue_mean", "queue_median", "queue_max", "dry_ns")


def _sum_durations(code: np.ndarray, frame: pd.DataFrame, num_groups: int) -> np.ndarray:
    """Sum of the durations of each group (int64), a block of rows at a time: there are more API calls than kernels."""
    start, end = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
    total = np.zeros(num_groups, np.int64)
    for rows in split_into_blocks(len(code)):
        total += np.bincount(code[rows], end[rows] - start[rows], num_groups).astype(np.int64)
    return total


def _sum_by_category(frame: pd.DataFrame, column: str, sums: dict[str, np.ndarray]) -> dict:
    names = frame[column].cat.categories
    code = frame[column].cat.codes.to_numpy()
    counted = {name: np.bincount(code, values, len(names)).astype(np.int64) for name, values in sums.items()}
    return {column: [str(category) for category in names], "count": np.bincount(code, minlength=len(names))} | counted


def _summarise_syncs(capture: Capture) -> pd.DataFrame:
    waited = {"total_ns": (capture.syncs["end_ns"] - capture.syncs["start_ns"]).to_numpy()}
    return _make_frame("syncs", _sum_by_category(capture.syncs, "kind", waited), "total_ns")


def _summarise_memops(capture: Capture) -> pd.DataFrame:
    memops = capture.memops
    sums = {"bytes": memops["bytes"].to_numpy(), "total_ns": (memops["end_ns"] - memops["start_ns"]).to_numpy()}
    return _make_frame("memops", _sum_by_category(memops, "operation", sums), "total_ns")


def _summarise_gpus(capture: Capture, gpus: dict[str, np.ndarray], duration: np.ndarray) -> pd.DataFrame:
    facts = {int(gpu["id"]): gpu for gpu in capture.gpus if gpu.get("id") is not None}
    frames = [getattr(capture, name) for name in gpus]
    rows = []
    for number in sorted({int(number) for gpu in gpus.values() for number in find_distinct(gpu)}):
        fact = facts.get(number, {})
        mine = [gpu == number for gpu in gpus.values()]
        start, end = (
            np.concatenate([frame[name].to_numpy()[here] for frame, here in zip(frames, mine)])
            for name in ("start_ns", "end_ns")
        )
        one_gpu = np.zeros(len(start), np.int8)
        busy = int(intervals.measure_busy(one_gpu, one_gpu, start, end, 1)[0])
        span = int(end.max() - start.min())
        rows.append(
            {name: fact.get(name) for name in ("name", "sm_count", "memory_bytes", "clock_hz")}
            | {
                "gpu": number,
                "operations": len(start),
                "kernel_ns": int(duration[mine[0]].sum()),
                "busy_ns": busy,
                "span_ns": span,
                "idle_share": 1 - busy / span if span else None,
            }
        )
    integers = dict.fromkeys(("sm_count", "memory_bytes", "clock_hz"), "Int64")  # though unknown for some GPUs
    return pd.DataFrame(rows, columns=list(SECTIONS["gpus"])).astype(integers)


def _measure_busy_moments(capture: Capture, gpus: dict[str, np.ndarray]) -> dict[int, np.ndarray]:
    frames = [getattr(capture, name) for name in gpus]
    gpu = np.concatenate([*gpus.values()])
    start, end = (np.concatenate([frame[name].to_numpy() for frame in frames]) for name in ("start_ns", "end_ns"))
    edges = find_first_event(capture) + np.linspace(0, capture.events_ns, NUM_MOMENTS + 1)
    numbers = find_distinct(gpu).tolist()
    return {n: intervals.measure_busy_shares(start[gpu == n], end[gpu == n], edges) for n in numbers}


def _list_problems(capture: Capture, attribution: Attribution) -> pd.DataFrame:
    problems = capture.problems | attribution.problems
    place = attribution.kernels
    lead = (place["launch_ns"] - capture.kernels["start_ns"]).to_numpy()
    if num_early := int((lead > 0).sum()):
        what = f"{num_early} of {len(lead)} kernels begin before the call that launched them, by up to {lead.max()} ns"
        problems[what] = (
            "the clocks of host and GPU are that far apart, and latencies and queues as uncertain; "
            "they do not count as attributed exactly"
        )
    return pd.DataFrame(list(problems.items()), columns=list(SECTIONS["problems"]))


def _list_missing(capture: Capture, attribution: Attribution, chosen: Mapping[str, str]) -> pd.DataFrame:
    missing = dict(capture.missing)
    if len(capture.kernels) and len(capture.api):
        lost = int((attribution.kernels["api"] == NO_CALL).sum())
        if lost:
            missing[f"the launches of {lost} of {len(capture.kernels)} kernels"] = "they cannot be attributed to ranges"
    if len(capture.ranges) and not (attribution.ranges["phase"] != "").any():
        inferred = (attribution.kernels["attribution"] == "inferred").any()
        consequence = "phases are inferred from kernels and threads" if inferred else "no statement about phases"
        missing["ranges called forward, loss, backward or optimizer"] = consequence
    names = set(attribution.ranges["plain_name"].cat.categories)
    for name, phase in chosen.items():
        if name not in names:
            missing[f"ranges called {name}"] = f"--phase {phase}={name} marks nothing"
    return pd.DataFrame(list(missing.items()), columns=list(SECTIONS["missing"]))


_LARGE_SHARE, _MOST_UNMATCHED = 0.05, 3
_WHOLE_SHARE, _MOST_AROUND = 0.9, 5


def _find_unmatched_ranges(attribution: Attribution, duration: np.ndarray) -> list[str]:
    """Names of the largest ranges that match no phase, though kernels in them have none from a range. Of a range around
    (nearly) all of them, those inside."""
    ranges, place = attribution.ranges, attribution.kernels
    unknown = (place["range_id"] >= 0) & place["attribution"].isin(["exact", "early", "inferred", "none"])
    unknown &= (place["phase"] == "") | (place["attribution"] == "inferred")
    rows = np.flatnonzero(unknown)
    total = duration.sum()
    if not len(rows) or duration[rows].sum() < _LARGE_SHARE * total:
        return []
    parent, plain = ranges["parent_id"].to_numpy(), ranges["plain_name"].cat
    code = plain.codes.to_numpy()
    matches = ((ranges["phase"] == "") & ~ranges["is_operation"] & ~ranges["is_step"]).to_numpy()
    matches = matches & (ranges["domain"] == "").to_numpy()  # users do not name ranges of a library
    by_depth = split_by_depth(parent)
    unmatched: list[str] = []
    for _ in range(_MOST_AROUND):
        outermost = np.where(matches, np.arange(len(ranges)), -1)
        for level in by_depth[1:]:
            above = outermost[parent[level]]
            outermost[level] = np.where(above >= 0, above, outermost[level])
        held_in = outermost[place["range_id"].to_numpy()[rows]]
        time = np.bincount(code[held_in[held_in >= 0]], duration[rows][held_in >= 0], len(plain.categories))
        large = [int(i) for i in np.argsort(-time, kind="stable")[:_MOST_UNMATCHED] if time[i] >= _LARGE_SHARE * total]
        if not large:
            break
        unmatched = [str(plain.categories[i]) for i in large]
        if time[large[0]] < _WHOLE_SHARE * duration[rows].sum():
            break
        matches &= code != large[0]
    return unmatched
