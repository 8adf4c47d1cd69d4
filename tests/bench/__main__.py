"""Measure the reader: time and peak memory of load, attribution and summaries of generated captures, on two cores; and
`compare` of two of them (`tests.bench.compare_speed`), `history` of 400 small ones, and what is kept of a capture
for the next time; of a trace of torch.profiler; and the memory of a report of many runs.

    python -m tests.bench [--sizes 100000,1000000,5000000] [--repeat 3] [--out FILE.json]

Each measurement runs in a fresh process. nsys-ai (from PyPI, installed into an environment of its own, with the
extension of DuckDB that it would otherwise download) does the nearest that it can on the same SQLite file: attribute
kernels to NVTX ranges and total them, `nsys-ai skill run nvtx_layer_breakdown`; once from the file, and once more from
the cache that it has then built. Every kernel of a generated capture lies in exactly one range called
block_N, so the kernels that a tool counts there can be checked.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.bench import compare_speed, history_speed, report_memory, second_read, trace_speed

NSYS_AI = "nsys-ai==0.3.0"
# What it runs on: DuckDB, and DuckDB's reader of SQLite of the same version.
DUCKDB = ("duckdb==1.5.5", "duckdb-extension-sqlite-scanner==1.5.5")
INSTALL_EXTENSION = """
import pathlib, duckdb, duckdb_extension_sqlite_scanner as package
(file,) = pathlib.Path(package.__file__).parent.rglob("*.duckdb_extension")
duckdb.execute(f"INSTALL '{file}'")
"""
TIMEOUT_S = 600
CORES = 2
SIZES = (100_000, 1_000_000, 5_000_000)
# (container, seconds, bytes): what the project promises for a million kernels on two cores
TARGETS = (("sqlite", 3.0, 700 * 2**20), ("parquetdir", 1.4, None))
SMALL, LARGE, MOST_TIMES = 1_000_000, 5_000_000, 5.5  # the large one may take so many times the time of the small one


def main() -> int:
    """Run the benchmark, print a table and write the JSON. Exit code 1 where a target is missed."""
    arguments = _arguments()
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    os.sched_setaffinity(0, cores)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        nsys_ai, why_not = (None, "left out") if arguments.without_nsys_ai else _install_nsys_ai(Path(folder))
        for size in arguments.sizes:
            rows += _measure_size(size, Path(folder), arguments.repeat, nsys_ai)
    result = {
        "recorded": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "command": "make bench",
        "machine": machine(len(cores)),
        "capture": "2 processes of 2 threads and one GPU each, two API calls a kernel, ranges four deep",
        "nsys_ai": {"package": NSYS_AI, "problem": why_not},
        "results": rows,
        "targets": targets(rows),
        "growth": growth(rows),
    }
    result = compare_speed.joined(result, compare_speed.measure(compare_speed.KERNELS, arguments.repeat))
    result["history"] = history_speed.measure()
    result["targets"].append(history_speed.make_target(result["history"]))
    result["second_read"] = second_read.measure(repeat=arguments.repeat)
    result["targets"] += second_read.make_targets(result["second_read"])
    result["trace"] = trace_speed.measure()
    result["targets"] += trace_speed.make_targets(result["trace"])
    result["report"] = report_memory.measure()
    result["targets"].append(report_memory.make_target(result["report"]))
    if arguments.out:
        write(result, arguments.out)
    _print(result)
    return 0 if all(target["met"] for target in result["targets"]) else 1


def write(result: dict, path: Path) -> None:
    """Put `result` into the JSON of `path`; what `tests.bench.against_nsys` wrote there stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps(content | result, indent=2) + "\n", encoding="utf-8")


def _arguments():
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=lambda text: [int(one) for one in text.split(",")], default=list(SIZES))
    parser.add_argument("--repeat", type=int, default=3, help="measurements of each; the median counts")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--without-nsys-ai", action="store_true", help="measure only our own reader")
    return parser.parse_args()


def _install_nsys_ai(folder: Path) -> tuple[Path | None, str | None]:
    environment = folder / "nsys-ai"
    try:
        subprocess.run([sys.executable, "-m", "venv", environment], check=True, capture_output=True, timeout=TIMEOUT_S)
        python = environment / "bin" / "python"
        pip = [python, "-m", "pip", "install", "--quiet", NSYS_AI, *DUCKDB]
        subprocess.run(pip, check=True, capture_output=True, timeout=TIMEOUT_S)
        extension = [python, "-c", INSTALL_EXTENSION]
        subprocess.run(extension, check=True, capture_output=True, timeout=TIMEOUT_S, env=_at_home(environment))
    except (subprocess.SubprocessError, OSError) as error:
        return None, f"could not be installed here ({type(error).__name__})"
    return environment / "bin" / "nsys-ai", None


def _at_home(environment: Path) -> dict[str, str]:
    """Variables with which DuckDB finds, in that environment, the extension that was installed there."""
    return os.environ | {"HOME": str(environment)}


def _measure_size(size: int, folder: Path, repeat: int, nsys_ai: Path | None) -> list[dict]:
    sqlite, parquet = folder / f"{size}.sqlite", folder / f"{size}"
    # Not here: the peak memory of a new process begins at the memory of the process that starts it.
    generate = [sys.executable, "-m", "tests.bench.generate", str(size), str(folder)]
    subprocess.run(generate, check=True, timeout=TIMEOUT_S)
    rows = [_ours(sqlite, "sqlite", size, repeat), _ours(parquet, "parquetdir", size, repeat)]
    if nsys_ai:
        rows += [_theirs(nsys_ai, sqlite, size, "sqlite"), _theirs(nsys_ai, sqlite, size, "its own cache")]
    sqlite.unlink()
    for file in parquet.iterdir():
        file.unlink()
    return rows


