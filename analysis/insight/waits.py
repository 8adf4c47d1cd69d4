"""What Python does while a GPU waits: from samples of stacks, the lines of a script that keep it waiting.

A GPU waits while it runs no kernel and no fill: it idles, or only copies from or to the host. In an idle time the
thread counts that launches the next operation, or, if that has no Python (autograd's threads), the process's sampled
thread with most calls of CUDA. Each piece of the time counts for the stack that the thread had in its last sample
before, unless that is too long ago.

A synchronisation that waits for the GPU does not make it idle by itself: what is launched after it comes late. How much
of this would be hidden without it is found by a replay: the CPU launches as before, but without the times in which it
was blocked, at most FULL_QUEUE launches ahead of the GPU. What an idle time loses in the replay counts for the line of
the last synchronisation before in which the CPU lost so much, not for the line that was sampled.
"""

import itertools
from collections import Counter
from typing import NamedTuple

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.capture.distinct_values import find_distinct
from profiler_job.analysis.capture.os_calls import find_idle_pauses
from profiler_job.analysis.insight.call_advice import advise_calls, list_sampled_calls
from profiler_job.analysis.insight.call_lines import find_allocation_lines, find_copy_lines
from profiler_job.analysis.insight.call_stacks import CallStacks
from profiler_job.analysis.insight.clean_gaps import CleanGaps, count_steps, number_places, place_pieces, split_by_phase
from profiler_job.analysis.insight.gpu_limit import PHASES, Timelines
from profiler_job.analysis.insight.gpu_waits import COPY, FOR_DATA, LATE, SYNC, GpuWaits, Launches, find_blocking_calls
from profiler_job.analysis.insight.section_columns import SECTIONS
from profiler_job.analysis.insight.stack_places import Places, find_launching, format_frames, format_line
from profiler_job.analysis.insight.stack_samples import LONGEST_NS, NOT_SAMPLED, StackSamples
from profiler_job.analysis.insight.wait_causes import (
    CAUSE_COLUMNS,
    COLUMNS,
    LEAST_PART,
    WHOLE,
    find_causes,
    format_parts,
    sum_causes,
)
from profiler_job.analysis.metrics.kernel_time import module_of
from profiler_job.analysis.reference import python_libraries
from profiler_job.analysis.reference.python_libraries import LOADER, LOCK, OWN, OWN_LAUNCHES, OWN_OF_MODULE
from profiler_job.analysis.reference.rules import Taxonomy

MOST_GROUPS = 3
LEAST_ADVISED = 0.2
"""Least share of a line's waiting that an advice concerns."""
LEAST_OWN_NS = 1_000_000
"""So long own code launches nothing only if it computes itself: to launch an operation takes microseconds."""
UNEVEN = 2
"""A line is one GPU's if it waits so many times as long for it as the others in the median."""
OTHER_THREAD = "; in another thread than the main one"
MOST_STACKS = 2_000


FACTS = (
    "num_samples",
    "sample_period_ns",
    "waiting_ns",
    "waiting_span_ns",
    "sampled_share",
    "num_sampled_steps",
    "own_python_ns",
)


OF_WAITS = ("waits", "wait_parts", "wait_stacks", "sync_lines", "copy_lines", "allocation_lines")


class Waits(NamedTuple):
    """Tables of the sections OF_WAITS, and facts of the samples: own_python_ns is how long GPUs wait for own code that
    is in no module and launches nothing for LEAST_OWN_NS. causes: by gpu and phase, data_ns and nothing_ns that only
    samples show, see `wait_causes.add_causes`."""

    sections: dict[str, pd.DataFrame]
    facts: dict[str, int | float | None]
    causes: pd.DataFrame = pd.DataFrame(columns=CAUSE_COLUMNS)


