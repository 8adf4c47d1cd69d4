"""What to do about a line of own code that calls what waits for the GPU: its call says more than its samples."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pandas as pd

from profiler_job.analysis.reference.python_libraries import DO, DO_COPY, DO_SYNC, OWN, OWN_LAUNCHES

LEAST_TIME = 0.1
"""Least share of the CPU's time in a line that its calls take before they are its advice. `.item()` of a small tensor
took 13% and 15% of two lines that do nothing else: the rest is PyTorch's own time, before and after the call."""
_TO_GPU, _FROM_GPU = "Host-to-Device", "Device-to-Host"
_LINE = ["where", "function"]
_OF_OWN = (DO[OWN], DO[OWN_LAUNCHES])


class WaitingCalls(NamedTuple):
    """The calls of a line that wait for the GPU: what they do, and their time (ns)."""

    do: str
    time_ns: float


def list_sampled_calls(syncs: pd.DataFrame, copies: pd.DataFrame) -> dict[tuple[str, str], WaitingCalls]:
    """List by line the calls that samples show: sections `sync_lines` and `copy_lines`. A copy of pinned memory that
    nothing waits for is none, though it may take long enough to be in `sync_lines`."""
    copied = copies[copies["is_waited"].astype(bool) | (copies["host_memory"] == "pageable")]
    syncs = syncs[~syncs["call"].astype(str).str.startswith("cudaMemcpy")]
    operations = copied.groupby(_LINE)["operation"].agg(" ".join).to_dict()
    times = pd.concat([frame[[*_LINE, "time_ns"]] for frame in (syncs, copied)])
    sums = times.groupby(_LINE)["time_ns"].sum().to_dict()
    return {line: WaitingCalls(_choose(operations.get(line, "")), float(ns)) for line, ns in sums.items()}


def list_noted_calls(calls: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], WaitingCalls]:
    """List by line the calls that were counted inside a script. calls: rows of `sync_calls` of its first rank."""
    listed: dict[tuple[str, str], WaitingCalls] = {}
    for call in calls:
        if call["time_ns"] > 0:
            line = call["where"], call["function"]
            before = listed.get(line, WaitingCalls(DO_COPY, 0.0))
            do = DO_SYNC if before.do == DO_SYNC else _choose(call["call"])
            listed[line] = WaitingCalls(do, before.time_ns + call["time_ns"])
    return listed


def advise_calls(lines: pd.DataFrame, calls: Mapping[tuple[str, str], WaitingCalls]) -> pd.DataFrame:
    """Return lines with the advice of their calls in place of that of own code. lines: of the section or table `waits`;
    times of both are of as many steps."""
    chosen = []
    for row in lines.itertuples(index=False):
        call = calls.get((row.where, row.function))
        is_own = str(row.do).startswith(_OF_OWN)
        chosen.append(call.do if call and is_own and call.time_ns >= LEAST_TIME * row.cpu_ns > 0 else row.do)
    return lines.assign(do=pd.Series(chosen, index=lines.index, dtype=object))


def _choose(operation: str) -> str:
    return DO_COPY if _TO_GPU in operation and _FROM_GPU not in operation else DO_SYNC
