"""What the lines of a script copy from and to the CPU's memory without a wait for it, by number of the line, and which
calls allocate GPU memory; and how long the calls take in captured steps that nothing slows.

In followed steps the calls of a line are inside ranges with its number (`modules:copy N`, see `jobs.contract.ranges`).
What is launched there are its copies: the capture shows in which direction, and whether memory is pinned. Copies that
PyTorch waits for at once are left out: they are calls that wait (see `sync_times`). The allocator itself shows which
lines made its calls in the last followed step, in order (see `jobs.follow.step_memory`).
"""

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.capture.modules import find_followed_steps
from profiler_job.analysis.insight.call_stacks import find_waits_of_copies
from profiler_job.analysis.insight.clean_calls import (
    average_by_place,
    iterate_sequences,
    list_allocations,
    list_copies,
)
from profiler_job.analysis.insight.sync_times import NO_LINE, list_marks, name_copy
from profiler_job.jobs.contract.ranges import COPY

COLUMNS = ["process", "number", "text", "count", "time_ns"]


def measure_marked_copies(capture: Capture, attribution: Attribution) -> pd.DataFrame:
    """Measure the copies that nothing waits for in a followed step, by process, number of the line (NO_LINE: no range
    is around them) and text (of `name_copy`): count, and time_ns of the CPU in a clean step, NaN if no clean step has
    the same copies; by process, most first."""
    copies = list_copies(capture, attribution)
    end, _ = find_waits_of_copies(capture, attribution)
    rows = copies["api"].to_numpy()
    memops = capture.memops.iloc[copies["memop"]]
    texts = map(name_copy, memops["operation"].astype(str), memops["host_memory"].astype(str))
    copies = copies.assign(
        is_waited=end[rows] > capture.api["end_ns"].to_numpy()[rows], text=pd.Series(list(texts), dtype=object)
    )
    means, marks = average_by_place(copies), list_marks(attribution.ranges, COPY)
    followed = find_followed_steps(attribution.ranges)
    parts = [pd.DataFrame(columns=[*COLUMNS, "step"])]
    for step, (process, start, until) in enumerate(followed.itertuples(index=False)):
        inside = copies[(copies["process"] == process) & copies["start_ns"].between(start, until - 1)]
        for place, mine in iterate_sequences(inside.assign(step=step)):
            number = _find_numbers(mine["start_ns"].to_numpy(), marks[marks["thread"] == place[1]])
            parts.append(mine.assign(number=number, time_ns=means.get(place, np.nan), count=1)[~mine["is_waited"]])
    frame = pd.concat(parts, ignore_index=True).astype({"count": "float64", "time_ns": "float64"})
    by_step = frame.groupby(["process", "number", "text", "step"], sort=False)[["count", "time_ns"]]
    by_step = by_step.agg({"count": "sum", "time_ns": lambda times: times.sum(skipna=False)}).reset_index()
    by_line = by_step.groupby(["process", "number", "text"], sort=False, as_index=False)
    sums = by_line.agg({"count": "sum", "time_ns": "mean"})
    sums["count"] /= sums["process"].map(followed["process"].value_counts()).to_numpy(float)
    return sums.sort_values(["process", "count"], ascending=[True, False], kind="stable", ignore_index=True)[COLUMNS]


def _find_numbers(start: np.ndarray, marks: pd.DataFrame) -> np.ndarray:
    """Find the number of the range around each start of a call; NO_LINE if there is none. marks: of the thread."""
    last = np.searchsorted(marks["start_ns"].to_numpy(), start, side="right") - 1
    until = np.r_[marks["end_ns"].to_numpy(), 0]
    return np.where(start < until[last], np.r_[marks["number"].to_numpy(), NO_LINE][last], NO_LINE)


def time_allocations(capture: Capture, attribution: Attribution) -> pd.DataFrame:
    """Time the calls that allocate GPU memory or free it in the last followed step of each process, in order: process,
    name, and time_ns of the CPU in clean steps, NaN if no clean step has the same calls."""
    calls = list_allocations(capture, attribution)
    means = average_by_place(calls)
    parts = [pd.DataFrame(columns=["process", "name", "time_ns", "start_ns"])]
    last = find_followed_steps(attribution.ranges).drop_duplicates("process", keep="last")
    for process, start, until in last.itertuples(index=False):
        inside = calls[(calls["process"] == process) & calls["start_ns"].between(start, until - 1)]
        for place, mine in iterate_sequences(inside.assign(step=0)):
            parts.append(mine.assign(time_ns=means.get(place, np.nan))[parts[0].columns])
    return pd.concat(parts).sort_values("start_ns", kind="stable", ignore_index=True)[["process", "name", "time_ns"]]
