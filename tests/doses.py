"""Which cases of a test run in the default dose of the suite."""

from collections.abc import Iterable

import pytest


def sampled(cases: Iterable, every: int) -> list:
    """All cases, those between each so many marked `long`."""
    return [
        pytest.param(*_values(case), marks=() if not at % every else pytest.mark.long) for at, case in enumerate(cases)
    ]


def _values(case) -> tuple:
    return case if isinstance(case, tuple) else (case,)