def find_waits(
    capture: Capture,
    attribution: Attribution,
    gpus: dict[str, np.ndarray],
    taxonomy: Taxonomy,
    is_whole: bool = True,
    clean: CleanGaps | None = None,
) -> Waits:
    """Find the lines that GPUs wait for; none without samples, nor if a range is selected (not is_whole), which does
    not show why a GPU waits. gpus: the GPU of each row of kernels, graphs and memops. clean: of steps without samples,
    to which the times of the lines are scaled; `waiting_ns` and `waiting_span_ns` stay as they are."""
    if not len(capture.samples) or not is_whole or not any(map(len, gpus.values())):
        nothing = {name: pd.DataFrame(columns=list(SECTIONS[name])) for name in OF_WAITS}
        return Waits(nothing, dict.fromkeys(FACTS) | {"num_samples": 0})
    places = Places(capture.stacks, find_launching(capture.samples, capture.api))
    samples = StackSamples(capture, lines_of_stacks := places.number_lines(), find_idle_pauses(capture, attribution))
    stacks = CallStacks(capture, attribution, samples, lines_of_stacks)
    syncs = find_blocking_calls(capture, attribution)
    sync_stack = stacks.find(syncs["api"].to_numpy())
    timelines = Timelines(capture, attribution, gpus, taxonomy)
    calls = Launches(capture, attribution)
    call_ns = clean.find_call_ns(capture, attribution) if clean is not None else 0.0
    clean_calls = clean.calls if clean is not None else None
    parts, counts, waited, span = [], {}, 0, 0
    every_gpu = find_distinct(np.concatenate([*gpus.values()])).tolist()
    for index, number in enumerate(every_gpu):
        ops = timelines.list_operations(number)
        gpu = GpuWaits(ops, timelines.calls, calls, syncs, call_ns)
        pieces = gpu.list_pieces()
        waited += int((pieces["end"] - pieces["start"]).sum())
        span += int(ops.end.max() - ops.start[0])
        moved = gpu.list_moved()
        moved["stack"] = sync_stack[moved["sync"].to_numpy()]
        pieces = split_by_phase(pieces, attribution) if clean is not None else pieces.assign(at=-1)
        both = pd.concat([samples.split(pieces), moved], ignore_index=True)
        step_places = number_places(timelines.list_steps(number), ops.phase)
        counts[index] = step_places.counts
        parts.append(place_pieces(both.assign(gpu=index), step_places))
    pieces = pd.concat(parts, ignore_index=True)
    is_sampled = pieces["stack"] != NOT_SAMPLED
    pieces["stack"] += np.where(is_sampled, pieces["state"] * len(capture.stacks), 0)  # a stack of its own
    without, pieces["cause"] = pieces["cause"], find_causes(pieces, places)
    causes = sum_causes(pieces.assign(gpu=np.array(every_gpu)[pieces["gpu"].to_numpy()]), without, places)
    num_steps = int(attribution.ranges["is_step"].sum()) if len(attribution.ranges) else 0
    counted = float(waited)
    if clean is not None and num_steps:
        pieces["ns"] *= clean.scale(pieces, counts, count_steps(attribution))
        pieces["module"] = clean.name_modules(pieces)
        counted = float(pieces["ns"].sum())
    pieces["gpu"] = np.array(every_gpu)[pieces["gpu"].to_numpy()]
    lines = _sum_lines(pieces, places, counted, every_gpu)
    lines["cpu_ns"] = _measure_cpu(samples, attribution, places, lines)
    if (busy := _find_busy_line(capture.samples, set(samples.main.values()), places)) is not None:
        lock = python_libraries.DO[LOCK]
        lines["do"] = [text.replace(lock, f"{busy} {_IN_OTHER_THREAD}") for text in lines["do"]]
    sampled = int(pieces.loc[pieces["stack"] != NOT_SAMPLED, "ns"].sum())
    facts = {
        "num_samples": len(capture.samples),
        "sample_period_ns": samples.period_ns,
        "waiting_ns": waited,
        "waiting_span_ns": span,
        "sampled_share": sampled / counted if counted else None,
        "num_sampled_steps": num_steps or None,
        "own_python_ns": _measure_own(pieces, places),
    }
    synced = _sum_syncs(syncs, sync_stack, pieces, places)
    copied = find_copy_lines(capture, attribution, stacks, places, clean_calls)
    sections = {
        "waits": advise_calls(lines, list_sampled_calls(synced, copied)),
        "wait_parts": _sum_parts(pieces, places, counted),
        "wait_stacks": _sum_stacks(pieces, places),
        "sync_lines": synced,
        "copy_lines": copied,
        "allocation_lines": find_allocation_lines(capture, attribution, stacks, places, clean_calls),
    }
    return Waits(sections, facts, causes)


# -------------------------------------------------------------------------------------------------------- the tables


