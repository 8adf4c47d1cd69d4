"""Find the module that launched an operation of a measured step, from a step in which modules were followed.

Following modules (see `jobs.follow.module_ranges`) slows the CPU, so times come from other steps. Both launch the same:
in each phase, thread by thread, an operation of a measured step is linked to the one at its place in a followed step,
provided that all operations there are the same, in the same order. The same is: the same kernel with the same grid. If
no followed step has that, names are compared without grids, since keys and values grow with each token that a model
generates; and then the families of kernels, since a library has other kernels for other sizes. Of a graph whose sizes
do not change, grids are compared even then. If all differ, no operation of that phase is linked, unless torch.compile
made another graph for that step, as for another size: then the launches of that graph say the modules (see
`compiled_graphs`).
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import compiled_graphs
from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.reference.kernel_families import find_family
from profiler_job.jobs.contract import ranges as vocabulary

LAUNCH, LINKED, UNKNOWN = "launch", "linked", ""
MODULE_BY = (LAUNCH, LINKED, UNKNOWN)
"""How a module is known: from the range around the launch | from the same launch in a followed step | not at all."""

_WITH_MODULES = (
    vocabulary.FORWARD,
    vocabulary.PREFILL,
    vocabulary.DECODE,
    vocabulary.EVALUATION,
    vocabulary.BACKWARD,
    vocabulary.OPTIMIZER,
)
"""Phases in which modules launch: what is launched in others seldom has one, and need not be the same in every step."""

_PLACE = ["process", "thread", "phase"]
_FAMILY, _STATIC = "family", "static_grid"
_SAME = {
    "kernels": (
        ["kernel_name", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"],
        ["kernel_name", _STATIC],
        [_FAMILY, _STATIC],
    ),
    "memops": (["operation", "bytes"], ["operation"]),
}
"""What makes two operations the same, the strictest first."""


class _Graphs(NamedTuple):
    """The graphs of torch.compile in a capture, by process, thread and phase the paths of the compiled modules, and the
    grids that launches of graphs had in followed steps."""

    graphs: list[compiled_graphs.Graph]
    regions: dict[tuple[Any, ...], set[str]]
    grids: compiled_graphs.Grids


class ModuleLinks(NamedTuple):
    """Modules of the kernels and memops of a capture, in their order: module, module_by. problems: process, thread,
    phase, step and reason of each sequence that could not be linked."""

    kernels: pd.DataFrame
    memops: pd.DataFrame
    problems: pd.DataFrame


def link_modules(capture: Capture, attribution: Attribution) -> ModuleLinks:
    """Link each operation to a module: the module of the operation at its place in a followed step, or else of its
    range."""
    followed = find_followed_steps(attribution.ranges)
    graphs = compiled_graphs.read_graphs(attribution.ranges) if len(followed) else []
    operators = _list_operators(attribution.ranges) if len(followed) else []
    problems: list[dict[str, Any]] = []
    linked: dict[str, pd.DataFrame] = {}
    for kind, same in _SAME.items():
        place = getattr(attribution, kind)
        module = place["module"].astype(str).to_numpy(dtype=object)
        module[np.isin(module, operators)] = ""
        by = np.where(module != "", LAUNCH, UNKNOWN).astype(object)
        if len(followed):
            operations = getattr(capture, kind)
            named = [column for column in same[0] if column in operations]
            columns = ["process", "start_ns", *named, *({"graph_node"} & set(operations))]
            placed = place[["thread", "launch_ns", "step", "phase"]].assign(module=module)
            placed[columns] = operations[columns]
            known = _Graphs(graphs, {}, {})
            if kind == "kernels":
                placed = placed.join(compiled_graphs.find_calls(attribution.ranges, place["range_id"]))
                kinds = {name: _find_kind(str(name)) for name in placed["kernel_name"].unique()}
                placed[_FAMILY] = placed["kernel_name"].map(kinds).astype(str)
                _note_static_grids(placed, graphs)
                _look_inside(placed, followed, known)
            looser = [[column for column in columns if column in placed] for columns in same[1:]]
            problems += _link_sequences(placed, followed, [named, *looser], known, module, by)
        linked[kind] = pd.DataFrame(
            {"module": pd.Categorical(module), "module_by": pd.Categorical(by, list(MODULE_BY))}, index=place.index
        )
    return ModuleLinks(**linked, problems=pd.DataFrame(problems, columns=[*_PLACE, "step", "reason"]))


def _list_operators(ranges: pd.DataFrame) -> list[str]:
    """List the operators of PyTorch that torch.profiler records: outside every module they are no module."""
    return ranges.loc[ranges["is_operation"].to_numpy(bool), "plain_name"].astype(str).unique().tolist()


def _find_kind(kernel: str) -> str:
    """Return the family of a kernel; for one that torch.compile made its name, since the same code has the same."""
    return kernel if compiled_graphs.is_generated(kernel) else find_family(kernel)


def _note_static_grids(kernels: pd.DataFrame, graphs: list[compiled_graphs.Graph]) -> None:
    """Note the grids of kernels that static graphs alone launch, in place: as text, "" for others."""
    static = compiled_graphs.list_static_kernels(graphs)
    if static and set(compiled_graphs.GRID) <= set(kernels):
        rows = kernels["kernel_name"].isin(static)
        kernels[_STATIC] = ""
        kernels.loc[rows, _STATIC] = kernels.loc[rows, compiled_graphs.GRID].astype(str).agg("x".join, axis=1)


def _look_inside(kernels: pd.DataFrame, followed: pd.DataFrame, known: _Graphs) -> None:
    """Give the kernels of compiled modules in followed steps the modules inside, in place. Adds the paths of the
    compiled modules and the grids to what is known."""
    if not known.graphs:
        return
    for process, start, end in followed.itertuples(index=False):
        inside = (kernels["process"] == process) & kernels["launch_ns"].between(start, end, inclusive="left")
        of_step = kernels[inside].sort_values(["launch_ns", "start_ns"], kind="stable")
        for (*place, path), _ in of_step.groupby([*_PLACE, "module"], observed=True):
            if compiled_graphs.is_compiled(path):
                known.regions.setdefault(tuple(place), set()).add(compiled_graphs.find_region(path))
        for _, rows in of_step.groupby(number_passes(of_step["phase"].astype(str))):
            rows = rows.sort_values("thread", kind="stable")
            kernels.loc[rows.index, "module"] = compiled_graphs.name_inside(rows, known.graphs, known.grids)


def number_passes(phases: pd.Series) -> pd.Series:
    """Number the passes through the model, by the phases of kernels in order of launch: forward after backward begins
    another."""
    of_model = phases[phases.isin([vocabulary.FORWARD, vocabulary.BACKWARD])]
    begins = (of_model == vocabulary.FORWARD) & (of_model.shift() == vocabulary.BACKWARD)
    return begins.cumsum().reindex(phases.index).ffill().fillna(0)


def is_followed(ranges: pd.DataFrame) -> np.ndarray:
    """Which ranges are of followed steps."""
    paths = ranges["path"].cat
    inside = np.array([str(path).startswith(vocabulary.FOLLOWED) for path in paths.categories], bool)
    return inside[paths.codes.to_numpy()] if len(ranges) else np.zeros(0, bool)


def find_followed_steps(ranges: pd.DataFrame) -> pd.DataFrame:
    """Process, start and end of each followed step."""
    steps = ranges[ranges["name"].astype(str) == vocabulary.FOLLOWED_STEP]
    return steps[["process", "start_ns", "end_ns"]].sort_values("start_ns")


def _link_sequences(
    operations: pd.DataFrame,
    followed: pd.DataFrame,
    same: list[list[str]],
    graphs: _Graphs,
    module: np.ndarray,
    by: np.ndarray,
) -> list[dict[str, Any]]:
    """Fill `module` and `by` in place if a followed step gives another module, or the only one: a range inside backward
    may belong to a library. Returns what could not be linked, and why."""
    rows = operations.assign(row=np.arange(len(operations))).sort_values(["launch_ns", "start_ns"], kind="stable")
    known: dict[tuple[Any, ...], list[pd.DataFrame]] = {}
    for process, start, end in followed.itertuples(index=False):
        inside = (rows["process"] == process) & (rows["launch_ns"] >= start) & (rows["launch_ns"] < end)
        for place, sequence in rows[inside].groupby(_PLACE, observed=True, sort=False):
            known.setdefault(place, []).append(sequence.assign(module=_name_modules(sequence, same[0][0])))
    problems = []
    measured = rows[rows["step"] >= 0]
    for (*place, step), sequence in measured.groupby([*_PLACE, "step"], observed=True, sort=False):
        reason = "no followed step has this phase"
        for columns, other in ((columns, other) for columns in same for other in known.get(tuple(place), [])):
            if not (reason := _describe_difference(sequence, other, columns)):
                _fill(sequence["row"].to_numpy(), other["module"].to_numpy(), module, by)
                break
        regions = graphs.regions.get(tuple(place), set())
        if reason and len(regions) == 1:
            names = _name_by_graphs(sequence, next(iter(regions)), graphs)
            _fill(sequence["row"].to_numpy(), names, module, by)
        if reason and place[-1] in _WITH_MODULES and (by[sequence["row"]] == UNKNOWN).any():
            problems.append(dict(zip(_PLACE, place)) | {"step": step, "reason": reason})
    return problems


def _fill(row: np.ndarray, names: np.ndarray, module: np.ndarray, by: np.ndarray) -> None:
    fill = (names != "") & (names != module[row])
    module[row[fill]], by[row[fill]] = names[fill], LINKED


def _name_by_graphs(sequence: pd.DataFrame, region: str, graphs: _Graphs) -> np.ndarray:
    """Return the modules of a step's kernels in the graphs that made them; none if there is a kernel that torch.compile
    made for no graph that is known."""
    alone = sequence.drop(columns=["call", "graph"]).assign(module=region)
    named = compiled_graphs.name_inside(alone, graphs.graphs, graphs.grids)
    outside = np.array([compiled_graphs.is_compiled(path) for path in named], bool)
    generated = sequence["kernel_name"].astype(str).map(compiled_graphs.is_generated).to_numpy(bool)
    named[outside] = ""
    if outside[generated].any() or not generated.any():
        return np.full(len(named), "", object)
    return _name_modules(sequence.assign(module=named), "kernel_name")


def _name_modules(sequence: pd.DataFrame, name: str) -> np.ndarray:
    """Return the modules of a followed step's operations. Autograd launches some of backward outside its nodes: first
    the gradient of the loss, on the thread of the script, and later the sums of branches that join in the graph."""
    module = sequence["module"].to_numpy(dtype=object).copy()
    if len(module) and str(sequence["phase"].iloc[0]) == vocabulary.BACKWARD:
        between = module == ""
        first = len(module) if between.all() else int((~between).argmax())
        adds = sequence[name].astype(str).str.contains("CUDAFunctor_add|CUDAFunctorOnSelf_add|AddFunctor").to_numpy()
        module[between & adds] = vocabulary.ACCUMULATION
        module[:first][between[:first]] = vocabulary.LOSS_MODULE
    return module


def _describe_difference(sequence: pd.DataFrame, other: pd.DataFrame, same: list[str]) -> str:
    """Describe the first difference of two sequences of operations; "" if they are the same."""
    shorter = min(len(sequence), len(other))
    differs = np.zeros(shorter, bool)
    for column in same:
        differs |= sequence[column].to_numpy()[:shorter] != other[column].to_numpy()[:shorter]
    if differs.any():
        first = int(differs.argmax())
        names = [str(rows[same[0]].iloc[first])[:60] for rows in (sequence, other)]  # of families, if all else differed
        what = f"{names[0]} here, {names[1]} there" if names[0] != names[1] else f"another shape of {names[0]}"
        return f"operation {first + 1} differs: {what}"
    if len(sequence) != len(other):
        return f"{len(sequence)} operations here, {len(other)} there"
    return ""
