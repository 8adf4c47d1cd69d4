"""Give kernels of a compiled module the modules inside, from what Inductor knows about each of its graphs.

A capture of `profile` holds the launches of each compiled graph in order, as ranges (see
`jobs.follow.compiled_graphs`). Kernels that Inductor made have their name there, so they are the posts to which the
kernels between them are tied, which the library calls between the same two posts have launched. Where names, numbers or
order differ, nothing of that graph is linked, and the kernel stays with the compiled module as a whole. So does a call
with another grid than its first call had, if no size of the graph changes: it is of another graph, which is not known.

Graphs of equal parts of a model have equal kernels. In a followed step the range of a call says which graph runs.
Where there are no such ranges, as in older captures and in other steps, their order says it: each is compiled when it
is first called, so where all of them run, they run for the first time in the order in which they were compiled. Where
that leaves several, a kernel is of the module that has all of theirs inside.
"""

import re
from collections import Counter
from collections.abc import Collection, Container, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.fused_kernels import divide, format_fused
from profiler_job.analysis.reference.kernel_families import MAIN_GEMM_PARTS, classify
from profiler_job.jobs.contract import ranges as vocabulary

GRID = ["grid_x", "grid_y", "grid_z"]
_GENERATED = "triton_"
_OF_INDUCTOR = re.compile(r"triton_[a-z]{3}_fused")
_LISTED = re.compile(r"\.\d+(?=/|$)")
_PLACED = re.compile(r"/(\d+)(?=/|$)")
_REGIONS = (vocabulary.COMPILED.strip(), vocabulary.COMPILED_AUTOGRAD)
_COMPILED = re.compile(rf"(?:^|/| )(?:{'|'.join(map(re.escape, _REGIONS))})")
_CALL = rf"^{vocabulary.CALL}(\d{{1,9}})({vocabulary.BROKEN})?$"
_GEMM, _ATTENTION, _SUM, _FILL = "gemm", "attention", "reduce", "fill"
_MATMULS = frozenset({"mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_int_mm", "bias_addmm"})


class Launch(NamedTuple):
    """kernel: its name, or the function's. modules: paths below the compiled module, the largest part first; "" is the
    compiled module itself. shares: percents of the bytes that it writes, of each; () if they are not known."""

    kernel: str
    modules: tuple[str, ...]
    shares: tuple[int, ...] = ()

    @property
    def is_generated(self) -> bool:
        return self.kernel.startswith(_GENERATED)


class Graph(NamedTuple):
    """root: path of the module that it was compiled for; "" if not known. numbers: of it, and of graphs that are the
    same. is_static: whether each of its launches has one grid; not if its sizes change, or if there are several of the
    graph, as for several sizes."""

    process: int
    is_backward: bool
    root: str
    launches: tuple[Launch, ...]
    numbers: tuple[int, ...] = ()
    is_static: bool = False


def read_graphs(ranges: pd.DataFrame) -> list[Graph]:
    """Read the graphs of a capture from its ranges, each once, by pass in the order of their first calls."""
    names = ranges["name"].astype("category")
    begins = names.cat.categories.astype(str).str.startswith(vocabulary.GRAPH)
    if not begins.any():
        return []
    places = np.flatnonzero(begins[names.cat.codes.to_numpy()])
    names, parents = names.astype(str).to_numpy(), ranges["parent_id"].to_numpy()
    numbered, static = [], set[Graph]()
    for place in places:
        number, direction, root = (*names[place].removeprefix(vocabulary.GRAPH).split(" ", 2), "")[:3]
        inside = np.flatnonzero(parents == place)
        inside = inside[np.argsort(ranges["start_ns"].to_numpy()[inside], kind="stable")]
        launches = tuple(_parse_launch(name) for name in names[inside])
        process = int(ranges["process"].iloc[place])
        is_static, root = root.endswith(vocabulary.STATIC), root.removesuffix(vocabulary.STATIC)
        graph = Graph(process, direction == vocabulary.BACKWARD, root, launches)
        numbered.append((process, int(number), graph))
        static |= {graph} if is_static else set()
    numbers: dict[Graph, list[int]] = {}
    for _, number, graph in numbered:
        numbers.setdefault(graph, []).append(number)
    ordered = _order_calls([graph for *_, graph in sorted(numbered, key=lambda known: known[:2])])
    return [
        graph._replace(numbers=tuple(sorted(numbers[graph])), is_static=graph in static and len(numbers[graph]) == 1)
        for graph in dict.fromkeys(ordered)
    ]


