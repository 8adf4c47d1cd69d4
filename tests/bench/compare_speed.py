"""Measure `compare` of two captures of a million kernels against one `show`, in processor seconds of whole processes.

    python -m tests.bench.compare_speed [--kernels 1000000] [--repeat 3] [--out FILE.json]

Puts `compare` into the JSON file of `tests.bench`, and its promises among the `targets` there; the rest stays.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

KERNELS, MOST_TIMES = 1_000_000, 2.5
WHAT = "times the processor time of one show, for compare"
GENERATE = """
import sys
from pathlib import Path
from tests.bench.generate import tables, write_parquetdir, write_sqlite
kernels, seed, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
folder.mkdir()
write_sqlite(tables(kernels, seed), folder / "capture.sqlite")
write_parquetdir(tables(kernels, seed), folder / "capture")
"""


def main() -> int:
    """Measure, and write what was. Exit code 1 where a promise is not kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.compare_speed", description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", type=int, default=KERNELS)
    parser.add_argument("--repeat", type=int, default=3, help="measurements of each; the median counts")
    parser.add_argument("--out", type=Path, help="JSON file of `tests.bench` to write into")
    arguments = parser.parse_args()
    result = measure(arguments.kernels, arguments.repeat)
    if arguments.out:
        content = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.exists() else {}
        arguments.out.write_text(json.dumps(joined(content, result), indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))
    return 0 if all(target["met"] for target in targets(result)) else 1


def measure(kernels: int, repeat: int) -> dict:
    """Processor seconds of `show` and of `compare` from each container, one after the other by turns."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        pair = [Path(folder) / name for name in "ab"]
        for seed, part in enumerate(pair):  # in a process of its own, so that nothing of it stays here
            subprocess.run([sys.executable, "-c", GENERATE, str(kernels), str(seed), str(part)], check=True)
        for container, name in (("sqlite", "capture.sqlite"), ("parquetdir", "capture")):
            first, second = (str(part / name) for part in pair)
            turns = [(_cpu_s("show", first), _cpu_s("compare", first, second)) for _ in range(repeat)]
            show, compare = (statistics.median(seconds) for seconds in zip(*turns))
            row = {"container": container, "kernels": kernels, "repeat": repeat}
            rows.append(row | {"show_cpu_s": show, "compare_cpu_s": compare, "times": compare / show})
    return {"recorded": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "results": rows}


def _cpu_s(*arguments: str) -> float:
    command = [sys.executable, "-m", "profiler_job", *arguments, "--no-cache"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return usage.ru_utime + usage.ru_stime


def targets(result: dict) -> list[dict]:
    """The promise for each container, with what was measured."""
    return [
        {"what": f"{WHAT} of two captures of {row['kernels']} kernels from {row['container']}", "limit": MOST_TIMES}
        | {"measured": row["times"], "met": row["times"] <= MOST_TIMES}
        for row in result.get("results", [])
    ]


def joined(content: dict, result: dict) -> dict:
    """`content` with this measurement in place of an earlier one."""
    others = [target for target in content.get("targets", []) if not target["what"].startswith(WHAT)]
    return content | {"compare": result, "targets": [*others, *targets(result)]}


if __name__ == "__main__":
    sys.exit(main())
