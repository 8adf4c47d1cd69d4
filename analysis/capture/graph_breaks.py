"""What graph breaks cost: kernels that are launched between the graphs of one call of a compiled module, and the time
in which the GPU is idle there, in forward and in backward.

Where torch.compile breaks a graph, Python runs between two graphs. In a followed step the call of a graph is a range
with its number, which says whether the graph ends at a break: then the break is after it in forward, and before it in
backward, which runs the graphs in reverse. Between two graphs that are run by one call of a compiled module is a break,
too: Dynamo has left what is around them to Python. So is between its last graph and what Python runs until its end, as
after the last break of a loop; backward begins with that. In captures without such ranges kernels are linked to graphs
(see `compiled_graphs`), in forward only. A measured step that launches the same kernels has its breaks at the same
places.
"""

import itertools
from typing import NamedTuple

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import compiled_graphs, modules
from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.jobs.contract import ranges as vocabulary
from profiler_job.jobs.contract.source_paths import shorten_library

_PLACE = ["process", "thread", "phase"]
_PASS = "pass"


class Break(NamedTuple):
    """A break in a measured step. phase: forward or backward. region: path of the compiled module. graph: number of the
    graph that ends there; -1 if none is known to. launches: kernels between the graphs. idle_ns: of the GPU, from the
    last kernel of one graph to the first of the next."""

    process: int
    step: int
    phase: str
    region: str
    graph: int
    launches: int
    idle_ns: int


class BrokenLine(NamedTuple):
    """A line at which graphs break, as the script noted it. where: file and line; "" if not known. graphs: numbers of
    the graphs that end there, of the process."""

    process: int
    where: str
    function: str
    reason: str
    graphs: tuple[int, ...]


class _Gap(NamedTuple):
    """A break in a followed step. last, first: places of the last kernel of one graph and of the first of the next, or
    of what Python runs in place of one of them. launches: places of the kernels that are of the break."""

    region: str
    graph: int
    last: int
    first: int
    launches: list[int]


def find_breaks(capture: Capture, attribution: Attribution) -> list[Break]:
    """Find the breaks of the measured steps. Under nsys launches take longer, so the GPU is idle for longer than
    without."""
    graphs = compiled_graphs.read_graphs(attribution.ranges)
    followed = modules.find_followed_steps(attribution.ranges)
    if not graphs or followed.empty:
        return []
    place = attribution.kernels[["thread", "launch_ns", "step", "phase", "module", "range_id"]]
    rows = place.assign(**{name: capture.kernels[name] for name in ("process", "start_ns", "end_ns", "kernel_name")})
    rows = rows[rows["phase"].isin([vocabulary.FORWARD, vocabulary.BACKWARD])]
    rows = rows.sort_values(["launch_ns", "start_ns"], kind="stable")
    rows = rows.join(compiled_graphs.find_calls(attribution.ranges, rows["range_id"]))
    rows["range_id"] = _leave_libraries(rows["range_id"].to_numpy(), attribution.ranges)
    breaks: list[Break] = []
    measured = [group for _, group in rows[rows["step"] >= 0].groupby([*_PLACE, "step"], observed=True, sort=True)]
    for process, start, end in followed.groupby("process").tail(1).itertuples(index=False):
        inside = rows[(rows["process"] == process) & rows["launch_ns"].between(start, end, inclusive="left")]
        inside = inside.assign(**{_PASS: modules.number_passes(inside["phase"].astype(str))})
        unknown: set[str] = set()  # regions in which Python runs around graphs
        for phase in (vocabulary.FORWARD, vocabulary.BACKWARD):
            for _, sequence in inside[inside["phase"] == phase].groupby("thread", sort=True):
                gaps = _find_gaps(sequence, graphs, attribution.ranges, unknown)
                unknown |= {gap.region for gap in gaps if gap.graph < 0}
                names = sequence["kernel_name"].tolist()
                for step in measured if gaps else ():
                    is_same = step[["process", "phase"]].iloc[0].tolist() == [process, phase]
                    if is_same and step["kernel_name"].tolist() == names:
                        breaks += _measure(step, gaps)
    return breaks


def measure_idle(capture: Capture, attribution: Attribution) -> int:
    """Measure how long GPUs run no kernel between the first and the last of each measured step, in all (ns): what the
    idle time of breaks is a part of."""
    key = ["process", "device", "step"]
    rows = capture.kernels[["process", "device", "start_ns", "end_ns"]].assign(step=attribution.kernels["step"])
    rows = rows[rows["step"] >= 0].sort_values([*key, "start_ns"], kind="stable")
    reached = rows.groupby(key, sort=False)["end_ns"].cummax().groupby([rows[name] for name in key], sort=False).shift()
    return int((rows["start_ns"] - reached).clip(lower=0).sum())


def read_lines(ranges: pd.DataFrame) -> list[BrokenLine]:
    """Read the lines at which graphs break from the ranges of a capture; none in older ones."""
    rows = ranges[ranges["name"].astype(str).str.startswith(vocabulary.BREAK)]
    lines = []
    for process, name in zip(rows["process"], rows["name"].astype(str)):
        numbers, where, function, reason = (*name.removeprefix(vocabulary.BREAK).split("|", 3), *[""] * 3)[:4]
        graphs = tuple(int(number) for number in numbers.split(",") if number.isdecimal())
        lines.append(BrokenLine(int(process), shorten_library(where) or where, function, reason, graphs))
    return lines


