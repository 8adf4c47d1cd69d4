"""Communication between GPUs: how much of it computation hides, and how much is waiting for other ranks.

A collective begins on each rank when that rank's kernel begins, and moves data once the last rank has arrived. So the
time of a communication kernel has two parts: waiting until the last rank's kernel begins, and transfer after that. Both
need the kernels of all ranks on one clock. The ends of all-reduces show how well the clocks agree, since no rank can
end one before every rank has given its data.

Communication is hidden while a compute kernel runs on the same GPU, and exposed otherwise. Exposed time costs nothing
while the CPU is late, because nothing that could have run was launched yet. The critical part of the exposed time is
how much earlier the work would have ended without communication (`compute_critical_time`).

Kernels of several ranks are matched by their order: the third all-reduce of one rank meets the third of the others. If
counts or times contradict that, the waiting is unknown and the reason is given.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import idle_time
from profiler_job.analysis.capture.collective_columns import (
    COLLECTIVE_COLUMNS,
    GPU_COLUMNS,
    LATE_KERNEL_COLUMNS,
    MESSAGE_COLUMNS,
)
from profiler_job.analysis.capture.intervals import Union, find_covered_before
from profiler_job.jobs.contract.quantities import format_time

_COLLECTIVE = re.compile(r"nccl(?:Symk?)?(?:Dev)?Kernel_([A-Za-z]+)")
OTHER = "other"
ENDS_TOGETHER = ("AllReduce", "AllGather", "ReduceScatter")
"""Collectives in which every rank needs something of every other, so that none can end before all have begun."""
POINT_TO_POINT = ("SendRecv", OTHER)
"""Kernels whose partner rank is unknown: no waiting is computed for them."""

MOST_APART_NS = 100_000
"""Largest median distance between the ends of one all-reduce (or the like) on all ranks at which waiting is reported:
up to this, the clocks agree well enough."""
LEAST_TOGETHER = 0.99
"""Share of the collectives that must be possible: no rank ends before the last has begun, as far as the clocks
agree."""


def compute_bus_factor(collective: str, num_ranks: int) -> float | None:
    """Compute the bytes over each rank's link per byte of the message, which the bus bandwidth of nccl-tests uses. None
    if that is not known, and for broadcasts and the like: one rank may have sent or begun before another one has, so
    that no kernel shows how long the transfer took. The message of NCCL's all-gather and reduce-scatter is one rank's
    part."""
    if collective == "AllReduce":
        return 2 * (num_ranks - 1) / num_ranks
    if collective in ("AllGather", "ReduceScatter"):
        return float(num_ranks - 1)
    return None


def parse_collective(kernel_name: str) -> str:
    """Parse the collective of a communication kernel, as NCCL names it (AllReduce, AllGather ...); OTHER if the name
    does not show it."""
    match = _COLLECTIVE.search(kernel_name)
    return match[1] if match else OTHER


MESSAGES = "message_"
"""Prefix of the scalars in older recordings that give the bytes of a collective's messages in the profiled steps of a
rank; the collective's name follows. Newer recordings have the message of each kernel."""


@dataclass(frozen=True, kw_only=True)
class Meetings:
    """Which communication kernels belong together.

    number: of the meeting of each kernel, the same for all ranks; -1 if not known. last_ns: when the last rank's kernel
    of its meeting began (the kernel's own start if it has no meeting). num_ranks: how many ranks have communication
    kernels. why_not: why the waiting is unknown; "" if it is known. apart_ns: median distance between the ends of one
    all-reduce, or the like, on the ranks; None if there is none.
    """

    number: np.ndarray
    last_ns: np.ndarray
    num_ranks: int
    why_not: str = ""
    apart_ns: int | None = None


