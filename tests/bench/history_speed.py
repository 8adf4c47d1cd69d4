"""Measure how long `history` of many small captures takes: the whole command, in a process of its own."""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.generate import tables, write_sqlite

CAPTURES, KERNELS = 400, 480
LIMIT_S = 20.0
"""What the project promises for so many captures: seconds on two cores, and seconds of a processor."""
TIMEOUT_S = 600


def measure(num_captures: int = CAPTURES) -> dict:
    """Return the seconds, and those of processors, of `history` over generated captures of KERNELS kernels each."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(num_captures):
            write_sqlite(tables(KERNELS, seed=number), Path(folder) / f"{number:04}.sqlite")
        command = [
            sys.executable,
            "-m",
            "profiler_job",
            "history",
            folder,
            "--metric",
            "busy",
            "--format",
            "csv",
            "--no-cache",
        ]
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
        seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert len(done.stdout.splitlines()) > num_captures, "a row for each capture"
    cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return {"captures": num_captures, "kernels": KERNELS, "seconds": seconds, "cpu_s": cpu_s}


def make_target(row: dict) -> dict:
    """Return the promise of one measurement, with what was measured."""
    what = f"history of {row['captures']} captures of {row['kernels']} kernels: seconds"
    return {"what": what, "limit": LIMIT_S, "measured": row["seconds"], "met": row["seconds"] <= LIMIT_S}
