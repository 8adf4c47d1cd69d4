"""One measured step of a run as a trace: host ranges and kernel launches, and the GPU's operations under the ranges
that launched them. A group on the GPU lasts from the first operation of neighbours from one range to the last.

`trace_step` makes the tracks from the tables, `speedscope` and `chrome` write them down. Names are taken as they are:
both formats are JSON, and both viewers print names as text.
"""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pandas as pd

from profiler_job.analysis.render import text

LAUNCH = "launch"
SCHEMA = "https://www.speedscope.app/file-format-schema.json"
"""By this word, not by fetching it, speedscope tells its own format."""


class Frame(NamedTuple):
    """What a slice is of: `full` is the whole name of a kernel, `category` its family; both "" elsewhere."""

    name: str
    full: str = ""
    category: str = ""


class Slice(NamedTuple):
    """From `start` to `end`, ns after the start of the step. `launch` numbers the call that launched it, -1 none."""

    start: int
    end: int
    frame: int
    launch: int = -1
    details: tuple[int, ...] = ()


class Track(NamedTuple):
    """Slices that nest or follow one another, each before those inside it, in the order of their starts."""

    process: str
    name: str
    slices: list[Slice]


@dataclass(kw_only=True)
class Trace:
    """`shift` ns have been added to every time on the GPU, see `trace_step`."""

    name: str
    step: int
    shift: int = 0
    frames: list[Frame] = field(default_factory=list)
    tracks: list[Track] = field(default_factory=list)

    @property
    def end(self) -> int:
        return max((piece.end for track in self.tracks for piece in track.slices), default=0)