def find_meetings(kernels: pd.DataFrame, world: int = 0, num_nodes: int = 1) -> Meetings:
    """Match the communication kernels of all ranks: rank, collective, stream, start_ns, end_ns, communicator (any
    order). If every communicator is known, each communicator has its own order. world: the number of all ranks, if some
    may be on other machines; 0: not known. num_nodes: the number of machines whose ranks are here."""
    ranks = kernels["rank"].nunique()
    apart = None
    number, last = np.full(len(kernels), -1), kernels["start_ns"].to_numpy().copy()

    def refuse(why: str) -> Meetings:
        return Meetings(number=number, last_ns=last, num_ranks=ranks, why_not=why, apart_ns=apart)

    if ranks < world:
        return refuse(f"{ranks} of {world} ranks are here, and the clocks of the others' machines are not known")
    if num_nodes > 1:
        return refuse(f"the ranks are on {num_nodes} machines, each with a clock of its own")
    if ranks < 2:
        return refuse("the communication kernels of one rank only are here")
    rows = kernels.reset_index(drop=True)
    rows = rows[~rows["collective"].isin(POINT_TO_POINT)]
    if not len(rows):
        return refuse("which ranks exchange data with which is not known of these kernels")
    if (rows["communicator"] < 0).any():
        rows = rows.assign(communicator=-1)
        if ranks > 2 and rows.groupby("rank")["stream"].nunique().max() > 1:
            return refuse("several groups of ranks may communicate, and the group of each kernel is not known")
    for (_, name), mine in rows.groupby(["communicator", "collective"]):
        counts = mine["rank"].value_counts()
        if counts.min() != counts.max() or (len(counts) < ranks and (rows["communicator"] < 0).any()):
            least = counts.min() if len(counts) == ranks else 0
            return refuse(f"the ranks have different numbers of {name} kernels ({least} to {counts.max()})")
    rows = rows.sort_values("start_ns", kind="stable")
    turn = rows.groupby(["communicator", "rank", "collective"]).cumcount()
    meeting = rows.assign(turn=turn).groupby(["communicator", "collective", "turn"]).ngroup()
    by_meeting = rows.groupby(meeting)
    last_start, first_end = by_meeting["start_ns"].max(), by_meeting["end_ns"].min()
    ends = by_meeting["end_ns"].max() - first_end
    together = by_meeting["collective"].first().isin(ENDS_TOGETHER)
    if together.any():
        apart = int(ends[together].median())
        if apart > MOST_APART_NS:
            return refuse(f"the same collectives end {format_time(apart)} apart: the ranks' clocks differ too much")
        possible = (last_start - first_end)[together] <= MOST_APART_NS
        if possible.mean() < LEAST_TOGETHER:
            return refuse("collectives end on one rank before another begins them: they are not the same ones")
    number[rows.index] = meeting.to_numpy()
    last[rows.index] = last_start[meeting].to_numpy()
    return Meetings(number=number, last_ns=last, num_ranks=ranks, apart_ns=apart)


@dataclass(kw_only=True)
class Communication:
    """of_gpus: a row for each GPU with communication kernels (columns GPU_COLUMNS). collectives: a row for each GPU and
    collective (COLLECTIVE_COLUMNS). messages: a row for each GPU, collective and message size, of kernels whose message
    is known (MESSAGE_COLUMNS). late_kernels: a row for each GPU that others waited for, if it runs a kernel for longer
    than they do (LATE_KERNEL_COLUMNS). why_not, apart_ns, num_ranks: see Meetings."""

    of_gpus: pd.DataFrame
    collectives: pd.DataFrame
    messages: pd.DataFrame
    late_kernels: pd.DataFrame
    num_ranks: int = 0
    why_not: str = ""
    apart_ns: int | None = None
    rows: pd.DataFrame = field(default_factory=pd.DataFrame)

    def select_gpu(self, gpu: int) -> "Communication":
        """Select the rows of one GPU; the other fields still cover all GPUs."""
        tables = {name: getattr(self, name) for name in ("of_gpus", "collectives", "messages", "late_kernels", "rows")}
        return replace(self, **{name: rows[rows["gpu"] == gpu].reset_index(drop=True) for name, rows in tables.items()})


LEAST_ALONE = 3
"""Least number of kernels of a kind that ran alone, to know what they take alone."""
MOST_BESIDE = 0.02
"""Share of its time that a kernel may overlap communication and still count as alone."""
MOST_UNEVEN = 0.1
"""Share of the median by which the middle 80% of the kernels alone may differ, and by which the quickest kernel during
communication may be faster. One name may cover GEMMs of several sizes: those differ by more, and what one of them takes
alone is unknown."""


