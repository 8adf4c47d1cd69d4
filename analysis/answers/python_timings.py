"""Times that a script measured with Python's own clock, from the CSV and JSON files next to its captures.

A file counts if each of its rows names a case and a time. A case is named by `capture` (or `file`), or by size and
context length, with the mode if there are several. A time is `ms` or `s`, of the phase that `phase` names; or a column
such as `forward_ms`, `Backward mean (s)` or `avg_step_time_ms`, one for each phase. A column named after a mode, such
as `fwd_bwd_ms`, is of a step of that mode. A row is one step, or the mean of several. A time without a unit does not
count.
"""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from profiler_job.analysis.answers.capture_facts import FACT_FILES, find_mode, spell_size
from profiler_job.jobs.contract.modes import MODES
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.ranges import ALL_PHASES, STEP

_UNITS = {"ms": 1e6, "msec": 1e6, "milliseconds": 1e6, "s": 1e9, "sec": 1e9, "secs": 1e9, "seconds": 1e9}
_UNITS |= {"us": 1e3, "µs": 1e3, "ns": 1.0}
_PHASES = {"fwd": "forward", "bwd": "backward", "opt": "optimizer", "optimizer_step": "optimizer", "total": STEP}
_OF_TIMES = {
    "mean",
    "avg",
    "average",
    "median",
    "time",
    "times",
    "wall",
    "elapsed",
    "duration",
    "latency",
    "pass",
    "p50",
}
"""Words of a column that say nothing about what was timed."""
_SPREADS = {"std", "stdev", "stddev", "var", "variance", "min", "max", "sem", "ci", "cv", "err", "p90", "p95", "p99"}
_CAPTURE, _SIZE = ("capture", "file", "report"), ("size", "model_size", "model", "model_name", "config")
_CONTEXT = (
    *("context_length", "context", "ctx", "ctx_len", "context_len"),
    *("seq", "seq_len", "seqlen", "seq_length", "sequence_length"),
)
_MODE = ("mode", "pass_type", "pass", "benchmark_type", "run_type")
_NUMBER = re.compile(r"\s*(\d[\d,]*(?:\.\d*)?(?:e[-+]?\d+)?)\s*(?:(?:±|\+/-|\().*)?", re.IGNORECASE)
_MOST_BYTES = 10_000_000
ANY_CONTEXT = 0
"""Context length of a time whose row names none."""


class PythonTime(NamedTuple):
    """One time by Python. case: name of a capture, or (size, context length, mode; "" not given)."""

    case: str | tuple[str, int, str]
    phase: str
    wall_ns: int
    source: str


def read_times(folder: Path) -> tuple[list[PythonTime], dict[str, str]]:
    """Read the times in the CSV and JSON files of a folder, and what is wrong with a file that seems to have some, by
    its name; files that hold something else are passed over."""
    times: list[PythonTime] = []
    problems: dict[str, str] = {}
    for file in sorted(path for path in folder.glob("*") if path.suffix.lower() in (".csv", ".tsv", ".json", ".jsonl")):
        if file.name in FACT_FILES or not file.is_file() or file.stat().st_size > _MOST_BYTES:
            continue
        rows = _read_rows(file)
        of_file = [time for row in rows for time in _read_row(row, file.name)]
        times += of_file
        if not of_file and (columns := _find_columns(rows)):
            problems[file.name] = _explain_unread(columns)
    return times, problems