def has_compiled(ranges: pd.DataFrame, kernel_names: Iterable[str]) -> bool:
    """Return whether torch.compile has compiled something that a capture has: a module, or a kernel of Inductor's."""
    names = ranges["name"].astype("category").cat.categories.astype(str)
    return any(map(is_compiled, names)) or any(map(_OF_INDUCTOR.search, kernel_names))


def list_static_kernels(graphs: Iterable[Graph]) -> set[str]:
    """List the generated kernels that no graph launches but static ones."""
    names: dict[bool, set[str]] = {True: set(), False: set()}
    for graph in graphs:
        names[graph.is_static] |= {launch.kernel for launch in graph.launches if launch.is_generated}
    return names[True] - names[False]


def find_calls(ranges: pd.DataFrame, range_id: pd.Series) -> pd.DataFrame:
    """Find the call of a graph that operations are launched in. range_id: their innermost ranges, -1 for none. Returns
    the row of the call's range, the number of its graph (-1 for none), and whether that ends at a graph break."""
    names = ranges["name"].astype("category")
    said = names.cat.categories.astype(str).str.extract(_CALL)
    of_name = said[0].astype(float).fillna(-1).to_numpy(int)
    number = np.append(of_name[names.cat.codes.to_numpy()], -1)  # the last for what is in no range
    ends = np.append(said[1].notna().to_numpy()[names.cat.codes.to_numpy()], False)
    call, parents = range_id.to_numpy(copy=True), np.append(ranges["parent_id"].to_numpy(), -1)
    if not (number >= 0).any():
        call[:] = -1
    while (outside := (call >= 0) & (number[call] < 0)).any():
        call[outside] = parents[call[outside]]
    return pd.DataFrame({"call": call, "graph": number[call], "ends_at_break": ends[call]}, index=range_id.index)


def _order_calls(graphs: Sequence[Graph]) -> list[Graph]:
    """Order graphs as they are first called. All are compiled at their first call, but some graphs of backward with
    their graph of forward, of dynamic shapes: backward runs these in reverse."""
    order, num_forward = [], 0
    for place, graph in enumerate(graphs):
        num_forward += not graph.is_backward
        order.append((graph.process, graph.is_backward, -num_forward if graph.is_backward else 0, place))
    return [graphs[place] for *_, place in sorted(order)]


def _parse_launch(name: str) -> Launch:
    kernel, *named = name.split("|")
    parts = [part.rpartition("=") for part in named]
    is_known = all(percent.isdecimal() for *_, percent in parts)
    return Launch(kernel, tuple(part[0] for part in parts), tuple(int(part[2]) for part in parts if is_known))


Fit = tuple[Graph, list[Launch]]
"""A graph that fits kernels, with the launch of each of them."""


class GraphRun(NamedTuple):
    """A graph that ran once. start: place of its first kernel. fits: the graphs that it may be, with the launch of each
    of its kernels."""

    start: int
    fits: list[Fit]

    @property
    def launches(self) -> list[Launch]:
        return self.fits[0][1]


Grids = dict[Graph, list[list[int]]]
"""The grids of the generated kernels of static graphs, in order."""


