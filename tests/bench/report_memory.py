"""Measure how the memory of a report grows with its runs: whole commands, with all their processes.

`python -m tests.bench.report_memory 2000` measures so many runs with the kernels of their first step alone, 4,400 a
run: 1.40 GB and 852 s of processor time, and 0.87 GB and 56 s for 120 runs. With all 22,000 kernels of a run (`--all`)
2,000 take 1.36 GB and 1,385 s.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from profiler_job.analysis.recording import store
from profiler_job.jobs.contract.integrity import read_facts
from tests.bench.repeat_runs import repeat_runs

RECORDING = Path("site/data/main/h200-fp32")
"""60 runs of 22,000 kernels each."""
SIZES = (120, 240)
PROMISED_RUNS, LIMIT_BYTES = 2000, 2 * 10**9
"""What the project promises: so many runs in so many bytes. It is extrapolated from SIZES."""
EVERY_S = 0.05
BY_STEP = ("kernels", "ranges", "memops", "api", "steps")
"""Tables with rows for each profiled step."""


def measure(sizes: tuple[int, ...] = SIZES, recording: Path = RECORDING) -> list[dict]:
    """Return a row for each number of runs: kernels, seconds and peak bytes of `site --pages-only`."""
    rows = []
    for num_runs in sizes:
        with tempfile.TemporaryDirectory() as folder:
            repeated = repeat_runs(recording, Path(folder) / "recording", num_runs)
            (docs := Path(folder) / "docs").mkdir()
            call = [sys.executable, "-m", "profiler_job", "site", "--pages-only", "--docs", str(docs)]
            began = time.perf_counter()
            peak_bytes = measure_peak([*call, "--recording", str(repeated)])
        rows.append({"runs": num_runs, "seconds": time.perf_counter() - began, "peak_bytes": peak_bytes})
        print(f"report of {num_runs} runs: {peak_bytes / 2**20:.0f} MiB", file=sys.stderr)
    return rows


def keep_first_step(recording: Path, folder: Path) -> Path:
    """Write a recording into `folder` whose runs have one profiled step."""
    folder.mkdir(parents=True)
    manifest, written = store.read_manifest(recording), {}
    for file in sorted(recording.glob("*.parquet")):
        table = pq.read_table(file)
        if file.stem in BY_STEP:
            is_first = pc.less_equal(table["step"], 0)
            if "collector" in table.column_names:
                is_first = pc.or_(is_first, pc.not_equal(table["collector"].cast(pa.string()), "nsys"))
            table = table.filter(is_first)
        pq.write_table(table, folder / file.name)
        written[file.stem] = {"rows": table.num_rows, **read_facts(folder / file.name).model_dump()}
    store.write_manifest(folder, manifest | {"tables": written})
    return folder


def measure_peak(call: list[str]) -> int:
    """Run a command, and return the most bytes that it and its children held at one time. Raises CalledProcessError."""
    process, peak_bytes = subprocess.Popen(call, stdout=subprocess.DEVNULL), 0
    while process.poll() is None:
        peak_bytes = max(peak_bytes, _sum_memory(process.pid))
        time.sleep(EVERY_S)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, call)
    return peak_bytes


def _sum_memory(process: int) -> int:
    """Return the resident bytes of a process and its children; 0 if it has ended."""
    folder = Path("/proc") / str(process)
    try:
        resident = re.search(r"VmRSS:\s*(\d+) kB", (folder / "status").read_text())
        children = (folder / "task" / str(process) / "children").read_text().split()
    except OSError:
        return 0
    return (int(resident[1]) * 1024 if resident else 0) + sum(_sum_memory(int(child)) for child in children)


def make_target(rows: list[dict]) -> dict:
    """Return the promise, with what the largest report takes and each further run adds."""
    small, large = rows[0], rows[-1]
    per_run = (large["peak_bytes"] - small["peak_bytes"]) / (large["runs"] - small["runs"])
    expected = large["peak_bytes"] + per_run * (PROMISED_RUNS - large["runs"])
    what = f"report of {PROMISED_RUNS} runs, extrapolated from {small['runs']} and {large['runs']}: peak bytes"
    return {"what": what, "limit": LIMIT_BYTES, "measured": expected, "met": expected <= LIMIT_BYTES}


if __name__ == "__main__":
    is_whole = "--all" in sys.argv
    with tempfile.TemporaryDirectory() as scratch:
        recorded = RECORDING if is_whole else keep_first_step(RECORDING, Path(scratch) / "recording")
        measure(tuple(int(number) for number in sys.argv[1:] if number != "--all"), recorded)
