"""A table in a number of columns of a terminal: which of its own columns it has there, and how names get room."""

from collections.abc import Iterator

import pandas as pd
from rich.cells import cell_len

from profiler_job.analysis.insight.short_names import shorten
from profiler_job.analysis.reference.columns import EMPTY, format_cell, format_heading
from profiler_job.analysis.render.terminal_text import break_text, is_text

DROPPED = {
    "kernels": ("rule", "min_ns", "max_ns", "family", "mean_ns"),
    "ranges": (
        *("busy_ns", "style", "projected_ns", "host_mean_ns", "kernel_calls", "host_ns", "host_min_ns", "host_max_ns"),
        "host_median_ns",
    ),
    "api": ("latency_max_ns", "launches"),
    "gpus": ("clock_hz", "sm_count", "memory_bytes", "operations"),
    "phases": ("busy_ns", "host_ns", "kernel_calls", "linked_share", "early_share"),
    "modules": ("kernel", "other_ns", "family", "optimizer_ns"),
    "captures": ("num_gpus", "events_ns", "kernel_ns", "num_kernels", "top_family"),
    "verdict": (
        _PARTS := (
            "data_ns",
            "nothing_ns",
            "compute_ns",
            "unknown_idle_ns",
            "graphs_ns",
            "no_work_ns",
            "between_ns",
            "communication_ns",
            "sync_ns",
        )
    ),
    "verdict_phases": (*_PARTS, "copies_ns"),
    "communication": (
        *("rank", "busy_ns", "alone_ns", "beside_ns", "kept_late_ns", "kept_computing_ns", "calls"),
        *("exposed_waiting_ns", "kept_waiting_ns", "critical_ns"),
    ),
    "collectives": ("hidden_ns", "calls", "bytes"),
    "messages": ("hidden_ns", "kernel_ns"),
    "advice": ("line_share", "reason_code", "fits_limit", "sure", "share", "ceiling_ns", "evidence", "where"),
    "findings": ("what", "of", "launching_ns"),
    "waits": (
        *("gpu", "module", "nothing_ns", "data_ns", "between_ns", "copies_ns", "sync_ns", "late_launch_ns"),
        *("do", "phase", "function"),
    ),
    "script_waits": ("module", "phase", "function"),
    "sync_lines": ("function", "wait_ns"),
    "matmuls": ("flops", "operator", "batch"),
    "copy_lines": ("function", "copy_ns", "bytes"),
    "allocation_lines": ("function",),
    "tuned_steps": ("peak_bytes", "mfu_share", "mfu", "usd_per_million", "tokens_per_s", "losses"),
    "tuned_other_code": ("on_top_of", "why"),
    "tuned_not_helping": ("peak_bytes", "on_top_of", "could_save_share"),
}
"""Columns that a section drops in a narrow terminal, the first ones first; columns without values go before them."""
NAMES = ("kernel", "name", "source")
"""Columns of names: they come last, and get what room is left."""
_NAME_PART = 0.38
"""Share of the width that names get before columns are left out for them."""
_GAP = 2
_SENTENCE = 16
"""Room that a sentence gets before columns are left out for it."""
LINE = "where"
"""Column of the line of a file: it is broken only if it is wider than a third of the width."""
NO_GPU = "-1"
_NOTHING = {"0 ns", "n/a", EMPTY, NO_GPU}
_LEAST = 12
"""Least width of a sentence, and of a name if even the most important columns leave less."""


def fit_table(section: str, frame: pd.DataFrame, width: int, is_whole: bool = False) -> tuple[list[str], list[str]]:
    """Format the lines of a table, headings first, and return the headings of the columns that have no room in it.

    No line is longer than `width`, unless all columns are wanted (`is_whole`). Names are shortened, sentences broken.
    """
    cells = {column: [format_cell(column, value) for value in frame[column]] for column in _order_columns(frame)}
    texts = {column for column in cells if is_text(frame, column)}
    broken = {column for column in texts if column != LINE or _measure_natural(LINE, cells[LINE]) > width // 3}
    dropped = [] if is_whole else _drop(section, cells, broken, width)
    room = _share_room(cells, broken, width, _measure_name_room(width) if is_whole else _LEAST)
    for name in NAMES:
        if name in cells:
            short = shorten(cells[name], room[name])
            cells[name] = [short[text] for text in cells[name]]
    lines = [_join_row({column: format_heading(column) for column in cells}, room, texts)]
    for row in zip(*cells.values()):
        lines += _break_row(dict(zip(cells, row)), room, texts)
    return lines, [format_heading(column) for column in dropped]


def _order_columns(frame: pd.DataFrame) -> list[str]:
    return sorted(frame.columns, key=lambda column: NAMES.index(column) if column in NAMES else -1)


def _measure_natural(column: str, texts: list[str]) -> int:
    return max(map(cell_len, [format_heading(column), *texts]))


def _measure_name_room(width: int) -> int:
    return int(_NAME_PART * width)


def _drop(section: str, cells: dict[str, list[str]], texts: set[str], width: int) -> list[str]:
    """Take columns out of `cells` until names and sentences have room; return those that had values, in their order."""
    natural = {column: _measure_natural(column, values) for column, values in cells.items()}
    most = {column: max(_SENTENCE, cell_len(format_heading(column))) for column in texts}
    most |= dict.fromkeys(NAMES, _measure_name_room(width))
    wanted = {column: min(size, most.get(column, size)) for column, size in natural.items()}
    left_out = []
    for column in sorted(DROPPED.get(section, ()), key=lambda column: bool({*cells.get(column, ())} - _NOTHING)):
        if sum(wanted[name] for name in cells) + _GAP * (len(cells) - 1) <= width:
            break
        if column in cells:
            left_out += [column] * bool({*cells.pop(column)} - _NOTHING)
    return [column for column in natural if column in left_out]


def _share_room(cells: dict[str, list[str]], texts: set[str], width: int, least: int) -> dict[str, int]:
    """Compute the width of each column: what it needs; if that is too much, names and then the widest texts are cut."""
    room = {column: _measure_natural(column, values) for column, values in cells.items()}
    yielding = [column for column in room if column in NAMES] + [column for column in room if column in texts]
    for column in dict.fromkeys(yielding):
        excess = sum(room.values()) + _GAP * (len(room) - 1) - width
        if excess > 0 and column in NAMES:
            room[column] = max(room[column] - excess, min(room[column], max(least, cell_len(format_heading(column)))))
    floors = {column: max(_LEAST, cell_len(format_heading(column))) for column in texts}
    while (excess := sum(room.values()) + _GAP * (len(room) - 1) - width) > 0:
        wide = [column for column in room if column in texts and room[column] > floors[column]]
        widest = max(wide, key=room.__getitem__, default=None)
        if widest is None or widest in NAMES:
            break
        others = [room[column] for column in wide if column not in NAMES and column != widest]
        room[widest] = max(room[widest] - excess, max(others, default=0) - 1, floors[widest])
    return room


def _break_row(row: dict[str, str], room: dict[str, int], texts: set[str]) -> Iterator[str]:
    """Format a row, on several lines if a sentence needs them."""
    parts = {column: break_text(text, room[column]) for column, text in row.items()}
    for number in range(max(map(len, parts.values()))):
        yield _join_row({c: lines[number] if number < len(lines) else "" for c, lines in parts.items()}, room, texts)


def _join_row(row: dict[str, str], room: dict[str, int], texts: set[str]) -> str:
    padded = []
    for column, text in row.items():
        space = " " * (room[column] - cell_len(text))
        padded.append(text + space if column in texts else space + text)
    return (" " * _GAP).join(padded).rstrip()
