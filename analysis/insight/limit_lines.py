"""The verdict in sentences: where the time of each GPU goes, and what limits it."""

import math
from collections.abc import Collection, Sequence
from typing import Any

import pandas as pd

from profiler_job.analysis.capture.chosen_part import STEADY_SHARE
from profiler_job.analysis.insight.limit_columns import OF_PARTS, PARTS
from profiler_job.analysis.insight.section_columns import SummaryTables
from profiler_job.jobs.contract.quantities import format_share, format_time
from profiler_job.jobs.contract.step_limit import (
    CAUSES,
    COMMUNICATION,
    COMPUTE,
    COPYING,
    CPU,
    GAPS,
    GPU,
    MEMORY,
    UNKNOWN,
    StepLimit,
    describe_causes,
    describe_limit,
    describe_parts,
    split_time,
)
from profiler_job.jobs.contract.step_limit import PARTS as PARTS_OF_STEPS
from profiler_job.jobs.contract.words import format_count

MOST_GPUS = 8
"""So many GPUs have a line each; of more there is one summary."""
INFERRED_SHARE = 0.5
"""A phase is labelled inferred if more than this part of its kernel time is."""
FROM_CAPTURE = (
    "From the capture alone: these are times under the profiler, and all matmuls and attention count as compute"
)
"""What is less certain than for a run whose steps were timed without nsys."""

_NO_WORK = "without work, before its first and after its last operation"
LONG_NO_WORK = 0.05
"""From this part of all time on, the time before the first and after the last operation of a GPU is shown, too."""
LEAST_SAID = 0.01
"""Phases that take less than this part are only in the tables."""


def describe_headline(limit: StepLimit, kinds: Collection[str] = ()) -> str:
    """Describe what limits a step, as a heading: `The GPU waits for the CPU 46% of this step`, `CPU (46%) or memory
    (36%) limits this step`. kinds: of its kernels, as `step_parts` has them, if they are known: without a kernel of
    fused attention only matmuls compute, and the rest of attention counts as memory."""
    shares = [limit.format_shares(0)[name] for name in limit.names]
    if len(shares) > 1:
        line = " or ".join(f"{name} ({share})" for name, share in zip(limit.names, shares))
        return f"{line[0].upper()}{line[1:]} limits this step"
    if limit.is_host_copies:
        return f"{COPYING[0].upper()}{COPYING[1:]} take {limit.host_copies_ns / limit.step_ns:.0%} of this step"
    if not shares:
        return "No time passes"
    is_matmuls = limit.names[0] == COMPUTE and kinds and ATTENTION not in kinds
    return f"{ONLY_MATMULS if is_matmuls else _HEADLINES[limit.names[0]]} {shares[0]} of this step"


def describe_nothing_more(
    limit: StepLimit | None,
    num_cards: int,
    little: Sequence[str],
    uncertain: Sequence[str],
    mfu: float | None = None,
) -> str:
    """Describe why a step has no more than num_cards changes to make, and what to do. limit: None if the step was not
    captured; little, uncertain: actions that were measured, and give less than 5% or are not known to give anything;
    mfu: of the step, if it is known."""
    if limit is None:
        start = "What else would help is not known" if num_cards else "Not known"
        return f"{start}, since nsys did not capture this step. Profile your own script to see what would help it."
    left = _LEFT.get(limit.names[0], "") if limit.names and not num_cards else ""
    measured = f" Measured, and less than 5% faster: {_join_actions(little)}." if little else ""
    if uncertain:
        measured += f" Measured, but a slow CPU may explain the difference: {_join_actions(uncertain)}."
    start = "No other single change" if num_cards else "No single change"
    why = f": {_describe_largest(limit, mfu)}" if limit.names and not num_cards else ""
    return f"{start} on our list is known to make this step 5% faster{why}.{measured} {left}".strip()


def _describe_largest(limit: StepLimit, mfu: float | None) -> str:
    """Describe what takes most of a step: `matmuls and attention take 57% of it, at 48% of the data-sheet peak`."""
    name = limit.names[0]
    rate = mfu / limit.measure_share(COMPUTE) if name == COMPUTE and mfu else None
    at_peak = f", at {format_share(rate, 0)} of the data-sheet peak" if rate else ""
    line = _HEADLINES[name]
    line = line if line.startswith(GPU) else f"{line[0].lower()}{line[1:]}"
    return f"{line} {limit.format_shares(0)[name]} of it{at_peak}"


def _join_actions(actions: Sequence[str]) -> str:
    return "; ".join(f"{action[0].lower()}{action[1:]}" for action in actions)


_LEFT = {
    COMPUTE: "To go faster, use a faster GPU, FP8 or a smaller model.",
    MEMORY: "To go faster, fuse more kernels or use a GPU with more memory bandwidth.",
    COMMUNICATION: "To go faster, look for a GPU that is late; then exchange less often, or use faster links.",
    CPU: "To go faster, use a larger batch or a faster CPU.",
}
"""What is left to do if no change helps, by what limits the step."""

ATTENTION = "attention"
"""The kind of kernels of fused attention."""
ONLY_MATMULS = "Matmuls take"
_HEADLINES = {
    COMPUTE: "Matmuls and attention take",
    MEMORY: "Reading and writing memory takes",
    COMMUNICATION: "Communication takes",
    CPU: "The GPU waits for the CPU",
    GPU: "The GPU is busy",
}