def measure(
    kernels: pd.DataFrame, world: int = 0, num_nodes: int = 1, host_waits: pd.DataFrame | None = None
) -> Communication:
    """Measure what communication costs each GPU. world, num_nodes: see `find_meetings`. host_waits: when the CPU waited
    for a GPU (gpu, start_ns, end_ns); None: not known. kernels: of all GPUs, by start, with

    gpu, rank (int), stream, start_ns, end_ns, launch_ns (start of the call that launched it; below 0: not known),
    collective ("" for a compute kernel), bytes and communicator (of the message; below 0: not known), is_matmul (bool),
    kind (int: the same for kernels of one name, grid and phase), kernel_name (category).
    """
    is_exchange = (kernels["collective"] != "").to_numpy()
    exchange = kernels[is_exchange].reset_index(drop=True)
    meetings = find_meetings(exchange, world, num_nodes)
    known = meetings.number >= 0
    start, end = exchange["start_ns"].to_numpy(), exchange["end_ns"].to_numpy()
    waiting = np.clip(meetings.last_ns - start, 0, end - start)
    exchange["waiting_ns"], exchange["meeting"], exchange["known"] = waiting, meetings.number, known
    exchange["num_ranks"] = exchange.groupby("meeting")["rank"].transform("nunique")
    rows: list[dict[str, Any]] = []
    for gpu, mine in exchange.groupby("gpu", sort=True):
        own = kernels[(kernels["gpu"] == gpu).to_numpy()]
        compute = own[(own["collective"] == "").to_numpy()]
        computing = Union(compute["start_ns"].to_numpy(), compute["end_ns"].to_numpy())
        exchange.loc[mine.index, "hidden_ns"] = computing.measure_covered(start[mine.index], end[mine.index])
        row = _make_row(mine, own, computing, all_known=bool(known.all())) | {"gpu": int(gpu)}
        exchanging = Union(start[mine.index], end[mine.index])
        if host_waits is not None:
            row["critical_ns"] = compute_critical_time(compute, exchanging, host_waits[host_waits["gpu"] == gpu])
        rows.append(row)
    of_gpus = pd.DataFrame(rows, columns=list(GPU_COLUMNS))
    if len(of_gpus) and known.all():
        _add_causes(of_gpus, exchange, kernels)
    kept = of_gpus.loc[pd.to_numeric(of_gpus["kept_waiting_ns"]).fillna(0) > 0, "gpu"]
    integers = {name: "Int64" for name in GPU_COLUMNS}
    known_messages = exchange[exchange["bytes"] >= 0].assign(message_bytes=exchange["bytes"])
    return Communication(
        of_gpus=of_gpus.astype(integers),
        collectives=_sum_exchange(exchange, ["gpu", "collective"], COLLECTIVE_COLUMNS),
        messages=_sum_exchange(known_messages, ["gpu", "collective", "message_bytes"], MESSAGE_COLUMNS),
        late_kernels=find_late_kernels(kernels[~is_exchange], kept.tolist()),
        num_ranks=meetings.num_ranks,
        why_not=meetings.why_not,
        apart_ns=meetings.apart_ns,
        rows=exchange,
    )


def _make_row(mine: pd.DataFrame, own: pd.DataFrame, computing: Union, all_known: bool) -> dict[str, Any]:
    start, end = mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy()
    exchanging = Union(start, end)
    hidden = int(computing.measure_covered(exchanging.start, exchanging.end).sum())
    busy, total = int((exchanging.end - exchanging.start).sum()), int((end - start).sum())
    row: dict[str, Any] = {"rank": int(mine["rank"].iloc[0]), "calls": len(mine), "kernel_ns": total, "busy_ns": busy}
    row |= {"hidden_ns": hidden, "exposed_ns": busy - hidden}
    if all_known:
        waiting = mine["waiting_ns"].to_numpy()
        # If several kernels run at once, time in which one of them transfers does not count as waiting.
        transferring = Union(start + waiting, end)
        only = Union(start, start + waiting)
        waits = only.end - only.start - transferring.measure_covered(only.start, only.end)
        covered = _measure_covered_by_either(computing, transferring, only)
        row |= {"waiting_ns": int(waiting.sum()), "transfer_ns": total - int(waiting.sum())}
        row["exposed_waiting_ns"] = int((only.end - only.start - covered).sum()) if len(waits) else 0
    return row | _measure_slowdown(own, exchanging)


