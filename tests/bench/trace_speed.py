"""Measure how long reading, attributing and summarising a trace of torch.profiler takes: a million kernels, and four
times fewer, each in a process of its own.

    python -m tests.bench.trace_speed
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

KERNELS = 1_000_000
MOST_S, MOST_BYTES, MOST_TIMES = 30.0, 3 << 29, 4.6
"""What the project promises for so many kernels in a trace, and how many times the time of a quarter of them."""


def measure(kernels: int = KERNELS, repeat: int = 1) -> list[dict]:
    """Return a row for each size: bytes of the trace, seconds (median), peak memory, and kernels counted in blocks."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size in (kernels // 4, kernels):
            path = Path(folder) / f"{size}.json"
            subprocess.run([sys.executable, "-m", "tests.bench.generate_trace", str(size), str(path)], check=True)
            command = [sys.executable, "-m", "tests.bench.measure", str(path)]
            outputs = [subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(repeat)]
            costs = [json.loads(done.stdout) for done in outputs]
            middle = {key: statistics.median(one[key] for one in costs) for key in ("seconds", "cpu_s", "peak_bytes")}
            counted = costs[0]["kernels_counted"]
            rows.append({"kernels": size, "file_bytes": path.stat().st_size, "kernels_counted": counted} | middle)
            path.unlink()
    return rows


def make_targets(rows: list[dict]) -> list[dict]:
    """Return the promises, with what was measured."""
    small, large = rows
    of = f"{large['kernels']} kernels from a trace of torch.profiler"
    promises = (
        (f"{of}: seconds", MOST_S, large["seconds"]),
        (f"{of}: peak bytes", MOST_BYTES, large["peak_bytes"]),
        (f"times the time of {small['kernels']} kernels, for {of}", MOST_TIMES, large["seconds"] / small["seconds"]),
    )
    return [
        {"what": what, "limit": limit, "measured": measured, "met": measured <= limit}
        for what, limit, measured in promises
    ]


if __name__ == "__main__":
    rows = measure()
    print(json.dumps({"results": rows, "targets": make_targets(rows)}, indent=2))
