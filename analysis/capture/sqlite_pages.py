"""Columns of whole numbers from the pages of an SQLite file, many rows at once.

Python's sqlite3 makes an object of every value, which takes most of the time to read a large capture. Here numpy
decodes the leaves of a table as https://www.sqlite.org/fileformat2.html defines them. Only plain pages are decoded: for
anything else `UnusualPagesError` asks for sqlite3, which then also says what is wrong. The file was checked for damage
before.
"""

import os
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np

from profiler_job.analysis.capture.export_schema import NO_VALUE

_INTERIOR, _LEAF = 0x05, 0x0D
_BLOCK_BYTES = 4 << 20
"""Bytes of pages that are decoded at once: their smallest rows need 16 times as much."""
_MOST_LEVELS = 20
_LEAST_ROOM = 35
"""Bytes of a page that no row takes that has all its values there."""
_FLOAT, _ZERO, _ONE, _LAST_NUMBER = 7, 8, 9, 9
_SIZES = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0], np.int64)
"""Bytes of a value, by its type; of a text or blob the type has the length."""
_SHIFTS = np.array([0, 56, 48, 40, 32, 16, 0, 0, 0, 0], np.int64)
"""Bits after a number in the eight bytes from its first one on."""


class UnusualPagesError(Exception):
    """Pages of a table are not as plain as they are decoded here."""


