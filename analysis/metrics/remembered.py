"""What was made of whole tables is kept as long as they are: many pages ask for the same."""

import weakref
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import pandas as pd

Table = TypeVar("Table", pd.DataFrame, pd.Series)


def remember(measure: Callable[..., Table]) -> Callable[..., Table]:
    """`measure`, a function of tables alone, done once for the same tables; each caller gets a copy. Tables are
    compared by identity: nothing here changes one in place."""
    known: dict[tuple[int, ...], Table] = {}

    @wraps(measure)
    def recall(*tables: pd.DataFrame) -> Table:
        key = tuple(map(id, tables))
        if key not in known:
            known[key] = measure(*tables)
            for table in tables:
                weakref.finalize(table, known.pop, key, None)
        return known[key].copy()

    return recall
