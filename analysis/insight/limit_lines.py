"""The verdict in sentences: where the time of each GPU goes, and what limits it."""

import math
from collections.abc import Collection
from typing import Any

import pandas as pd

from profiler_job.analysis.insight.gpu_limit import BUSY, IDLE, PARTS
from profiler_job.analysis.insight.section_columns import SummaryTables
from profiler_job.jobs.contract.quantities import format_share, format_time
from profiler_job.jobs.contract.words import format_count

MOST_GPUS = 8
"""So many GPUs have a line each; of more there is one summary."""
INFERRED_SHARE = 0.5
"""A phase is labelled inferred if more than this part of its kernel time is."""
NEXT_SHARE = 0.2
"""A second limit is named if it takes at least this part of the time."""

_NO_WORK = "before its first and after its last operation"
LONG_NO_WORK = 0.05
"""From this part of the time on, the time before the first and after the last operation of a GPU is shown separately,
and shares refer to the time between them."""
_LIMITS = {
    "kernels": (["kernels_ns"], "they run {share}"),
    "CUDA graphs": (["graphs_ns"], "they hide their kernels, and run {share}"),
    "communication": (["communication_ns"], "nothing else runs {share}"),
    "copies": (["copies_ns"], "nothing but copies and fills runs {share}"),
    "the host": (["late_launch_ns", "sync_ns"], "the GPU waits for it {share}"),
    "gaps between operations": (["between_ns"], "what is launched has not started {share}"),
    "idle time of unknown reason": (["unknown_idle_ns"], "the launches are not in the capture, {share}"),
}
"""What may limit a GPU: its parts of the time, and the statement that is made of them."""
LEAST_PART = 0.001
"""Running parts that take less time are only in the tables."""
LEAST_SAID = 0.01
"""Causes of idle time and phases that take less than this part are only in the tables."""
STEADY_SHARE = 0.02
"""Least part of the time from first to last operation, both before and after the end of loading, to report a
start-up."""


def describe_verdict(summary: SummaryTables) -> list[str]:
    """Format lines of plain text: what limits a GPU and where its time goes, by GPU and by phase; and when start-up
    ends."""
    rows = summary.sections["verdict"]
    if "range" in summary.capture["selection"]:
        return ["Of a range only its own work is here: why the GPU waited, the whole capture tells"]
    if not summary.capture["num_kernels"] and not summary.capture["num_graph_executions"]:
        return [f"No kernels in {format_time(summary.capture['events_ns'])} of events: nothing shows what limits a GPU"]
    if not len(rows):
        return [f"No work on any GPU in {format_time(summary.capture['events_ns'])} of events"]
    shares = summary.sections["phases"].set_index("phase")["inferred_share"]
    inferred = set(shares.index[shares.fillna(0) > INFERRED_SHARE])
    return [
        *describe_gpus(rows),
        *describe_phases(summary.sections["verdict_phases"], inferred),
        *_describe_startup(summary.capture),
    ]


def describe_gpus(rows: pd.DataFrame) -> list[str]:
    """Describe what limits each GPU and where its time goes: three lines for one GPU, one each for a few, a summary for
    many. rows: gpu, elapsed_ns, and any of its PARTS."""
    rows = _add_missing_parts(rows)
    if len(rows) > MOST_GPUS:
        return _describe_many(rows)
    lines = []
    for _, row in rows.iterrows():
        start = f"GPU {row['gpu']:.0f}: {_describe_limit(row)}"
        parts = [_format_sum(row), *_format_causes(row)]
        lines += [start, *parts] if len(rows) == 1 else [f"{start}. {'. '.join(parts)}"]
    return lines


def describe_limit(rows: pd.DataFrame) -> str:
    """Describe what limits all GPUs together, in one line; "" if nothing is known. rows: like `describe_gpus`."""
    if not len(rows):
        return ""
    together = f"{format_count(len(rows), 'GPU')}, together: " if len(rows) > 1 else ""
    return f"{together}{_describe_limit(_add_missing_parts(rows).sum())}"


def name_limit(summary: SummaryTables) -> str | None:
    """Name what takes most of the time of all GPUs together, and its share, as `host 94%`. None if the causes of idle
    time are not known, or nothing runs."""
    rows = summary.sections["verdict"]
    if "range" in summary.capture["selection"] or not len(rows):
        return None
    total = rows.sum()
    return _name_largest(total, _measure_worked(total))


def describe_phases(rows: pd.DataFrame, inferred: Collection[str] = ()) -> list[str]:
    """Describe how long each phase takes, as a mean over GPUs, and what limits it; phases that are inferred are
    labelled so. rows: like `describe_gpus`, by phase."""
    num_gpus = rows["gpu"].nunique()
    rows = _add_missing_parts(rows[rows["phase"] != ""])
    phases = rows.groupby("phase", sort=False)[["elapsed_ns", *PARTS]].sum()
    phases = phases[phases["elapsed_ns"] >= LEAST_SAID * phases["elapsed_ns"].sum()]
    texts = []
    for phase, row in phases.iterrows():
        if limit := _name_largest(row, row["elapsed_ns"]):
            label = ", inferred" * (phase in inferred)
            texts.append(f"{phase} {format_time(row['elapsed_ns'] / num_gpus)} ({limit}{label})")
    of_several = f", mean of {num_gpus} GPUs" if num_gpus > 1 else ""
    return [f"By phase{of_several}, with what limits it: {', '.join(texts)}"] if texts else []


