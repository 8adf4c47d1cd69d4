"""Samples of a script's Python: a second start of it under nsys, which slows the CPU: these are further steps.

nsys takes the options of a capture when it starts a program, and samples from then on. So the steps with samples are of
a further process. What is kept of its capture names no folder of the machine.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from profiler_job.jobs.contract.messages import BATCHES, COLLECTED, NEXT_BATCH
from profiler_job.jobs.contract.ranges import STEP
from profiler_job.jobs.contract.source_paths import shorten_library
from profiler_job.jobs.executor.nsys_cli import SAMPLE, STEP_RANGE

SAMPLED = ("--python-sampling=true", "--python-sampling-frequency=2000")
"""Options of nsys: they need no privilege, and slow a CPU that launches without a pause by about 20%."""
LOCK_TRACED = "--trace=cuda,nvtx,python-gil"
"""In place of the trace of other captures, where other threads run Python: PyTorch gives Python's lock back in each
operation, and to record that makes a step that launches without a pause about twice as slow."""
LEAST_OTHER_THREADS = 0.01
"""Share of a step in which other threads of Python use the CPU before waits for Python's lock are recorded."""
LEAST_ISSUED = 0.9
"""Share of a step in which the CPU issues work before it counts as what limits the step: a GPU that is behind makes it
wait at the ends of phases."""
LEAST_IDLE = 0.03
"""Share of its steps that a GPU must wait before samples are taken. In 56 recorded runs that wait less, launches are
late for at most 1.4% of a step, and the rest is gaps between kernels. In 68 that wait 3% to 10%, it is up to 7.6%."""
NO_SAMPLES, NO_GIL = "nsys took no samples of it", "nsys cannot sample a free-threaded Python"
TOO_OLD = "this nsys is too old to sample Python"
BUSY = "the GPU waits less than {:.0f}% of a step"
_OPERATIONS = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
_HOST_COPIES = (1, 2)
"""copyKind of a copy from the host and to it: CUPTI's CUpti_ActivityMemcpyKind."""


