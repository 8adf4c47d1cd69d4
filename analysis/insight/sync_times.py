"""How long the calls that wait for the GPU take, by the number of their line, in captured steps that nothing slows; and
what they copy.

In followed steps each such call leaves a mark on its thread right after it has waited (`modules:sync N`, see
`jobs.contract.ranges`). So the calls of CUDA right before a mark are of its line. Clean steps have no marks: where
threads make the same waiting calls in the same order as in a followed step, each has the line of the one at its place.
A call that no mark follows, such as one of a library, is of no line.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.capture.modules import find_followed_steps
from profiler_job.analysis.insight.call_stacks import find_waits_of_copies
from profiler_job.analysis.insight.clean_calls import Place, average_by_place, iterate_sequences
from profiler_job.analysis.reference import cuda_api
from profiler_job.jobs.contract.ranges import SYNC

NO_LINE = -1


def measure_sync_times(capture: Capture, attribution: Attribution) -> dict[int, dict[int, float]]:
    """Measure by process, and by number of a line, how long its waiting calls take in a clean step, with the copies
    that they wait for (ns). A line is missing if its thread makes others in every clean step, or if other threads made
    all its calls."""
    means = average_by_place(_list_calls(capture, attribution))
    lines: dict[Place, list[list[int]]] = {}
    for place, _, of_step in _iterate_followed(capture, attribution):
        lines.setdefault(place, []).append(of_step)
    times: dict[int, Counter[int]] = {}
    for place, known in lines.items():
        if place in means and all(each == known[0] for each in known):
            sums = times.setdefault(place[0], Counter())
            for number, ns in zip(known[0], means[place].tolist()):
                sums[number] += ns
    return {
        process: {number: ns for number, ns in sums.items() if number != NO_LINE} for process, sums in times.items()
    }


def name_waited_copies(capture: Capture, attribution: Attribution) -> dict[int, dict[int, list[str]]]:
    """Name by process, and by number of a line, the kinds of copies that its calls wait for in followed steps, as
    `name_copy` does, each once and in order."""
    memops, row = capture.memops, attribution.memops["api"].to_numpy()
    known = {
        (int(capture.api["thread"].iloc[call]), int(capture.api["start_ns"].iloc[call])): name_copy(operation, memory)
        for call, operation, memory in zip(row, memops["operation"].astype(str), memops["host_memory"].astype(str))
        if call >= 0 and operation in cuda_api.HOST_COPIES
    }
    kinds: dict[int, dict[int, dict[str, None]]] = {}
    for (process, thread, _), calls, numbers in _iterate_followed(capture, attribution):
        for number, began in zip(numbers, (calls["end_ns"] - calls["wait_ns"]).tolist()):
            if number != NO_LINE and (thread, int(began)) in known:
                kinds.setdefault(process, {}).setdefault(number, {})[known[thread, int(began)]] = None
    return {process: {number: [*names] for number, names in of_lines.items()} for process, of_lines in kinds.items()}


def name_copy(operation: str, host_memory: str) -> str:
    return f"{operation} ({host_memory or 'memory not known'})"


def _iterate_followed(capture: Capture, attribution: Attribution) -> Iterator[tuple[Place, pd.DataFrame, list[int]]]:
    """Yield the waiting calls of each thread in each followed step, and the number of the line of each."""
    calls, marks = _list_calls(capture, attribution), list_marks(attribution.ranges, SYNC)
    for number, (process, start, end) in enumerate(find_followed_steps(attribution.ranges).itertuples(index=False)):
        inside, noted = (
            rows[(rows["process"] == process) & (rows["start_ns"] >= start) & (rows["start_ns"] < end)]
            for rows in (calls, marks)
        )
        for place, mine in iterate_sequences(inside.assign(step=number)):
            yield place, mine, _find_lines(mine, noted[noted["thread"] == place[1]])


def _list_calls(capture: Capture, attribution: Attribution) -> pd.DataFrame:
    """List the calls that wait for the GPU, by start: process, thread, step, name, start_ns, end_ns, wait_ns."""
    api = capture.api
    groups = [cuda_api.find_group(str(name)) == cuda_api.SYNCHRONISATION for name in api["name"].cat.categories]
    rows = np.flatnonzero(np.array(groups, bool)[api["name"].cat.codes.to_numpy()])
    end, start = find_waits_of_copies(capture, attribution)
    calls = api.iloc[rows][["process", "thread", "name", "start_ns", "end_ns"]].astype({"name": str})
    calls = calls.assign(step=attribution.api["step"].to_numpy()[rows], wait_ns=end[rows] - start[rows])
    return calls.sort_values("start_ns", kind="stable")


def list_marks(ranges: pd.DataFrame, prefix: str) -> pd.DataFrame:
    """List the ranges that are called `prefix` and a number, by start: process, thread, start_ns, end_ns, number."""
    names = ranges["name"].astype(str)
    marks = ranges[names.str.fullmatch(rf"{prefix}\d{{1,9}}")]
    number = marks["name"].astype(str).str.removeprefix(prefix).astype(int)
    columns = ["process", "thread", "start_ns", "end_ns", "number"]
    return marks.assign(number=number)[columns].sort_values("start_ns", kind="stable")


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