def _measure_covered_by_either(first: Union, second: Union, asked: Union) -> np.ndarray:
    both = Union(np.concatenate([first.start, second.start]), np.concatenate([first.end, second.end]))
    return both.measure_covered(asked.start, asked.end)


def compute_critical_time(compute: pd.DataFrame, exchanging: Union, host_waits: pd.DataFrame) -> int | None:
    """Compute by how much the work of a GPU would have ended earlier, had communication taken no time and had the CPU
    launched, and waited for the GPU, as it did. None if launches are not known.

    The loop goes through the `compute` kernels by start; `earlier` is how much earlier the last of them could have
    begun. The next kernel could begin earlier by as much, plus the exposed time between its launch and its start. It
    cannot begin before its launch, so `earlier` is at most the time from launch to start: time gained on a GPU that
    then waits for a late CPU is lost. A CPU that waits for the GPU continues earlier, too, and launches everything
    after it earlier. Launches are on the GPU's clock as in `analysis.capture.idle_time`.
    """
    start, launch = (compute[name].to_numpy(np.int64) for name in ("start_ns", "launch_ns"))
    if (launch < 0).any():
        return None
    none = np.zeros(len(start), bool)
    ready = np.minimum(launch + idle_time.find_least_lag(start, launch, launch, none, none, drifts=True), start)
    # A wait of the host is one more row, which was asked for when it began, and begins what follows when it ends.
    at = np.concatenate([start, host_waits["end_ns"].to_numpy(np.int64)])
    asked = np.concatenate([ready, host_waits["start_ns"].to_numpy(np.int64)])
    until = np.concatenate([compute["end_ns"].to_numpy(np.int64), host_waits["end_ns"].to_numpy(np.int64)])
    order = np.argsort(at, kind="stable")
    is_wait, at, asked, until = (order >= len(start)), at[order], asked[order], until[order]
    idle_from = np.maximum(find_covered_before(np.zeros(len(at), np.int8), at, until), asked)
    exposed = exchanging.measure_covered(np.minimum(idle_from, at), at)
    earlier = host_earlier = 0
    for waited, most, won in zip(is_wait.tolist(), (at - asked).tolist(), exposed.tolist()):
        if waited:
            host_earlier = max(host_earlier, min(earlier + won, host_earlier + most))
            earlier = max(earlier, host_earlier)
        else:
            earlier = min(earlier + won, host_earlier + most)
    return earlier


def _measure_slowdown(own: pd.DataFrame, exchanging: Union) -> dict[str, int]:
    """Compare matmuls during communication with the same kernels alone."""
    matmuls = own[own["is_matmul"].to_numpy()]
    start, end = matmuls["start_ns"].to_numpy(), matmuls["end_ns"].to_numpy()
    duration = end - start
    share = exchanging.measure_covered(start, end) / np.maximum(duration, 1)
    kind = matmuls["kind"].to_numpy()
    is_alone = share <= MOST_BESIDE
    alone = pd.Series(duration[is_alone]).groupby(kind[is_alone])
    usual = alone.median()
    even = (alone.quantile(0.9) - alone.quantile(0.1)) <= MOST_UNEVEN * usual
    usual = usual[(alone.size() >= LEAST_ALONE) & even]
    is_beside = share >= 0.5
    quickest = pd.Series(duration[is_beside]).groupby(kind[is_beside]).min().reindex(usual.index)
    usual = usual[quickest >= (1 - MOST_UNEVEN) * usual]
    beside = is_beside & np.isin(kind, usual.index)
    return {
        "beside_ns": int(duration[beside].sum()),
        "alone_ns": round(float(usual.reindex(kind[beside]).sum())),
    }