def _bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir()) if path.is_dir() else path.stat().st_size


def _ours(path: Path, container: str, size: int, repeat: int) -> dict:
    found = []
    for _ in range(repeat):
        began = time.perf_counter()
        command = [sys.executable, "-m", "tests.bench.measure", str(path)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S)
        found.append(json.loads(done.stdout) | {"wall_s": time.perf_counter() - began})
    middle = {key: statistics.median(one[key] for one in found) for key in found[0]}
    row = {
        "tool": "profiler-job",
        "container": container,
        "kernels": size,
        "file_bytes": _bytes(path),
        "repeat": repeat,
    }
    row |= middle | {"kernels_counted": int(middle["kernels_counted"]), "peak_bytes": int(middle["peak_bytes"])}
    print(f"{size:>9} {container:<11} {middle['seconds']:6.2f} s", file=sys.stderr)
    return row


def _theirs(nsys_ai: Path, path: Path, size: int, container: str) -> dict:
    """nsys-ai once, the whole process."""
    row = {"tool": NSYS_AI.replace("==", " "), "container": container, "kernels": size, "file_bytes": _bytes(path)}
    command = [nsys_ai, "skill", "run", "nvtx_layer_breakdown", path, "--format", "json", "-p", "limit=100000"]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        environment = _at_home(nsys_ai.parents[1])
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=environment)
        stop = threading.Timer(TIMEOUT_S, process.kill)
        stop.start()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        stop.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0), errors.seek(0)
        answer, said = output.read(), errors.read()
    if wall >= TIMEOUT_S:
        return row | {"problem": f"not done after {TIMEOUT_S} s"}
    if process.returncode:
        return row | {"problem": f"ended with exit code {process.returncode}"}
    if b"falling back to sqlite3" in said:
        return row | {"problem": "did not find the extension of DuckDB that it reads SQLite with"}
    try:
        regions = [one for one in json.loads(answer) if "kernel_count" in one]
    except ValueError:
        return row | {"problem": "its answer was not JSON"}
    print(f"{size:>9} {'nsys-ai':<11} {wall:6.2f} s", file=sys.stderr)
    cpu = usage.ru_utime + usage.ru_stime
    row |= {"repeat": 1, "wall_s": wall, "seconds": wall, "cpu_s": cpu, "peak_bytes": usage.ru_maxrss * 1024}
    return row | {"kernels_counted": sum(one["kernel_count"] for one in regions)}


def machine(cores: int) -> dict:
    models = [line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    versions = {name: __import__(name).__version__ for name in ("numpy", "pandas", "pyarrow")}
    cpu = models[0] if models else platform.machine()
    return {"cpu": cpu, "cores_used": cores, "memory_bytes": pages, "python": platform.python_version()} | versions


def _cpuinfo() -> list[str]:
    file = Path("/proc/cpuinfo")
    return file.read_text().splitlines() if file.exists() else []


def targets(rows: list[dict]) -> list[dict]:
    """Every promise whose sizes were measured, with what was measured."""
    ours = _ours_by_size(rows)
    found = []
    for container, seconds, size in TARGETS:
        if row := ours.get((SMALL, container)):
            found.append(target(f"{SMALL} kernels from {container}: seconds", seconds, row["seconds"]))
            if size:
                found.append(target(f"{SMALL} kernels from {container}: peak bytes", size, row["peak_bytes"]))
    for one in growth(rows):
        what = f"times the time of {SMALL} kernels, for {LARGE} from {one['container']}"
        found.append(target(what, MOST_TIMES, one["seconds"]))
    return found


def growth(rows: list[dict]) -> list[dict]:
    """How many times the time and the memory of a million kernels five million take."""
    ours = _ours_by_size(rows)
    found = []
    for container, _, _ in TARGETS:
        small, large = ours.get((SMALL, container)), ours.get((LARGE, container))
        if small and large:
            times = {key: large[key] / small[key] for key in ("seconds", "peak_bytes")}
            found.append({"container": container, "kernels": [SMALL, LARGE]} | times)
    return found


def _ours_by_size(rows: list[dict]) -> dict[tuple[int, str], dict]:
    return {(row["kernels"], row["container"]): row for row in rows if row["tool"] == "profiler-job"}


def target(what: str, limit: float, measured: float) -> dict:
    return {"what": what, "limit": limit, "measured": measured, "met": measured <= limit}


def _print(result: dict) -> None:
    print(f"{'tool':<14} {'from':<13} {'kernels':>9} {'seconds':>8} {'wall s':>8} {'peak MiB':>9} {'counted':>9}")
    for row in result["results"]:
        if "problem" in row:
            print(f"{row['tool']:<14} {row['container']:<13} {row['kernels']:>9} {row['problem']}")
            continue
        costs = f"{row['seconds']:8.2f} {row['wall_s']:8.2f} {row['peak_bytes'] / 2**20:9.0f}"
        print(f"{row['tool']:<14} {row['container']:<13} {row['kernels']:>9} {costs} {row['kernels_counted']:>9}")
    for target in result["targets"]:
        verdict = "met" if target["met"] else "MISSED"
        measured, limit = (_shown(target["what"], target[key]) for key in ("measured", "limit"))
        print(f"{target['what']}: {measured}, at most {limit}: {verdict}")
    for one in result["growth"]:
        times = f"{one['seconds']:.2f} times the time, {one['peak_bytes']:.2f} times the peak memory"
        print(f"{one['kernels'][1]} kernels against {one['kernels'][0]} from {one['container']}: {times}")


def _shown(what: str, value: float) -> str:
    return f"{value / 2**20:.0f} MiB" if what.endswith("bytes") else f"{value:.2f}"


if __name__ == "__main__":
    sys.exit(main())
