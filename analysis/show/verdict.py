"""The verdict in sentences: where the time of each GPU goes, and what limits it."""

import pandas as pd

from analysis.capture.summary import Summary
from analysis.capture.verdict import PARTS
from analysis.show.values import time_text
from jobs.contract.words import counted

MOST_GPUS = 8
"""So many GPUs have a line each; of more there is one summary."""
NEXT_SHARE = 0.2
"""A second limit is named where it takes at least this part of the time."""

_BUSY = {"kernels_ns": "kernels", "graphs_ns": "graphs", "communication_ns": "communication", "copies_ns": "copies"}
_IDLE = {
    "late_launch_ns": "launched late by the host",
    "sync_ns": "in a synchronisation",
    "between_ns": "between operations",
    "unknown_idle_ns": "for an unknown reason",
    "no_work_ns": "before and after all its work",
}
_LIMITS = {
    "kernels": (["kernels_ns"], "they run {share} of the time"),
    "CUDA graphs": (["graphs_ns"], "they run {share} of the time, and hide their kernels"),
    "communication": (["communication_ns"], "{share} of the time nothing but communication kernels runs"),
    "copies": (["copies_ns"], "{share} of the time nothing but copies and sets runs"),
    "the host": (["late_launch_ns", "sync_ns"], "the GPU waits for the host {share} of the time"),
    "gaps between operations": (["between_ns"], "{share} of the time the GPU has not started what is launched"),
    "idle time of unknown reason": (
        ["unknown_idle_ns"],
        "{share} of the time, and the launches are not in the capture",
    ),
}
"""What may limit a GPU: its parts of the time, and the statement that is made of them."""


def sentences(summary: Summary) -> list[str]:
    """Lines of plain text: three of one GPU, one each of a few, a summary of many; and one of the phases."""
    rows = summary.sections["verdict"]
    if not len(rows):
        return [f"No work on any GPU in {time_text(summary.capture['events_ns'])} of events"]
    if len(rows) > MOST_GPUS:
        return _of_many(rows)
    lines = []
    for _, row in rows.iterrows():
        parts, limit = f"GPU {row['gpu']}: {_sum_of_parts(row)}", _limit(row)
        lines += [parts, *_causes(row), limit] if len(rows) == 1 else [f"{parts}. {limit}"]
    return lines + _of_phases(summary)


def _sum_of_parts(row: pd.Series) -> str:
    """`115.60 ms = kernels 36.20 ms (31%) + idle 79.40 ms (69%)`"""
    elapsed = row["elapsed_ns"]
    idle_ns = sum(row[name] for name in _IDLE)
    terms = [f"{label} {_time(row[name], elapsed)}" for name, label in _largest_first(row, _BUSY)]
    if idle_ns:
        terms.append(f"idle {_time(idle_ns, elapsed)}")
    return " = ".join([time_text(elapsed), *([" + ".join(terms)] if terms else [])])


def _causes(row: pd.Series) -> list[str]:
    """`Idle: launched late by the host 75.10 ms, between operations 4.30 ms`"""
    causes = ", ".join(f"{label} {time_text(row[name])}" for name, label in _largest_first(row, _IDLE))
    return [f"Idle: {causes}"] if causes else []


def _largest_first(row: pd.Series, labels: dict[str, str]) -> list[tuple[str, str]]:
    present = [(name, label) for name, label in labels.items() if row[name]]
    return sorted(present, key=lambda part: -row[part[0]])


def _limit(row: pd.Series) -> str:
    """What takes most of the time, and what comes next; first that there is mostly no work, where that takes more."""
    elapsed = row["elapsed_ns"]
    if not elapsed:
        return "No time passes"
    takes = _takes(row)
    first, second, *_ = takes
    statements = {name: _LIMITS[name][1].format(share=_percent(takes[name], elapsed)) for name in (first, second)}
    text = f"imited by {first}: {statements[first]}"
    if takes[second] >= NEXT_SHARE * elapsed:
        text += f"; next by {second}: {statements[second]}"
    if row["no_work_ns"] <= takes[first]:
        return f"L{text}"
    text = f"l{text}" if takes[first] else "in between nothing takes time"
    return (
        f"Without work {_percent(row['no_work_ns'], elapsed)} of the time, before its first and after its last; {text}"
    )


def _takes(row: pd.Series) -> dict[str, int]:
    """Nanoseconds of each limit, the largest first."""
    takes = {name: sum(int(row[part]) for part in parts) for name, (parts, _) in _LIMITS.items()}
    return dict(sorted(takes.items(), key=lambda item: -item[1]))


def _of_many(rows: pd.DataFrame) -> list[str]:
    total = rows.sum()
    lines = [f"{counted(len(rows), 'GPU')}, together: {_sum_of_parts(total)}", *_causes(total), _limit(total)]
    for name, does in (("kernels_ns", "kernels run"), ("late_launch_ns", "GPUs wait for late launches")):
        shares = rows[name] / rows["elapsed_ns"].clip(lower=1)
        low, high = (rows.loc[at] for at in (shares.idxmin(), shares.idxmax()))
        least, most = (f"{_percent(row[name], row['elapsed_ns'])} (GPU {row['gpu']})" for row in (low, high))
        lines.append(f"From GPU to GPU {does} {least} to {most} of the time")
    return lines


def _of_phases(summary: Summary) -> list[str]:
    """What each phase is limited by, on all GPUs together."""
    rows = summary.sections["verdict_phases"]
    phases = rows[rows["phase"] != ""].groupby("phase", sort=False)[["elapsed_ns", *PARTS]].sum()
    texts = []
    for phase, row in phases.iterrows():
        name, takes = next(iter(_takes(row).items()))
        if takes:
            texts.append(f"{phase} {time_text(row['elapsed_ns'])} ({name} {_percent(takes, row['elapsed_ns'])})")
    return [f"By phase, with what takes most of it: {', '.join(texts)}"] if texts else []


def _time(ns: float, elapsed: float) -> str:
    return f"{time_text(ns)} ({_percent(ns, elapsed)})"


def _percent(ns: float, elapsed: float) -> str:
    percent = 100 * ns / elapsed
    return f"{percent:.0f}%" if percent >= 10 or not percent else f"{percent:.1f}%" if percent >= 0.1 else "below 0.1%"