def _leave_libraries(range_id: np.ndarray, ranges: pd.DataFrame) -> np.ndarray:
    """Return the innermost range of each kernel that is not of a library, as CUB's around a sort; -1 for none."""
    of_library = ranges["name"].astype(str).map(compiled_graphs.is_of_library).to_numpy(bool)
    innermost, parents = range_id.copy(), ranges["parent_id"].to_numpy()
    while (inside := (innermost >= 0) & of_library[innermost]).any():
        innermost[inside] = parents[innermost[inside]]
    return innermost


def _find_gaps(
    sequence: pd.DataFrame, graphs: list[compiled_graphs.Graph], ranges: pd.DataFrame, unknown: set[str]
) -> list[_Gap]:
    """Find the breaks of a followed step in the kernels of one thread in forward or backward. unknown: regions whose
    forward has breaks at which no graph ends."""
    if (sequence["call"] >= 0).any():
        return _find_between_calls(sequence, ranges, unknown)
    if sequence["phase"].iloc[0] != vocabulary.FORWARD:
        return []
    gaps = []
    region = sequence["module"].astype(str).map(compiled_graphs.find_region).to_numpy(dtype=object)
    names = sequence["kernel_name"].astype(str).tolist()
    process = int(sequence["process"].iloc[0])
    fitting = [graph for graph in graphs if graph.process == process and not graph.is_backward]
    for rows in _split(sequence["range_id"]):
        if not compiled_graphs.is_compiled(region[rows[0]]):
            continue
        runs = compiled_graphs.link_graphs([names[row] for row in rows], fitting)
        for before, after in itertools.pairwise(runs):
            last, first = int(rows[before.start + len(before.launches) - 1]), int(rows[after.start])
            gaps.append(_Gap(region[rows[0]], -1, last, first, list(range(last + 1, first))))
    return gaps


def _find_between_calls(sequence: pd.DataFrame, ranges: pd.DataFrame, unknown: set[str]) -> list[_Gap]:
    """Find the breaks between the calls of two graphs of one pass, and those at the end of a compiled module. What adds
    to gradients between two nodes of autograd is of no break."""
    is_backward = sequence["phase"].iloc[0] == vocabulary.BACKWARD
    call, number, ends = (sequence[name].to_numpy() for name in ("call", "graph", "ends_at_break"))
    module = sequence["module"].astype(str).tolist()
    region = list(map(compiled_graphs.find_outermost, module))
    owner = list(zip(region, sequence[_PASS]))
    gaps: list[_Gap] = []

    def add(ended: int, last: int, first: int, launches: range) -> None:
        own = [row for row in launches if module[row] != vocabulary.ACCUMULATION]
        gaps.append(_Gap(region[ended], int(number[ended]) if ends[ended] else -1, last, first, own))

    def is_of(of_module: tuple[str, float], row: int) -> bool:
        return owner[row] == of_module or module[row] == vocabulary.ACCUMULATION

    calls = [rows for rows in _split(sequence["call"]) if call[rows[0]] >= 0 and region[rows[0]]]
    for before, after in itertools.pairwise(calls):
        last, first = int(before[-1]), int(after[0])
        ended = first if is_backward else last
        if owner[last] != owner[first]:
            continue
        if ends[ended] or (
            region[last] in unknown if is_backward else _has_one_caller(ranges, call[last], call[first])
        ):
            add(ended, last, first, range(last + 1, first))
    known = unknown | {gap.region for gap in gaps if gap.graph < 0}
    for _, of_module in itertools.groupby(calls, key=lambda rows: owner[rows[0]]):
        each = list(of_module)
        edge, step = (int(each[0][0]), -1) if is_backward else (int(each[-1][-1]), 1)
        end = edge
        while 0 <= (at := end + step) < len(call) and call[at] < 0 and is_of(owner[edge], at):
            end = at
        rows = range(end, edge) if is_backward else range(edge + 1, end + 1)
        is_left = region[edge] in known or (not is_backward and any(_is_inside(module[row]) for row in rows))
        if (rows and (ends[edge] or is_left)) or (ends[edge] and not is_backward):
            add(edge, min(edge, end), max(edge, end), rows)
    return gaps


def _is_inside(module: str) -> bool:
    """Return whether a path is of a module that Python calls inside a compiled one."""
    return compiled_graphs.find_region(module) != compiled_graphs.find_outermost(module)


def _has_one_caller(ranges: pd.DataFrame, *calls: int) -> bool:
    """Return whether two ranges are inside one range of a compiled module."""
    callers = []
    names, parents = ranges["name"], ranges["parent_id"].to_numpy()
    for row in calls:
        caller = -1
        while row >= 0:
            caller = row if compiled_graphs.is_compiled(str(names.iloc[row])) else caller
            row = int(parents[row])
        callers.append(caller)
    return callers[0] == callers[1] >= 0


def _split(values: pd.Series) -> list[np.ndarray]:
    """Split places where a value changes."""
    each = values.to_numpy()
    return np.split(np.arange(len(each)), np.flatnonzero(each[1:] != each[:-1]) + 1)


def _measure(step: pd.DataFrame, gaps: list[_Gap]) -> list[Break]:
    starts, ends = step["start_ns"].to_numpy(), step["end_ns"].to_numpy()
    process, number, phase = (step[name].iloc[0] for name in ("process", "step", "phase"))
    breaks = []
    for gap in gaps:
        reached = np.maximum.accumulate(ends[gap.last : gap.first])
        idle = int(np.maximum(starts[gap.last + 1 : gap.first + 1] - reached, 0).sum())
        breaks.append(Break(int(process), int(number), str(phase), gap.region, gap.graph, len(gap.launches), idle))
    return breaks
