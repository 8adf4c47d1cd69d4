"""Values of a summary as text: times, sizes, shares, and what is not trusted made harmless."""

import re
import shutil
from typing import Any

import pandas as pd
from rich.cells import cell_len, chop_cells, set_cell_size

WIDTH, LEAST_WIDTH = 120, 60
"""Number of columns if the terminal does not give it, and the least number."""

_HEADINGS = {
    "total_ns": "total",
    "kernel_ns": "kernel time",
    "busy_ns": "busy time",
    "projected_ns": "projected",
    "host_ns": "host time",
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
    "sync_ns": "in sync",
    "between_ns": "between",
    "unknown_idle_ns": "unknown idle",
    "no_work_ns": "no work",
    "time_ns": "time",
    "ceiling_ns": "at most",
    "gain_ns": "predicted gain",
    "gain_least_ns": "least gain",
    "gain_most_ns": "most gain",
    "waiting_ns": "waiting",
    "transfer_ns": "transfer",
    "hidden_ns": "hidden",
    "exposed_ns": "exposed",
    "critical_ns": "critical",
    "exposed_waiting_ns": "exposed waiting",
    "kept_waiting_ns": "kept waiting",
    "kept_computing_ns": "computing then",
    "kept_late_ns": "late then",
    "beside_ns": "matmuls then",
    "alone_ns": "the same alone",
    "bus_bytes_per_s": "bus",
}
_NOTHING = "n/a"


def make_printable(text: str) -> str:
    """Return `text` on one line, without the control characters that could drive a terminal."""
    flat = re.sub(r"[\r\n\t]+", " ", str(text))
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in flat)


def format_time(ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= size:
            return f"{ns / size:.2f} {unit}"
    return f"{ns:.0f} ns"


def format_brief_time(ns: float) -> str:
    """Format a time for a sentence, with three digits."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= size:
            value = abs(ns) / size
            return f"{ns / size:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
    return f"{ns:.0f} ns"


def format_size(size: float) -> str:
    for unit, step in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size) >= step:
            return f"{size / step:.1f} {unit}"
    return f"{size:.0f} B"


def format_energy(joules: float) -> str:
    for unit, size in (("kJ", 1e3), ("J", 1.0)):
        if abs(joules) >= size:
            return f"{joules / size:.2f} {unit}"
    return f"{1e3 * joules:.1f} mJ"


def format_value(column: str, value: Any) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and pd.isna(value)):
        return _NOTHING
    if column.endswith("_ns"):
        return format_time(float(value))
    if column.endswith("bytes_per_s"):
        return f"{float(value) / 1e9:.1f} GB/s"
    if column.endswith("bytes"):
        return format_size(float(value))
    if column.endswith("share"):
        return f"{100 * float(value):.1f}%"
    if column == "clock_hz":
        return f"{float(value) / 1e6:.0f} MHz"
    if isinstance(value, str):
        return make_printable(value) or "(none)"
    return str(value)


def format_heading(column: str) -> str:
    return _HEADINGS.get(column, column.replace("_", " "))


def is_text(frame: pd.DataFrame, column: str) -> bool:
    return not pd.api.types.is_numeric_dtype(frame[column]) and any(isinstance(v, str) for v in frame[column])


def break_text(text: str, width: int) -> list[str]:
    """Break `text` into lines of at most `width` cells, between words, and within words that are longer."""
    if cell_len(text) <= width:
        return [text]
    lines = [""]
    for word in text.split(" "):
        for piece in chop_cells(word, width) or [""]:
            joined = f"{lines[-1]} {piece}" if lines[-1] else piece
            if cell_len(joined) <= width:
                lines[-1] = joined
            else:
                lines.append(piece)
    return lines


def shorten_text(text: str, width: int) -> str:
    """Shorten a text to at most `width` columns; both ends stay, because names often differ only there."""
    if cell_len(text) <= width:
        return text
    end = text[-(width // 2) :]
    return set_cell_size(text, max(0, width - 1 - cell_len(end))) + "…" + end


def measure_terminal() -> int:
    """Columns of the terminal."""
    return max(shutil.get_terminal_size((WIDTH, 24)).columns, LEAST_WIDTH)


def wrap_text(text: str, width: int, indent: str = "") -> list[str]:
    """Break `text` into lines of at most `width` cells, each after `indent`, further ones a little more."""
    first, *more = break_text(text, width - len(indent) - 2)
    return [indent + first, *(f"{indent}  {line}" for line in more)]
