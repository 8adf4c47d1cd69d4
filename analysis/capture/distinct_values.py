"""Distinct values of large arrays, and categoricals of them."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.blocks import split_into_blocks


def encode(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct values in order, and each value's place among them: like np.unique, but without sorting if
    the values are close together, as ids are."""
    if len(values) == 0:
        return values, np.empty(0, np.int32)
    low, high = int(values.min()), int(values.max())
    if high - low > 4 * len(values) + 1_000_000:
        return np.unique(values, return_inverse=True)
    present = _mark_present(values, low, high)
    place = np.cumsum(present, dtype=np.int32) - 1
    codes = np.empty(len(values), np.int32)
    for rows in split_into_blocks(len(values)):
        codes[rows] = place[values[rows] - low]
    return np.flatnonzero(present) + low, codes


def find_distinct(values: np.ndarray) -> np.ndarray:
    """Return the distinct values in order: like np.unique, but without sorting if they are close together, as ids
    are."""
    if len(values) == 0:
        return values
    low, high = int(values.min()), int(values.max())
    if high - low > 4 * len(values) + 1_000_000:
        return np.unique(values)
    return np.flatnonzero(_mark_present(values, low, high)) + low


def _mark_present(values: np.ndarray, low: int, high: int) -> np.ndarray:
    """Mark for each number from `low` to `high` whether it is one of the values."""
    present = np.zeros(high - low + 1, bool)
    for rows in split_into_blocks(len(values)):
        present[values[rows] - low] = True
    return present


def make_categorical(codes: np.ndarray, values: Sequence[str]) -> pd.Categorical:
    """Categorical from codes into `values`, which may hold equal names under several codes."""
    merged, categories = pd.factorize(np.array(values, dtype=object)) if len(values) else (np.empty(0, np.int64), [])
    codes = merged.astype(np.int32)[codes] if len(values) else np.empty(0, np.int32)
    return pd.Categorical.from_codes(codes, categories=pd.Index(categories, dtype=object))
