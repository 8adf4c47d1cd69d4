"""Pauses of threads: what they do in them is for no GPU.

They are calls of the operating system, which nsys traces with `--trace=osrt`, and the ranges around `time.sleep` in a
script that was followed. Other calls are left out: a thread that polls, reads or waits for a condition may wait for the
GPU, or for data.
"""

import re
from collections.abc import Callable

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import intervals
from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.capture_data import PAUSE_COLUMNS, UNKNOWN_THREAD, Capture
from profiler_job.analysis.capture.distinct_values import encode
from profiler_job.analysis.capture.export_columns import ExportTables, check_times, decode_process, fill_neutral
from profiler_job.analysis.capture.export_schema import OS_CALLS
from profiler_job.jobs.contract.ranges import DATA, SLEEP_RANGE

PAUSING = re.compile(r"u?sleep|(?:clock_)?nanosleep|f(?:data)?sync|wait(?:pid|id|3|4)")
"""Functions that sleep, wait until a file is on its disk, or wait for a child."""
_WANTED = {"start", "end", "globalTid", "nameId"}


def read_pauses(tables: ExportTables, name: Callable[[int], str | None], ranges: pd.DataFrame) -> pd.DataFrame:
    """Read the pauses of all threads, with PAUSE_COLUMNS, by start. name: the string of an id; ranges: of the capture.
    Raises ValueError for times that no nsys writes."""
    pauses = ranges.loc[ranges["name"].astype(str) == SLEEP_RANGE, list(PAUSE_COLUMNS)]
    if OS_CALLS in tables.list_tables() and set(tables.list_columns(OS_CALLS)) >= _WANTED:
        start, end, thread, code = tables.read_integers(OS_CALLS, ["start", "end", "globalTid", "nameId"])
        codes, inverse = encode(code)
        is_pause = np.array([PAUSING.fullmatch(name(int(number)) or "") is not None for number in codes], bool)
        rows = np.flatnonzero(is_pause[inverse]) if len(codes) else np.empty(0, np.int64)
        check_times(start[rows], end[rows], OS_CALLS)
        columns = (start[rows], end[rows], decode_process(thread[rows]), fill_neutral(thread[rows], UNKNOWN_THREAD))
        pauses = pd.concat([pauses, pd.DataFrame(dict(zip(PAUSE_COLUMNS, columns)))])
    return pauses.astype(np.int64).sort_values("start_ns", kind="stable", ignore_index=True)


def find_idle_pauses(capture: Capture, attribution: Attribution) -> pd.DataFrame:
    """Find the pauses in which a thread makes no data either: those outside the phase of data; PAUSE_COLUMNS."""
    pauses, ranges = capture.pauses, attribution.ranges
    in_data = np.zeros(len(pauses), bool)
    start, end = pauses["start_ns"].to_numpy(), pauses["end_ns"].to_numpy()
    for process, mine in ranges[ranges["phase"] == DATA].groupby("process", sort=False):
        of_process = np.flatnonzero(pauses["process"] == process)
        union = intervals.Union(mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy())
        in_data[of_process] = union.measure_covered(start[of_process], end[of_process]) > 0
    return pauses[~in_data]
