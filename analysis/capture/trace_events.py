"""Read the events of a trace of torch.profiler piece by piece, in bounded memory.

A trace is one JSON object: some facts, then `traceEvents`, then more facts. Pieces of whole events are cut out of the
file at "}, {", which is in no string since a quote follows. msgspec decodes each piece to the fields that are read.
What it refuses (`inf`, bytes that are no UTF-8, backslashes of Windows) is repaired, or read event by event.
"""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, BinaryIO

import msgspec

PIECE_BYTES = 8 << 20
MOST_EVENT_BYTES = 64 << 20
"""Bytes of one event, and of the facts before the events, that are kept in memory at most."""
EXACT_FLOATS = 2.0**43
"""Microseconds up to which a float holds whole nanoseconds. Times since 1970 are beyond, and are read as decimals."""
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_SEPARATOR = re.compile(rb'\}\s*(,)\s*\{(?=\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id|s|bp)"\s*:)')
_NO_NUMBER = re.compile(rb'("\s*:\s*)-?(?:inf|infinity|nan)\b(?=\s*[,}\]])', re.IGNORECASE)
_BAD_ESCAPE = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')

_Scalar = int | float | str | None


class Arguments(msgspec.Struct, gc=False):
    """What is read of an event's `args`."""

    correlation: _Scalar = None
    device: _Scalar = None
    stream: _Scalar = None
    bytes: _Scalar = None
    grid: Any = None
    block: Any = None
    registers: _Scalar = msgspec.field(default=None, name="registers per thread")
    shared_bytes: _Scalar = msgspec.field(default=None, name="shared memory")
    graph_node: _Scalar = msgspec.field(default=None, name="graph node id")
    sequence: _Scalar = msgspec.field(default=None, name="Sequence number")
    shapes: Any = msgspec.field(default=None, name="Input Dims")
    frames: _Scalar = msgspec.field(default=None, name="Module Hierarchy")
    sync_kind: _Scalar = msgspec.field(default=None, name="cuda_sync_kind")
    collective: _Scalar = msgspec.field(default=None, name="Collective name")
    num_in: _Scalar = msgspec.field(default=None, name="In msg nelems")
    num_out: _Scalar = msgspec.field(default=None, name="Out msg nelems")
    dtype: _Scalar = None
    group: _Scalar = msgspec.field(default=None, name="Process Group Name")
    group_ranks: _Scalar = msgspec.field(default=None, name="Process Group Ranks")


class Event(msgspec.Struct, gc=False):
    """An event of a trace. ts and dur are microseconds."""

    ph: _Scalar = None
    cat: _Scalar = None
    name: _Scalar = None
    pid: _Scalar = None
    tid: _Scalar = None
    ts: _Scalar = None
    dur: _Scalar = None
    args: Arguments | None = None


class ExactEvent(Event, gc=False):
    """An event with a time that a float would round."""

    ts: Decimal | None = None  # type: ignore[assignment]


class Facts(msgspec.Struct):
    """Facts of a trace, before or after its events."""

    schema: Any = msgspec.field(default=None, name="schemaVersion")
    devices: Any = msgspec.field(default=None, name="deviceProperties")
    distributed: Any = msgspec.field(default=None, name="distributedInfo")
    base_ns: Any = msgspec.field(default=None, name="baseTimeNanoseconds")
    with_stack: Any = None
    record_shapes: Any = None
    with_modules: Any = None
    cuda: Any = msgspec.field(default=None, name="cuda_runtime_version")
    cupti: Any = msgspec.field(default=None, name="cupti_version")
    hip: Any = msgspec.field(default=None, name="hip_runtime_version")
    roctracer: Any = msgspec.field(default=None, name="roctracer_version")


class _Whole(Facts):
    events: list[Event] = msgspec.field(default_factory=list, name="traceEvents")


class _WholeExact(Facts):
    events: list[ExactEvent] = msgspec.field(default_factory=list, name="traceEvents")


class TraceError(ValueError):
    """A file that is not a trace."""


class CutOffError(ValueError):
    """A trace that ends before its events do."""


