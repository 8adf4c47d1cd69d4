"""Check how much memory the columns of a Parquet file take, from the headers of their pages, before any is decoded.

The footer has a size, too, but it may be wrong; a decoder allocates the size in the header of a page. A header is a
struct in Thrift's compact protocol (PageHeader of parquet-format): fields 2 and 3 are the sizes of the page, 5, 7 and 8
describe a data page, a dictionary page and a data page of version 2.
"""

from collections.abc import Collection
from typing import BinaryIO

import pyarrow.parquet as pq

from profiler_job.analysis.capture import limits

_STRUCT, _BINARY, _DOUBLE, _TRUE, _FALSE, _BYTE = 12, 8, 7, 1, 2, 3
_UNPACKED, _PACKED = 2, 3
_ENCODING_OF = {5: 2, 7: 2, 8: 4}
_MOST_HEADER_BYTES = 1 << 20  # it may hold the smallest and the largest value
DELTA_BYTE_ARRAY = 7
"""Each value repeats the beginning of the one before it: a page may unpack to any size."""


def check(file: BinaryIO, metadata: pq.FileMetaData, columns: Collection[int], table: str) -> None:
    """Walk the pages of the columns with these numbers. Raises LimitError if there are too many, or one is too large,
    and ValueError if a page does not follow the format."""
    num_pages = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for column in columns:
            chunk = group.column(column)
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and 0 < (first := chunk.dictionary_page_offset or start) < start:
                start = first
            end = start + chunk.total_compressed_size
            while start < end:
                num_pages += 1
                limits.PAGES.check(num_pages, table)
                start = _check_page(file, start, table)


def _check_page(file: BinaryIO, start: int, table: str) -> int:
    """Check the page at `start`; return where the next one begins."""
    file.seek(start)
    header = _Header(file)
    fields = header.read_struct()
    unpacked, packed = fields.get(_UNPACKED), fields.get(_PACKED)
    if not isinstance(unpacked, int) or not isinstance(packed, int) or unpacked < 0 or packed < 0:
        raise ValueError(f"{table} has a page without a size")
    limits.PAGE_BYTES.check(unpacked, table)
    for kind, place in _ENCODING_OF.items():
        about = fields.get(kind)
        if isinstance(about, dict) and about.get(place) == DELTA_BYTE_ARRAY:
            raise ValueError(f"{table} has strings that are differences of strings")
    return start + header.num_bytes + packed


class _Header:
    """One struct of Thrift's compact protocol."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.num_bytes = 0

    def read_struct(self, depth: int = 0) -> dict[int, object]:
        """Fields by number: numbers and structs; other values are passed over (None)."""
        fields: dict[int, object] = {}
        number = 0
        while byte := self._read(1)[0]:
            number = number + (byte >> 4) if byte >> 4 else self._read_signed()
            fields[number] = self._read_value(byte & 15, depth)
        return fields

    def _read_value(self, kind: int, depth: int) -> object:
        if kind == _STRUCT and depth < 4:
            return self.read_struct(depth + 1)
        if kind in (4, 5, 6):
            return self._read_signed()
        if kind == _BINARY:
            self._read(self._read_unsigned())
        elif kind == _DOUBLE:
            self._read(8)
        elif kind == _BYTE:
            self._read(1)
        elif kind not in (_TRUE, _FALSE):
            raise ValueError("a page has a header that is none")
        return None

    def _read(self, size: int) -> bytes:
        self.num_bytes += size
        if self.num_bytes > _MOST_HEADER_BYTES or len(data := self._file.read(size)) < size:
            raise ValueError("a page has a header that does not end")
        return data

    def _read_unsigned(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._read(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a page has a number that does not end")

    def _read_signed(self) -> int:
        value = self._read_unsigned()
        return (value >> 1) ^ -(value & 1)
