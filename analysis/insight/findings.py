"""Find times in a capture that a user may not expect, each with the kernels, calls or copies that cause it.

A finding states what the capture holds, not what to do. Each has at least `LEAST_SHARE` of what it is a share of. A
kernel counts for one finding at most: first for unfused attention and for a per-tensor optimizer, then by its name.
Times of the CPU come from the process with most of them, since several processes run at the same time, and are unions
within it, so that threads that wait together count once.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import intervals
from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.blocks import count_by, sum_by
from profiler_job.analysis.capture.capture_data import Capture, get_process_id
from profiler_job.analysis.capture.distinct_values import encode, find_distinct
from profiler_job.analysis.capture.graph_breaks import Break, BrokenLine, read_lines
from profiler_job.analysis.changes.whole_graphs import name_lines
from profiler_job.analysis.insight.broken_lines import list_captured
from profiler_job.analysis.insight.garbage_times import measure_collections
from profiler_job.analysis.insight.section_columns import ELAPSED, GPU_SPAN, KERNEL_TIME, SECTIONS
from profiler_job.analysis.reference import cuda_api, gemm_names
from profiler_job.analysis.reference.kernel_names import shorten
from profiler_job.analysis.reference.rules import Classification, Taxonomy
from profiler_job.jobs.contract.quantities import format_quantity, format_size, format_time
from profiler_job.jobs.contract.ranges import OPTIMIZER


class FindingKind(NamedTuple):
    """`what`: what such a finding is about. `sentence`: its meaning, then its numbers; "" if the verdict has more."""

    what: str
    sentence: str = ""


FINDING_KINDS = {
    "idle": FindingKind("GPU time in which nothing runs"),
    "fp32_gemms": FindingKind(
        "GEMMs in FP32 on CUDA cores, without tensor cores",
        "FP32 GEMMs run without tensor cores: {time}, {share} of kernel time, {kernels}",
    ),
    "unaligned_gemms": FindingKind(
        "tensor-core GEMMs that load at most 4 bytes at once, as where a dimension is not padded",
        "GEMMs load 4 bytes at once or fewer, as where a dimension is not padded: {time}, {share} of kernel time, "
        "{kernels}",
    ),
    "unfused_attention": FindingKind(
        "kernels between the two matmuls of attention: scale, mask, softmax, dropout",
        "attention is not fused: {time} between its two matmuls, {share} of kernel time, {kernels}",
    ),
    "casts": FindingKind(
        "kernels that only convert the data type",
        "kernels only convert the data type: {time}, {share} of kernel time, {kernels}",
    ),
    "tensor_copies": FindingKind(
        "kernels that only move elements: contiguous, cat, transpose",
        "kernels only move elements: {time}, {share} of kernel time, {kernels}",
    ),
    "fills": FindingKind(
        "kernels that write a constant", "kernels only write constants: {time}, {share} of kernel time, {kernels}"
    ),
    "per_tensor_optimizer": FindingKind(
        "an optimizer that launches elementwise kernels for each tensor",
        "the optimizer works tensor by tensor: {time}, {share} of kernel time, {kernels}",
    ),
    "communication": FindingKind(
        "kernels that exchange data between GPUs; their time includes waiting for the others",
        "GPUs exchange data, or wait for each other to do so: {time}, {share} of kernel time, {kernels}",
    ),
    "host_to_device": FindingKind(
        "copies from the host", "data is copied from the host: {time}, {share} of the GPU's span, {operations}"
    ),
    "device_to_host": FindingKind(
        "copies to the host", "data is copied to the host: {time}, {share} of the GPU's span, {operations}"
    ),
    "device_copies": FindingKind(
        "copies within a GPU or between GPUs, by the driver",
        "the driver copies on the GPU: {time}, {share} of the GPU's span, {operations}",
    ),
    "memsets": FindingKind(
        "memory sets by the driver", "the driver sets memory: {time}, {share} of the GPU's span, {operations}"
    ),
    "waiting_calls": FindingKind(
        "API calls in which the host waits for the GPU",
        "the host waits for the GPU: {time}, {share} of elapsed time, {calls}",
    ),
    "allocation_calls": FindingKind(
        "API calls that take memory from the driver or return it",
        "the host takes memory from the driver, or returns it: {time}, {share} of elapsed time, {calls}",
    ),
    "loading_calls": FindingKind(
        "API calls that load kernels' code, as in the first steps",
        "the host loads kernels' code, as in first steps: {time}, {share} of elapsed time, {calls}",
    ),
    "graph_breaks": FindingKind(
        "GPU time in which nothing runs where torch.compile breaks a graph",
        "the GPU idles where torch.compile breaks its graphs: {time}, {share} of the GPU's span, {breaks}",
    ),
    "garbage": FindingKind(
        "GPU time in which nothing runs while Python collects garbage",
        "the GPU idles while Python collects garbage: {time}, {share} of the GPU's span, {collections}",
    ),
    "tiny_kernels": FindingKind(
        "launch calls where most kernels are shorter than a launch takes",
        "launching takes longer than running, for {kernels}: {time}, {share} of elapsed time, in launch calls",
    ),
}
KINDS = {name: kind.what for name, kind in FINDING_KINDS.items()}
SENTENCES = {name: kind.sentence for name, kind in FINDING_KINDS.items() if kind.sentence}
OF_IDLE_TIME = ("idle", "tiny_kernels", "graph_breaks", "garbage")
"""Findings that need the whole time line of a GPU."""

COLUMNS = SECTIONS["findings"]
LEAST_SHARE = 0.01
MOST_BETWEEN_MATMULS = 32
MATMULS = 2
"""Of an attention before its softmax and after, at most: two on each side in backward."""
MOST_UNKNOWN = 0.01
"""Part of the kernels whose launch may be unknown."""
LEAST_PER_TENSOR = 50
"""Launches of a step from which on an optimizer works tensor by tensor: a small model has some hundred tensors."""
LEAST_IDLE = 0.1
"""Share of its span that a GPU must be idle before short kernels are a finding."""
_TOP, _LEAST_OF_FINDING = 3, 0.01

_ALIGNMENT = re.compile(r"_align[abc]?(\d+)(?!\d)")
_ELEMENT_BYTES = {"tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
_UNALIGNED_BYTES = 4  # of the 16 that one load can take
_LOG_SOFTMAX = re.compile(r"log_?softmax|softmax_warp_(?:for|back)ward<[^<>]*?\d, (?:\(bool\)1|true)", re.IGNORECASE)
_TRITON_SOFTMAX = re.compile(r"(?<!log)_softmax|^(?!.*_log_)(?=.*_exp_)(?=.*_a?max_)(?=.*_sum_)")
_IN_ATTENTION = ("elementwise", "softmax", "reduce", "copy", "fill", "random", "triton")
_OF_LOSSES = ("reduce-loss", "softmax-classifier", "elementwise-log")


@dataclass(frozen=True)
class Finding:
    """A row of the section; `of` is what `whole_ns` is. launching_ns: how long the CPU takes to come to the launches of
    its kernels, None if that is not known."""

    kind: str
    time_ns: int
    whole_ns: int
    of: str
    count: int
    evidence: str
    launching_ns: int | None = None


def find_findings(
    capture: Capture,
    attribution: Attribution,
    gpus: pd.DataFrame,
    taxonomy: Taxonomy,
    breaks: Sequence[Break],
) -> pd.DataFrame:
    """Find what takes time in `capture`, the most time first; columns: COLUMNS. breaks: of its graphs."""
    num_updates = _num_optimizer_ranges(attribution.ranges)
    return make_findings_table(
        [
            *_find_idle(gpus),
            *find_in_kernels(
                capture.kernels.assign(launch_ns=attribution.kernels["launch_ns"]),
                attribution.kernels["phase"],
                num_updates,
                taxonomy,
            ),
            *find_in_copies(capture.memops, int(gpus["span_ns"].sum())),
            *_find_in_calls(capture, attribution),
            *_find_tiny_kernels(capture, attribution, gpus),
            *_find_graph_breaks(breaks, read_lines(attribution.ranges), int(gpus["span_ns"].sum())),
            *_find_garbage(capture, int(gpus["span_ns"].sum())),
        ]
    )


def make_findings_table(findings: Iterable[Finding]) -> pd.DataFrame:
    """Make the table of `findings` that take enough time, the most first; columns: COLUMNS."""
    findings = [finding for finding in findings if finding.time_ns >= max(LEAST_SHARE * finding.whole_ns, 1)]
    findings.sort(key=lambda finding: -finding.time_ns)
    rows = [
        asdict(finding) | {"what": KINDS[finding.kind], "share": finding.time_ns / finding.whole_ns}
        for finding in findings
    ]
    types = {"time_ns": "int64", "count": "int64", "share": "float64", "launching_ns": "Int64"}
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(types)


def _format_item(name: str, count: int, ns: float, num_steps: int = 1) -> str:
    """Format how often something ran and for how long, in one of num_steps steps in the mean."""
    return f"{name}: {_format_mean(count, num_steps)} in {format_time(ns / num_steps)}"


def _format_mean(count: int, num_steps: int) -> str:
    return str(count) if num_steps == 1 else format_quantity("count", count / num_steps)


def _format_largest(names: list[str], calls: np.ndarray, time: np.ndarray, num_steps: int = 1) -> str:
    least = _LEAST_OF_FINDING * time.sum()
    most = [i for i in np.argsort(-time, kind="stable")[:_TOP] if calls[i] and time[i] >= least]
    return "; ".join(_format_item(shorten(names[i]), calls[i], time[i], num_steps) for i in most)


# -------------------------------------------------------------------------------------------------------------- kernels


class KernelNames:
    """The distinct kernel names of a capture, each classified once. num_steps: so many steps are one in evidence."""

    def __init__(self, kernels: pd.DataFrame, taxonomy: Taxonomy, num_steps: int = 1):
        self.num_steps = num_steps
        self.names = [str(name) for name in kernels["kernel_name"].cat.categories]
        self.code = kernels["kernel_name"].cat.codes.to_numpy()
        self.duration = (kernels["end_ns"] - kernels["start_ns"]).to_numpy()
        self.classes = [taxonomy.classify(name) for name in self.names]
        self.launching = measure_launching(kernels)

    def mark(self, holds: Callable[[str, Classification], bool]) -> np.ndarray:
        """Mark each name for which `holds(name, classification)` is true."""
        return np.array([holds(name, known) for name, known in zip(self.names, self.classes)], bool)

    def mark_rule(self, *rules: str) -> np.ndarray:
        return self.mark(lambda _, known: known.rule in rules)

    def sum_by_name(self, rows: np.ndarray | slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """Count for each name the kernels in `rows`, and sum their time (int64)."""
        code = self.code[rows]
        return count_by(code, len(self.names)), sum_by(code, self.duration[rows], len(self.names))

    def make_finding(self, kind: str, rows: np.ndarray, more: str = "", launched: np.ndarray | None = None) -> Finding:
        """A finding of the kernels in `rows`. launched: those whose launches go with them; None: the same."""
        calls, time = self.sum_by_name(rows)
        evidence = "; ".join(filter(None, (_format_largest(self.names, calls, time, self.num_steps), more)))
        launching_ns = None
        if self.launching is not None:
            launching_ns = int(self.launching[rows if launched is None else launched].sum())
        whole_ns, num = int(self.duration.sum()), int(calls.sum())
        return Finding(kind, int(time.sum()), whole_ns, KERNEL_TIME, num, evidence, launching_ns)


def measure_launching(kernels: pd.DataFrame) -> np.ndarray | None:
    """Measure how long the CPU takes to come to the launch of each kernel: the time since the launch before it in its
    process, counted for each GPU of the process (ns, int64, in the order of `kernels`). What several launches share, as
    kernels of a CUDA graph do, counts once. None if many launches are not known.

    kernels: process, device, start_ns, launch_ns (start_ns where the launch is not known)."""
    launch = kernels["launch_ns"].to_numpy()
    if (launch == kernels["start_ns"].to_numpy()).mean() > MOST_UNKNOWN:
        return None
    launching = np.zeros(len(kernels), np.int64)
    for rows in kernels.groupby("process", observed=True, sort=False).indices.values():
        rows = rows[np.argsort(launch[rows], kind="stable")]
        launching[rows[1:]] = np.diff(launch[rows]) * kernels["device"].iloc[rows].nunique()
    return launching


def find_in_kernels(
    kernels: pd.DataFrame, phase: pd.Series, num_updates: int, taxonomy: Taxonomy, num_steps: int = 1
) -> Iterator[Finding]:
    """What kernels tell: kernel_name (categorical), process, device, stream, launch_ns, start_ns, end_ns, by start; the
    phase of each; num_updates: how many optimizer phases there are; num_steps: evidence is of one of so many steps."""
    if not len(kernels):
        return
    names = KernelNames(kernels, taxonomy, num_steps)
    spans = find_attention_spans(kernels, names)
    attention = spans.mark(spans.first, spans.after, len(kernels))
    if attention.any():
        more = f"between two matmuls: {_format_mean(len(spans.first), num_steps)} times"
        launched = spans.mark(np.maximum(spans.first - MATMULS, 0), spans.after + MATMULS, len(kernels))
        yield names.make_finding("unfused_attention", attention, more, launched)
    optimizer, more = _find_per_tensor(phase, num_updates, names)
    optimizer &= ~attention
    if optimizer.any():
        yield names.make_finding("per_tensor_optimizer", optimizer, more if num_steps == 1 else "")
    others = ~(attention | optimizer)
    kinds = np.array([_classify_kernel(name, known) for name, known in zip(names.names, names.classes)], object)
    for kind in sorted(set(kinds) - {""}):
        yield names.make_finding(kind, others & (kinds == kind)[names.code])


def _classify_kernel(name: str, known: Classification) -> str:
    """Return the kind of finding that a kernel belongs to by its name alone; empty if none."""
    if known.family == "gemm" and known.part != "gemv":
        gemm = gemm_names.parse(name)
        if gemm and gemm.math_path == "fp32":
            return "fp32_gemms"
        return "unaligned_gemms" if is_unaligned(name) else ""
    if known.family == "copy":
        return "casts" if known.part == "cast" else "tensor_copies"
    return {"fill": "fills", "communication": "communication"}.get(known.family, "")


def is_unaligned(name: str) -> bool:
    """Whether a GEMM of that name, on tensor cores, loads few bytes at once because its operands allow no more."""
    gemm = gemm_names.parse(name)
    sizes = [int(size) for size in _ALIGNMENT.findall(name)]
    element = _ELEMENT_BYTES.get((gemm.math_path if gemm else None) or "")
    return bool(sizes) and element is not None and min(sizes) * element <= _UNALIGNED_BYTES


@dataclass(frozen=True, kw_only=True)
class AttentionSpans:
    """Kernels between the two matmuls of attentions that are not fused: the slices first:after, with the kernels of
    each stream grouped. order: the kernels in that order, None if it is their own order."""

    first: np.ndarray
    after: np.ndarray
    order: np.ndarray | None = None

    def mark(self, first: np.ndarray, after: np.ndarray, num_kernels: int) -> np.ndarray:
        """Mark the kernels in the slices first:after; bool, in the kernels' own order."""
        edges = np.zeros(num_kernels + 1, np.int8)
        np.add.at(edges, first, 1)
        np.subtract.at(edges, np.minimum(after, num_kernels), 1)
        inside = np.cumsum(edges[:-1], dtype=np.int8).astype(bool)
        if self.order is not None:
            inside[self.order] = inside.copy()
        return inside


