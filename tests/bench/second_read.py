"""Measure how long a first and a second `show`, `compare` and `history` of large captures take: whole commands, each in
a process of its own."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KERNELS = 1_000_000
FIRST_S, SECOND_S = 3.5, 0.5
"""What the project promises for so many kernels in SQLite: `show` the first time, and any of them again."""


def measure(kernels: int = KERNELS, repeat: int = 3) -> list[dict]:
    """Return a row for each command: seconds of the first and of the second time, medians."""
    environment = {name: value for name, value in os.environ.items() if name != "PROFILER_JOB_NO_CACHE"}
    with tempfile.TemporaryDirectory() as folder:
        captures = [Path(folder) / f"{seed}.sqlite" for seed in range(2)]
        for seed, capture in enumerate(captures):  # in a process of its own, so that nothing of it stays here
            code = "import sys; from pathlib import Path; from tests.bench.generate import tables, write_sqlite\n"
            code += "write_sqlite(tables(int(sys.argv[1]), int(sys.argv[2])), Path(sys.argv[3]))"
            subprocess.run([sys.executable, "-c", code, str(kernels), str(seed), str(capture)], check=True)
        commands = {"show": captures[:1], "compare": captures, "history": captures}
        rows = []
        for command, paths in commands.items():
            call = [sys.executable, "-m", "profiler_job", command, *map(str, paths)]
            first = [_measure_s([*call, "--no-cache"], environment) for _ in range(repeat)]
            _measure_s(call, environment)
            second = [_measure_s(call, environment) for _ in range(repeat)]
            times = {"first_s": statistics.median(first), "second_s": statistics.median(second)}
            rows.append({"command": command, "captures": len(paths), "kernels": kernels, "repeat": repeat} | times)
    return rows


def _measure_s(call: list[str], environment: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(call, check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - began


def make_targets(rows: list[dict]) -> list[dict]:
    """Return the promises, with what was measured."""
    found = []
    for row in rows:
        of = f"{row['command']} of {row['captures']} x {row['kernels']} kernels from sqlite"
        if row["command"] == "show":
            found.append(_make_target(f"{of}, the first time: seconds", FIRST_S, row["first_s"]))
        found.append(_make_target(f"{of}, the second time: seconds", SECOND_S, row["second_s"]))
    return found


def _make_target(what: str, limit: float, measured: float) -> dict:
    return {"what": what, "limit": limit, "measured": measured, "met": measured <= limit}
