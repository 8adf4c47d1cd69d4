"""Comparisons that have to be refused."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from profiler_job.analysis.comparison.errors import ComparisonProblem, NotComparableError


@contextmanager
def refuse(code: ComparisonProblem, *named: str) -> Iterator[pytest.ExceptionInfo[NotComparableError]]:
    """Check that a comparison is refused for this reason, in one line that names these words."""
    with pytest.raises(NotComparableError) as refused:
        yield refused
    message = str(refused.value)
    assert refused.value.code is code, message
    assert "\n" not in message and all(word in message for word in named), message
