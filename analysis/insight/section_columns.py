"""The sections of a summary and what each of their columns holds."""

from typing import Any, Protocol

import pandas as pd

from profiler_job.analysis.capture import collective_time
from profiler_job.analysis.insight import advice, findings, gpu_limit
from profiler_job.jobs.contract.ranges import ALL_PHASES


class SummaryTables(Protocol):
    """What sentences are made from: the facts and the tables of a capture, and the names of the shown ones."""

    @property
    def capture(self) -> dict[str, Any]: ...
    @property
    def sections(self) -> dict[str, pd.DataFrame]: ...
    @property
    def shown(self) -> tuple[str, ...]: ...


SECTIONS: dict[str, dict[str, str]] = {
    "verdict": gpu_limit.COLUMNS,
    "verdict_phases": gpu_limit.PHASE_COLUMNS,
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
    "advice": advice.COLUMNS,
    "problems": {"what": "what is wrong with the capture", "consequence": "what was made of it"},
    "missing": {"what": "table, column or event that the capture lacks", "consequence": "what cannot be said for it"},
}


def compute_share(values: pd.Series) -> pd.Series:
    total = values.sum()
    return values / total if total else values.astype("float64")


def make_frame(section: str, columns: dict[str, Any], by: str | None = None) -> pd.DataFrame:
    frame = pd.DataFrame(columns)[list(SECTIONS[section])]
    return frame.sort_values(by, ascending=False, kind="stable", ignore_index=True) if by else frame
