"""The lines at which torch.compile breaks graphs, with what each costs, as evidence for advice: of a capture, or of a
captured step of a recording."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import pandas as pd

from profiler_job.analysis.capture.graph_breaks import Break, BrokenLine
from profiler_job.analysis.reference.kernel_names import shorten
from profiler_job.jobs.contract.messages import COMPILE
from profiler_job.jobs.contract.ranges import PASSES

BREAK = "graph break"
"""Kind of note in the table `compile_notes`."""
COUNTED = ("breaks", "kernels", "idle_ns")
"""What is counted of graph breaks: how many, kernels between their graphs, and idle time of the GPU."""
LINE = ["where", "function", "reason"]
IDLE = [f"{phase}_idle_ns" for phase in PASSES]
COLUMNS = [*LINE, *IDLE, "kernels"]


class _EndsGraphs(Protocol):
    """A line at which graphs with these numbers end."""

    @property
    def graphs(self) -> Sequence[int]: ...


def find_owners(lines: Sequence[_EndsGraphs], breaks: Sequence[Break]) -> dict[int, int]:
    """Find the place of the line at which each graph ends, by the graph's number; {} if no break is at a graph that is
    known. A break at which no graph ends (-1) is of the line that ends none, if there is one such line."""
    owners = {graph: place for place, line in enumerate(lines) for graph in line.graphs}
    others = [place for place, line in enumerate(lines) if not line.graphs]
    if not breaks or (owners and all(each.graph < 0 for each in breaks)):
        return {}
    return owners | ({-1: others[0]} if len(others) == 1 else {})


def measure_lines(lines: Sequence[_EndsGraphs], breaks: Sequence[Break]) -> list[dict[str, int]]:
    """Measure what each line costs at which graphs break, in the mean over the captured steps of a rank: columns of
    `compile_notes`, none where it is not known."""
    owners = find_owners(lines, breaks)
    known = set(owners.values())
    return [
        {name: round(value) for name, value in sum_breaks(own, breaks).items()} if place in known else {}
        for place in range(len(lines))
        for own in [[each for each in breaks if owners.get(each.graph) == place]]
    ]


def sum_breaks(breaks: Sequence[Break], of: Sequence[Break] = ()) -> dict[str, float]:
    """Sum graph breaks of captured steps, forward and backward, in the mean over the steps and processes of `of`, which
    are all that were measured: how many there are, the kernels between their graphs, and how long the GPU is idle at
    them (ns)."""
    summed: dict[str, float] = {}
    for phase in PASSES:
        num = len({(each.process, each.step) for each in of or breaks if each.phase == phase})
        own = [each for each in breaks if each.phase == phase]
        counts = len(own), sum(each.launches for each in own), sum(each.idle_ns for each in own)
        summed |= {f"{phase}_{name}": count / num for name, count in zip(COUNTED, counts) if num}
    return summed


def list_captured(lines: Sequence[BrokenLine], breaks: Sequence[Break]) -> pd.DataFrame:
    """List where the measured steps of a capture have graph breaks, those with most idle time first, with sums over the
    steps and processes: COLUMNS. A break of no known line has the compiled module as its function."""
    rows = []
    for process in dict.fromkeys(each.process for each in breaks):
        of_process = [line for line in lines if line.process == process]
        own = [each for each in breaks if each.process == process]
        owners = find_owners(of_process, own)
        for each in own:
            line = of_process[owners[each.graph]] if each.graph in owners else None
            place = (line.where, line.function, line.reason) if line else ("", shorten(each.region), "")
            rows.append(dict(zip(LINE, place)) | {f"{each.phase}_idle_ns": each.idle_ns, "kernels": each.launches})
    return _rank(rows)


def sum_lines(notes: pd.DataFrame) -> pd.DataFrame:
    """Sum what the lines cost at which graphs break, those with most idle time first, each once, with its mean over the
    ranks: LINE, the costs, and kernels. NaN: not known. notes: the table `compile_notes` of a run."""
    costs = [f"{phase}_{name}" for phase in PASSES for name in COUNTED]
    rows = notes.loc[notes["kind"] == BREAK, [*LINE, *costs]]
    rows = rows.astype(dict.fromkeys(LINE, str) | dict.fromkeys(costs, float))
    rows[costs] = rows[costs].mask(rows[costs] < 0)
    rows = rows.groupby(LINE, sort=False, as_index=False).mean()
    rows["kernels"] = rows[[f"{phase}_kernels" for phase in PASSES]].sum(axis=1, min_count=1)
    return _sort_by_idle(rows)


def list_recorded(notes: pd.DataFrame, scalars: Mapping[str, float]) -> pd.DataFrame:
    """List where a captured step of a run has graph breaks, as `list_captured` does. If it is not known of any line
    what it costs, all lines are one row. scalars: figures of one rank by name."""
    rows = sum_lines(notes)
    known = rows[rows[IDLE].notna().any(axis=1)]
    totals = {name: scalars.get(f"{COMPILE}{name}", 0.0) for name in IDLE}
    if known.empty and any(totals.values()):
        kernels = sum(scalars.get(f"{COMPILE}{phase}_kernels", 0.0) for phase in PASSES)
        return _rank([dict.fromkeys(LINE, "") | totals | {"kernels": kernels}])
    return _rank(known[COLUMNS].to_dict("records"))


def _rank(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Sum rows of the same line, and put those with most idle time first."""
    table = pd.DataFrame(list(rows), columns=COLUMNS).fillna(dict.fromkeys([*IDLE, "kernels"], 0.0))
    table = table.astype(dict.fromkeys([*IDLE, "kernels"], float)).groupby(LINE, sort=False, as_index=False).sum()
    return _sort_by_idle(table)


def _sort_by_idle(lines: pd.DataFrame) -> pd.DataFrame:
    order = (-lines[IDLE].sum(axis=1)).sort_values(kind="stable").index
    return lines.loc[order].reset_index(drop=True)