def find_attention_spans(kernels: pd.DataFrame, names: KernelNames) -> AttentionSpans:
    """Find the kernels between the two matmuls of an attention that is not fused.

    Kernels between two GEMMs of a stream belong to attention under three conditions: they are few; there is a softmax
    among them, of a library or written by hand (maximum, exp and sum); and none of them occurs only in a loss, a router
    or a sampler. A hand-written softmax has no exp in its backward pass: a masked fill and a sum mark it there.
    """
    nothing = AttentionSpans(first=np.empty(0, np.int64), after=np.empty(0, np.int64))
    softmax = names.mark(_is_softmax)
    by_hand = [names.mark_rule(rule) for rule in _SOFTMAX_BY_HAND]
    if not softmax.any() and not all(part.any() for part in by_hand):
        return nothing
    if any(known.family == "attention" for known in names.classes):
        return nothing
    order, stream = _order_by_stream(kernels)
    code = names.code if order is None else names.code[order]
    place = np.flatnonzero(names.mark(is_gemm)[code])
    first, after = place[:-1] + 1, place[1:]
    near = (after > first) & (after - first <= MOST_BETWEEN_MATMULS) & (stream[first - 1] == stream[after])
    first, after = first[near], after[near]

    def has(of_names: np.ndarray) -> np.ndarray:
        before = np.r_[0, np.cumsum(of_names[code], dtype=np.int32)]
        return before[after] > before[first]

    foreign = ~names.mark(_may_be_in_attention)
    written = np.logical_and.reduce([has(part) for part in by_hand])
    is_attention = (has(softmax) | written) & ~has(foreign)
    if (is_attention & written).any():
        masked, scatter = map(names.mark_rule, _BACKWARD_BY_HAND)
        is_attention |= has(masked) & has(by_hand[-1]) & ~has(foreign & ~scatter)
    return AttentionSpans(first=first[is_attention], after=after[is_attention], order=order)