class TraceEvents:
    """The events of a trace, as lists of some ten thousand. Once they are read, `facts` is complete, and `num_refused`
    events had no form of an event. Raises TraceError, CutOffError, EOFError or OSError."""

    def __init__(self, file: BinaryIO):
        self.facts = Facts()
        self.num_refused = 0
        self._file = file
        self._is_list = False
        self._needs_repair = False
        self._is_exact = False
        self._decoders: dict[bool, tuple[Any, Any]] = {
            False: (msgspec.json.Decoder(list[Event]), msgspec.json.Decoder(_Whole)),
            True: (msgspec.json.Decoder(list[ExactEvent]), msgspec.json.Decoder(_WholeExact)),
        }

    def __iter__(self) -> Iterator[list[Event]]:
        buffer = self._read_head()
        while block := self._file.read(PIECE_BYTES):
            buffer += block
            comma = _find_last_comma(buffer)
            if comma < 0:
                if len(buffer) > MOST_EVENT_BYTES:
                    raise TraceError("has an event, or a text after the events, that is too long")
                continue
            events = self._decode_piece(buffer[:comma])
            if events is not None:
                yield events
                buffer = buffer[comma + 1 :]
                continue
            events, buffer, is_over = self._decode_singly(buffer)
            yield events
            if is_over:
                buffer += self._file.read(MOST_EVENT_BYTES)
                self._add_facts(b'{"traceEvents": ' + buffer)
                return
            if len(buffer) > MOST_EVENT_BYTES:
                raise TraceError("holds text between its events")
        yield self._decode_end(buffer)

    def _read_head(self) -> bytes:
        """Read up to the first event, and the facts before it."""
        head = self._file.read(PIECE_BYTES)
        if head.lstrip()[:1] == b"[":
            self._is_list = True
            return head.lstrip()[1:]
        while (match := _EVENTS.search(head)) is None:
            block = self._file.read(PIECE_BYTES)
            if not block:
                is_whole = head.rstrip()[-1:] == b"}"
                raise TraceError("has no traceEvents") if is_whole else CutOffError
            head += block
            if len(head) > MOST_EVENT_BYTES:
                raise TraceError("has no traceEvents")
        self._add_facts(head[: match.end()] + b"]}")
        return head[match.end() :]

    def _add_facts(self, text: bytes) -> None:
        for repair in (bytes, _repair):
            try:
                self._take_facts(msgspec.json.decode(repair(text), type=Facts))
                return
            except ValueError:
                continue

    def _take_facts(self, facts: Facts) -> None:
        for name in Facts.__struct_fields__:
            if (value := getattr(facts, name)) is not None:
                setattr(self.facts, name, value)

    def _decode_piece(self, piece: bytes) -> list[Event] | None:
        """Decode whole events; None if msgspec refuses them."""
        text = b"[" + piece + b"]"
        for repair in (_repair,) if self._needs_repair else (bytes, _repair):
            try:
                events = self._decode(0, repair(text))
                self._needs_repair = repair is _repair
                return events
            except ValueError:
                continue
        return None

    def _decode(self, number: int, text: bytes) -> Any:
        """Decode events (number 0) or the whole of a trace (1), with exact times if floats would round them."""
        decoded = self._decoders[self._is_exact][number].decode(text)
        if not self._is_exact and _has_rounded_times(decoded if number == 0 else decoded.events):
            self._is_exact = True
            decoded = self._decoders[True][number].decode(text)
        return decoded

    def _decode_end(self, buffer: bytes) -> list[Event]:
        """Decode the last events and the facts after them."""
        for repair in (bytes, _repair):
            try:
                if self._is_list:
                    last: list[Event] = self._decode(0, repair(b"[" + buffer))
                    return last
                trace = self._decode(1, repair(b'{"traceEvents": [' + buffer))
                self._take_facts(trace)
                return list(trace.events)
            except ValueError:
                continue
        events, buffer, is_over = self._decode_singly(buffer)
        if not is_over:
            raise CutOffError
        self._add_facts(b'{"traceEvents": ' + buffer)
        return events

    def _decode_singly(self, buffer: bytes) -> tuple[list[Event], bytes, bool]:
        """Decode event by event, from JSON as it is found in the wild: return the events, the text from the first that
        is not whole or from the end of the list, and whether the list ends there."""
        text = _repair(buffer).decode("utf-8")
        decoder = json.JSONDecoder(strict=False, parse_float=Decimal if self._is_exact else float)
        kind = ExactEvent if self._is_exact else Event
        events: list[Event] = []
        place = _skip_blanks(text, 0)
        while place < len(text) and text[place] != "]":
            try:
                value, place = decoder.raw_decode(text, place)
            except ValueError:
                break
            try:
                time = value.pop("ts", None)
                events.append(msgspec.convert(_round_decimals(value) | {"ts": time}, kind, strict=False))
            except (ValueError, AttributeError):
                self.num_refused += 1
            place = _skip_blanks(text, place)
        is_over = text[place : place + 1] == "]"
        return events, (("[" if is_over else "") + text[place:]).encode(), is_over


def _find_last_comma(buffer: bytes) -> int:
    """Find the comma after the last but one event, -1 if there is none."""
    for size in (64 << 10, len(buffer)):
        low = max(len(buffer) - size, 0)
        comma = -1
        for match in _SEPARATOR.finditer(buffer, low):
            comma = match.start(1)
        if comma >= 0:
            return comma
    return -1


def _repair(text: bytes) -> bytes:
    """Repair what PyTorch has written and JSON does not allow: numbers that are none, stray backslashes, no UTF-8."""
    text = _NO_NUMBER.sub(rb"\1null", text)
    text = _BAD_ESCAPE.sub(lambda match: match[0] if match[1] else rb"\\", text)
    return text.decode("utf-8", "replace").encode()


def _has_rounded_times(events: list[Event]) -> bool:
    return any(isinstance(event.ts, float) and abs(event.ts) >= EXACT_FLOATS for event in events[:100])


def _round_decimals(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _round_decimals(inner) for name, inner in value.items()}
    return float(value) if isinstance(value, Decimal) else value


def _skip_blanks(text: str, place: int) -> int:
    while place < len(text) and text[place] in " \t\r\n,":
        place += 1
    return place