def _add_missing_parts(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(**{part: 0 for part in PARTS if part not in rows})


def _measure_worked(row: pd.Series) -> float:
    """Return the time that shares refer to: between a GPU's first and last operation, or all of it if the rest is
    short. In means over steps, nanoseconds have fractions."""
    elapsed: float = row["elapsed_ns"]
    no_work: float = row["no_work_ns"]
    return elapsed - no_work if elapsed > no_work > LONG_NO_WORK * elapsed else elapsed


def _format_sum(row: pd.Series) -> str:
    """`116 ms = kernels 36.2 ms (31.3%) + idle 79.4 ms (68.7%)`, and where a GPU has no work for long
    `4.29 s = 2.95 s without work + 1.34 s, with kernels 115 ms (8.6%), idle 1.17 s (87.9%)`"""
    worked = _measure_worked(row)
    idle_ns = sum(row[name] for name in IDLE) + (row["no_work_ns"] if worked == row["elapsed_ns"] else 0)
    present = [part for part in _sort_largest_first(row, BUSY) if row[part[0]] >= LEAST_PART * worked]
    terms = [f"{label} {_format_time(row[name], worked)}" for name, label in present]
    if idle_ns:
        terms.append(f"idle {_format_time(idle_ns, worked)}")
    if worked == row["elapsed_ns"]:
        return " = ".join([format_time(worked), *([" + ".join(terms)] if terms else [])])
    no_work = f"{format_time(row['no_work_ns'])} without work"
    return f"{format_time(row['elapsed_ns'])} = {no_work} + {format_time(worked)}, with {', '.join(terms)}"


def _format_causes(row: pd.Series) -> list[str]:
    """`Idle: launched late by the host 75.1 ms, between operations 4.30 ms`"""
    labels = IDLE | ({"no_work_ns": _NO_WORK} if _measure_worked(row) == row["elapsed_ns"] else {})
    idle_ns = sum(row[name] for name in labels)
    present = [part for part in _sort_largest_first(row, labels) if row[part[0]] >= LEAST_SAID * idle_ns]
    causes = ", ".join(f"{label} {format_time(row[name])}" for name, label in present)
    return [f"Idle: {causes}"] if causes else []


def _sort_largest_first(row: pd.Series, labels: dict[str, str]) -> list[tuple[str, str]]:
    present = [(name, label) for name, label in labels.items() if row[name]]
    return sorted(present, key=lambda part: -row[part[0]])


def _describe_limit(row: pd.Series) -> str:
    """Name what takes most of the time, and what comes next."""
    worked = _measure_worked(row)
    takes = _sum_limits(row)
    first, second, *_ = takes
    if not takes[first]:
        return "no time passes while it has work"
    time = "time" if worked == row["elapsed_ns"] else f"{format_time(worked)} from first to last operation"
    shares = {
        first: f"{_format_percent(takes[first], worked)} of the {time}",
        second: _format_percent(takes[second], worked),
    }
    statements = {name: f"{name}: {_LIMITS[name][1].format(share=share)}" for name, share in shares.items()}
    next_text = f"; next by {statements[second]}" if takes[second] >= NEXT_SHARE * worked else ""
    return f"limited by {statements[first]}{next_text}"


def _name_largest(row: pd.Series, time_ns: float) -> str:
    """Return the largest limit and its part of a time; "" if nothing takes any."""
    name, takes = next(iter(_sum_limits(row).items()))
    return f"{name.removeprefix('the ')} {_format_percent(takes, time_ns)}" if takes else ""


def _sum_limits(row: pd.Series) -> dict[str, int]:
    """Nanoseconds of each limit, the largest first."""
    takes = {name: sum(int(row[part]) for part in parts) for name, (parts, _) in _LIMITS.items()}
    return dict(sorted(takes.items(), key=lambda item: -item[1]))


def _describe_many(rows: pd.DataFrame) -> list[str]:
    total = rows.sum()
    lines = [
        f"{format_count(len(rows), 'GPU')}, together: {_describe_limit(total)}",
        _format_sum(total),
        *_format_causes(total),
    ]
    for name, does in (("kernels_ns", "kernels run"), ("late_launch_ns", "it waits for late launches")):
        worked = rows.apply(_measure_worked, axis=1)
        shares = rows[name] / worked.clip(lower=1)
        at = [shares.idxmin(), shares.idxmax()]
        least, most = (_format_percent(rows.loc[row, name], worked[row]) for row in at)
        if least != most:
            first, last = rows.loc[at, "gpu"]
            lines.append(f"By GPU, {does} {least} (GPU {first}) to {most} (GPU {last}) of the time")
    return lines


def _describe_startup(facts: dict[str, Any]) -> list[str]:
    """Describe when start-up ends, in a capture that has it and something after it."""
    start, end, loaded = (facts[name] for name in ("work_start_ns", "work_end_ns", "loading_end_ns"))
    if loaded is None or facts["selection"] or not STEADY_SHARE <= (end - loaded) / (end - start) <= 1 - STEADY_SHARE:
        return []
    after = f"{_format_moment(loaded)},{_format_moment(end)}"
    return [
        f"Start-up is in these numbers: kernels' code is loaded until {format_time(loaded)}; "
        f"--between {after} shows what comes after it"
    ]


def _format_moment(ns: int) -> str:
    """Format a moment for --between, not before `ns`."""
    return f"{math.ceil(ns / 1e6)}ms" if ns >= 1e8 else f"{math.ceil(ns / 1e3)}us"


def _format_time(ns: float, elapsed: float) -> str:
    return f"{format_time(ns)} ({_format_percent(ns, elapsed)})"


def _format_percent(ns: float, elapsed: float) -> str:
    return format_share(ns / elapsed)