def _sum_lines(pieces: pd.DataFrame, places: Places, waited: float, every_gpu: list[int]) -> pd.DataFrame:
    """Sum the waiting by line of the user, most first; columns: of the section `waits`."""
    known = pieces[pieces["stack"] != NOT_SAMPLED]
    at = [places[number] for number in known["stack"].tolist()]
    known = known.assign(file=[p.file for p in at], line=[p.line for p in at], below=[p.below for p in at])
    known["function"] = [p.function for p in at]
    known["module"] = [module_of(str(name)) if p.is_in_forward else "" for p, name in zip(at, known["module"])]
    rows = []
    for (file, line, function), mine in known.groupby(["file", "line", "function"], sort=False):
        total = float(mine["ns"].sum())
        if total < 0.5:
            continue
        by_cause = mine.groupby("cause")["ns"].sum()
        groups = mine.groupby("below")["ns"].sum().sort_values(ascending=False, kind="stable")
        phases = mine.groupby("phase")["ns"].sum()
        is_other = float(mine.loc[mine["is_other"].eq(True), "ns"].sum()) > total / 2
        rows.append(
            {
                "where": format_line(file, line),
                "function": function,
                "wait_ns": round(total),
                "cpu_ns": 0,
                "share": total / waited if waited else None,
                **{name: round(float(by_cause.reindex(causes).sum())) for name, causes in COLUMNS.items()},
                "below": _format_groups(groups, total) + (OTHER_THREAD if is_other else ""),
                "phase": format_parts(phases.rename(lambda code: PHASES[int(code)]), "no phase"),
                "module": _find_module(mine.groupby("module")["ns"].sum(), total),
                "gpu": _find_uneven_gpu(mine.groupby("gpu")["ns"].sum().reindex(every_gpu, fill_value=0.0)),
                "do": _choose_advice(groups, by_cause, total),
            }
        )
    rows.sort(key=lambda row: -row["wait_ns"])
    return pd.DataFrame(rows, columns=list(SECTIONS["waits"]))


def _find_module(times: pd.Series, total: float) -> str:
    """Find the innermost module that has more than half of `total`, with those inside it; "" if there is none. times:
    by path."""
    sums: Counter[str] = Counter()
    for path, ns in times.items():
        for outer in itertools.accumulate(filter(None, str(path).split("/")), "{}/{}".format):
            sums[outer] += ns
    return max((path for path, ns in sums.items() if ns > total / 2), key=len, default="")


def _measure_cpu(samples: StackSamples, attribution: Attribution, places: Places, lines: pd.DataFrame) -> list[int]:
    """Measure how long the CPU is in each of `lines` in the steps, whether the GPU waits or not (ns): of several
    processes, the one in which it is longest, as often as processes take steps. A line that takes batches of a
    DataLoader has the waiting for Python's lock of the other lines, too: without it no threads of the loader hold the
    lock."""
    steps = attribution.ranges[attribution.ranges["is_step"]] if len(attribution.ranges) else attribution.ranges
    low, high = (steps["start_ns"].min(), steps["end_ns"].max()) if len(steps) else (-(2**62), 2**62)
    parts = []
    for thread, (start, stack, _) in samples.by_thread.items():
        length = np.minimum(np.diff(start, append=start[-1:] + samples.period_ns), LONGEST_NS)
        inside = (start >= low) & (start < high)
        process = samples.process[thread]
        lock = samples.measure_lock_waits(thread, start, start + length) * (samples.main[process] == thread)
        table = places.name_lines(stack[inside]).assign(ns=length[inside], lock=lock[inside], process=process)
        parts.append(table)
    keys = ["where", "function"]
    sums = pd.concat(parts, ignore_index=True).groupby([*keys, "process"])[["ns", "lock"]].sum()
    elsewhere = sums.groupby("process")["lock"].transform("sum") - sums["lock"]
    is_loader = lines["below"].str.fullmatch(rf"{LOADER} \d+%.*")
    loaders = pd.MultiIndex.from_frame(lines.loc[is_loader, keys])
    sums.loc[sums.index.droplevel("process").isin(loaders), "ns"] += elsewhere
    most = sums.groupby(keys)["ns"].max() * max(steps["process"].nunique(), 1)
    return [int(most.get((row.where, row.function), 0)) for row in lines.itertuples()]


def _sum_parts(pieces: pd.DataFrame, places: Places, waited: float) -> pd.DataFrame:
    """Sum the waiting by what the lines are in, most first; columns: of the section `wait_parts`."""
    sums = pieces[pieces["stack"] != NOT_SAMPLED].groupby("stack")["ns"].sum()
    by_part = sums.groupby([places[int(number)].below for number in sums.index]).sum().sort_values(ascending=False)
    frame = pd.DataFrame({"part": by_part.index, "wait_ns": np.rint(by_part.to_numpy(float)).astype(np.int64)})
    return frame.assign(share=frame["wait_ns"] / waited if waited else None)[frame["wait_ns"] > 0]


