"""Long columns worked on a block of rows at a time, so that what is made on the way stays in the processor's cache."""

from collections.abc import Iterator

import numpy as np

BLOCK = 1 << 16
"""Number of rows in a block, for work that does not need whole columns."""


def split_into_blocks(num_rows: int) -> Iterator[slice]:
    """Slices of rows, one after another, that are all of `num_rows`."""
    return (slice(low, min(low + BLOCK, num_rows)) for low in range(0, num_rows, BLOCK))


def count_by(code: np.ndarray, num_groups: int) -> np.ndarray:
    """How many rows each of the groups 0..num_groups-1 has (int64)."""
    total = np.zeros(num_groups, np.int64)
    for rows in split_into_blocks(len(code)):
        total += np.bincount(code[rows], minlength=num_groups)
    return total


def sum_by(code: np.ndarray, values: np.ndarray, num_groups: int) -> np.ndarray:
    """Sum the whole numbers `values` in each of the groups 0..num_groups-1 (int64). The sum of a block is exact up to
    2**53."""
    total = np.zeros(num_groups, np.int64)
    for rows in split_into_blocks(len(code)):
        total += np.bincount(code[rows], values[rows], num_groups).astype(np.int64)
    return total
