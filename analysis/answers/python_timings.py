"""Times that a script measured with Python's own clock, from the CSV and JSON files next to its captures.

A file counts if each of its rows names a case and a time. A case is named by `capture` (or `file`), or by size and
context length, with the mode if there are several. A time is `ms` or `s`, of the phase that `phase` names; or a column
such as `forward_ms`, `backward_mean_s` or `step_ms`, one for each phase. A row is one step, or the mean of several.
"""

import csv
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from profiler_job.analysis.answers.capture_facts import FACT_FILES, find_mode, spell_size
from profiler_job.jobs.contract.modes import MODES
from profiler_job.jobs.contract.ranges import ALL_PHASES, STEP

_UNITS = {"ms": 1e6, "s": 1e9, "sec": 1e9, "seconds": 1e9, "us": 1e3, "ns": 1.0}
_PHASES = {"fwd": "forward", "bwd": "backward", "opt": "optimizer", "optimizer_step": "optimizer", "total": STEP}
_TIME = re.compile(
    r"(?:(?P<phase>[a-z_]+?)_)?(?:(?:mean|avg|average|time|wall|median)_)*(?P<unit>ms|s|sec|seconds|us|ns)"
)
_CAPTURE, _SIZE = ("capture", "file", "report"), ("size", "model_size", "model")
_CONTEXT = ("context_length", "context", "ctx", "seq_len", "sequence_length", "seq_length")
_MOST_BYTES = 10_000_000


class PythonTime(NamedTuple):
    """One time by Python. case: name of a capture, or (size, context length, mode; "" not given)."""

    case: str | tuple[str, int, str]
    phase: str
    wall_ns: int
    source: str


def read_times(folder: Path) -> list[PythonTime]:
    """Read the times in the CSV and JSON files of a folder; files that hold something else are passed over."""
    times: list[PythonTime] = []
    for file in sorted((*folder.glob("*.csv"), *folder.glob("*.json"))):
        if file.name not in FACT_FILES and file.stat().st_size <= _MOST_BYTES:
            times += _read_file(file)
    return times


def _read_file(file: Path) -> list[PythonTime]:
    try:
        if file.suffix == ".csv":
            with open(file, encoding="utf-8-sig", newline="") as opened:
                rows: Any = [*csv.DictReader(opened)]
        else:
            rows = json.loads(file.read_text(encoding="utf-8"))
            rows = rows.get("timings", rows.get("results", [rows])) if isinstance(rows, dict) else rows
    except (OSError, ValueError, csv.Error, RecursionError):
        return []
    if not isinstance(rows, list):
        return []
    return [time for row in rows if isinstance(row, dict) for time in _read_row(row, file.name)]


def _read_row(row: Mapping[Any, Any], source: str) -> Iterable[PythonTime]:
    known = {str(key).strip().lower().replace(" ", "_").replace("-", "_"): value for key, value in row.items()}
    if (case := _find_case(known)) is None:
        return
    for key, value in known.items():
        match = _TIME.fullmatch(key)
        if not match:
            continue
        said = match["phase"] or str(known.get("phase") or "") or _imply_phase(case)
        phase = _PHASES.get(said.strip().lower(), said.strip().lower())
        if phase not in (*ALL_PHASES, STEP):
            continue
        for number in value if isinstance(value, list) else [value]:
            try:
                wall_ns = float(number) * _UNITS[match["unit"]]
            except (TypeError, ValueError):
                continue
            if math.isfinite(wall_ns) and wall_ns > 0:
                yield PythonTime(case, phase, round(wall_ns), source)


def _find_case(known: Mapping[str, Any]) -> str | tuple[str, int, str] | None:
    capture = next((str(known[name]) for name in _CAPTURE if known.get(name)), "")
    if capture:
        return capture
    size = next((str(known[name]) for name in _SIZE if known.get(name)), "")
    context = next((str(known[name]) for name in _CONTEXT if known.get(name)), "")
    if not size or not context.isdigit():
        return None
    mode = str(known.get("mode") or "")
    return spell_size(size), int(context), mode if mode in MODES else find_mode(mode)


def _imply_phase(case: str | tuple[str, int, str]) -> str:
    """Return what a time without a phase is of: a step of mode forward is its forward pass."""
    return "forward" if isinstance(case, tuple) and case[2] == "forward" else STEP
