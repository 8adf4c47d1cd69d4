"""What the GPU waits for, line by line of the script, in sentences."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from profiler_job.analysis.changes.waiting_lines import LEAST_SHARE, MOST_LINES
from profiler_job.analysis.insight.clean_gaps import MOST_CALL_NS
from profiler_job.analysis.insight.section_columns import SummaryTables
from profiler_job.analysis.reference.python_libraries import (
    DO,
    GARBAGE,
    LOCK,
    LOGGING,
    PRINTING,
    leave_out_compile,
)
from profiler_job.jobs.contract.messages import BATCHES, COLLECTED, SAMPLED
from profiler_job.jobs.contract.paired_ratio import SPREAD_OF_CPU
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.quantities import format_share, format_time
from profiler_job.jobs.contract.step_limit import (
    CPU,
    DATA,
    GAPS,
    LAUNCHES,
    NOTHING,
    SYNCHRONISATION,
    StepLimit,
)
from profiler_job.jobs.contract.words import format_count, inflect

PART = "part: "
"""After SAMPLED: the share of the waiting of a part of `wait_parts`."""
LEAST_WAIT = 0.01
"""Least share of the time that a GPU must wait before lines are named."""
NAMED_PARTS = (GARBAGE, LOCK, LOGGING, PRINTING)
"""What is named if it costs LEAST_PART of a step: it hides in several lines."""
LEAST_PART = 0.01


def describe_waits(summary: SummaryTables) -> list[str]:
    """Describe how long the GPUs wait, and for which lines of the script; nothing without samples of Python."""
    facts, rows = summary.capture, summary.sections["waits"]
    if not facts["num_samples"] or not len(rows) or "range" in facts["selection"]:
        return []
    waiting, span = facts["waiting_ns"], facts["waiting_span_ns"]
    if waiting < LEAST_WAIT * span:
        return [describe_no_waiting(waiting, span)]
    num = facts["num_sampled_steps"] or 1
    of_parts = summary.sections["wait_parts"].set_index("part")["share"].astype(float).to_dict()
    rows = rows.assign(cpu_ns=rows["cpu_ns"].astype(float) / num)
    rows = bound_savings(rows, waiting / num, sample_ns=facts["sample_period_ns"] / num)
    lines = describe_lines(rows, waiting / num, span / num, facts["sampled_share"], bool(facts["num_sampled_steps"]))
    return [*lines, *describe_parts(of_parts, waiting / num, span / num), f"Times are of {describe_sampled(facts)}"]


def describe_no_waiting(waiting_ns: float, whole_ns: float) -> str:
    return f"The GPU waits {format_share(waiting_ns / whole_ns)} of the time: no line of the script makes it wait"


def describe_sampled(facts: Mapping[str, Any]) -> str:
    """Describe what a capture took samples of. facts: of the capture."""
    steps = facts["num_sampled_steps"]
    of = f"{format_count(steps, 'step')} with samples, which are" if steps else "a program with samples, which is"
    return f"{of} slower than alone"


def describe_parts(shares: Mapping[str, float], waiting_ns: float, whole_ns: float) -> list[str]:
    """Describe how long the GPU waits for each of NAMED_PARTS, in whichever lines. shares: of the waiting, by part."""
    times = {name: shares.get(name, 0.0) * waiting_ns for name in NAMED_PARTS}
    large = [f"{name} {format_time(ns)}" for name, ns in times.items() if ns >= LEAST_PART * whole_ns]
    return [f"In all lines together: {', '.join(large)}"] if large else []


def describe_lines(
    rows: pd.DataFrame, waiting_ns: float, whole_ns: float, sampled_share: float, is_step: bool
) -> list[str]:
    """Describe the lines that a GPU waits for. rows: of `bound_savings`; waiting_ns: of whole_ns, which is a step
    (is_step) or a whole capture."""
    of = "a step of" if is_step else ""
    times = f"{format_time(waiting_ns)} of {of} {format_time(whole_ns)}".replace("  ", " ")
    lines = [f"The GPU waits {times}; Python samples cover {format_share(sampled_share)} of that"]
    rows = rows[rows["share"] >= LEAST_SHARE].head(MOST_LINES)
    for row in rows.itertuples(index=False):
        do = f": {row.do}" if row.do else ""
        most = f"; the line could save up to {format_time(row.ceiling_ns)}" if row.ceiling_ns > 0 else ""
        lines.append(
            f"{format_time(row.share * waiting_ns)}: {make_printable(row.where)} {make_printable(row.function)} "
            f"({make_printable(row.below)}){do}{most}"
        )
    return lines


def list_loaders(scalars: Mapping[str, float]) -> list[dict[str, float]]:
    """List what is known of each DataLoader, several by their number: ns, num_workers, is_pinned, worker_ns,
    and `worker_NUMBER_ns` if it has several; nothing without one."""
    loaders: dict[int, dict[str, float]] = {}
    for name, value in scalars.items():
        if match := re.fullmatch(rf"{BATCHES}(?:(\d+)_)?([a-z]\w*)", name):
            loaders.setdefault(-1 if match[1] is None else int(match[1]), {})[match[2]] = value
    together = loaders.pop(-1, {})
    return [loaders[number] for number in sorted(loaders)] or [together] * bool(together)


def fit_to_compiled(rows: pd.DataFrame, is_compiled: bool) -> pd.DataFrame:
    """Return lines without advice to compile, if the script is compiled already. rows: of the section or table
    `waits`."""
    return rows.assign(do=rows["do"].astype(str).map(leave_out_compile)) if is_compiled and len(rows) else rows


def list_workers(loader: Mapping[str, float]) -> dict[int, float]:
    """List the time of each worker of a DataLoader for a batch (ns), by its number; {} unless it has several."""
    numbers = {name: re.fullmatch(r"worker_(\d+)_ns", name) for name in loader}
    return {int(match[1]): loader[name] for name, match in numbers.items() if match}


def describe_batches(scalars: Mapping[str, float], step_ns: float, lines: Sequence[str] = ()) -> list[str]:
    """Describe how long a step without a profiler waits for the batches of its DataLoaders; nothing below LEAST_PART.
    lines: that take batches, in the order of `list_loaders`."""
    ns = scalars.get(f"{BATCHES}ns", 0.0)
    if ns < LEAST_PART * step_ns:
        return []
    loaders = list_loaders(scalars)
    if len(loaders) == 1:
        return [f"To take batches from the DataLoader the CPU spends {format_time(ns)}: {_describe_loader(loaders[0])}"]
    spent = [f"To take batches from DataLoaders the CPU spends {format_time(ns)}, in {len(loaders)} lines"]
    for number, loader in enumerate(loaders):
        name = make_printable(lines[number]) if len(lines) == len(loaders) else f"DataLoader {number + 1}"
        spent.append(f"{name} takes batches for {format_time(loader['ns'])}: {_describe_loader(loader)}")
    return spent


def _describe_loader(loader: Mapping[str, float]) -> str:
    workers = format_count(int(loader["num_workers"]), "worker")
    memory = "pinned" if loader["is_pinned"] else "pageable"
    each = list_workers(loader)
    ends = [f"{format_time(ns)} in worker {number}" for ns, number in sorted((ns, n) for n, ns in each.items())]
    between = f" ({ends[0]} to {ends[-1]})" if ends else ""
    takes = f". A worker, which is not sampled, takes {format_time(loader.get('worker_ns', 0.0))} for a batch{between}"
    return f"{workers}, {memory} memory{takes if loader.get('worker_ns') else ''}"


def describe_collections(scalars: Mapping[str, float], step_ns: float) -> list[str]:
    """Describe how long Python collects garbage in a step, where no sample shows it; nothing below LEAST_PART."""
    ns, is_sampled = scalars.get(f"{COLLECTED}ns", 0.0), f"{SAMPLED}{PART}{GARBAGE}" in scalars
    if ns < LEAST_PART * step_ns or is_sampled:
        return []
    num = scalars[f"{COLLECTED}num"]
    often = f"{num:.2g} {inflect(num, 'time')}"
    return [f"Python collects garbage {often} a step, which takes the CPU {format_time(ns)}: {DO[GARBAGE]}"]


def scale_waits(rows: pd.DataFrame, scalars: Mapping[str, float], limit: StepLimit | None) -> pd.DataFrame:
    """Scale the table `waits` of a run to the time in which the GPU waits in a step without a profiler: its wait_ns. If
    that is not known (no limit), times are of the steps with samples. Add ceiling_ns. scalars: of `recorded_waits`."""
    step_ns, period_ns, steps = (scalars.get(f"{SAMPLED}{name}", 0.0) for name in ("step_ns", "period_ns", "steps"))
    sample_ns = period_ns / max(steps, 1.0)
    if limit is None:
        waiting = scalars.get(f"{SAMPLED}waiting_ns", float(rows["wait_ns"].sum()))
        return bound_savings(rows, waiting, sample_ns)
    waiting = measure_waiting(rows, limit)
    slower = max(limit.step_ns / step_ns, 1.0) if step_ns else 1.0
    return bound_savings(rows.assign(wait_ns=rows["share"] * waiting), waiting, sample_ns, slower)


def bound_savings(rows: pd.DataFrame, waiting_ns: float, sample_ns: float, slower: float = 1.0) -> pd.DataFrame:
    """Add the most that a step could save without each line (all rows of one `where`), ceiling_ns (NaN: not known).

    It is the time of the CPU in the line, even while the GPU works: without it the CPU is farther ahead, and the GPU
    waits less elsewhere; or the time that the GPU waits for it, if that is longer. It is wider by what steps that the
    CPU limits differ by, as other lines take another time without this one, and by two standard deviations of its
    number of samples. No more than all waiting can be saved. waiting_ns: of a step. rows: of the section or table
    `waits`. sample_ns: what a sample adds to the mean time of a step. slower: a step without a profiler, in steps with
    samples, if it is longer."""
    cpu, where = rows["cpu_ns"].astype(float), rows["where"].astype(str)
    sums = pd.DataFrame({"cpu": cpu.where(cpu >= 0) * slower, "own": rows["share"].astype(float) * waiting_ns})
    sums = sums.groupby(where).transform("sum", min_count=1)
    time = np.maximum(sums["cpu"], sums["own"])
    more = np.hypot(SPREAD_OF_CPU * time, 2 * np.sqrt(sample_ns * time))
    return rows.assign(ceiling_ns=np.minimum(time + more, waiting_ns))


def measure_waiting(rows: pd.DataFrame, limit: StepLimit) -> float:
    """Measure how long the GPU waits in a step without a profiler. rows: its table `waits`. Copies from and to the host
    that nothing hides are in it: the limit counts them as memory."""
    return limit.parts.get(CPU, 0.0) + float(rows["copies_ns"].sum())


def find_causes(limit: StepLimit, rows: pd.DataFrame) -> StepLimit:
    """Find what the GPU waits for in a step from the lines that it waits for; of waiting that is in no line, and
    without samples, it is as it was. rows: the table `waits` of the run."""
    times = rows[["late_launch_ns", "data_ns", "nothing_ns", "sync_ns", "between_ns"]].clip(lower=0).sum()
    waiting = float(times["late_launch_ns"] + times["sync_ns"] + times["between_ns"])
    if not waiting or (rows["data_ns"] < 0).any():
        return limit
    parts = {SYNCHRONISATION: times["sync_ns"], DATA: times["data_ns"], NOTHING: times["nothing_ns"]}
    parts |= {GAPS: times["between_ns"], LAUNCHES: times["late_launch_ns"] - times["data_ns"] - times["nothing_ns"]}
    known, cpu_ns = min(float(rows["share"].sum()), 1.0), limit.parts.get(CPU, 0.0)
    causes = {name: (1 - known) * ns for name, ns in limit.causes.items()}
    causes |= {name: causes.get(name, 0.0) + known * cpu_ns * float(ns) / waiting for name, ns in parts.items()}
    return replace(limit, causes=causes)


def select_scalars(figures: pd.DataFrame) -> dict[str, float]:
    """Select the scalars of the first rank of a run. figures: the table of this name."""
    of_first = figures[figures["rank"] == figures["rank"].min()]
    return dict(zip(of_first["figure"].astype(str), of_first["value"].astype(float)))


def list_part_shares(scalars: Mapping[str, float]) -> dict[str, float]:
    """List the shares of the waiting of a run by part of `wait_parts`, as far as they are recorded."""
    start = f"{SAMPLED}{PART}"
    return {name.removeprefix(start): value for name, value in scalars.items() if name.startswith(start)}


def describe_recorded_waits(
    rows: pd.DataFrame, scalars: Mapping[str, float], limit: StepLimit | None, loaders: Sequence[str] = ()
) -> list[str]:
    """Describe which lines the GPU waits for in a step of a script. rows: its table `waits`; scalars: of
    `recorded_waits`; limit: of the step without a profiler; loaders: lines that take batches of a DataLoader. Without
    samples only what the script itself shows: batches, and collections of garbage."""
    sampled = {name.removeprefix(SAMPLED): value for name, value in scalars.items() if name.startswith(SAMPLED)}
    step = limit.step_ns if limit is not None else sampled.get("step_ns", 0.0)
    of_script = [*describe_batches(scalars, step, loaders), *describe_collections(scalars, step)] if step else []
    if not len(rows):
        return of_script
    waiting = measure_waiting(rows, limit) if limit is not None else sampled["waiting_ns"]
    rows = scale_waits(rows.astype({"where": str, "function": str, "below": str, "do": str}), scalars, limit)
    if waiting < LEAST_WAIT * step:
        return [describe_no_waiting(waiting, step), *of_script]
    lines = describe_lines(rows, waiting, step, sampled["covered"], is_step=True)
    lines += [*describe_parts(list_part_shares(scalars), waiting, step), *of_script]
    if limit is not None and (copies := float(rows["copies_ns"].sum())) >= LEAST_PART * step:
        lines.append(
            f"{format_time(copies)} of it are copies from and to the CPU's memory: the limit has them as memory"
        )
    times = f"{format_time(sampled['waiting_ns'])} of {format_time(sampled['step_ns'])} a step"
    steps = f"{format_count(int(sampled['steps']), 'step')} with samples, where the GPU waits {times}"
    if "call_ns" not in sampled:
        return [
            *lines,
            f"{'Shares' if limit else 'Times'} are from {steps}{'; times are from others' if limit else ''}",
        ]
    adds = f", less the {format_time(sampled['call_ns'])} that nsys adds to a CUDA call" if sampled["call_ns"] else ""
    if sampled["call_ns"] == MOST_CALL_NS:
        adds += ": no more is taken off, so that these times are still longer than without a profiler"
    which = f"Which line it is, and the most that it could save, is from {steps}"
    return [*lines, f"{which}. How long it waits is from steps without samples{adds}"]
