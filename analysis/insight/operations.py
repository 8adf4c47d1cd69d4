"""Summarise what the GPUs of a capture do, by phase and name: a prediction starts from this.

Matmuls of attention are separated from the matmuls of linear layers. If a capture has PyTorch's ranges, they show it:
`aten::bmm` and `aten::baddbmm` multiply two tensors of activations. Otherwise kernels show it. The kernels between the
two matmuls of an attention that is not fused have one of its matmuls on either side. In the backward pass each of these
has a second one next to it, since backward has two matmuls for each one of forward. If attention is fused, no matmul
belongs to it.
"""

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.blocks import count_by, sum_by
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.capture.distinct_values import encode
from profiler_job.analysis.insight.findings import AttentionSpans, KernelNames, find_attention_spans, is_gemm
from profiler_job.analysis.reference.rules import Taxonomy
from profiler_job.jobs.contract.ranges import ALL_PHASES, BACKWARD

COLUMNS = ("process", "phase", "name", "family", "rule", "of_attention", "launches", "time_ns", "blocked_ns")
FULL_QUEUE = 1000
"""Launches that a GPU holds. A call that comes then waits until the GPU begins the next one; that wait is not work of
the CPU."""
_PHASES = [*ALL_PHASES, ""]
_OF_ATTENTION, _OF_LAYERS = ("aten::bmm", "aten::baddbmm"), ("aten::mm", "aten::addmm", "aten::linear")
COPIES = "copies"
"""Family of copies and fills by the driver."""


def summarise_operations(capture: Capture, attribution: Attribution, taxonomy: Taxonomy) -> pd.DataFrame:
    """Summarise the kernels, copies and fills of all GPUs, with COLUMNS. process: its number among processes that have
    any; name: of the kernel or the operation; of_attention: whether it is a matmul of attention, with two tensors;
    time_ns: the sum of their durations; blocked_ns: how long calls that launch them wait because FULL_QUEUE others have
    not begun."""
    kernels = capture.kernels
    names = KernelNames(kernels, taxonomy)
    known = pd.DataFrame(
        {"family": [one_class.family for one_class in names.classes], "rule": [c.rule for c in names.classes]},
        index=pd.Index(names.names, dtype=object),
    )
    phase = attribution.kernels["phase"].cat.codes.to_numpy()
    of_attention = _mark_attention(kernels, attribution, names, phase) if len(kernels) else np.zeros(0, bool)
    of_kernels, of_copies = _measure_blocked_launches(capture, attribution)
    rows = _sum_operations(kernels, "kernel_name", phase, of_attention, of_kernels)
    rows = rows.assign(**{column: known[column].reindex(rows["name"]).to_numpy() for column in known})
    phase = attribution.memops["phase"].cat.codes.to_numpy()
    copies = _sum_operations(capture.memops, "operation", phase, np.zeros(len(phase), bool), of_copies)
    copies = copies.assign(family=COPIES, rule="")
    return pd.concat([rows, copies], ignore_index=True)[list(COLUMNS)]


def _measure_blocked_launches(capture: Capture, attribution: Attribution) -> tuple[np.ndarray, np.ndarray]:
    """Measure for each kernel, copy or fill how long its call waits because the queue of its GPU is full, beyond the
    time that other calls take. If a call has several operations, as for a graph, the first one gets the wait."""
    frames, places = (capture.kernels, capture.memops), (attribution.kernels, attribution.memops)
    api, launch, end = (
        np.concatenate([place[name].to_numpy() for place in places]) for name in ("api", "launch_ns", "launch_end_ns")
    )
    start, device = (np.concatenate([frame[name].to_numpy() for frame in frames]) for name in ("start_ns", "device"))
    blocked = np.zeros(len(api), np.int64)
    by_start = np.argsort(start, kind="stable")
    by_start = by_start[api[by_start] >= 0]
    first = by_start[np.unique(api[by_start], return_index=True)[1]]
    for number in np.unique(device[first]):
        rows = first[device[first] == number]
        blocked[rows] = measure_blocked(launch[rows], end[rows], start[rows])
    return blocked[: len(capture.kernels)], blocked[len(capture.kernels) :]