def _measure_own(pieces: pd.DataFrame, places: Places) -> float:
    late = pieces[(pieces["stack"] != NOT_SAMPLED) & pieces["cause"].isin((LATE, FOR_DATA))]
    own = late[np.array([places[number].below == OWN for number in late["stack"].tolist()], bool)]
    sums = own.groupby(["gpu", "row"])["ns"].sum()
    return float(sums[sums >= LEAST_OWN_NS].sum())


def _find_uneven_gpu(waiting: pd.Series) -> int:
    """Find the GPU that waits UNEVEN times as long as the others in the median; -1 if there is none."""
    if len(waiting) < 2:
        return -1
    most = waiting.idxmax()
    return int(most) if waiting[most] >= UNEVEN * waiting.drop(most).median() else -1


def _format_groups(groups: pd.Series, total: float) -> str:
    kept = [(name, ns) for name, ns in groups.items() if ns >= LEAST_PART * total][:MOST_GROUPS]
    return "; ".join(f"{name} {100 * ns / total:.0f}%" for name, ns in kept)


def _choose_advice(groups: pd.Series, by_cause: pd.Series, total: float) -> str:
    """Choose what to do about a line: about its synchronisations or copies if these cost most, or else about the parts
    of libraries that it waits in, with their shares. Own code takes what it calls along if it is moved."""
    for cause, do in ((SYNC, python_libraries.DO_SYNC), (COPY, python_libraries.DO_COPY)):
        if (ns := float(by_cause.get(cause, 0.0))) > total / 2:
            return _name_share(do, ns / total)
    if groups.index[0] == OWN:
        return python_libraries.DO[OWN]
    concerned = groups.groupby([python_libraries.DO.get(str(name), "") for name in groups.index], sort=False).sum()
    large = concerned[(concerned >= LEAST_ADVISED * total) & (concerned.index != "")]
    return "; ".join(_name_share(str(do), ns / total) for do, ns in large.items())


def _name_share(do: str, share: float) -> str:
    """Name the share of the line's waiting that an advice concerns, unless that is the WHOLE."""
    return do if share >= WHOLE else f"{do} ({100 * share:.0f}% of it)"


_IN_OTHER_THREAD = "of another thread runs meanwhile: move it into a process of its own"


def _find_busy_line(samples: pd.DataFrame, main: set[int], places: Places) -> str | None:
    """Find the line of another thread that runs most often: its innermost frame is of the user's files. None if there
    is none."""
    counts = samples.loc[~samples["thread"].isin(main), "stack"].value_counts()
    by_line: Counter[str] = Counter()
    for number, count in counts.items():
        place = places[int(number)]
        if place.below in (OWN, OWN_OF_MODULE, OWN_LAUNCHES) and place.file:
            by_line[f"{format_line(place.file, place.line)} {place.function}"] += int(count)
    return by_line.most_common(1)[0][0] if by_line else None


def _sum_stacks(pieces: pd.DataFrame, places: Places) -> pd.DataFrame:
    """Sum the waiting by whole stack, most first; columns: of the section `wait_stacks`."""
    sums = pieces[pieces["stack"] != NOT_SAMPLED].groupby("stack")["ns"].sum()
    by_text: Counter[str] = Counter()
    for number, ns in sums.items():
        stack, state = places.get_stack(int(number))
        by_text[";".join([*format_frames(stack), *filter(None, [state])])] += round(ns)
    most = [(text, ns) for text, ns in by_text.most_common(MOST_STACKS) if ns > 0]
    return pd.DataFrame(most, columns=list(SECTIONS["wait_stacks"]))


def _sum_syncs(syncs: pd.DataFrame, stack: np.ndarray, pieces: pd.DataFrame, places: Places) -> pd.DataFrame:
    """Sum the synchronisations by line and call, most blocked first; columns: of the section `sync_lines`."""
    moved = pieces.dropna(subset=["sync"]) if "sync" in pieces else pieces.head(0).assign(sync=0)
    cost = np.zeros(len(syncs))
    np.add.at(cost, moved["sync"].to_numpy().astype(np.int64), moved["ns"].to_numpy())
    frame = syncs.assign(
        **places.name_lines(stack),
        call=syncs["name"].astype(str),
        time_ns=syncs["end_ns"] - syncs["start_ns"],
        wait_ns=cost,
    )
    sums = frame.groupby(["where", "function", "call"], sort=False).agg(
        count=("time_ns", "size"), time_ns=("time_ns", "sum"), wait_ns=("wait_ns", "sum")
    )
    sums = sums.reset_index().astype({"wait_ns": np.int64})
    return sums.sort_values(["wait_ns", "time_ns"], ascending=False, kind="stable", ignore_index=True)[
        list(SECTIONS["sync_lines"])
    ]
