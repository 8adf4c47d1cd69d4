"""What graph breaks cost: kernels that are launched between the graphs of one call of a compiled module, and the time
in which the GPU is idle there.

Where torch.compile breaks a graph, Python runs between two graphs. In a followed step the call of a compiled module is
one range, and its kernels are linked to graphs (see `compiled_graphs`): between two of them is a break. A measured step
that launches the same kernels has its breaks at the same places.
"""

import itertools
from typing import NamedTuple

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import compiled_graphs, modules
from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.jobs.contract import ranges as vocabulary

_PLACE = ["process", "thread"]


class Break(NamedTuple):
    """A break in a measured step. region: path of the compiled module. launches: kernels between the graphs. idle_ns:
    of the GPU, from the last kernel of one graph to the first of the next."""

    step: int
    region: str
    launches: int
    idle_ns: int


def find_breaks(capture: Capture, attribution: Attribution) -> list[Break]:
    """Find the breaks in forward of the measured steps. Under nsys launches take longer, so the GPU is idle for longer
    than without."""
    graphs = compiled_graphs.read_graphs(attribution.ranges)
    followed = modules.find_followed_steps(attribution.ranges)
    if not graphs or followed.empty:
        return []
    place = attribution.kernels[["thread", "launch_ns", "step", "phase", "module", "range_id"]]
    rows = place.assign(**{name: capture.kernels[name] for name in ("process", "start_ns", "end_ns", "kernel_name")})
    rows["range_id"] = _leave_libraries(rows["range_id"].to_numpy(), attribution.ranges)
    rows = rows[rows["phase"] == vocabulary.FORWARD].sort_values(["launch_ns", "start_ns"], kind="stable")
    breaks: list[Break] = []
    measured = [group for _, group in rows[rows["step"] >= 0].groupby([*_PLACE, "step"], sort=True)]
    for process, start, end in followed.tail(1).itertuples(index=False):
        inside = rows[(rows["process"] == process) & rows["launch_ns"].between(start, end, inclusive="left")]
        for _, sequence in inside.groupby(_PLACE, sort=True):
            places = _find_places(sequence, graphs)
            names = sequence["kernel_name"].tolist()
            for step in measured if places else ():
                is_same = step["process"].iloc[0] == process and step["kernel_name"].tolist() == names
                breaks += _measure(step, places) if is_same else []
    return breaks


def _leave_libraries(range_id: np.ndarray, ranges: pd.DataFrame) -> np.ndarray:
    """Return the innermost range of each kernel that is not of a library, as CUB's around a sort; -1 for none."""
    of_library = ranges["name"].astype(str).map(compiled_graphs.is_of_library).to_numpy(bool)
    innermost, parents = range_id.copy(), ranges["parent_id"].to_numpy()
    while (inside := (innermost >= 0) & of_library[innermost]).any():
        innermost[inside] = parents[innermost[inside]]
    return innermost


def _find_places(sequence: pd.DataFrame, graphs: list[compiled_graphs.Graph]) -> list[tuple[int, int, str]]:
    """Return for each break the places of the last kernel of a graph and of the first of the next, and the region."""
    places = []
    region = sequence["module"].astype(str).map(compiled_graphs.find_region).to_numpy(dtype=object)
    call = sequence["range_id"].to_numpy()
    names = sequence["kernel_name"].astype(str).tolist()
    process = int(sequence["process"].iloc[0])
    fitting = [graph for graph in graphs if graph.process == process and not graph.is_backward]
    for rows in np.split(np.arange(len(call)), np.flatnonzero(call[1:] != call[:-1]) + 1):
        if not compiled_graphs.is_compiled(region[rows[0]]):
            continue
        runs = compiled_graphs.link_graphs([names[row] for row in rows], fitting)
        for before, after in itertools.pairwise(runs):
            places.append((int(rows[before.start + len(before.launches) - 1]), int(rows[after.start]), region[rows[0]]))
    return places


def _measure(step: pd.DataFrame, places: list[tuple[int, int, str]]) -> list[Break]:
    starts, ends = step["start_ns"].to_numpy(), step["end_ns"].to_numpy()
    breaks = []
    for last, first, region in places:
        reached = np.maximum.accumulate(ends[last:first])
        idle = int(np.maximum(starts[last + 1 : first + 1] - reached, 0).sum())
        breaks.append(Break(int(step["step"].iloc[0]), region, first - last - 1, idle))
    return breaks
