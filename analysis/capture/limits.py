"""Limits of what a capture may hold: captures come from anybody, and one that exceeds these is refused with a line.

Each limit is far above what nsys writes (5 M kernels with 10 M API calls, 90,432 ranges of `autograd-nvtx`, names of
several kB, paths 40 deep) and is checked before the memory or the time is spent. The page of
outputs is made from them.
"""

import os
import sys
from collections.abc import Iterable
from typing import NamedTuple

from profiler_job.jobs.contract.errors import ProfilerError


class LimitError(ProfilerError, ValueError):
    """A capture that exceeds a limit. The message names the quantity, its value and the limit."""


class Limit(NamedTuple):
    """`what` is the name of what is counted, in the message and on the page of outputs."""

    what: str
    most: int

    def check(self, number: int, where: str = "") -> None:
        """Raise LimitError if `number` exceeds the limit."""
        if number > self.most:
            of = f" of {where}" if where else ""
            raise LimitError(f"has {number:,} {self.what}{of}, and at most {self.most:,} are read")


ROWS = Limit("rows in the tables that are read", 50_000_000)
"""Three times the rows of a capture of 5 M kernels (15.8 M), which takes 1.5 GB."""

FACT_ROWS = Limit("rows in a table of facts", 100_000)
"""GPUs, their numbers in each process, facts of the export: tens in reality."""

TABLES = Limit("tables, indexes and views", 2_000)
"""SQLite parses the definition of each before it answers anything; nsys writes some 40."""

COLUMNS = Limit("columns in a table", 200)
"""nsys writes 41 at most."""

DEFINITION_BYTES = Limit("bytes in the definition of a table", 64 << 10)
"""nsys's longest has 4,373, comments included."""

ROW_BYTES = Limit("bytes in a row", 1 << 20)
"""Some hundreds are in memory at once. The payloads of NVTX events are the longest values that nsys writes."""

NAME_BYTES = Limit("bytes in one name", 64 << 10)
"""The longest names are kernels whose templates have templates as parameters: several kB."""

NAMES_BYTES = Limit("bytes of different strings", 256 << 20)
"""Their size in memory. PyTorch's own ranges have names of one instance: 90 bytes each, for 3 M ranges."""

KERNEL_NAMES = Limit("different kernel names", 50_000)
"""Each is looked up in the taxonomy; a model that is compiled has some thousands."""

DEPTH = Limit("ranges open inside each other", 20_000)
"""Each level is a round of work. A push that is never popped nests all that follow it, so real captures reach
thousands."""

PATH_BYTES = Limit("bytes in the path of a range", 1 << 20)
"""A path holds the names of all ranges that hold it: 40 of several kB are a fifth of this."""

PATHS_BYTES = Limit("bytes of different paths", 512 << 20)
"""90,432 ranges of `autograd-nvtx`, ten deep, have 40 MB."""

PATHS = Limit("different paths of ranges", 250_000)
"""Each is a row of the summary. PyTorch's own ranges are instances of some thousands; a million that are all called
something else took 2.7 GB."""

DOMAINS = Limit("NVTX domains", 100)
"""Each has a stack of its own that every kernel is looked up in; each library that marks ranges has one."""

PROCESSES = Limit("processes", 1_024)
"""Each is a round of work; the ranks and data loaders of a node are hundreds."""

GPUS = Limit("GPUs, counted in each process", 1_024)
"""Each is a round of work; a node has 16 at most."""

HELD_IN = Limit("pairs of an operation and a range that holds it", 50_000_000)
"""What the tables of ranges of `--report` are made from: 5 M kernels ten deep."""

FOOTER_BYTES = Limit("bytes in the footer of a Parquet file", 4 << 20)
"""It is parsed before anything else is known: 14 kB for 5 M rows."""

PAGES = Limit("pages in the Parquet columns that are read", 100_000)
"""A page of writers of today has 20,000 rows or 1 MiB."""

PAGE_BYTES = Limit("bytes in a page of a Parquet file", 16 << 20)
"""Unpacked: one page of each column is in memory at a time. Writers make pages of 1 MiB."""

FREE_ROWS, FEWEST_ROW_BYTES = 20_000, 4
"""Number of rows from which on each row must have at least so many bytes in a Parquet file. nsys needs 12 and more,
because no two events have the same times; equal rows would be a billion in 26 KB."""

CHECK_S, CHECKED_BYTES = 7.0, 100_000_000
"""The check of an SQLite file for damage ends after so many seconds of processor time, and one more for so many bytes
on the disk: what is a hole takes none there. The 690 MB of 5 M kernels take 2.5 s, and more than three times as long
when they are not in memory and the cores are shared. 18 MB of rows that say nothing of 199 of their 200 columns take
3.8, for these are checked, too; 100 MB of them would take 20."""


def check_s(file: os.stat_result) -> float:
    """Seconds of processor time that the check of a file for damage may take."""
    return CHECK_S + file.st_blocks * 512 / CHECKED_BYTES


def check_density(rows: int, file_bytes: int, table: str) -> None:
    """Raise LimitError if a Parquet file is too small for its stated number of rows."""
    if rows > FREE_ROWS + file_bytes // FEWEST_ROW_BYTES:
        raise LimitError(f"has {rows:,} rows of {table} in {file_bytes:,} bytes, and a row needs {FEWEST_ROW_BYTES}")


class UniqueNames:
    """The different strings of a capture, each once. Raises LimitError if they take too much memory."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}
        self._bytes = 0

    def __call__(self, text: str) -> str:
        kept = self._seen.setdefault(text, text)
        if kept is text:
            self._bytes += sys.getsizeof(text)
            NAMES_BYTES.check(self._bytes)
        return kept


def check_names(names: Iterable[str], what: str) -> None:
    """Raises LimitError for a name that is too long; `what` has these names."""
    for name in names:
        if len(name) * 4 > NAME_BYTES.most:  # most are far shorter, and need no encoding
            NAME_BYTES.check(len(name.encode("utf-8", "replace")), what)