def name_inside(operations: pd.DataFrame, graphs: Sequence[Graph], grids: Grids | None = None) -> np.ndarray:
    """Return the module of each kernel (rows in order of launch, with process, thread, phase, kernel_name, module, and
    the columns of GRID where they are known; best of one pass through the model), with a module inside where its own is
    a compiled one and a graph says which. A graph of a block that a model repeats may run for each of them, as where
    graphs break inside blocks: which block is not known then (blocks.*). call, graph: as `find_calls` finds them, where
    they are known: then a kernel of that phase outside of calls is of no graph, but of a module that Python calls, if
    it is inside one. graph_node: of kernels in a CUDA graph, 0 for others: what a call launches before it replays one
    copies the graph's inputs (GRAPH_INPUTS). graphs: in the order of their first calls. grids: of former passes; those
    of this one are added."""
    module = operations["module"].to_numpy(dtype=object).copy()
    compiled = np.array([is_compiled(str(path)) for path in module], bool)
    if not graphs or not compiled.any():
        return module
    place = ["process", "thread", "phase", "module"]
    regions = {path: find_region(str(path)) for path in set(module)}
    keys = operations[place].assign(module=operations["module"].map(regions))
    keys = keys.astype(str).agg("\0".join, axis=1).to_numpy()
    linked: dict[tuple[str, str], list[tuple[np.ndarray, GraphRun]]] = {}
    grids = {} if grids is None else grids
    sizes = operations[GRID].to_numpy() if set(GRID) <= set(operations) else None
    nowhere = np.full(len(keys), -1)
    call, number = (operations[name].to_numpy() if name in operations else nowhere for name in ("call", "graph"))
    nodes = operations["graph_node"].to_numpy() if "graph_node" in operations else np.zeros(len(keys), np.int64)
    phase = operations["phase"].astype(str).to_numpy()
    has_calls = np.isin(phase, phase[call >= 0])
    for rows in np.split(np.arange(len(keys)), _find_changes(keys, call)):
        if not len(rows) or not compiled[rows[0]]:
            continue
        first = operations.iloc[rows[0]]
        is_backward = phase[rows[0]] == vocabulary.BACKWARD
        fitting = [graph for graph in graphs if graph.process == first["process"] and graph.is_backward == is_backward]
        if has_calls[rows[0]]:
            fitting = [graph for graph in fitting if number[rows[0]] in graph.numbers]
        runs = link_graphs(operations["kernel_name"].iloc[rows].astype(str).tolist(), fitting)
        if sizes is not None:
            runs = [run for run in runs if _has_own_grids(run, sizes[rows[run.start :]], grids)]
        if runs and call[rows[0]] >= 0 and _follows_copies(nodes[rows], runs[0]):
            base = _COMPILED.sub("", regions[first["module"]])
            module[rows[: runs[0].start]] = "/".join(filter(None, [base, vocabulary.GRAPH_INPUTS]))
        placed = linked.setdefault((keys[rows[0]], regions[first["module"]]), [])
        placed += [(rows[run.start :], run) for run in runs]
    for (_, region), placed in linked.items():
        named = _name_runs([run for _, run in placed], graphs, region)
        for (rows, _), names in zip(placed, named):
            for row, name in zip(rows, names):
                module[row] = name
    for row in np.flatnonzero(compiled & has_calls & (call < 0)):
        if not is_generated(operations["kernel_name"].iat[row]):
            module[row] = _COMPILED.sub("", find_region(str(module[row]))) or module[row]
    return module


def _follows_copies(nodes: np.ndarray, run: GraphRun) -> bool:
    """Return whether a run begins with the replay of a CUDA graph, and what a call has launched before it is none.
    nodes: of the call's kernels, 0 for none."""
    return bool((nodes[: run.start] == 0).all() and nodes[run.start] != 0)


def _has_own_grids(run: GraphRun, sizes: np.ndarray, grids: Grids) -> bool:
    """Return whether the generated kernels of a run have the grids of the graph's first run, if it is a static one.
    sizes: of the grids from its first kernel on."""
    graph = run.fits[0][0]
    if len(run.fits) > 1 or not graph.is_static:
        return True
    own = [size.tolist() for launch, size in zip(run.launches, sizes) if launch.is_generated]
    return grids.setdefault(graph, own) == own


def _find_changes(*columns: np.ndarray) -> np.ndarray:
    """Find the rows at which a column has another value than before."""
    return np.flatnonzero(np.logical_or.reduce([values[1:] != values[:-1] for values in columns])) + 1


def _name_runs(runs: Sequence[GraphRun], graphs: Sequence[Graph], region: str) -> list[list[str]]:
    """Return the module of each kernel of the runs of a region, all of one pass."""
    base = _COMPILED.sub("", region)
    fits = [_leave_others(run.fits, base) for run in runs]
    numbers = _number_graphs(fits, graphs, base)
    numbered = [{numbers[id(fit[0])]: fit for fit in reversed(fitting)} for fitting in fits]
    possible = decide_by_order(numbered)
    times = Counter(number for some in possible for number in some)
    named = []
    for fitting, some in zip(numbered, possible):
        each = []
        for number in some:
            graph, launches = fitting[number]
            root = graph.root if times[number] == 1 else _LISTED.sub(".*", graph.root)
            each.append([_join_module(base, root, launch) for launch in launches])
        named.append([_find_common(paths, region) for paths in zip(*each)])
    return named


def _leave_others(fits: Sequence[Fit], region: str) -> Sequence[Fit]:
    """Leave out graphs of other modules than a region, if one is of it."""
    is_own = [_is_inside(graph.root, region) for graph, _ in fits]
    return [fit for fit, own in zip(fits, is_own) if own or not fit[0].root] if any(is_own) else fits


