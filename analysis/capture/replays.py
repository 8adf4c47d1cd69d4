"""Give each operation in a replay of a CUDA graph the phase and the module in which it was captured.

A replay launches a whole graph with one call, often a whole step, so the ranges around that call show nothing of what
is inside. `profile` notes it while a script captures a graph, and writes it into the capture of nsys as ranges, with a
range for each node (see `jobs.follow.script_graphs`). The operations of a replay are linked to these nodes in order,
provided that all are the same: kind, name, and the grid of a kernel if it was read. Where they differ, or two graphs
fit that place them differently, nothing of that replay is linked.
"""

import re
from typing import NamedTuple

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.jobs.contract import ranges as vocabulary

_MEMSET = "memset"
_KERNEL = f"{vocabulary.NODE}kernel "
_GRID = ["grid_x", "grid_y", "grid_z"]
_NOT_NAMED = re.compile(r"\(anonymous namespace\)|<unnamed>")


class CapturedGraph(NamedTuple):
    """The nodes of a graph in order: what identifies them, and the phase and module of each."""

    names: tuple[str, ...]
    places: tuple[tuple[str, str], ...]


def read_captured(ranges: pd.DataFrame, with_grids: bool) -> dict[tuple[int, tuple[str, ...]], CapturedGraph | None]:
    """Read the graphs that scripts have captured, kernels and memops apart, by process and names of the nodes. None:
    several have these names, and they differ in places."""
    names = ranges["name"].cat
    roots = _find_names(names, vocabulary.CAPTURED)
    if not roots.any():
        return {}
    nodes = np.flatnonzero(_find_names(names, vocabulary.NODE))
    starts, parent = ranges["start_ns"].to_numpy(), ranges["parent_id"].to_numpy()
    nodes = nodes[np.argsort(starts[nodes], kind="stable")]
    graphs: dict[tuple[int, tuple[str, ...]], CapturedGraph | None] = {}
    for root in np.flatnonzero(roots):
        same = (ranges["thread"] == ranges["thread"].iloc[root]).to_numpy()[nodes]
        inside = nodes[same & (starts[nodes] >= starts[root]) & (starts[nodes] < ranges["end_ns"].iloc[root])]
        around = ranges.iloc[parent[inside]]
        phases = _fill_losses(around["phase"].astype(str).tolist())
        places = list(zip(phases, around["module"].astype(str)))
        described = [_identify_node(name, with_grids) for name in ranges["name"].iloc[inside].astype(str)]
        is_kernel = ranges["name"].iloc[inside].astype(str).str.startswith(_KERNEL).to_numpy(bool)
        for chosen in (is_kernel, ~is_kernel):
            rows = np.flatnonzero(chosen)
            graph = CapturedGraph(tuple(described[at] for at in rows), tuple(places[at] for at in rows))
            key = (int(ranges["process"].iloc[root]), graph.names)
            if rows.size:
                graphs[key] = graph if graphs.get(key, graph) == graph else None
    return graphs


def place_replays(kind: str, capture: Capture, placed: pd.DataFrame, ranges: pd.DataFrame, linked: str) -> pd.DataFrame:
    """Return the places of kernels or memops (`kind`) with phase, module and attribution (`linked`) of those that
    replays launch."""
    operations = getattr(capture, kind)
    captured = read_captured(ranges, set(_GRID) <= set(operations)) if "graph_node" in operations else {}
    rows = np.flatnonzero(operations["graph_node"].to_numpy() != 0) if captured else np.empty(0, np.int64)
    if not len(rows):
        return placed
    chosen = operations.iloc[rows]
    order = np.lexsort([chosen[name].to_numpy() for name in ("start_ns", "graph_node", "correlation", "process")])
    rows, chosen = rows[order], chosen.iloc[order]
    names = _identify_operations(chosen).to_numpy(dtype=object)
    process, correlation = chosen["process"].to_numpy(), chosen["correlation"].to_numpy()
    phase, module = (placed[name].astype(str).to_numpy(dtype=object) for name in ("phase", "module"))
    how = placed["attribution"].astype(str).to_numpy(dtype=object)
    ends = np.flatnonzero((process[1:] != process[:-1]) | (correlation[1:] != correlation[:-1])) + 1
    for at in np.split(np.arange(len(rows)), ends):
        graph = captured.get((int(process[at[0]]), tuple(names[at])))
        for row, (its_phase, its_module) in zip(rows[at], graph.places if graph else ()):
            phase[row], module[row], how[row] = its_phase, its_module, linked
    return placed.assign(
        phase=pd.Categorical(phase, placed["phase"].cat.categories),
        module=pd.Categorical(module),
        attribution=pd.Categorical(how, placed["attribution"].cat.categories),
    )


def _find_names(names: "pd.core.arrays.categorical.CategoricalAccessor", prefix: str) -> np.ndarray:
    begins = names.categories.astype(str).str.startswith(prefix)
    return np.asarray(begins, bool)[names.codes.to_numpy()]


def _identify_node(range_name: str, with_grids: bool) -> str:
    """Return what identifies the operation of a node: of a kernel its grid and function."""
    if not range_name.startswith(_KERNEL):
        return range_name.removeprefix(vocabulary.NODE)
    grid, _, name = range_name.removeprefix(_KERNEL).partition(" ")
    return f"{grid} {find_function(name)}" if with_grids else find_function(name)


def _identify_operations(operations: pd.DataFrame) -> pd.Series:
    if "operation" in operations:
        is_fill = operations["operation"].astype(str) == _MEMSET
        return pd.Series(np.where(is_fill, _MEMSET, "memcpy"), operations.index)
    functions = {name: find_function(str(name)) for name in operations["kernel_name"].unique()}
    names = operations["kernel_name"].map(functions).astype(str)
    if not set(_GRID) <= set(operations):
        return names
    x, y, z = (operations[name].astype(str) for name in _GRID)
    return x + "x" + y + "x" + z + " " + names


def find_function(kernel: str) -> str:
    """Return the name of a kernel's function, without its namespace, parameters and types."""
    head = re.split(r"[<(]", _NOT_NAMED.sub("", kernel), maxsplit=1)[0]
    return head.split()[-1].rpartition("::")[2] if head.split() else kernel


def _fill_losses(phases: list[str]) -> list[str]:
    """What was captured between forward and backward, outside any phase, is the loss."""
    filled, before = list(phases), ""
    for at, phase in enumerate(phases):
        if not phase and before == vocabulary.FORWARD:
            following = next((later for later in phases[at:] if later), "")
            filled[at] = vocabulary.LOSS if following == vocabulary.BACKWARD else ""
        before = phase or before
    return filled
