"""What the C library does with memory that is freed."""

import ctypes
from contextlib import suppress

import pyarrow as pa

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h
_MOST_BYTES = 2**31 - 1  # an int
_SET_THP_DISABLE = 41  # PR_SET_THP_DISABLE of Linux's prctl.h


def keep_freed_memory() -> None:
    """Let memory that this process frees stay with it, for what it allocates next.

    glibc gives large arrays back to the system at once, and the pages of the next one come anew, filled with zeros
    when they are first touched: for columns of millions of rows that costs about as much as the work on them. Arrow has
    a heap of its own that does the same, and takes memory from glibc instead. The peak stays what it is. Pages that do
    come anew are small ones: NumPy asks for huge ones, and where memory is in pieces Linux first moves others out of
    the way, which took a third of the time of 5 M kernels. For a command that ends when it is done, not for a process
    that goes on to other things. Where the C library is not glibc of 2.35 or newer, less or nothing changes.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _MOST_BYTES)
        libc.mallopt(_TRIM_THRESHOLD, _MOST_BYTES)
        libc.prctl(_SET_THP_DISABLE, 1, 0, 0, 0)
    pa.set_memory_pool(pa.system_memory_pool())
