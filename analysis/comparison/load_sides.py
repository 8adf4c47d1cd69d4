"""Load sides of comparisons from paths. A capture is measured once, and what it came to is kept next to it."""

import dataclasses
import os
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from profiler_job.analysis.capture.cached_tables import ENDING, CachedResult, keep_tables, load_tables
from profiler_job.analysis.capture.capture_cache import open_entry
from profiler_job.analysis.capture.profiles import find_profiles
from profiler_job.analysis.comparison.errors import ComparisonProblem, NotComparableError
from profiler_job.analysis.comparison.judge import measure
from profiler_job.analysis.comparison.sides import (
    CAPTURE_RUN,
    Side,
    is_capture,
    make_recording_side,
    parse_selection,
    select_runs,
)
from profiler_job.analysis.comparison.totals import MeasuredCase, Totals
from profiler_job.jobs.contract.layout import MANIFEST
from profiler_job.jobs.contract.words import format_count

_OF_SIDE = ("label", "has_steps", "recorded_at", "notes", "sequence")
_TABLES_OF_SIDE = ("runs", "steps", "kernels", "memops")
_TABLES_OF_TOTALS = ("kernels", "copies", "waits", "steps")
_BLOCKS, _LIMITS, _TOTALS = "blocks", "limits", "totals."


def load_side(path: Path, only: Iterable[str] = (), skip: int = 0) -> Side:
    """Read the side at `path`: a folder of a recording or of the results of a sweep, or a capture.

    only: KEY=VALUE of the runs to take. skip: number of first steps of a capture to leave out. Raises
    NotComparableError, and what reading it raises (RecordingError, ResultsError, ExportError).
    """
    if is_capture(path):
        _refuse_selection(path, only)
        from profiler_job.analysis.capture.nsys_export import read
        from profiler_job.analysis.comparison.capture_rows import make_capture_side

        return make_capture_side(read(path, details=False, grids=True), skip)
    parse_selection(only)  # before any reading
    from profiler_job.analysis.recording import ingest, store

    if (path / MANIFEST).is_file():
        return select_runs(make_recording_side(store.load(path)), only, path)
    with tempfile.TemporaryDirectory() as folder:
        recording = Path(folder) / (os.path.basename(os.path.realpath(path)) or "results")
        ingest.ingest(path, recording)
        return select_runs(make_recording_side(store.load(recording)), only, path)


def _refuse_selection(path: Path, only: Iterable[str]) -> None:
    """Raise NotComparableError if runs of a capture are chosen, which has one; or if `path` is a folder of others."""
    selection = parse_selection(only)
    _refuse_folder_of_others(path)
    if selection and path.exists():  # reading it refuses a path that does not exist
        raise NotComparableError(
            ComparisonProblem.BAD_OPTION, f"{path} is a capture of one run: leave {next(iter(selection))}=... out"
        )


def _refuse_folder_of_others(path: Path) -> None:
    """Raise NotComparableError if `path` is a folder that cannot be compared, but may hold some that can."""
    if not path.is_dir() or any(path.glob("*.parquet")):
        return
    from profiler_job.analysis.recording import store

    recordings, captures = store.recordings_in(path), find_profiles(path)
    for inside, what in ((recordings, "recording"), (captures, "capture")):
        if inside:
            raise NotComparableError(
                ComparisonProblem.NOT_A_RECORDING,
                f"{path} is a folder that holds {format_count(len(inside), what)}: give one of them, "
                f"such as {inside[0]}",
            )
    empty = "is empty" if not any(path.iterdir()) else "holds no recording, no results of a sweep and no capture"
    raise NotComparableError(
        ComparisonProblem.NOT_A_RECORDING,
        f"{path} {empty}: give the folder of a recording or of results, or a capture",
    )


def load_measured_side(
    path: Path, only: tuple[str, ...] = (), skip: int = 0, *, with_limits: bool = True, caches: bool = True
) -> Side:
    """Read the side at `path` as `load_side` does; of a capture only what it came to, and no rows of kernels.

    with_limits: whether its `limits` and its `sequence` are needed. caches: whether what it came to is kept next to the
    capture. Raises NotComparableError, and what reading it raises.
    """
    if not is_capture(path):
        return load_side(path, only)
    _refuse_selection(path, only)
    needed = open_entry([path], _list_options(skip, with_limits), ENDING, is_wanted=caches)
    others = [] if with_limits else [open_entry([path], _list_options(skip, True), ENDING, is_wanted=caches)]
    for entry in (needed, *others):
        if kept := load_tables(entry):
            return _unpack_side(kept)
    side = slim_capture_side(load_side(path, skip=skip), with_limits=with_limits)
    if needed:
        keep_tables(needed, _pack_side(side))
    return side


