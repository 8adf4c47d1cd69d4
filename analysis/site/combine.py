"""Several recordings as one, and parts of a recording."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from profiler_job.analysis.recording import store, table_schema
from profiler_job.analysis.recording.load_parts import LARGE
from profiler_job.analysis.recording.run_table import RunTable, join_parts, keep_runs, number_rows
from profiler_job.analysis.render.text import file_name
from profiler_job.jobs.contract.plain import PLAIN
from profiler_job.jobs.contract.studies import AGAIN, LADDER, OPTIMIZER, PRECISION

BY_TURNS = (PRECISION, OPTIMIZER)
"""Studies of one change, called as its axis: without a recording of its own, the turns of LADDER answer its question.
"""
PARTS = "parts"
"""Key of the manifests of joined recordings, in the manifest of all."""


def refuse_doubled_runs(recordings: Mapping[Path, store.Recording]) -> None:
    """Raises RecordingError, which names the recordings, where two of them hold the same run."""
    holders: dict[str, list[Path]] = {}
    for folder, rec in recordings.items():
        for run_id in rec.runs["run_id"].astype(str):
            holders.setdefault(run_id, []).append(folder)
    doubled = {run_id: folders for run_id, folders in holders.items() if len(folders) > 1}
    if doubled:
        folders = dict.fromkeys(folder for run in doubled.values() for folder in run)
        run_id = next(iter(doubled))
        more = f" and {len(doubled) - 1} more" if len(doubled) > 1 else ""
        raise store.RecordingError(
            f"the recordings {list_names(folders)} hold the same runs ({run_id}{more}): choose one with --recording"
        )


def refuse_colliding_pages(rec: store.Recording) -> None:
    """Raise RecordingError if two runs of a recording would have one page: names of files lack some characters, are
    cut, and on some file systems do not distinguish capitals."""
    held: dict[str, str] = {}
    for run_id in rec.runs["run_id"].astype(str):
        other = held.setdefault(file_name(run_id).casefold(), run_id)
        if other != run_id:
            name = rec.manifest.get("name") or "a recording"
            raise store.RecordingError(
                f"the runs {other} and {run_id} of {name} would have one page: measure one of them under another name"
            )


def list_names(folders: Iterable[Path]) -> str:
    """Their names, or their paths where names are the same."""
    paths = list(folders)
    names = {path.name for path in paths}
    return ", ".join(path.name if len(names) == len(paths) else str(path) for path in paths)


def join_recordings(recordings: list[store.Recording]) -> store.Recording:
    """Several recordings, no run in two of them, as one."""
    first, *others = recordings
    if not others:
        return first
    run_ids = pd.concat([rec.runs["run_id"].astype(str) for rec in recordings])
    tables = {name: join_tables([getattr(rec, name) for rec in recordings]) for name in table_schema.TABLES}
    missing = dict.fromkeys(run for rec in recordings for run in rec.manifest.get("not_run", ()))
    not_run = [run for run in missing if run not in set(run_ids)]
    name = ", ".join(dict.fromkeys(str(rec.manifest.get("name", "")) for rec in recordings))
    rates: list[Any] = next((known for rec in recordings if (known := rec.manifest.get("calibration"))), [])
    manifest = first.manifest | {"not_run": not_run, "name": name, "calibration": rates}
    manifest[PARTS] = [rec.manifest for rec in recordings]
    return store.Recording(manifest=manifest, **tables)


def join_tables(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """Rows of several tables below each other. What is a category in the first is one, of all values in order: left to
    itself pandas makes text of it, row by row."""
    if isinstance(frames[0], RunTable):
        return join_parts(frames)
    kinds = {}
    for name, kind in frames[0].dtypes.items():  # a run out of memory has columns of its own
        if isinstance(kind, pd.CategoricalDtype):
            held = [frame[name].astype("category") for frame in frames if name in frame]
            kinds[name] = pd.CategoricalDtype(sorted({value for column in held for value in column.cat.categories}))
    frames = [frame.astype({name: kind for name, kind in kinds.items() if name in frame}) for frame in frames]
    return pd.concat(frames, ignore_index=True)


def select_finished_runs(rec: store.Recording) -> store.Recording:
    """`rec` with what was measured of finished runs only: from a run that ran out of memory no number is derived, not
    even for the phases that it reached. It stays in `runs` and `memory`."""
    finished = rec.runs.loc[rec.runs["status"].astype(str) == "ok", "run_id"].astype(str)
    if len(finished) == len(rec.runs):
        return rec
    measured = {name: getattr(rec, name) for name in ("steps", "ranges", "kernels", "api", "memops")}
    return replace(rec, **{name: number_rows(keep_runs(rows, {*finished})) for name, rows in measured.items()})


def leave_out_operations(rec: store.Recording) -> store.Recording:
    """`rec` for a process that does not read its large tables, which are None."""
    nothing: dict[str, Any] = dict.fromkeys(LARGE)
    return replace(rec, **nothing)


def select_runs(rec: store.Recording, run_ids: list[str]) -> store.Recording:
    """`rec` with these runs and no others."""
    tables = {}
    for name in table_schema.TABLES:
        frame = getattr(rec, name)
        if isinstance(frame, RunTable) or "run_id" in frame:
            tables[name] = number_rows(keep_runs(frame, run_ids))
    return replace(rec, **tables)


def find_studies_by_turns(studies: Mapping[str, store.Recording]) -> dict[str, store.Recording]:
    """Return what answers for each of BY_TURNS that has no recording: the runs of LADDER that took turns with others
    that differ from them in its axis alone, and are plain but for it. A study is missing where there are none."""
    if LADDER not in studies:
        return {}
    rec = studies[LADDER]
    groups = rec.processes.loc[rec.processes["group"].astype(str) != "", ["run_id", "group"]].drop_duplicates()
    turned = rec.runs.merge(groups.astype({"run_id": str}), on="run_id")
    by_study = {}
    for axis in BY_TURNS:
        is_plain = [turned[name].astype(str) == value for name, value in PLAIN.items() if name != axis]
        runs = turned[pd.concat(is_plain, axis=1).all(axis=1)]
        run_ids = runs.loc[runs.groupby("group")[axis].transform("nunique") > 1, "run_id"].unique()
        if axis not in studies and len(run_ids):
            chosen = select_runs(rec, [*run_ids])
            by_study[axis] = replace(chosen, manifest=choose_manifest(rec.manifest, {*run_ids}))
    return by_study


def choose_manifest(joined: dict[str, Any], run_ids: set[str]) -> dict[str, Any]:
    """Return the manifest of a recording of some runs of joined ones: name and date are of those that hold them."""
    parts: list[dict[str, Any]] = joined.get(PARTS, [joined])
    used = [part for part in parts if run_ids & {run["run_id"] for run in part.get("runs", ())}] or parts
    name = ", ".join(str(part.get("name", "")) for part in used)
    return used[-1] | {"name": name, "calibration": joined.get("calibration", []), PARTS: used}


def name_recordings(rec: store.Recording, studies: Mapping[str, store.Recording]) -> dict[str, store.Recording]:
    """The recordings that show what changes give, by the names that pages call them: the main one first. Another
    recording of its runs has none of these changes."""
    others = {study: other for study, other in studies.items() if study != AGAIN}
    return {str(rec.manifest.get("name", "main")): rec, **others}


def find_rates(recordings: Iterable[store.Recording]) -> pd.DataFrame:
    """The peak rates of the first recording that has them; no rows where none has."""
    columns = ["figure", "unit", "value", "low", "high", "repeats", "gpu_name"]
    for rec in recordings:
        if rec.manifest.get("calibration"):
            return pd.DataFrame([{"gpu_name": "", **rate} for rate in rec.manifest["calibration"]])[columns]
    return pd.DataFrame(columns=columns)


def select_rates(runs: pd.DataFrame, calibration: pd.DataFrame) -> pd.DataFrame:
    """The rates measured on a GPU that `runs` were measured on, or on one that is not recorded: the rates of another
    GPU do not apply to these runs."""
    return calibration[calibration["gpu_name"].isin({"", *runs["gpu_name"].astype(str)})]