def _sum_exchange(exchange: pd.DataFrame, by: list[str], columns: Mapping[str, str]) -> pd.DataFrame:
    """Sum the communication kernels `by` these columns; on each GPU the longest first."""
    rows = []
    for key, group in exchange.groupby(by, sort=True):
        total = int((group["end_ns"] - group["start_ns"]).sum())
        row: dict[str, Any] = dict(zip(by, key)) | {"calls": len(group), "kernel_ns": total}
        row["hidden_ns"] = int(group["hidden_ns"].sum())
        size = int(group["bytes"].sum()) if (group["bytes"] >= 0).all() else None
        row["bytes"] = size
        meeting = group["num_ranks"]
        factor = compute_bus_factor(row["collective"], int(meeting.iloc[0])) if meeting.nunique() == 1 else None
        if group["known"].all():
            waiting = int(group["waiting_ns"].sum())
            row |= {"waiting_ns": waiting, "transfer_ns": total - waiting}
            if size is not None and factor is not None and total > waiting:
                row["bus_bytes_per_s"] = size * factor / (total - waiting) * 1e9
        rows.append(row)
    frame = pd.DataFrame(rows, columns=list(columns))
    integers = {name: "Int64" for name in columns if name not in ("collective", "bus_bytes_per_s")}
    frame = frame.astype(integers | {"bus_bytes_per_s": "Float64"})
    longest_first = {"by": ["gpu", "kernel_ns"], "ascending": [True, False]}
    return frame.sort_values(**longest_first, kind="stable", ignore_index=True)


def find_late_kernels(compute: pd.DataFrame, late: Sequence[int]) -> pd.DataFrame:
    """Find for each `late` GPU the compute kernel whose time there exceeds that on the other GPUs (in the median) most.
    Columns: LATE_KERNEL_COLUMNS; no row for a GPU that runs none for longer."""
    took = (compute["end_ns"] - compute["start_ns"]).groupby([compute["kernel_name"], compute["gpu"]], observed=True)
    if not late or compute["gpu"].nunique() < 2:
        return pd.DataFrame(columns=list(LATE_KERNEL_COLUMNS))
    times, calls = (sums.unstack(fill_value=0) for sums in (took.sum(), took.size()))
    rows = []
    for gpu in late:
        if gpu not in times:
            continue
        more, more_calls = (of[gpu] - of.drop(columns=gpu).median(axis=1) for of in (times, calls))
        if more.max() > 0:
            name = more.idxmax()
            rows.append({"gpu": gpu, "name": str(name), "more_ns": more[name], "more_calls": more_calls[name]})
    frame = pd.DataFrame(rows, columns=list(LATE_KERNEL_COLUMNS))
    return frame.round({"more_ns": 0, "more_calls": 0}).astype({"more_ns": "int64", "more_calls": "int64"})


def _add_causes(of_gpus: pd.DataFrame, exchange: pd.DataFrame, kernels: pd.DataFrame) -> None:
    """Add to each GPU how long it kept others waiting, and what it did meanwhile: for each collective it came last in,
    from the moment the first of the others began to wait, counted once for each of them that waited."""
    last = exchange.loc[exchange.groupby("meeting")["start_ns"].idxmax()].set_index("meeting")
    waits = exchange.merge(
        last[["gpu", "start_ns", "launch_ns"]], left_on="meeting", right_index=True, suffixes=("", "_of_last")
    )
    waits = waits[waits["waiting_ns"] > 0]
    for place, gpu in enumerate(of_gpus["gpu"]):
        mine = waits[(waits["gpu_of_last"] == gpu).to_numpy()]
        compute = kernels[((kernels["gpu"] == gpu) & (kernels["collective"] == "")).to_numpy()]
        computing = Union(compute["start_ns"].to_numpy(), compute["end_ns"].to_numpy())
        low, high = mine["start_ns"].to_numpy(), (mine["start_ns"] + mine["waiting_ns"]).to_numpy()
        until = np.clip(mine["launch_ns_of_last"].to_numpy(), low, high)
        late = until - low - computing.measure_covered(low, until)
        of_gpus.loc[place, "kept_waiting_ns"] = int((high - low).sum())
        of_gpus.loc[place, "kept_computing_ns"] = int(computing.measure_covered(low, high).sum())
        of_gpus.loc[place, "kept_late_ns"] = int(late.sum())