def is_limited_by_cpu(steps: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether the CPU issues work in nearly all of a step. steps: rows of unprofiled steps (see `build_measured`
    of the worker)."""
    shares = [row["issue_ns"] / row["wall_ns"] for row in steps if row["phase"] == STEP]
    return bool(shares) and median(shares) >= LEAST_ISSUED


def measure_waiting_share(database: Path) -> float:
    """Return the share of the captured steps in which a GPU runs nothing, or only copies from or to the host; 0 without
    steps. Of several GPUs the one counts that waits longest: the others may wait for it in a kernel of
    communication."""
    with closing(sqlite3.connect(database)) as connection:
        start, end = connection.execute(f'SELECT min(start), max("end") FROM ({STEP_RANGE})').fetchone()
        if start is None:
            return 0.0
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        by_gpu: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for table in (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in _OPERATIONS):
            if table in tables:
                kind = f"copyKind IN {_HOST_COPIES}" if table.endswith("MEMCPY") else "0"
                query = f'SELECT globalPid, deviceId, start, "end", {kind} FROM "{table}" WHERE "end" > ? AND start < ?'
                for process, device, begins, ends, is_copy in connection.execute(query, (start, end)):
                    times = by_gpu.setdefault((process, device), [])
                    if not is_copy:
                        times.append((max(begins, start), min(ends, end)))
    if not by_gpu or end <= start:
        return 0.0
    return 1 - min(map(_measure_busy, by_gpu.values())) / int(end - start)


def _measure_busy(times: list[tuple[int, int]]) -> int:
    busy = until = 0
    for start, end in sorted(times):
        busy += max(0, end - max(start, until))
        until = max(until, end)
    return busy


def runs_other_threads(noted: Mapping[str, Any]) -> bool:
    """Whether threads of Python besides the one that takes the steps use the CPU so long that it can wait for them.
    noted: of `read_noted`."""
    walls = [step["wall_ns"] for step in noted["steps"]]
    return bool(walls) and noted.get("other_threads_ns", 0) > LEAST_OTHER_THREADS * median(walls)


def keep_samples(database: Path, folder: Path) -> int:
    """Shorten the paths in the Python stacks of an export, and return the number of its samples. folder: of the
    script, to which its paths are relative."""
    with closing(sqlite3.connect(database)) as connection:
        if "jsonText" not in {row[1] for row in connection.execute("PRAGMA table_info(NVTX_EVENTS)")}:
            return 0
        files: set[int] = set()
        query = "SELECT DISTINCT jsonText FROM NVTX_EVENTS WHERE eventType = ? AND jsonText IS NOT NULL"
        for (text,) in connection.execute(query, (SAMPLE,)).fetchall():
            files |= {frame["File"] for frame in list_frames(text) if isinstance(frame.get("File"), int)}
        for number in files:
            (path,) = connection.execute("SELECT value FROM StringIds WHERE id = ?", (number,)).fetchone() or ("",)
            connection.execute("UPDATE StringIds SET value = ? WHERE id = ?", (shorten_path(path, folder), number))
        connection.commit()
        count = "SELECT count(*) FROM NVTX_EVENTS WHERE eventType = ? AND jsonText IS NOT NULL"
        (num_samples,) = connection.execute(count, (SAMPLE,)).fetchone()
    return int(num_samples)


def list_frames(text: str) -> Iterable[Mapping[str, Any]]:
    """List the frames of a sample, as nsys writes them; none if it is none."""
    try:
        payload = json.loads(text)
    except ValueError:
        return []
    parts = payload.values() if isinstance(payload, dict) else []
    return [frame for part in parts if isinstance(part, dict) for frame in part.get("Frames", ())]


def shorten_path(path: str, folder: Path) -> str:
    """Make the path of a source file relative: to the packages of Python, to the folder of the script, or else to what
    holds the package that it is of. A file of none of these keeps its name alone."""
    if (library := shorten_library(path)) is not None:
        return library
    file = Path(path)
    if not file.is_absolute():
        return path if ".." not in file.parts else file.name
    for base in (folder, folder.resolve()):
        if file.is_relative_to(base):
            return str(file.relative_to(base))
    top = file.parent
    while (top / "__init__.py").is_file():
        top = top.parent
    return str(file.relative_to(top))


def list_noted_calls(ranks: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """List what the ranks noted of calls by line: `syncs`, `copies` and `batches`, and `allocations` if the allocator
    showed them. folder: of the script, to which paths are relative."""
    calls = {"syncs": list_syncs(ranks, folder), "copies": list_copies(ranks, folder)}
    calls |= {"batches": list_batches(ranks, folder)}
    is_known = any(noted.get("segments") is not None for noted in ranks)
    return calls | ({"allocations": list_allocations(ranks, folder)} if is_known else {})


def list_syncs(ranks: Iterable[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """List the calls of each rank that wait for the GPU: rank, where, function, call, number (of its marks), count (per
    step)."""
    return _list_lines(ranks, folder, "syncs", ("call", "number", "count"))


def list_copies(ranks: Iterable[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """List the lines of each rank that copy between CPU and GPU: rank, where, function, number (of their ranges)."""
    return _list_lines(ranks, folder, "copies", ("number",))


def list_allocations(ranks: Iterable[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """List the calls of the allocator of each rank in the last followed step, in order: rank, where, function, call."""
    return _list_lines(ranks, folder, "segments", ("call",))


def list_batches(ranks: Iterable[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """List the lines of each rank that take batches of a DataLoader, in steps without a profiler: like `list_syncs`,
    with time_ns (of a step)."""
    lines = _list_lines(ranks, folder, "batch_lines", ("count", "ns"))
    return [{"call": NEXT_BATCH, "time_ns": round(line.pop("ns")), **line} for line in lines]


def _list_lines(
    ranks: Iterable[Mapping[str, Any]], folder: Path, noted_as: str, names: Sequence[str]
) -> list[dict[str, Any]]:
    """List what each rank noted of lines: rank, where, function, and what else `names` has."""
    return [
        {"rank": noted["rank"], "where": name_line(line, folder), "function": line["function"]}
        | {name: line[name] for name in names}
        for noted in ranks
        for line in noted.get(noted_as) or ()
    ]


def name_line(noted: Mapping[str, Any], folder: Path) -> str:
    """Name a line that was noted with its file as `train.py:8`; "" if the file is not known. folder: of the script."""
    return f"{shorten_path(noted['file'], folder)}:{noted['line']}" if noted["file"] else ""


def list_wait_scalars(noted: Mapping[str, Any]) -> dict[str, float]:
    """List what a rank noted of its DataLoaders and of collections of garbage, by name of a scalar."""
    scalars = {f"{BATCHES}{name}": value for name, value in (noted.get("batches") or {}).items()}
    lines = noted.get("batch_lines", ())
    for number, line in enumerate(lines if len(lines) > 1 else ()):
        scalars |= {f"{BATCHES}{number}_{name}": value for name, value in {"ns": line["ns"], **line["workers"]}.items()}
    scalars |= {f"{COLLECTED}{name}": value for name, value in noted.get("garbage", {}).items()}
    return {name: float(value) for name, value in scalars.items()}


def explain_no_samples(printed: str, code: int) -> str:
    """Return why there is no capture with samples. printed: what nsys complained of; code: exit code of the script."""
    if "python-sampling" in printed or "python-gil" in printed:
        return TOO_OLD
    ended = f"started once more, the script ended {f'with exit code {code}' if code else 'before its steps did'}"
    return f"{ended} ({printed})" if "nothing" not in printed else ended