def is_gemm(_: str, known: Classification) -> bool:
    return known.family == "gemm"


_SOFTMAX_BY_HAND = ("reduce-max", "elementwise-exp", "reduce-sum")
_BACKWARD_BY_HAND = ("elementwise-masked-fill", "index-gather-scatter")  # the gradient of a maximum is scattered


def _is_softmax(name: str, known: Classification) -> bool:
    if known.family == "triton":
        return _TRITON_SOFTMAX.search(name) is not None
    return known.rule == "softmax-library" and not _LOG_SOFTMAX.search(name)


def _may_be_in_attention(name: str, known: Classification) -> bool:
    of_loss = known.rule in _OF_LOSSES or _LOG_SOFTMAX.search(name) or "nll_loss" in name
    return known.family in _IN_ATTENTION and not of_loss


def _order_by_stream(kernels: pd.DataFrame) -> tuple[np.ndarray | None, np.ndarray]:
    """Return an order that groups the kernels of each stream, None if they are grouped; and the stream of each kernel
    in it."""
    key = np.zeros(len(kernels), np.int64)
    for column in ("process", "device", "stream"):
        values, code = encode(kernels[column].to_numpy())
        key = key * len(values) + code
    if (key == key[0]).all():
        return None, key
    order = np.argsort(key, kind="stable")
    return order, key[order]


