"""Columns of tables: what a column's name says about its values, its heading, and how a value is written in a cell.

A name ends in the unit of its values (`total_ns`, `memory_bytes`, `idle_share`); a table's own module says what they
mean.
"""

from typing import Any, NamedTuple

import pandas as pd

from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.quantities import BASE_UNITS, UNITS, Kind, format_quantity

NOTHING = "n/a"
"""What a cell without a value shows."""
EMPTY = "(none)"
"""What a cell with an empty text shows."""
ENDINGS: dict[str, tuple[Kind, str, float]] = {
    "bytes_per_s": ("bytes/s", "bytes/s", 1.0),
    "flop_per_s": ("FLOP/s", "FLOP/s", 1.0),
    "tokens_per_s": ("count", "tokens/s", 1.0),
    "usd_per_million": ("USD", "USD", 1.0),
    "times_as_fast": ("ratio", "", 1.0),
    "ns": ("time", "ns", 1.0),
    "s": ("time", "s", 1e9),
    "bytes": ("bytes", "bytes", 1.0),
    "gib": ("bytes", "GiB", float(2**30)),
    "share": ("share", "", 1.0),
    "hz": ("Hz", "Hz", 1.0),
    "mhz": ("Hz", "MHz", 1e6),
    "mw": ("W", "mW", 1e-3),
    "mj": ("J", "mJ", 1e-3),
    "celsius": ("number", "degrees Celsius", 1.0),
}
"""Last words of a column's name: the kind of its values, their unit, and its size in base units."""
HEADINGS = {
    "total_ns": "total",
    "kernel_ns": "kernel time",
    "busy_ns": "busy time",
    "projected_ns": "projected",
    "host_ns": "host time",
    "forward_ns": "forward",
    "backward_ns": "backward",
    "optimizer_ns": "optimizer",
    "other_ns": "other",
    "host_mean_ns": "mean",
    "host_median_ns": "median",
    "host_min_ns": "min",
    "host_max_ns": "max",
    "span_ns": "span",
    "latency_median_ns": "median latency",
    "latency_max_ns": "max latency",
    "memory_bytes": "memory",
    "clock_hz": "clock",
    "sm_count": "SMs",
    "exact_share": "exact",
    "early_share": "early",
    "linked_share": "linked",
    "phase_share": "by time",
    "inferred_share": "inferred",
    "value_ns": "value",
    "value_bytes": "value",
    "message_bytes": "message",
    "difference_ns": "difference",
    "difference_bytes": "difference",
    "difference_share": "change",
    "band_ns": "noise band",
    "band_bytes": "noise band",
    "idle_share": "idle",
    "kernel_calls": "kernels",
    "mean_ns": "mean",
    "min_ns": "min",
    "max_ns": "max",
    "events_ns": "elapsed",
    "num_gpus": "GPUs",
    "num_kernels": "kernels",
    "busy_share": "GPU busy",
    "attributed_share": "attributed",
    "elapsed_ns": "elapsed",
    "kernels_ns": "kernels",
    "graphs_ns": "graphs",
    "communication_ns": "communication",
    "copies_ns": "copies",
    "late_launch_ns": "late launch",
    "launching_ns": "launching",
    "host_copies_ns": "host copies",
    "compute_ns": "compute",
    "data_ns": "for data",
    "nothing_ns": "nothing to do",
    "fits_limit": "fits limit",
    "wait_ns": "waits",
    "cpu_ns": "CPU there",
    "copy_ns": "copying",
    "flop_per_s": "FLOP/s",
    "sync_ns": "in sync",
    "between_ns": "between",
    "unknown_idle_ns": "unknown idle",
    "no_work_ns": "no work",
    "time_ns": "time",
    "ceiling_ns": "at most",
    "waiting_ns": "waiting",
    "transfer_ns": "transfer",
    "hidden_ns": "hidden",
    "exposed_ns": "exposed",
    "critical_ns": "critical",
    "exposed_waiting_ns": "exposed waiting",
    "kept_waiting_ns": "kept waiting",
    "kept_computing_ns": "computing then",
    "kept_late_ns": "late then",
    "more_ns": "longer by",
    "beside_ns": "matmuls then",
    "alone_ns": "the same alone",
    "bus_bytes_per_s": "bus",
    "step_ns": "step",
    "label": "change",
    "over_before": "over the one before",
    "with_it": "times as fast",
    "expected_ratio": "expected times as fast",
    "tokens_per_s": "tokens/s",
    "usd_per_million": "1M tokens",
    "mfu_share": "MFU",
    "mfu": "MFU",
    "peak_bytes": "peak allocated",
    "losses": "loss differs",
    "could_save_share": "could save up to",
}
"""Headings that are not the name with spaces."""


class NumberFormat(NamedTuple):
    """How a column of numbers is written when its heading has the unit.

    kind, unit: of what is shown. stored: unit of the values, which files keep. size: of the unit shown, in that.
    """

    kind: Kind
    unit: str
    stored: str
    size: float


def _keep_base(kind: Kind, unit: str) -> NumberFormat:
    return NumberFormat(kind, unit, BASE_UNITS.get(kind, kind), UNITS[kind][unit])


FORMATS = {
    "ms": _keep_base("time", "ms"),
    "us": _keep_base("time", "µs"),
    "share": _keep_base("share", "%"),
    "points": _keep_base("share", "%")._replace(unit="points"),
    "ratio": NumberFormat("ratio", "×", "", 1.0),
    "gflop": _keep_base("FLOP", "GFLOP"),
    "tflops": NumberFormat("number", "TFLOP/s", "TFLOP/s", 1.0),
    "gbps": NumberFormat("number", "GB/s", "GB/s", 1.0),
    "byte_rate": _keep_base("bytes/s", "GB/s"),
    "intensity": _keep_base("FLOP/byte", "FLOP/byte"),
    "bytes": _keep_base("bytes", "GiB"),
    "mib": _keep_base("bytes", "MiB"),
    "seconds": NumberFormat("number", "s", "s", 1.0),
    "count": NumberFormat("count", "", "", 1.0),
    "billions": NumberFormat("number", "B", "", 1e9),
    "number": NumberFormat("number", "", "", 1.0),
    "amount": NumberFormat("number", "", "", 1.0),
}
"""The formats of columns with numbers on pages, by name."""


def find_ending(column: str) -> tuple[Kind, str, float] | None:
    """Find the kind, unit and size of the unit of a column's values by the end of its name; None if it has no unit."""
    return next((unit for end, unit in ENDINGS.items() if column == end or column.endswith(f"_{end}")), None)


def format_heading(column: str) -> str:
    return HEADINGS.get(column, column.replace("_", " "))


def format_cell(column: str, value: Any) -> str:
    """Format a value of a column for a table or a sentence."""
    if value is None or value is pd.NA or (isinstance(value, float) and pd.isna(value)):
        return NOTHING
    if isinstance(value, str):
        return make_printable(value) or EMPTY
    if ending := find_ending(column):
        kind, _, size = ending
        return format_quantity(kind, float(value) * size)
    if isinstance(value, bool) or not pd.api.types.is_number(value):
        return str(value)
    return format_quantity("count" if float(value).is_integer() else "number", float(value))
