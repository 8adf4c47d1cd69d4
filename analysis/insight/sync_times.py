"""How long the calls that wait for the GPU take, by the number of their line, in captured steps that nothing slows.

In followed steps each such call leaves a mark on its thread right after it has waited (`modules:sync N`, see
`jobs.contract.ranges`). So the calls of CUDA right before a mark are of its line. Clean steps have no marks: where
threads make the same waiting calls in the same order as in a followed step, each has the line of the one at its place.
A call that no mark follows, such as one of a library, is of no line.
"""

import itertools
from collections import Counter
from statistics import fmean
from typing import NamedTuple

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.capture.modules import find_followed_steps
from profiler_job.analysis.insight.call_stacks import find_waits_of_copies
from profiler_job.analysis.reference import cuda_api
from profiler_job.jobs.contract.ranges import SYNC

NO_LINE = -1


class Waited(NamedTuple):
    """The waiting calls of a thread in a followed step: their names, in order, and the number of the line of each."""

    names: list[str]
    lines: list[int]


def measure_sync_times(capture: Capture, attribution: Attribution) -> dict[int, dict[int, float]]:
    """Measure by process, and by number of a line, how long its waiting calls take in a clean step, with the copies
    that they wait for (ns): the mean of the steps in which the thread makes the calls of a followed step. A line is
    missing if its thread makes others in every clean step, or if other threads made all its calls."""
    calls, marks = _list_calls(capture, attribution), _list_marks(attribution.ranges)
    known: dict[tuple[int, int], list[Waited]] = {}
    for process, start, end in find_followed_steps(attribution.ranges).itertuples(index=False):
        inside, noted = (
            rows[(rows["process"] == process) & (rows["start_ns"] >= start) & (rows["start_ns"] < end)]
            for rows in (calls, marks)
        )
        for thread, mine in inside.groupby("thread", sort=False):
            waited = Waited(mine["name"].tolist(), _find_lines(mine, noted[noted["thread"] == thread]))
            known.setdefault((process, thread), []).append(waited)
    steps = attribution.ranges[attribution.ranges["is_step"]].groupby("process")["step"].unique()
    times: dict[int, dict[int, float]] = {}
    for (process, thread), followed in known.items():
        mine = calls[(calls["process"] == process) & (calls["thread"] == thread)]
        sums = [_add_up(mine[mine["step"] == step], followed) for step in steps.get(process, ())]
        same = [each for each in sums if each is not None]
        of_process = times.setdefault(process, {})
        for number in set(itertools.chain(*same)) - {NO_LINE}:
            of_process[number] = of_process.get(number, 0.0) + fmean(each[number] for each in same)
    return times


def _add_up(calls: pd.DataFrame, followed: list[Waited]) -> Counter[int] | None:
    """Add up the times of the waiting calls of a thread in a clean step by line; None if no followed step has the same
    calls, or if several have them of different lines."""
    same = [waited.lines for waited in followed if waited.names == calls["name"].tolist()]
    if not same or any(lines != same[0] for lines in same):
        return None
    sums: Counter[int] = Counter()
    for number, ns in zip(same[0], calls["wait_ns"].tolist()):
        sums[number] += ns
    return sums


def _list_calls(capture: Capture, attribution: Attribution) -> pd.DataFrame:
    """List the calls that wait for the GPU, by start: process, thread, step, name, start_ns, end_ns, wait_ns."""
    api = capture.api
    groups = [cuda_api.find_group(str(name)) == cuda_api.SYNCHRONISATION for name in api["name"].cat.categories]
    rows = np.flatnonzero(np.array(groups, bool)[api["name"].cat.codes.to_numpy()])
    end, start = find_waits_of_copies(capture, attribution)
    calls = api.iloc[rows][["process", "thread", "name", "start_ns", "end_ns"]].astype({"name": str})
    calls = calls.assign(step=attribution.api["step"].to_numpy()[rows], wait_ns=end[rows] - start[rows])
    return calls.sort_values("start_ns", kind="stable")


def _list_marks(ranges: pd.DataFrame) -> pd.DataFrame:
    """List the marks, by start: process, thread, start_ns, number."""
    names = ranges["name"].astype(str)
    marks = ranges[names.str.fullmatch(rf"{SYNC}\d{{1,9}}")]
    number = marks["name"].astype(str).str.removeprefix(SYNC).astype(int)
    return marks.assign(number=number)[["process", "thread", "start_ns", "number"]].sort_values("start_ns")


def _find_lines(calls: pd.DataFrame, marks: pd.DataFrame) -> list[int]:
    """Find the line of each call of a thread in a followed step. An operation that waits several times leaves as many
    marks at its end."""
    lines = [NO_LINE] * len(calls)
    num_before = np.searchsorted(calls["end_ns"].to_numpy(), marks["start_ns"].to_numpy(), side="right")
    first = 0
    for last, together in marks.groupby(num_before)["number"]:
        num = min(len(together), int(last) - first)
        lines[int(last) - num : int(last)] = together.tolist()[len(together) - num :]
        first = int(last)
    return lines