def _find_per_tensor(phase: pd.Series, steps: int, names: KernelNames) -> tuple[np.ndarray, str]:
    """Find the kernels of an optimizer that works tensor by tensor (bool), and how many there are a step.

    If the phase is known, by ranges or inferred, these are its elementwise kernels, provided that most launches of the
    phase are elementwise. Otherwise they are the kernels that only Adam's update has: addcdiv, addcmul and lerp.
    """
    elementwise = names.mark(lambda _, known: known.family == "elementwise")
    in_phase = (phase == OPTIMIZER).to_numpy()
    rows = in_phase & elementwise[names.code]
    is_most = 2 * rows.sum() > in_phase.sum() and rows.sum() >= LEAST_PER_TENSOR * max(steps, 1)
    if is_most or (steps and in_phase.any()):
        return rows & is_most, f"per step: {format_quantity('count', round(rows.sum() / steps))}" if steps else ""
    of_adam = names.mark_rule("elementwise-addcdiv", "elementwise-addcmul-and-lerp")
    rows = of_adam[names.code]
    return rows & (rows.sum() >= LEAST_PER_TENSOR), ""


def _num_optimizer_ranges(ranges: pd.DataFrame) -> int:
    """Count the ranges that are an optimizer phase and are inside no other one."""
    of_phase = (ranges["phase"] == OPTIMIZER).to_numpy()
    parent = ranges["parent_id"].to_numpy()
    return int((of_phase & ~((parent >= 0) & of_phase[parent])).sum()) if len(ranges) else 0