def _number_graphs(fits: Sequence[Sequence[Fit]], graphs: Sequence[Graph], region: str) -> dict[int, int]:
    """Number graphs (by id) by their places. Of those that fit at one place, those with equal modules have one."""
    several = {id(graph) for fitting in fits if len(fitting) > 1 for graph, _ in fitting}
    first: dict[tuple[tuple[str, str], ...], int] = {}
    numbers = {}
    for place, graph in enumerate(graphs):
        numbers[id(graph)] = place
        if id(graph) in several:
            named = [_join_module(region, graph.root, launch._replace(shares=())) for launch in graph.launches]
            kernels = (launch.kernel for launch in graph.launches)
            numbers[id(graph)] = first.setdefault(tuple(zip(kernels, named)), place)
    return numbers


def decide_by_order(fits: Sequence[Collection[int]]) -> list[set[int]]:
    """Return which graphs may have run at each place, of those that fit there, if all of them ran, for the first time
    in the order of their numbers; all that fit if they cannot have."""
    order = sorted(set().union(*fits))
    ranks = [{order.index(number) for number in numbers} for numbers in fits]
    seen = [{0}]  # how many graphs may have run before each place
    for fitting in ranks:
        seen.append({max(num, rank + 1) for num in seen[-1] for rank in fitting if rank <= num})
    if len(order) not in seen[-1]:
        return [set(numbers) for numbers in fits]
    possible, after = [], {len(order)}
    for fitting, before in zip(ranks[::-1], seen[-2::-1]):
        steps = [(num, rank) for num in before for rank in fitting if rank <= num and max(num, rank + 1) in after]
        possible.append({order[rank] for _, rank in steps})
        after = {num for num, _ in steps}
    return possible[::-1]


def _find_common(paths: Sequence[str], region: str) -> str:
    """Return the path of the module that has all inside of which a kernel may be; the region's if none has."""
    if len(set(paths)) == 1:
        return paths[0] or (region if region == vocabulary.COMPILED_AUTOGRAD else "")
    common: list[str] = []
    for levels in map(set, zip(*(path.split("/") for path in paths))):
        if len(levels) > 1:
            levels = {_LISTED.sub(".*", level) for level in levels}
        if len(levels) > 1:
            break
        common += levels
    return "/".join(common) or region


def is_compiled(module: str) -> bool:
    """Return whether torch.compile runs a module as a whole, by its path."""
    return _COMPILED.search(module) is not None


def find_outermost(module: str) -> str:
    """Return the path up to the outermost module that torch.compile runs, by the path of one inside; "" for none."""
    match = _COMPILED.search(module)
    return module[: match.end()] if match else ""


def find_region(module: str) -> str:
    """Return the path without the ranges of a library that a compiled module calls, as CUB's around a sort."""
    while is_compiled(module) and is_of_library(module.rpartition("/")[2]):
        module = module.rpartition("/")[0]
    return module


def is_of_library(name: str) -> bool:
    """Return whether a range is of a library in C++, by its name."""
    return "::" in name


def link_graphs(kernels: Sequence[str], graphs: Sequence[Graph]) -> list[GraphRun]:
    """Find the graphs that made kernels, in order: one after the other, with kernels of none of them between. Of graphs
    that fit at a place those with most kernels do."""
    generated = {launch.kernel for graph in graphs for launch in graph.launches if launch.is_generated}
    runs: list[GraphRun] = []
    start = 0
    while start < len(kernels):
        aligned = [(graph, _align(graph.launches, kernels, start, generated)) for graph in graphs]
        fits = [(graph, launches) for graph, launches in aligned if launches]
        most = max((len(launches) for _, launches in fits), default=0)
        if fits:
            runs.append(GraphRun(start, [fit for fit in fits if len(fit[1]) == most]))
        start += most or 1
    return runs


def _align(launches: Sequence[Launch], kernels: Sequence[str], start: int, generated: set[str]) -> list[Launch] | None:
    """Return the launch of each kernel from `start` on that a graph has made; None if the kernels are not its own."""
    owners: list[Launch] = []
    at, end = 0, len(launches)
    while at < end:
        place = start + len(owners)
        if launches[at].is_generated:
            fills = _count_fills(kernels[place:]) if owners else 0
            owners += [launches[at]] * fills
            place += fills
            if place >= len(kernels) or kernels[place] != launches[at].kernel:
                return None
            owners.append(launches[at])
            at += 1
            continue
        until = next((i for i in range(at, end) if launches[i].is_generated), end)
        stop = next((i for i in range(place, len(kernels)) if is_generated(kernels[i], generated)), len(kernels))
        shared = _share_out(launches[at:until], kernels[place:stop])
        if shared is None:
            return None
        owners += shared
        at = until
    return owners


def is_generated(kernel: str, known: Container[str] = ()) -> bool:
    """Return whether Inductor made a kernel, of a graph that is known or of another."""
    return kernel in known or _OF_INDUCTOR.match(kernel) is not None