def load_together(paths: Sequence[Path], skip: int = 0) -> dict[Path, Side]:
    """Load small captures as `load_measured_side` does without limits. They are measured as the runs of one side: each
    table costs more time than their rows. Those that cannot be read, or all if one cannot be measured, are left out."""
    sides = {}
    for path in paths:
        with suppress(Exception):  # whatever a capture holds; who reads it alone learns why
            sides[path] = load_side(path, skip=skip)
    with suppress(Exception):
        measured = _measure_together([*sides.values()])
        return {path: slim_capture_side(side, with_limits=False) for path, side in zip(sides, measured, strict=True)}
    return {}


def _measure_together(sides: Sequence[Side]) -> list[Side]:
    """Return the sides of captures with what is measured of each."""
    tables = {
        name: pd.concat([getattr(side, name).assign(run_id=str(number)) for number, side in enumerate(sides)])
        for name in _TABLES_OF_SIDE
    }
    measured = measure(Side(label="", is_capture=True, **tables), [(str(number),) for number in range(len(sides))])
    totals = [replace(of.totals, steps=of.totals.steps.assign(run_id=CAPTURE_RUN)) for of in measured]
    return [replace(side, measured=replace(of, totals=of_side)) for side, of, of_side in zip(sides, measured, totals)]


def slim_capture_side(side: Side, *, with_limits: bool = True) -> Side:
    """Measure a capture, and drop its rows: there may be millions. Raises NotComparableError."""
    (measured,) = measure(side, [(CAPTURE_RUN,)])
    limits, sequence = None, ""
    if with_limits:
        from profiler_job.analysis.comparison.common_work import hash_sequence  # these take time to import
        from profiler_job.analysis.insight import run_limit

        limits = run_limit.split_steps(side.kernels, side.memops)
        sequence = "" if side.has_steps else hash_sequence(side)
    return replace(
        side,
        kernels=side.kernels[["run_id", "phase", "kernel_name"]].drop_duplicates(),
        steps=side.steps[:0],
        memops=side.memops[:0],
        measured=measured,
        limits=limits,
        sequence=sequence,
    )


def _list_options(skip: int, with_limits: bool) -> dict[str, Any]:
    return {"result": "side", "skip": skip, "with_limits": with_limits}


def _pack_side(side: Side) -> CachedResult:
    assert side.measured is not None
    totals = side.measured.totals
    scalars = {field.name: getattr(side.measured, field.name) for field in dataclasses.fields(side.measured)}
    scalars["totals"] = {"num": totals.num, "wall_ns": totals.wall_ns, "overlap_ns": totals.overlap_ns}
    scalars["totals"]["idle"] = totals.idle
    facts = {name: getattr(side, name) for name in _OF_SIDE} | {"measured": scalars}
    tables = {name: getattr(side, name).reset_index(drop=True) for name in _TABLES_OF_SIDE}
    tables |= {name: table for name in (_BLOCKS, _LIMITS) if (table := getattr(side, name)) is not None}
    tables |= {f"{_TOTALS}{name}": getattr(totals, name) for name in _TABLES_OF_TOTALS}
    return CachedResult(facts, tables)


def _unpack_side(result: CachedResult) -> Side:
    tables: dict[str, pd.DataFrame] = result.tables
    measured = dict(result.facts["measured"])
    totals = Totals(**measured.pop("totals"), **{name: tables[f"{_TOTALS}{name}"] for name in _TABLES_OF_TOTALS})
    samples = {name: tuple(times) for name, times in measured.pop("samples").items()}
    energies = tuple(measured.pop("energies"))
    return Side(
        is_capture=True,
        **{name: result.facts[name] for name in _OF_SIDE},
        **{name: tables[name] for name in _TABLES_OF_SIDE},
        blocks=tables.get(_BLOCKS),
        limits=tables.get(_LIMITS),
        measured=MeasuredCase(totals=totals, samples=samples, energies=energies, **measured),
    )