# ---------------------------------------------------------------------------------------------- idle GPU, copies, calls


def _find_idle(gpus: pd.DataFrame) -> Iterator[Finding]:
    span, busy = gpus["span_ns"].to_numpy(), gpus["busy_ns"].to_numpy()
    if len(gpus):
        evidence = f"busy: {format_time(busy.sum())} of {format_time(span.sum())}"
        yield Finding("idle", int(span.sum() - busy.sum()), int(span.sum()), GPU_SPAN, len(gpus), evidence)


_COPIES = {
    "host_to_device": ("memcpy Host-to-Device", "memcpy Unified Host-to-Device", "memcpy Host-to-Array"),
    "device_to_host": ("memcpy Device-to-Host", "memcpy Unified Device-to-Host", "memcpy Array-to-Host"),
    "device_copies": ("memcpy Device-to-Device", "memcpy Unified Device-to-Device", "memcpy Peer-to-Peer"),
    "memsets": ("memset",),
}


def find_in_copies(memops: pd.DataFrame, span_ns: int, num_steps: int = 1) -> Iterator[Finding]:
    """What copies and fills tell: operation, bytes, host_memory (categorical), start_ns, end_ns. num_steps: as in
    `find_in_kernels`."""
    duration = (memops["end_ns"] - memops["start_ns"]).to_numpy()
    for kind, operations in _COPIES.items():
        rows = memops["operation"].isin(operations).to_numpy()
        if not rows.any():
            continue
        host = memops["host_memory"][rows]
        evidence = [f"moved: {format_size(memops['bytes'][rows].sum() / num_steps)}"] if kind != "memsets" else []
        for memory in [category for category in host.cat.categories if category]:
            of_memory = (host == memory).to_numpy()
            time = duration[rows][of_memory].sum()
            if of_memory.any() and time >= _LEAST_OF_FINDING * duration[rows].sum():
                evidence.append(_format_item(f"{memory} host memory", of_memory.sum(), time, num_steps))
        yield Finding(kind, int(duration[rows].sum()), span_ns, GPU_SPAN, int(rows.sum()), "; ".join(evidence))