def read_columns(file: BinaryIO, root: int, columns: Sequence[int]) -> Iterator[list[np.ndarray]]:
    """Read columns of the table with that root page, by their numbers from 0: for each block of rows an int64 array of
    each column, NULL as NO_VALUE. Raises UnusualPagesError, and OSError."""
    header = os.pread(file.fileno(), 100, 0)
    size = int.from_bytes(header[16:18], "big")
    page_bytes = 65536 if size == 1 else size
    usable = page_bytes - header[20]
    leaves = _find_leaves(file, root, page_bytes)
    for low in range(0, len(leaves), max(1, _BLOCK_BYTES // page_bytes)):
        block = leaves[low : low + max(1, _BLOCK_BYTES // page_bytes)]
        try:
            yield _decode_leaves(_read_pages(file, block, page_bytes), page_bytes, usable, columns)
        except IndexError as error:
            raise UnusualPagesError("a row points out of its pages") from error


def _find_leaves(file: BinaryIO, root: int, page_bytes: int) -> np.ndarray:
    """Find the numbers of the leaves in the order of their rows; all are on one level of the tree."""
    most = os.fstat(file.fileno()).st_size // page_bytes
    level = np.array([root], np.int64)
    for _ in range(_MOST_LEVELS):
        if len(level) > most or level.min() < 2 or level.max() > most:
            raise UnusualPagesError("a page that the file does not have")
        kind = os.pread(file.fileno(), 1, (int(level[0]) - 1) * page_bytes)
        if kind == bytes([_LEAF]):
            return level
        if kind != bytes([_INTERIOR]):
            raise UnusualPagesError("a page of another kind")
        level = np.concatenate([_list_children(file, int(page), page_bytes) for page in level])
    raise UnusualPagesError("a tree that is too deep")


def _list_children(file: BinaryIO, page: int, page_bytes: int) -> np.ndarray:
    content = os.pread(file.fileno(), page_bytes, (page - 1) * page_bytes)
    num_cells = int.from_bytes(content[3:5], "big")
    if content[0] != _INTERIOR or 12 + 2 * num_cells > page_bytes:
        raise UnusualPagesError("a page of another kind")
    places = np.frombuffer(content, ">u2", num_cells, 12).astype(np.int64)
    if num_cells and places.max() > page_bytes - 4:
        raise UnusualPagesError("a cell out of its page")
    bytes_of = np.frombuffer(content, np.uint8)[places[:, None] + np.arange(4)].astype(np.int64)
    children = bytes_of @ np.array([1 << 24, 1 << 16, 1 << 8, 1])
    return np.append(children, int.from_bytes(content[8:12], "big"))


def _read_pages(file: BinaryIO, pages: np.ndarray, page_bytes: int) -> np.ndarray:
    """Read pages one after another into one array of bytes, with room for a number after the last."""
    content = np.zeros(len(pages) * page_bytes + 16, np.uint8)
    begins = np.flatnonzero(np.diff(pages, prepend=-1) != 1)
    for begin, end in zip(begins, [*begins[1:], len(pages)]):
        part = memoryview(content.data)[begin * page_bytes : end * page_bytes]
        if os.preadv(file.fileno(), [part], (int(pages[begin]) - 1) * page_bytes) != len(part):
            raise UnusualPagesError("a file that ends early")
    return content


def _decode_leaves(content: np.ndarray, page_bytes: int, usable: int, columns: Sequence[int]) -> list[np.ndarray]:
    cells = _find_cells(content, page_bytes)
    payload, at = _decode_varints(content, cells)
    _, begin = _decode_varints(content, at, is_needed=False)  # after the row's number
    if len(payload) and payload.max() > usable - _LEAST_ROOM:
        raise UnusualPagesError("a row that continues on other pages")
    header, at = _decode_varints(content, begin)
    value, numbers = begin + header, {}
    words = np.ndarray(len(content) - 7, ">i8", content, strides=(1,))
    for column in range(max(columns) + 1):
        kind, at = _decode_varints(content, at)
        if column in columns:
            numbers[column] = _decode_numbers(words, kind, value)
        value = value + np.where(kind < len(_SIZES), _SIZES[np.minimum(kind, len(_SIZES) - 1)], (kind - 12) >> 1)
    if (at > begin + header).any() or (value > begin + payload).any():
        raise UnusualPagesError("a row with fewer columns")
    return [numbers[column] for column in columns]


def _find_cells(content: np.ndarray, page_bytes: int) -> np.ndarray:
    """Find where each row begins."""
    heads = np.arange(0, len(content) - 16, page_bytes)
    num_cells = content[heads + 3].astype(np.int64) << 8 | content[heads + 4]
    if (content[heads] != _LEAF).any() or (8 + 2 * num_cells > page_bytes).any():
        raise UnusualPagesError("a page of another kind")
    first = np.cumsum(num_cells) - num_cells
    head = np.repeat(heads, num_cells)
    pointer = head + 8 + 2 * (np.arange(len(head)) - np.repeat(first, num_cells))
    return head + (content[pointer].astype(np.int64) << 8 | content[pointer + 1])


def _decode_varints(content: np.ndarray, at: np.ndarray, *, is_needed: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Decode the numbers that begin at `at`, and say where each ends. is_needed: whether the numbers are used; then
    they have at most four bytes."""
    byte = content[at]
    number = (byte & 0x7F).astype(np.int64)
    end = at + 1
    longer = np.flatnonzero(byte & 0x80)
    for length in range(2, 10):
        if not len(longer):
            return number, end
        if is_needed and length > 4:
            break
        byte = content[end[longer]]
        number[longer] = number[longer] << 7 | (byte & 0x7F)
        end[longer] += 1
        longer = longer[(byte & 0x80) > 0]
    if is_needed:
        raise UnusualPagesError("a number that is too long")
    return number, end  # the ninth byte is the last


def _decode_numbers(words: np.ndarray, kind: np.ndarray, value: np.ndarray) -> np.ndarray:
    if len(kind) and (kind.max() > _LAST_NUMBER or (kind == _FLOAT).any()):
        raise UnusualPagesError("a value that is not a whole number")
    numbers = words[value].astype(np.int64) >> _SHIFTS[kind]
    for constant, of_kind in ((NO_VALUE, 0), (0, _ZERO), (1, _ONE)):
        numbers[kind == of_kind] = constant
    return numbers
