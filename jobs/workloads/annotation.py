"""Opening the ranges of `jobs.contract.ranges`: NVTX ranges, or nothing at all."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

_NO_RANGE: AbstractContextManager[Any] = nullcontext()


def _open_nothing(name: str) -> AbstractContextManager[Any]:
    return _NO_RANGE


_open_range: Callable[[str], AbstractContextManager[Any]] = _open_nothing


def annotate(name: str) -> AbstractContextManager[Any]:
    """Context manager that is an NVTX range while `use` has installed an opener, and costs nothing otherwise."""
    return _open_range(name)


def use(open_range: Callable[[str], AbstractContextManager[Any]]) -> None:
    """Make `annotate` open ranges with `open_range`, e.g. `torch.cuda.nvtx.range`."""
    global _open_range
    _open_range = open_range


@contextmanager
def opened_by(open_range: Callable[[str], AbstractContextManager[Any]]) -> Iterator[None]:
    """Have `annotate` open ranges with `open_range` while the context is open."""
    opener = _open_range
    use(open_range)
    try:
        yield
    finally:
        use(opener)


def no_ranges() -> AbstractContextManager[Any]:
    """Have `annotate` open nothing while the context is open."""
    return opened_by(_open_nothing)