def describe_verdict(summary: SummaryTables) -> list[str]:
    """Format lines of plain text: what limits a GPU and where its time goes, by GPU and by phase; and when start-up
    ends."""
    rows = summary.sections["verdict"]
    if "range" in summary.capture["selection"]:
        return ["Only the work of this range is known: the whole capture shows why the GPU waited"]
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
        FROM_CAPTURE,
    ]


def describe_gpus(rows: pd.DataFrame) -> list[str]:
    """Describe what limits each GPU and where its time goes: three lines for one GPU, one each for a few, a summary for
    many. rows: gpu, elapsed_ns, and any of its PARTS and OF_PARTS."""
    if len(rows) > MOST_GPUS:
        return _describe_many(rows)
    lines = []
    for _, row in rows.iterrows():
        start, *more = _describe_gpu(row)
        start = f"GPU {row['gpu']:.0f}: {start}"
        lines += [start, *more] if len(rows) == 1 else [". ".join((start, *more))]
    return lines


def describe_step(limit: StepLimit) -> list[str]:
    """Describe what limits a step, its parts and what the GPU waits for: up to three lines."""
    return [describe_limit(limit), *filter(None, (describe_parts(limit), describe_causes(limit)))]


def describe_waits(rows: pd.DataFrame) -> str:
    """Describe what a GPU waits for: `mostly for launches`, `mostly in gaps between kernels`; "" if it hardly waits, or
    if no cause is known. rows: like `describe_gpus`."""
    limit = split_time(rows.sum(numeric_only=True))
    known = {name: ns for name, ns in limit.causes.items() if ns and name != UNKNOWN}
    if not known or limit.measure_share(CPU) < LEAST_SAID:
        return ""
    cause = max(known, key=lambda name: known[name])
    return f"mostly {'in' if cause == GAPS else 'for'} {CAUSES[cause]}"


def _describe_gpu(row: pd.Series) -> list[str]:
    limit = split_time(row)
    no_work_ns = float(row.get("no_work_ns", 0))
    without = no_work_ns > LONG_NO_WORK * (limit.step_ns + no_work_ns)
    no_work = f"{format_time(no_work_ns)} more {_NO_WORK}" if without else ""
    return [*describe_step(limit), *([no_work] if no_work else [])]


def describe_together(rows: pd.DataFrame) -> str:
    """Describe what limits all GPUs together, in one line; "" if nothing is known. rows: like `describe_gpus`."""
    if not len(rows):
        return ""
    together = f"{format_count(len(rows), 'GPU')}, together: " if len(rows) > 1 else ""
    return f"{together}{describe_limit(split_time(rows.sum(numeric_only=True)))}"


def find_limit(summary: SummaryTables) -> StepLimit | None:
    """Find what limits all GPUs of a capture together; None if nothing runs, or if the waiting is not known."""
    rows = summary.sections["verdict"]
    if "range" in summary.capture["selection"] or not len(rows):
        return None
    return split_time(rows.sum(numeric_only=True))


def name_limit(summary: SummaryTables) -> str | None:
    """Name what limits all GPUs together, and its share, as `CPU 94%`; None as for `find_limit`."""
    limit = find_limit(summary)
    return _name_share(limit) or None if limit else None


def _name_share(limit: StepLimit) -> str:
    return f"{limit.name} {limit.format_shares()[limit.names[0]]}" if limit.names else ""


def describe_phases(rows: pd.DataFrame, inferred: Collection[str] = ()) -> list[str]:
    """Describe how long each phase takes, as a mean over GPUs, and what limits it, and how much is in none; phases that
    are inferred are labelled so. rows: like `describe_gpus`, by phase."""
    num_gpus = rows["gpu"].nunique()
    names = ["elapsed_ns", *(name for name in (*PARTS, *OF_PARTS) if name in rows)]
    phases = rows[rows["phase"] != ""].groupby("phase", sort=False)[names].sum()
    phases = phases[phases["elapsed_ns"] >= LEAST_SAID * phases["elapsed_ns"].sum()]
    texts = []
    for phase, row in phases.iterrows():
        if limit := _name_share(split_time(row)):
            label = ", inferred" * (phase in inferred)
            texts.append(f"{phase} {format_time(row['elapsed_ns'] / num_gpus)} ({limit}{label})")
    of_several = f", mean of {num_gpus} GPUs" if num_gpus > 1 else ""
    nowhere = rows.loc[rows["phase"] == "", names].sum()
    other_ns = split_time(nowhere).step_ns
    if texts and other_ns >= LEAST_SAID * (other_ns + phases["elapsed_ns"].sum()):
        texts.append(f"in no phase {format_time(other_ns / num_gpus)} ({_name_share(split_time(nowhere))})")
    return [f"By phase{of_several}, with what limits it: {', '.join(texts)}"] if texts else []


def _describe_many(rows: pd.DataFrame) -> list[str]:
    limit, *lines = _describe_gpu(rows.sum(numeric_only=True))
    lines = [f"{format_count(len(rows), 'GPU')}, together: {limit}", *lines]
    limits = [split_time(row) for _, row in rows.iterrows()]
    for name, does in ((COMPUTE, PARTS_OF_STEPS[COMPUTE]), (CPU, "it waits for the CPU")):
        shares = [limit.measure_share(name) for limit in limits]
        least, most = min(shares), max(shares)
        if format_share(least) != format_share(most):
            first, last = (rows["gpu"].iloc[shares.index(share)] for share in (least, most))
            span = f"{format_share(least)} (GPU {first}) to {format_share(most)} (GPU {last})"
            lines.append(f"By GPU, {does} {span} of the time")
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