def _read_rows(file: Path) -> list[dict[str, Any]]:
    """Read the rows of a file, with plain names of columns; none if it holds something else."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        if file.suffix.lower() in (".csv", ".tsv"):
            head = text.partition("\n")[0]
            separator = max(",;\t", key=head.count)
            rows: Any = [*csv.DictReader(text.splitlines(), delimiter=separator)]
        elif file.suffix.lower() == ".jsonl":
            rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        else:
            rows = json.loads(text)
            rows = rows.get("timings", rows.get("results", [rows])) if isinstance(rows, dict) else rows
    except (OSError, ValueError, csv.Error, RecursionError):
        return []
    if not isinstance(rows, list):
        return []
    return [{_name_plainly(key): value for key, value in row.items()} for row in rows if isinstance(row, dict)]


def _name_plainly(key: object) -> str:
    """Return the name of a column as words: "Forward mean (ms)" is forward_mean_ms."""
    return re.sub(r"[^\wµ]+", "_", str(key).strip().lower()).strip("_")


def _read_row(row: Mapping[str, Any], source: str) -> Iterable[PythonTime]:
    if (case := _find_case(row)) is None:
        return
    for key, value in row.items():
        words, unit = _split_column(key)
        if not unit or words is None:
            continue
        name = "_".join(words) or str(row.get("phase") or "").strip().lower() or _imply_phase(case)
        phase, of_mode = _PHASES.get(name, name), find_mode(name)
        timed = case
        if phase not in (*ALL_PHASES, STEP):
            if not of_mode or isinstance(case, str):
                continue
            phase, timed = STEP, (*case[:2], of_mode)
        for number in value if isinstance(value, list) else [value]:
            wall_ns = _read_number(number) * _UNITS[unit]
            if math.isfinite(wall_ns) and wall_ns > 0:
                yield PythonTime(timed, phase, round(wall_ns), source)


def _split_column(key: str) -> tuple[list[str] | None, str]:
    """Split the name of a column into the words for what was timed, and the unit; no words for a spread."""
    words = key.split("_")
    units = [word for place, word in enumerate(words) if word in _UNITS and (word != "s" or place == len(words) - 1)]
    if _SPREADS & {*words} or len(units) > 1:
        return None, ""
    return [word for word in words if word not in _OF_TIMES and word not in units], units[0] if units else ""


def _read_number(value: Any) -> float:
    """Return the number in a cell, as of "19.8 ± 0.1"; NaN if there is none."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    return float(match[1].replace(",", "")) if match else math.nan


def _find_case(row: Mapping[str, Any]) -> str | tuple[str, int, str] | None:
    capture = next((str(row[name]) for name in _CAPTURE if row.get(name)), "")
    if capture:
        return capture
    size = next((str(row[name]) for name in _SIZE if row.get(name)), "")
    context = next((row[name] for name in _CONTEXT if row.get(name)), None)
    length = ANY_CONTEXT if context is None else _read_number(context)
    if not size or not float(length).is_integer():
        return None
    mode = next((str(row[name]) for name in _MODE if row.get(name)), "")
    if str(row.get("forward_only")).strip().lower() in ("true", "1"):
        mode = mode or "forward"
    return spell_size(size), int(length), mode if mode in MODES else find_mode(mode)


def _imply_phase(case: str | tuple[str, int, str]) -> str:
    """Return what a time without a phase is of: a step of mode forward is its forward pass."""
    return "forward" if isinstance(case, tuple) and case[2] == "forward" else STEP


def _find_columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Find the columns that seem to be times of a phase, by their names."""
    timed = {"forward", "fwd", "backward", "bwd", "optimizer", STEP}
    keys = dict.fromkeys(key for row in rows for key in _list_keys(row))
    return [key for key in keys if timed & {*key.split("_")} and {*_UNITS, *_OF_TIMES} & {*key.split("_")}]


def _list_keys(value: Any, depth: int = 0) -> Iterator[str]:
    """List the names of columns in a row, and of those in what it holds."""
    if isinstance(value, dict) and depth < 5:
        for key, inner in value.items():
            yield _name_plainly(key)
            yield from _list_keys(inner, depth + 1)


def _explain_unread(columns: list[str]) -> str:
    name = make_printable(columns[0])
    if not any(_split_column(column)[1] for column in columns):
        return f"its times have no unit: name the column {name}_ms or {name}_s instead of {name}"
    return "its times name no case: give each row a capture, or size, context_length and mode"