def _find_in_calls(capture: Capture, attribution: Attribution) -> Iterator[Finding]:
    api = capture.api
    if not len(api):
        return
    names = [str(name) for name in api["name"].cat.categories]
    code = api["name"].cat.codes.to_numpy()
    kinds = np.array([_classify_call(name) for name in names], object)
    steps = attribution.ranges[attribution.ranges["is_step"].to_numpy(bool)]
    for kind in ("waiting_calls", "allocation_calls", "loading_calls"):
        copies = _find_waiting_copies(capture, attribution) if kind == "waiting_calls" else np.empty(0, np.int64)
        if not len(copies) and kind not in kinds:
            continue
        of_kind = (kinds == kind)[code]
        of_kind[copies] = True
        rows = np.flatnonzero(of_kind)
        if not len(rows):
            continue
        rows, time, process = _select_longest_process(api, rows)
        duration = (api["end_ns"].to_numpy() - api["start_ns"].to_numpy())[rows]
        calls = np.bincount(code[rows], minlength=len(names))
        evidence = [_format_largest(names, calls, np.bincount(code[rows], duration, len(names)))]
        mine = steps[steps["process"] == api["process"].iat[rows[0]]]
        if len(mine):
            in_steps = _num_within(mine, api.iloc[rows])
            evidence += [f"per step: {format_quantity('count', in_steps / len(mine))}"] * (in_steps > 0)
            evidence += [f"outside steps: {len(rows) - in_steps}"] * (in_steps < len(rows))
        yield Finding(kind, time, capture.events_ns, ELAPSED, len(rows), "; ".join([*evidence, *process]))


def _num_within(steps: pd.DataFrame, calls: pd.DataFrame) -> int:
    """How many of the calls of a process begin while one of its steps is open, on any thread."""
    time = calls["start_ns"].to_numpy()
    begun, ended = (np.searchsorted(np.sort(steps[edge].to_numpy()), time, "right") for edge in ("start_ns", "end_ns"))
    return int((begun > ended).sum())


