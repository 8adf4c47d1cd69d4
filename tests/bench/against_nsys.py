"""The reader against `nsys stats --report nvtx_kern_sum` on one real capture, each in fresh processes on the same two
cores; adds to the JSON of `tests.bench`.

    python -m tests.bench.against_nsys CAPTURE.sqlite --out FILE.json
"""

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from profiler_job.analysis.capture import nsys_reports
from profiler_job.analysis.capture.nsys_export import read
from tests.bench.__main__ import CORES

REPEAT = 3
NSYS_STATS = ("nsys", "stats", "--quiet", "--report=nvtx_kern_sum", "--format=csv", "--output=-")


def timed(command: list[str]) -> tuple[float, str]:
    """Median wall time in seconds of whole processes, and what the last one printed."""
    walls = []
    for _ in range(REPEAT):
        began = time.perf_counter()
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        walls.append(time.perf_counter() - began)
    return statistics.median(walls), done.stdout


def same(ours: pd.DataFrame, theirs: pd.DataFrame) -> bool:
    """Whether calls and total time of each kernel in each range are equal."""
    keys, numbers = ["NVTX Range", "Kernel Name"], ["Kern Inst", "Total Time (ns)"]
    summed = [frame.fillna({"NVTX Range": ""}).groupby(keys)[numbers].sum().sort_index() for frame in (ours, theirs)]
    return bool(summed[0].astype("int64").equals(summed[1].astype("int64")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("capture", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    nsys_s, printed = timed([*NSYS_STATS, str(arguments.capture)])
    ours_s, told = timed([sys.executable, "-m", "tests.bench.measure", str(arguments.capture)])
    capture = read(arguments.capture)
    figures = {
        "recorded": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": "python -m tests.bench.against_nsys CAPTURE",
        "kernels": len(capture.kernels),
        "file_bytes": arguments.capture.stat().st_size,
        "nsys_stats_wall_s": nsys_s,
        "ours_wall_s": ours_s,
        "ours_seconds": json.loads(told)["seconds"],
        "ours_peak_bytes": json.loads(told)["peak_bytes"],
        "agrees": same(nsys_reports.REPORTS["nvtx_kern_sum"](capture), pd.read_csv(io.StringIO(printed))),
    }
    content = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    arguments.out.write_text(json.dumps(content | {"nsys_stats": figures}, indent=2) + "\n")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