def _share_out(calls: Sequence[Launch], kernels: Sequence[str]) -> list[Launch] | None:
    """Return the call of each kernel, of calls one after another; None if that is not certain. A result is filled, if
    at all, before the kernel that computes it."""
    families = [_find_family(kernel) for kernel in kernels]
    rest = _share_out_rest(calls, [kernel for kernel, family in zip(kernels, families) if family != _FILL])
    if rest is None:
        return _share_out_rest(calls, kernels)
    owners: list[Launch] = []
    for family in reversed(families):
        owners.append((owners or [calls[-1]])[-1] if family == _FILL else rest.pop())
    return owners[::-1]


def _share_out_rest(calls: Sequence[Launch], kernels: Sequence[str]) -> list[Launch] | None:
    """Return the call of each kernel, as `_share_out` does. A matmul is one kernel of that family, and parts of it; a
    sum is one reduction; attention is one or more kernels, and what else is launched before it. One other call between
    two of these is what is launched between them."""
    kinds = [_find_kind(call.kernel) for call in calls]
    families = [_find_family(kernel) for kernel in kernels]
    if len(calls) == len(kernels) and all(kind in ("", family) for kind, family in zip(kinds, families)):
        return list(calls)
    num_matmuls, is_all = kinds.count(_GEMM), set(kinds) <= {_GEMM, _SUM}
    if families.count(_GEMM) < num_matmuls or (is_all and families.count(_GEMM) > num_matmuls):
        return None  # others may launch matmuls, too
    if kernels and len({call.modules for call in calls}) == 1:
        return [calls[0]] * len(kernels)
    if any(kind == "" and after in ("", _SUM) for kind, after in pairwise(kinds)):
        return None  # where the one ends and the other begins is not known
    at, before, owners = -1, "", list[Launch]()
    for family in families:
        following = kinds[at + 1] if at + 1 < len(calls) else None
        is_known = family in (_GEMM, following) if family else False
        begins = is_known and not (family == before == _ATTENTION)
        if begins and following != family:
            return None
        at += begins or (following == "" and family != "")
        following = kinds[at + 1] if at + 1 < len(calls) else None
        is_before = following == _ATTENTION and not begins and family and before != _ATTENTION
        owners.append(calls[at + 1 if is_before else max(at, 0)])
        before = family
    return owners if at == len(calls) - 1 else None


def _count_fills(kernels: Sequence[str]) -> int:
    """Count the fills at the beginning: deterministic algorithms fill what is not initialised."""
    return next((at for at, kernel in enumerate(kernels) if _find_family(kernel) != _FILL), len(kernels))


def _find_family(kernel: str) -> str:
    """Return the family of a kernel of a library; "" for a part of a split-K matmul, which is no matmul by itself."""
    classified = classify(kernel)
    is_part = classified.family == _GEMM and classified.part not in MAIN_GEMM_PARTS
    return "" if is_part else classified.family


def _find_kind(call: str) -> str:
    """Return the family of the kernels of a library call; "" for others than matmuls, sums and attention."""
    name = call.rpartition("aten.")[2].removeprefix("extern_kernels.").partition(".")[0]
    if name in _MATMULS:
        return _GEMM
    return _ATTENTION if "attention" in name else _SUM if name == "sum" else ""


def _is_inside(root: str, region: str) -> bool:
    return root == region or not region or root.startswith((f"{region}/", f"{region}."))


def _join_module(region: str, root: str, launch: Launch) -> str:
    """Return the path of the module of a launch; of several, the name of the fused kernel (see `fused_kernels`). What
    has no module of its own goes with the others."""
    base = root if _is_inside(root, region) else region
    weights = dict(zip(launch.modules, launch.shares or [0] * len(launch.modules)))
    weights = {path: weight for path, weight in weights.items() if path} or weights
    parts = [path.split("/") if path else [] for path in weights]
    common = 0
    while all(len(part) > common for part in parts) and len({part[common] for part in parts}) == 1:
        common += 1
    around = "/".join(part for part in [base, *(parts[0][:common] if parts else [])] if part)
    percents = divide(100, list(weights.values())) if launch.shares else [0] * len(parts)
    inside: dict[str, int] = {}
    for part, percent in zip(parts, percents):
        if (below := part[common:]) and (percent or not launch.shares):
            inside[_PLACED.sub(r"[\1]", "/".join(below)).replace("/", ".")] = int(percent)
    return format_fused(around, inside) if inside and len(parts) > 1 else around
