"""What was made of whole tables is kept as long as they are: many pages ask for the same."""

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import pandas as pd

Table = TypeVar("Table", pd.DataFrame, pd.Series)


def remember(measure: Callable[..., Table]) -> Callable[..., Table]:
    """`measure`, a function of tables and texts alone, done once for the same; each caller gets a copy. Tables are
    compared by identity: nothing here changes one in place."""
    known: dict[tuple[int | str, ...], Table] = {}

    @wraps(measure)
    def recall(*given: Any) -> Table:
        key = tuple(value if isinstance(value, str) else id(value) for value in given)
        if key not in known:
            known[key] = measure(*given)
            for table in given:
                if not isinstance(table, str):
                    weakref.finalize(table, known.pop, key, None)
        return known[key].copy()

    return recall
