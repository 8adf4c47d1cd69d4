"""Whom the memory of a step belongs to, from what was noted of it: the allocator's events, addresses of parameters,
gradients and optimizer state, and the tensors that were saved for backward. Needs nothing else.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from math import inf
from typing import Any, NamedTuple

PARAMETERS, GRADIENTS, OPTIMIZER_STATE = "parameters", "gradients", "optimizer state"
BUFFERS, ACTIVATIONS, TEMPORARIES = "buffers", "activations", "temporaries"
EARLIER, ROUNDING = "from before the step", "rounding"
OWNERS = (PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, TEMPORARIES, BUFFERS, EARLIER, ROUNDING)
"""Activations are saved for backward. Temporaries are all else that the step allocates. What was there before it and
belongs to nothing known, such as batches and workspaces of libraries, is from before the step. Rounding is what the
allocator hands out more than it is asked for."""
LOSS = "(loss)"
UNKNOWN_MODULE = "(module not known)"
LIST_NUMBER = re.compile(r"\.\d+(?=/|$)")
"""Number of a module in a list, in its path."""
SLACK_US = 100
"""Clocks of the events and of the notes may differ by so much."""
MOST_SAVED, MOST_POINTS, MOST_MODULES = 10, 200, 200
LARGEST_ROUNDING = 0.1
"""Of the peak. More is no rounding: events are missing."""


class Note(NamedTuple):
    """At a time on the clock in microseconds, an owner had memory at this address."""

    owner: str
    address: int
    time_us: int


class Saved(NamedTuple):
    """A tensor that was saved for backward. num_bytes: of its storage. module: path of the open module; None outside a
    model. number: of the operation, as autograd counts them. operation: its name, if known."""

    address: int
    time_us: int
    num_bytes: int
    module: str | None
    number: int
    operation: str
    shape: tuple[int, ...]
    dtype: str


class Piece:
    """An allocation of `size` bytes, between two events. `owner` is "" while it is not known."""

    __slots__ = ("born", "born_us", "died", "died_us", "module", "owner", "size")

    def __init__(self, size: int, born: int, born_us: float):
        self.size, self.born, self.born_us = size, born, born_us
        self.died = self.died_us = inf
        self.owner = self.module = ""

    def measure_distance(self, time_us: int) -> float:
        """Measure how many microseconds before or after its life a time is; 0 within it."""
        return max(self.born_us - time_us, time_us - self.died_us, 0)


class Timeline:
    """Replay of the allocator's events. before: address and size of what was allocated already. allocated: requested
    bytes after each event that changes them; the first is before all events."""

    def __init__(self, before: Iterable[tuple[int, int]], events: Iterable[dict[str, Any]]):
        self.pieces: dict[int, list[Piece]] = {}  # by address, in order
        live: dict[int, Piece] = {}
        for address, size in before:
            live[address] = Piece(size, -1, -inf)
            self.pieces[address] = [live[address]]
        self.allocated = [sum(piece.size for piece in live.values())]
        self.times = [-inf]
        for event in events:
            now = self.allocated[-1]
            if event["action"] == "alloc":
                piece = live[event["addr"]] = Piece(event["size"], len(self.allocated), event["time_us"])
                self.pieces.setdefault(event["addr"], []).append(piece)
                now += piece.size
            elif event["action"] == "free_requested" and event["addr"] in live:
                piece = live.pop(event["addr"])
                piece.died, piece.died_us = len(self.allocated), event["time_us"]
                now -= piece.size
            else:
                continue
            self.allocated.append(now)
            self.times.append(event["time_us"])

    def find(self, address: int, time_us: int) -> Piece | None:
        """Find what was allocated at this address at this time."""
        pieces = reversed(self.pieces.get(address, []))
        nearest = min(pieces, key=lambda piece: piece.measure_distance(time_us), default=None)
        return nearest if nearest and nearest.measure_distance(time_us) <= SLACK_US else None

    def list_live(self, change: int) -> list[Piece]:
        """List what is allocated after a change."""
        pieces = (piece for at_address in self.pieces.values() for piece in at_address)
        return [piece for piece in pieces if piece.born <= change < piece.died]


def summarize(
    before: list[tuple[int, int]],
    events: list[dict[str, Any]],
    spans: list[tuple[str, int, int]],
    notes: list[Note],
    saved: list[Saved],
    peak_bytes: int,
) -> tuple[dict[str, Any], str]:
    """Return the memory of a step by owner, and what is wrong with it ("": nothing).

    peak_bytes: the allocator's peak in the step, 0 without a GPU. phase: at the peak of the timeline. owners: bytes at
    that peak, which sum to peak_bytes. modules: bytes of activations at the peak by module, the largest first. saved:
    kinds of saved tensors that take most, each with operation, module (`*` in place of a number), shape, dtype, bytes
    of one, and how many. saved_bytes: of all of them. timeline: phase and requested bytes, the highest of their
    neighbours.
    """
    fixed = {note.address for note in notes if note.owner in (PARAMETERS, BUFFERS)}
    kept = [tensor for tensor in saved if tensor.address not in fixed]
    result: dict[str, Any] = {"peak_bytes": peak_bytes, **sum_saved(kept)}
    if not events:
        return result, ""
    timeline = Timeline(before, events)
    set_owners(timeline, spans, notes, kept)
    at = max(range(len(timeline.allocated)), key=timeline.allocated.__getitem__)
    owners: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    for piece in timeline.list_live(at):
        owner = piece.owner or (TEMPORARIES if piece.born >= 0 else EARLIER)
        owners[owner] += piece.size
        if owner == ACTIVATIONS:
            modules[piece.module] += piece.size
    owners[ROUNDING] = peak_bytes - timeline.allocated[at]
    result["phase"] = find_phase(timeline.times[at], spans)
    result["owners"] = {owner: owners[owner] for owner in OWNERS if owners[owner]}
    result["modules"] = dict(modules.most_common(MOST_MODULES))
    result["timeline"] = thin_timeline(timeline, spans)
    is_whole = 0 <= owners[ROUNDING] <= LARGEST_ROUNDING * peak_bytes
    return result, "" if is_whole else f"the events peak at {timeline.allocated[at]} of {peak_bytes} bytes"


def set_owners(timeline: Timeline, spans: list[tuple[str, int, int]], notes: list[Note], saved: list[Saved]) -> None:
    """Set the owner of each piece that is known. Without saved tensors, what is there when backward begins and came
    with the step is taken for activations."""
    if not saved:
        start = min((begin for name, begin, _ in spans if name == "backward"), default=-inf)
        for piece in timeline.list_live(bisect_right(timeline.times, start) - 1):
            if piece.born >= 0:
                piece.owner, piece.module = ACTIVATIONS, UNKNOWN_MODULE
    for tensor in saved:
        held = timeline.find(tensor.address, tensor.time_us)
        if held and not held.owner and held.born >= 0:
            held.owner, held.module = ACTIVATIONS, name_module(tensor)
    for owner in (BUFFERS, OPTIMIZER_STATE, GRADIENTS, PARAMETERS):
        for note in notes:
            if note.owner == owner and (held := timeline.find(note.address, note.time_us)):
                held.owner = owner


def sum_saved(saved: list[Saved]) -> dict[str, Any]:
    """Sum saved tensors by kind, each storage once, with the operation that saved it first."""
    storages: dict[int, Saved] = {}
    for tensor in saved:
        storages.setdefault(tensor.address, tensor)
    kinds = Counter(
        (tensor.operation, re.sub(LIST_NUMBER, ".*", name_module(tensor)), tensor.shape, tensor.dtype, tensor.num_bytes)
        for tensor in storages.values()
    )
    largest = sorted(kinds, key=lambda kind: kind[-1] * kinds[kind], reverse=True)[:MOST_SAVED]
    names = ("operation", "module", "shape", "dtype", "bytes")
    return {
        "saved": [dict(zip(names, kind)) | {"num": kinds[kind]} for kind in largest],
        "saved_bytes": sum(tensor.num_bytes for tensor in storages.values()),
    }


def name_module(tensor: Saved) -> str:
    return LOSS if tensor.module is None else tensor.module


def find_phase(time_us: float, spans: list[tuple[str, int, int]]) -> str:
    """Find the phase at a time; "" between phases."""
    return next((name for name, begin, end in spans if begin <= time_us <= end), "")


def thin_timeline(timeline: Timeline, spans: list[tuple[str, int, int]]) -> list[tuple[str, int]]:
    """Thin a timeline to about MOST_POINTS, each the highest of its neighbours in a phase."""
    size = len(timeline.allocated) // MOST_POINTS + 1
    points = [
        (find_phase(time, spans), i // size, allocated)
        for i, (time, allocated) in enumerate(zip(timeline.times, timeline.allocated))
    ]
    return [(phase, max(point[2] for point in group)) for (phase, _), group in groupby(points, key=lambda p: p[:2])]
