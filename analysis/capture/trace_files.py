"""Open traces of torch.profiler (Kineto): JSON as it is, or gzipped."""

import gzip
import re
import zlib
from pathlib import Path
from typing import BinaryIO, cast

GZIP = b"\x1f\x8b"
TRACE_ENDINGS = (".json", ".json.gz")
_HEAD_BYTES = 64 << 10
_MARKS = re.compile(
    rb'"(?:traceEvents|schemaVersion|deviceProperties|displayTimeUnit)"\s*:|^\s*\[\s*\{\s*"(?:ph|name)"'
)


def is_json(path: Path) -> bool:
    """Return whether a file is named or begins as JSON, or as gzipped JSON."""
    return path.is_file() and (path.name.endswith(TRACE_ENDINGS) or _begins_as_json(_read_head(path, 256)))


def is_trace(path: Path) -> bool:
    """Return whether a file is named and begins as a trace does: other JSON may lie in a folder of captures."""
    if not path.name.endswith(TRACE_ENDINGS):
        return False
    head = _read_head(path, _HEAD_BYTES)
    return _begins_as_json(head) and _MARKS.search(head) is not None


def open_trace(path: Path) -> BinaryIO:
    """Open the JSON of a trace, unpacked. Raises OSError."""
    with path.open("rb") as file:
        is_packed = file.read(2) == GZIP
    return cast(BinaryIO, gzip.open(path, "rb")) if is_packed else path.open("rb")


def _read_head(path: Path, most: int) -> bytes:
    """Read the first bytes of the JSON of a file; none if it cannot be read."""
    try:
        if not path.is_file():
            return b""
        with open_trace(path) as file:
            return file.read(most)
    except (OSError, EOFError, zlib.error):
        return b""


def _begins_as_json(head: bytes) -> bool:
    return head.lstrip()[:1] in (b"{", b"[")