def median_step(ranges: pd.DataFrame) -> int | None:
    """The measured step whose ranges last the median time in its slowest rank, the shorter of two; None where no step
    has a range."""
    spans = ranges[ranges["step"] >= 0].groupby(["rank", "step"]).agg(start=("start_ns", "min"), end=("end_ns", "max"))
    if not len(spans):
        return None
    lasting = (spans["end"] - spans["start"]).groupby(level="step").max().sort_values(kind="stable")
    return int(lasting.index[(len(lasting) - 1) // 2])


def trace_step(name: str, step: int, ranges: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame) -> Trace:
    """Trace of `step` from the tables of one run (columns as in a recording, kernels with `family`).

    The profiler converts GPU times to the host's clock, and in a long session the two drift apart by microseconds to
    milliseconds. Where an operation would begin before its own launch, all of the GPU is moved later by just enough;
    durations and gaps stay as they are.
    """
    ranges, kernels, memops = (frame[frame["step"] == step] for frame in (ranges, kernels, memops))
    shift = find_shift(kernels, memops)
    late = {"start_ns": lambda rows: rows["start_ns"] + shift, "end_ns": lambda rows: rows["end_ns"] + shift}
    kernels, memops = kernels.assign(**late), memops.assign(**late)
    trace = Trace(name=name, step=step, shift=shift)
    numbers: dict[Frame, int] = {}

    def number(frame: Frame) -> int:
        return numbers.setdefault(frame, len(numbers))

    times = [ranges["start_ns"], kernels["launch_ns"], kernels["start_ns"], memops["start_ns"]]
    zero = min((int(column.min()) for column in times if len(column)), default=0)
    kernels = kernels.assign(launch=kernels.groupby(["rank", "launch_ns", "launch_end_ns"], sort=True).ngroup())
    ranks = sorted({rank for frame in (ranges, kernels, memops) for rank in frame["rank"].tolist()})
    for rank in ranks:
        of_rank = f"rank {rank} · " if len(ranks) > 1 else ""
        mine, launched, moved = (frame[frame["rank"] == rank] for frame in (ranges, kernels, memops))
        for process, label, operations in _gpu(launched, moved, zero, number):
            trace.tracks += _tracks(f"{of_rank}{process}", label, operations, nested=False, number=number)
        for label, slices in _host(mine, launched, zero, number):
            trace.tracks += _tracks(f"{of_rank}Host", label, slices, nested=True, number=number)
    trace.frames = list(numbers)
    return trace


def find_shift(*operations: pd.DataFrame) -> int:
    """Find by how many ns the GPU's times are too early at least: an operation would begin before its launch. Each of
    `operations` has start_ns and launch_ns."""
    waits = [(frame["start_ns"] - frame["launch_ns"]).min() for frame in operations if len(frame)]
    return max(0, -int(min(waits, default=0)))


Number = Callable[[Frame], int]
"""Gives a frame its number, a new one the next."""


def _host(ranges: pd.DataFrame, kernels: pd.DataFrame, zero: int, number: Number) -> Iterator[tuple[str, list[Slice]]]:
    """The slices of each host thread: its ranges, and the launches made inside them. Launches from a thread that is not
    known have a track of their own."""
    thread_of = dict(zip(ranges["range_id"], ranges["thread"]))
    calls = kernels.drop_duplicates("launch").sort_values("launch")
    calls = calls[calls["launch_end_ns"] > calls["launch_ns"]]
    in_range = calls["attribution"].astype(str).isin(["exact", "early"])
    thread = calls["range_id"].map(thread_of).where(in_range)
    launch = number(Frame(LAUNCH, category=LAUNCH)) if len(calls) else -1

    def launches(rows: pd.DataFrame) -> list[Slice]:
        columns = (rows["launch_ns"] - zero, rows["launch_end_ns"] - zero, rows["launch"])
        return [Slice(start, end, launch, call) for start, end, call in zip(*(c.tolist() for c in columns))]

    for thread_id, rows in ranges.groupby("thread", sort=True):
        frames = [number(Frame(name)) for name in rows["name"].astype(str).tolist()]
        columns = ((rows["start_ns"] - zero).tolist(), (rows["end_ns"] - zero).tolist(), frames)
        inside = launches(calls[thread == thread_id])
        slices = [Slice(*values) for values in zip(*columns)] + inside
        yield f"thread {thread_id} (NVTX)", sorted(slices, key=lambda s: (s.start, -s.end))
    elsewhere = launches(calls[thread.isna()])
    if elsewhere:
        yield "other threads (launches)", elsewhere


def _gpu(
    kernels: pd.DataFrame, memops: pd.DataFrame, zero: int, number: Number
) -> Iterator[tuple[str, str, list[tuple[Slice, str]]]]:
    """The operations of each stream in the order in which they ran, each with the path of ranges that launched it."""
    labels = _labels(kernels["kernel_name"].astype(str), kernels["family"].astype(str))
    sizes = ["grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"]
    sizes += ["registers", "static_shared_bytes", "dynamic_shared_bytes"]
    kernels = kernels.assign(
        frame=[number(labels[name]) for name in kernels["kernel_name"].astype(str).tolist()],
        details=list(zip(*(kernels[column].tolist() for column in sizes))),
    )
    memops = memops.assign(
        frame=[number(Frame(name, category="memory")) for name in memops["operation"].astype(str).tolist()],
        launch=-1,
        details=[(size,) for size in memops["bytes"].tolist()],
    )
    shown = ["device", "stream", "start_ns", "end_ns", "frame", "launch", "details", "phase", "module"]
    parts = [part[shown].astype({"phase": str, "module": str}) for part in (kernels, memops) if len(part)]
    if not parts:
        return
    operations = pd.concat(parts).sort_values(["start_ns", "end_ns"], kind="stable")
    for (device, stream), rows in operations.groupby(["device", "stream"], sort=True):
        paths = [
            f"{phase}/{module}".strip("/") for phase, module in zip(rows["phase"].tolist(), rows["module"].tolist())
        ]
        columns = (rows["start_ns"] - zero, rows["end_ns"] - zero, rows["frame"], rows["launch"], rows["details"])
        slices = [Slice(*values) for values in zip(*(c.tolist() for c in columns))]
        yield f"GPU {device}", f"stream {stream} (kernels under their ranges)", list(zip(slices, paths))


def _labels(names: pd.Series, families: pd.Series) -> dict[str, Frame]:
    """A frame for each kernel name. Two kernels with the same short name differ by a number."""
    labels: dict[str, Frame] = {}
    used: dict[str, int] = {}
    for name, family in sorted(set(zip(names.tolist(), families.tolist()))):
        short = text.short_name(name)
        used[short] = used.get(short, 0) + 1
        labels[name] = Frame(short if used[short] == 1 else f"{short} · {used[short]}", name, family)
    return labels


def _tracks(process: str, label: str, slices: list[Any], nested: bool, number: Number) -> Iterator[Track]:
    """`slices` as one track, or as several where they overlap without nesting: no viewer can draw that in one."""
    lanes: list[tuple[list[Any], list[int]]] = []
    for item in slices:
        piece = item if nested else item[0]
        for lane in lanes:
            ends = lane[1]
            while ends and ends[-1] <= piece.start:
                ends.pop()
            if not ends or (nested and piece.end <= ends[-1]):
                break
        else:
            lane = ([], [])
            lanes.append(lane)
        lane[0].append(item)
        lane[1].append(piece.end)
    for position, (inside, _) in enumerate(lanes):
        name = label if not position else f"{label} ({position + 1})"
        yield Track(process, name, inside if nested else _group_operations(inside, number))


def _group_operations(operations: Iterable[tuple[Slice, str]], number: Number) -> list[Slice]:
    """Operations of one lane, with a slice around each run of neighbours from the same range: its time on the GPU."""
    slices: list[Slice] = []
    around: list[int] = []
    before = ""
    names: list[str] = []

    def close(depth: int, end: int) -> None:
        for position in around[depth:]:
            slices[position] = slices[position]._replace(end=end)
        del around[depth:]

    end = 0
    for piece, path in operations:
        if path != before:
            old, names = names, path.split("/") if path else []
            same = next((i for i, (a, b) in enumerate(zip(names, old)) if a != b), min(len(names), len(old)))
            close(same, end)
            for name in names[same:]:
                around.append(len(slices))
                slices.append(Slice(piece.start, piece.start, number(Frame(name))))
            before = path
        slices.append(piece)
        end = piece.end
    close(0, end)
    return slices


# -------------------------------------------------------------------------------------------------------------- formats


def speedscope(trace: Trace) -> str:
    """Speedscope's own format: one evented profile a track, in nanoseconds, all with the same end.

    Launches are left out: speedscope shows one track at a time, so they would double the file and explain nothing.
    """
    frames = [{"name": f.name} | ({"file": f.full} if f.full else {}) for f in trace.frames]
    profiles = ",".join(
        f'{{"type":"evented","name":{_json(f"{track.process} {track.name}")},"unit":"nanoseconds","startValue":0,'
        f'"endValue":{trace.end},"events":[{",".join(_events(slices))}]}}'
        for track in trace.tracks
        if (slices := [piece for piece in track.slices if trace.frames[piece.frame].category != LAUNCH])
    )
    return (
        f'{{"$schema":"{SCHEMA}","name":{_json(trace.name)},"activeProfileIndex":0,'
        f'"shared":{{"frames":{_json(frames)}}},"profiles":[{profiles}]}}'
    )


def _events(slices: list[Slice]) -> Iterator[str]:
    """Openings and closings in the order of time; each closing closes what was opened last."""
    inside: list[Slice] = []
    for piece in slices:
        while inside and inside[-1].end <= piece.start:
            last = inside.pop()
            yield f'{{"type":"C","frame":{last.frame},"at":{last.end}}}'
        yield f'{{"type":"O","frame":{piece.frame},"at":{piece.start}}}'
        inside.append(piece)
    for last in reversed(inside):
        yield f'{{"type":"C","frame":{last.frame},"at":{last.end}}}'


def chrome(trace: Trace) -> str:
    """Chrome's trace event format, which Perfetto opens: microseconds with up to three decimals, so exact nanoseconds;
    an arrow from each launch to its kernels.

    What repeats from event to event comes first and what never does comes last: 4% smaller when compressed.
    """
    processes = {name: i for i, name in enumerate(sorted({track.process for track in trace.tracks}, reverse=True), 1)}
    events = [_meta("process_name", pid, 0, name=name) for name, pid in processes.items()]
    events += [_meta("process_sort_index", pid, 0, sort_index=pid) for pid in processes.values()]
    described: dict[tuple[int, ...], str] = {}
    heads = [f'"name":{_json(f.name)},"cat":{_json(f.category or "range")}' for f in trace.frames]
    for tid, track in enumerate(trace.tracks, 1):
        pid = processes[track.process]
        events.append(_meta("thread_name", pid, tid, name=track.name))
        events.append(_meta("thread_sort_index", pid, tid, sort_index=tid))
        for start, end, frame, launch, details in track.slices:
            key = (frame, *details)
            if key not in described:
                described[key] = _details(trace.frames[frame], details)
            side = "flow_in" if details else "flow_out"
            flow = f',"{side}":true,"bind_id":"{launch}"' if launch >= 0 else ""
            events.append(
                f'{{"ph":"X","pid":{pid},"tid":{tid},{heads[frame]}{described[key]}{flow},'
                f'"dur":{_us(end - start)},"ts":{_us(start)}}}'
            )
    return '{"displayTimeUnit":"ns","traceEvents":[\n' + ",\n".join(events) + "\n]}\n"


def _details(frame: Frame, details: tuple[int, ...]) -> str:
    if not details:
        return ""
    if not frame.full:
        return ',"args":' + _json({"bytes": details[0]})
    grid, block = ("x".join(str(side) for side in details[at : at + 3]) for at in (0, 3))
    registers, fixed, asked = details[6:]
    shared = {"static_shared_bytes": fixed, "dynamic_shared_bytes": asked}
    return ',"args":' + _json({"kernel": frame.full, "grid": grid, "block": block, "registers": registers} | shared)


def _meta(kind: str, pid: int, tid: int, **args: object) -> str:
    return _json({"ph": "M", "ts": 0, "pid": pid, "tid": tid, "name": kind, "args": args})


def _us(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}".rstrip("0").rstrip(".")


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def pack(trace: str) -> bytes:
    """Compressed as far as gzip can, 6% smaller than usual, and to the same bytes each time. Both viewers unpack it
    themselves."""
    return gzip.compress(trace.encode(), compresslevel=9, mtime=0)