def _classify_call(name: str) -> str:
    known = cuda_api.explain(name)
    if known is None:
        return ""
    if known.family == "synchronisation" or known.name == "cudaMemcpy":
        return "waiting_calls"
    if known.name in ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cuMemCreate"):
        return "allocation_calls"
    return "loading_calls" if known.family == "module" else ""


def _find_waiting_copies(capture: Capture, attribution: Attribution) -> np.ndarray:
    """Rows of the API calls that copy to pageable memory of the host, and so wait for the copy."""
    memops = capture.memops
    to_host = memops["operation"].isin(_COPIES["device_to_host"]) & (memops["host_memory"] == "pageable")
    rows = attribution.memops["api"].to_numpy()[to_host.to_numpy()]
    return rows[rows >= 0]


def _select_longest_process(api: pd.DataFrame, rows: np.ndarray) -> tuple[np.ndarray, int, list[str]]:
    """Select the calls of the process that spends most time in `rows` (ascending), on any thread. Also return that
    time, and the evidence which process it is, if several have calls."""
    start, end = api["start_ns"].to_numpy(), api["end_ns"].to_numpy()
    processes, process = encode(api["process"].to_numpy()[rows])
    of_each = [rows[process == number] for number in range(len(processes))]
    times = [int(intervals.measure_new(np.zeros(len(mine), np.int8), start[mine], end[mine]).sum()) for mine in of_each]
    most = int(np.argmax(times))
    num_processes = len(find_distinct(api["process"].to_numpy()))
    which = f"process: {get_process_id(int(processes[most]))}, with most of {num_processes}"
    return of_each[most], times[most], [which] * (num_processes > 1)


def _find_tiny_kernels(capture: Capture, attribution: Attribution, gpus: pd.DataFrame) -> Iterator[Finding]:
    """Find launches that take the CPU longer than the kernels run, if the GPU waits for them."""
    api, launch = capture.api, attribution.kernels["api"].to_numpy()
    span = int(gpus["span_ns"].sum())
    if not (launch >= 0).any() or span - int(gpus["busy_ns"].sum()) < LEAST_IDLE * span:
        return
    launches = np.zeros(len(api), bool)
    launches[launch[launch >= 0]] = True
    rows, time, process = _select_longest_process(api, np.flatnonzero(launches))
    call = np.median((api["end_ns"].to_numpy() - api["start_ns"].to_numpy())[rows])
    mine = (capture.kernels["process"] == api["process"].iat[rows[0]]).to_numpy()
    duration = (capture.kernels["end_ns"] - capture.kernels["start_ns"]).to_numpy()[mine]
    shorter = int((duration < call).sum())
    if 2 * shorter <= len(duration) or len(rows) < (launch[mine] >= 0).sum() // 2:  # several kernels of a call: graphs
        return
    medians = f"median kernel: {format_time(float(np.median(duration)))}; median launch call: {format_time(call)}"
    evidence = [medians, *process]
    yield Finding("tiny_kernels", time, capture.events_ns, ELAPSED, shorter, "; ".join(evidence))


def _find_graph_breaks(breaks: Sequence[Break], lines: Sequence[BrokenLine], span_ns: int) -> Iterator[Finding]:
    if breaks:
        regions = Counter(f"{shorten(graph_break.region)} in {graph_break.phase}" for graph_break in breaks)
        of_regions = ", ".join(f"{name}: {count}" for name, count in regions.most_common(_TOP))
        launches = sum(graph_break.launches for graph_break in breaks)
        evidence = f"{of_regions}; {launches} kernels of none of the graphs between"
        table = list_captured(lines, breaks)
        if table["where"].iloc[0]:
            evidence = f"at {name_lines(table)}; {evidence}"
        yield Finding(
            "graph_breaks", sum(graph_break.idle_ns for graph_break in breaks), span_ns, GPU_SPAN, len(breaks), evidence
        )


def _find_garbage(capture: Capture, span_ns: int) -> Iterator[Finding]:
    idle_ns, num, cpu_ns = measure_collections(capture)
    if num:
        yield Finding("garbage", idle_ns, span_ns, GPU_SPAN, num, f"collections take the CPU {format_time(cpu_ns)}")
