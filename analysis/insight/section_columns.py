"""The sections of a summary and what each of their columns holds."""

from typing import Any, Protocol

import pandas as pd

from profiler_job.analysis.capture import collective_columns
from profiler_job.analysis.insight import limit_columns
from profiler_job.jobs.contract.ranges import ALL_PHASES

KERNEL_TIME, GPU_SPAN, ELAPSED = "kernel time", "GPU span", "elapsed time"
"""What shares of findings are parts of."""
ADVICE_TITLE = "What to change first"


class SummaryTables(Protocol):
    """What sentences are made from: the facts and the tables of a capture, and the names of the shown ones."""

    @property
    def capture(self) -> dict[str, Any]: ...
    @property
    def sections(self) -> dict[str, pd.DataFrame]: ...
    @property
    def shown(self) -> tuple[str, ...]: ...


SECTIONS: dict[str, dict[str, str]] = {
    "verdict": limit_columns.COLUMNS,
    "verdict_phases": limit_columns.PHASE_COLUMNS,
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
        "host_mean_ns": "the same of one instance, in the mean",
        "host_median_ns": "its median over instances",
        "host_min_ns": "the shortest instance",
        "host_max_ns": "the longest instance",
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
    "modules": {
        "name": "path of a module; modules in a list count as one; in brackets: kernels that no module launched",
        "total_ns": "kernel time of one step, without the modules inside; a fused kernel's is divided among several",
        "share": "part of the kernel time of a step",
        "forward_ns": "of it in forward",
        "backward_ns": "of it in backward",
        "optimizer_ns": "of it in the optimizer",
        "other_ns": "of it in other phases, and in none",
        "family": "kernel family with most of it",
        "kernel": "kernel with most of it",
    },
    "api": {
        "name": "CUDA runtime or driver function, without the version of its entry point",
        "calls": "calls",
        "total_ns": "host time inside them",
        "launches": "kernels launched by them",
        "latency_median_ns": "from the start of the call to the start of the kernel; null without kernels",
        "latency_max_ns": "the longest of these",
    },
    "matmuls": {
        "operator": "operator of PyTorch, whose sizes were recorded",
        "batch": "matmuls in it",
        "m": "rows of the result",
        "n": "columns of the result",
        "k": "numbers that each of its values is a sum of",
        "count": "calls of the operator that launch a GEMM",
        "time_ns": "time of their GEMM kernels",
        "flops": "floating-point operations: twice batch, m, n and k, times count",
        "flop_per_s": "of these in a second of time_ns",
        "unaligned": "sizes that are no multiple of 8, the least that tensor cores load at once in 16 bits",
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
    "communication": collective_columns.GPU_COLUMNS,
    "collectives": collective_columns.COLLECTIVE_COLUMNS,
    "messages": collective_columns.MESSAGE_COLUMNS,
    "late_kernels": collective_columns.LATE_KERNEL_COLUMNS,
    "waits": {
        "where": "file and number of the user's innermost line meanwhile; of a library if the stack has no other",
        "function": "the function that it is in",
        "wait_ns": "time in which the GPU waits for it: it idles, or only copies from or to the host",
        "share": "part of all such time, sampled or not",
        "cpu_ns": "time that the CPU spends in the line, whether the GPU waits or not: without it steps save no more; "
        "of a line that takes batches of a DataLoader with what others wait for Python's lock",
        "late_launch_ns": "part of it in which the next operation was not launched yet",
        "data_ns": "of late_launch_ns, in which a DataLoader, a tokenizer or a copy from the host is next",
        "nothing_ns": "of late_launch_ns, in which the thread sleeps, saves, or waits for another program",
        "sync_ns": "part in a synchronisation, and idle time after it that would be hidden without it",
        "copies_ns": "part in which the GPU only copies from or to the host",
        "between_ns": "part in which the next operation was launched and had not started",
        "below": "what the line was in, and for how much of its time: parts of libraries, or the line's own code; "
        "and whether it is in another thread than the main one",
        "phase": "its phase, or several with their shares; empty outside all",
        "module": "module in whose forward the line is, by what is launched next; empty where none is known",
        "gpu": "number of the GPU that waits for it twice as long as the others in the median; -1 if there is none",
        "do": "what to do about it; empty where nothing is known",
    },
    "wait_parts": {
        "part": "part of a library, the user's own code, a collection of garbage, or waiting for Python's lock",
        "wait_ns": "time in which the GPU waits for it",
        "share": "part of all such time, sampled or not",
    },
    "wait_stacks": {
        "stack": "frames of a Python stack, outermost first, separated by semicolons",
        "wait_ns": "time in which the GPU waits for it",
    },
    "sync_lines": {
        "where": "the user's innermost line, from samples in such calls at this place of a step; empty if not known",
        "function": "the function that it is in",
        "call": "CUDA function in which the CPU waits for the GPU",
        "count": "calls",
        "time_ns": "host time inside them",
        "wait_ns": "idle time of GPUs after them that would be hidden without them",
    },
    "copy_lines": {
        "where": "the user's innermost line, from samples in such calls at this place of a step; empty if not known",
        "function": "the function that it is in",
        "operation": "memcpy with its direction, from or to the host",
        "host_memory": "pageable, pinned or managed: copies of pageable memory make the CPU wait",
        "is_waited": "whether the CPU waits for the copy right after it",
        "count": "copies; in a capture with steps those in steps",
        "bytes": "bytes copied",
        "copy_ns": "time of the copies on the GPU",
        "time_ns": "host time inside the calls",
    },
    "allocation_lines": {
        "where": "the user's innermost line, from samples in such calls at this place of a step; empty if not known",
        "function": "the function that it is in",
        "call": "CUDA function that allocates memory or frees it",
        "count": "calls; in a capture with steps those in steps",
        "time_ns": "host time inside them",
    },
    "findings": {
        "kind": "kind of finding",
        "what": "what such a finding is about",
        "time_ns": "time that it takes: on all GPUs, or on the host in the process with most of it",
        "share": "part of what `of` names",
        "of": f"{KERNEL_TIME}, {GPU_SPAN} (summed over GPUs), or {ELAPSED} (of all events)",
        "count": "kernels, copies, sets, calls or GPUs that take it",
        "evidence": "those with most time, as `name: count in time`, and further facts, separated by semicolons",
        "launching_ns": "how long the CPU takes to come to the launches of these kernels; null where it is not known",
    },
    "advice": {
        "change": "name of the change",
        "time_ns": "time that it could save, on all GPUs; null where it is not advised",
        "share": "part of the time from first to last operation, summed over GPUs; with start-up in it, "
        "of their busy time",
        "ceiling_ns": "more than this it cannot save of these times",
        "do": "line of code or flag",
        "evidence": "what the capture has of it",
        "sure": "high, medium or low, and why",
        "where": "line of the script that it is about, with its function; empty if it is about no one line",
        "line_share": "part of all waiting that this line has; 0 without one",
        "fits_limit": "whether it makes a part smaller that limits the step",
        "reason": "why it is not advised; empty where it is",
        "reason_code": "why it is not advised, as a word for programs, such as cpu_limits; empty where it is",
    },
    "problems": {"what": "what is wrong with the capture", "consequence": "what was made of it"},
    "missing": {"what": "table, column or event that the capture lacks", "consequence": "what cannot be said for it"},
}


def compute_share(values: pd.Series) -> pd.Series:
    total = values.sum()
    return values / total if total else values.astype("float64")


def make_frame(section: str, columns: dict[str, Any], by: str | None = None) -> pd.DataFrame:
    frame = pd.DataFrame(columns)[list(SECTIONS[section])]
    return frame.sort_values(by, ascending=False, kind="stable", ignore_index=True) if by else frame
