"""Rows in reading order, which is seldom alphabetical."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd


def place(values: pd.Series, order: Iterable[Any]) -> pd.Series:
    """Position of each value in `order`; a value that is not in it comes last."""
    positions = {value: position for position, value in enumerate(order)}
    return values.astype(object).map(positions).astype(float).fillna(len(positions))


def rank_first_seen(rows: pd.DataFrame, by: list[str]) -> pd.Series:
    """Position at which each row's values in the columns `by` first appear."""
    return rows.groupby(by, sort=False, observed=True).ngroup()


def sort_stably(rows: pd.DataFrame, *keys: pd.Series) -> pd.DataFrame:
    """`rows` by the first key, where that is equal by the second ...; NaN last, equal ones as they were. New index."""
    ranks = [pd.factorize(key, sort=True, use_na_sentinel=False)[0] for key in keys]
    return rows.iloc[np.lexsort(ranks[::-1])].reset_index(drop=True)
