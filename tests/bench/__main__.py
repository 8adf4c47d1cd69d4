"""Measure the reader: time and peak memory of load, attribution and summaries of generated captures, on two cores.

    python -m tests.bench [--sizes 100000,1000000,5000000] [--repeat 3] [--out FILE.json]

Each measurement runs in a fresh process. nsys-ai (from PyPI, installed into an environment of its own) does the
nearest that it can on the same SQLite file: attribute kernels to NVTX ranges and total them, `nsys-ai skill run
nvtx_layer_breakdown`. Every kernel of a generated capture lies in exactly one range called block_N, so the kernels
that a tool counts there can be checked.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.bench.generate import tables, write_parquetdir, write_sqlite

NSYS_AI = "nsys-ai==0.3.0"
TIMEOUT_S = 600
CORES = 2
SIZES = (100_000, 1_000_000, 5_000_000)
# (kernels, container, seconds, bytes): what the project promises on two cores
TARGETS = ((1_000_000, "sqlite", 8.0, 800 * 2**20), (1_000_000, "parquetdir", 2.5, None))
MOST_GROWTH = 5.5  # from 1 M to 5 M kernels, in time and in memory


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
        "machine": _machine(len(cores)),
        "capture": "2 processes of 2 threads and one GPU each, two API calls a kernel, ranges four deep",
        "nsys_ai": {"package": NSYS_AI, "problem": why_not},
        "results": rows,
        "targets": targets(rows),
    }
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
        pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", NSYS_AI]
        subprocess.run(pip, check=True, capture_output=True, timeout=TIMEOUT_S)
    except (subprocess.SubprocessError, OSError) as error:
        return None, f"could not be installed here ({type(error).__name__})"
    return environment / "bin" / "nsys-ai", None


def _measure_size(size: int, folder: Path, repeat: int, nsys_ai: Path | None) -> list[dict]:
    sqlite, parquet = folder / f"{size}.sqlite", folder / f"{size}"
    data = tables(size)
    write_sqlite(data, sqlite)
    write_parquetdir(data, parquet)
    del data
    rows = [_ours(sqlite, "sqlite", size, repeat), _ours(parquet, "parquetdir", size, repeat)]
    if nsys_ai:
        rows.append(_theirs(nsys_ai, sqlite, size))
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


def _theirs(nsys_ai: Path, path: Path, size: int) -> dict:
    """nsys-ai once, with its user and system time apart: where it cannot download the extension that its fast path
    needs, it waits for the network before it goes on without."""
    row = {"tool": NSYS_AI.replace("==", " "), "container": "sqlite", "kernels": size, "file_bytes": _bytes(path)}
    command = [nsys_ai, "skill", "run", "nvtx_layer_breakdown", path, "--format", "json", "-p", "limit=100000"]
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    home = path.parent / "home"
    home.mkdir(exist_ok=True)
    try:
        environment = os.environ | {"HOME": str(home)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        output, errors = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return row | {"problem": f"not done after {TIMEOUT_S} s"}
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    row |= {
        "repeat": 1,
        "wall_s": time.perf_counter() - began,
        "seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "backend": "sqlite3" if "falling back to sqlite3" in errors else "duckdb",
    }
    # The largest child so far: nsys-ai's own peak only where it is larger than that of every measurement before it.
    row["peak_bytes"] = after.ru_maxrss * 1024 if after.ru_maxrss > before.ru_maxrss else None
    try:
        regions = [one for one in json.loads(output) if "kernel_count" in one]
    except ValueError:
        return row | {"problem": "its answer was not JSON"}
    print(f"{size:>9} {'nsys-ai':<11} {row['seconds']:6.2f} s", file=sys.stderr)
    return row | {"kernels_counted": sum(one["kernel_count"] for one in regions)}


def _machine(cores: int) -> dict:
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
    ours = {(row["kernels"], row["container"]): row for row in rows if row["tool"] == "profiler-job"}
    found = []
    for kernels, container, seconds, size in TARGETS:
        if row := ours.get((kernels, container)):
            what = f"{kernels} kernels from {container}"
            found.append(_target(f"{what}: seconds", seconds, row["seconds"]))
            if size:
                found.append(_target(f"{what}: peak bytes", size, row["peak_bytes"]))
    for container in ("sqlite", "parquetdir"):
        small, large = ours.get((1_000_000, container)), ours.get((5_000_000, container))
        if small and large:
            what = f"5 M kernels against 1 M from {container}"
            for key, times in (("seconds", "times the time"), ("peak_bytes", "times the peak memory")):
                found.append(_target(f"{what}: {times}", MOST_GROWTH, large[key] / small[key]))
    return found


def _target(what: str, limit: float, measured: float) -> dict:
    return {"what": what, "limit": limit, "measured": measured, "met": measured <= limit}


def _print(result: dict) -> None:
    print(f"{'tool':<14} {'from':<11} {'kernels':>9} {'seconds':>8} {'wall s':>8} {'peak MiB':>9} {'counted':>9}")
    for row in result["results"]:
        if "problem" in row:
            print(f"{row['tool']:<14} {row['container']:<11} {row['kernels']:>9} {row['problem']}")
            continue
        peak = f"{row['peak_bytes'] / 2**20:9.0f}" if row["peak_bytes"] else f"{'n/a':>9}"
        times = f"{row['seconds']:8.2f} {row['wall_s']:8.2f}"
        print(
            f"{row['tool']:<14} {row['container']:<11} {row['kernels']:>9} {times} {peak} {row['kernels_counted']:>9}"
        )
    for target in result["targets"]:
        verdict = "met" if target["met"] else "MISSED"
        print(f"{target['what']}: {target['measured']:.4g}, at most {target['limit']:.4g}: {verdict}")


if __name__ == "__main__":
    sys.exit(main())