def measure_blocked(launch: np.ndarray, launch_end: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Measure for each launch of a device how long its call waits because the queue is full, beyond the time that other
    calls take. Start and end of its call, and start of what it launches, in ns; one row for each call."""
    is_full = is_queue_full(launch, start)
    took = launch_end - launch
    blocked = np.zeros(len(took), np.int64)
    if is_full.any():
        blocked[is_full] = np.maximum(took[is_full] - int(np.median(took[~is_full])), 0)
    return blocked


def is_queue_full(launch: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Whether FULL_QUEUE others of its device have not begun when something is launched; both in ns."""
    order = np.argsort(launch, kind="stable")
    begun = np.searchsorted(np.sort(start), launch[order], side="right")
    is_full = np.zeros(len(order), bool)
    is_full[order] = np.arange(len(order)) - begun >= FULL_QUEUE
    return is_full


def _sum_operations(
    frame: pd.DataFrame, column: str, phase: np.ndarray, of_attention: np.ndarray, blocked_ns: np.ndarray
) -> pd.DataFrame:
    names = frame[column].cat
    processes, process = encode(frame["process"].to_numpy())
    shape = (max(len(processes), 1), len(_PHASES), max(len(names.categories), 1), 2)
    index = (process, phase.astype(np.int64), names.codes.to_numpy().astype(np.int64), of_attention.astype(np.int64))
    code = np.ravel_multi_index(index, shape) if len(frame) else np.zeros(0, np.int64)
    used, code = np.unique(code, return_inverse=True)
    process, phase, name, of_attention = np.unravel_index(used, shape)
    return pd.DataFrame(
        {
            "process": process,
            "phase": np.array(_PHASES, object)[phase],
            "name": np.array([str(text) for text in names.categories], object)[name] if len(frame) else "",
            "of_attention": of_attention.astype(bool),
            "launches": count_by(code, len(used)),
            "time_ns": sum_by(code, (frame["end_ns"] - frame["start_ns"]).to_numpy(), len(used)),
            "blocked_ns": sum_by(code, blocked_ns, len(used)),
        }
    )


def _mark_attention(
    kernels: pd.DataFrame, attribution: Attribution, names: KernelNames, phase: np.ndarray
) -> np.ndarray:
    """Which kernels are matmuls of attention (bool)."""
    gemms = names.mark(is_gemm)[names.code]
    ranges = attribution.ranges
    plain = ranges["plain_name"].cat
    batched, layers = (
        np.array([str(name) in wanted for name in plain.categories], bool) for wanted in (_OF_ATTENTION, _OF_LAYERS)
    )
    if batched.any() or layers.any():
        held_in = attribution.kernels["range_id"].to_numpy()
        is_known = gemms & (held_in >= 0)
        of_range = plain.codes.to_numpy()
        matmul = np.zeros(len(kernels), bool)
        matmul[is_known] = batched[of_range[held_in[is_known]]]
        return matmul
    spans = find_attention_spans(kernels, names)
    return _mark_neighbours(spans, gemms, phase == _PHASES.index(BACKWARD)) & gemms


def _mark_neighbours(spans: AttentionSpans, gemms: np.ndarray, is_backward: np.ndarray) -> np.ndarray:
    """The kernels on either side of each span, and in the backward pass the matmul beyond each of them."""
    if not len(spans.first):
        return np.zeros(len(gemms), bool)
    order = np.arange(len(gemms)) if spans.order is None else spans.order
    place = np.flatnonzero(gemms[order])
    number = np.searchsorted(place, spans.after)  # place of the matmul after a span, among matmuls
    in_backward = is_backward[order][spans.after]
    beyond = np.clip(np.r_[number[in_backward] - 2, number[in_backward] + 1], 0, len(place) - 1)
    sides = np.zeros(len(gemms), bool)
    sides[order[place[np.r_[number - 1, number, beyond]]]] = True
    return sides
