"""Measure how long `history` of many small captures takes: the whole command, in a process of its own."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.generate import tables, write_sqlite

CAPTURES, KERNELS = 400, 480
LIMIT_S = 20.0
"""What the project promises for so many captures on two cores."""
TIMEOUT_S = 600


def measure(num_captures: int = CAPTURES) -> dict:
    """Return the seconds of `history` over generated captures of KERNELS kernels each."""
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
        began = time.perf_counter()
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
        seconds = time.perf_counter() - began
    assert len(done.stdout.splitlines()) > num_captures, "a row for each capture"
    return {"captures": num_captures, "kernels": KERNELS, "seconds": seconds}


def make_target(row: dict) -> dict:
    """Return the promise of one measurement, with what was measured."""
    what = f"history of {row['captures']} captures of {row['kernels']} kernels: seconds"
    return {"what": what, "limit": LIMIT_S, "measured": row["seconds"], "met": row["seconds"] <= LIMIT_S}
