"""Puts a recording into site/data, after showing all that becomes public by it and looking for what must not."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from profiler_job.analysis.recording import allowed, ingest, store
from profiler_job.analysis.recording.load_parts import load_recordings
from profiler_job.analysis.recording.scan import HASHED_NAMES, Scanner
from profiler_job.analysis.reference.python_libraries import is_library
from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.integrity import clear, restore
from profiler_job.jobs.contract.layout import MANIFEST
from profiler_job.jobs.contract.outputs import check_folder, is_recording, replace_folder
from profiler_job.jobs.contract.printable import make_printable, print_line
from profiler_job.jobs.contract.quantities import format_size
from profiler_job.jobs.contract.studies import STUDIES, find_study_folder

LARGEST_BYTES = 25 * 2**20
"""Recordings live in git and are loaded by browsers."""

NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


class PublishError(ProfilerError, ValueError):
    """A recording that cannot be published. The message says why and what to do."""


def _describe_contents(folder: Path, recording: store.Recording) -> list[str]:
    """List what a recording holds, in lines for a person to read before it becomes public."""
    manifest = store.read_manifest(folder)
    lines = [f"{'table':12} {'rows':>12} {'bytes':>12}  columns"]
    for name, size in manifest["tables"].items():
        columns = pq.read_schema(folder / f"{name}.parquet").names
        lines.append(f"{name:12} {size['rows']:>12,} {size['bytes']:>12,}  {', '.join(columns)}")
    lines += ["", MANIFEST]
    for key, value in manifest.items():
        if key == "runs":
            lines += [f"  runs: {len(value)}", *(f"    {_status(run)}" for run in value)]
        elif key != "tables":
            lines.append(f"  {key}: {value}")
    total = sum(file.stat().st_size for file in folder.iterdir())
    lines += ["", f"{total:,} bytes in {len(list(folder.iterdir()))} files"]
    return [*lines, *_logs(recording.runs), *_sources(recording)]


def _sources(recording: store.Recording) -> list[str]:
    """Return the lines of a user's script that are named, each once."""
    tables = [recording.waits, recording.sync_calls, notes := recording.compile_notes]
    named = [f"{where} {function}" for rows in tables for where, function in zip(rows["where"], rows["function"])]
    named += _list_own_frames(recording.wait_stacks["stack"].astype(str))
    named = [*filter(str.strip, named), *(f"torch.compile: {reason}" for reason in notes["reason"])]
    if not named:
        return []
    return [
        "",
        "lines of the script that are named (--private leaves them out):",
        *sorted({f"  {name}" for name in named}),
    ]


def _list_own_frames(stacks: Iterable[str]) -> Iterator[str]:
    """Yield the frames of stacks that are of a user's files: file, line and function."""
    for frame in {frame for stack in stacks for frame in stack.split(";")}:
        function, is_frame, where = frame.removesuffix(")").rpartition(" (")
        if is_frame and not is_library(where):
            yield f"{where} {function}"


def _logs(runs: pd.DataFrame) -> list[str]:
    """Return the text of logs, each distinct one once."""
    lines = []
    for log, run_ids in runs.groupby("log", sort=False)["run_id"]:
        others = f" and {len(run_ids) - 1} more" if len(run_ids) > 1 else ""
        lines += ["", f"log of {run_ids.iloc[0]}{others}:"]
        lines += [f"  {line}" for line in log.splitlines()]
    return lines


def _status(run: dict[str, Any]) -> str:
    detail = " ".join(str(run[key]) for key in ("phase", "message") if run.get(key))
    return f"{run['run_id']:44} {run['status']} {detail}".rstrip()


def publish_data(
    source: Path,
    name: str,
    data: Path,
    confirm: Callable[[str], bool],
    show: Callable[[str], None] = print,
    study: str | None = None,
    with_captures: bool = True,
    is_private: bool = False,
    more_tables: Sequence[ingest.ReadTables] = (),
) -> Path | None:
    """Put the recording `source` (or the one made from results folder `source`) into `data/STUDY/name`, where STUDY is
    `main` for a default sweep; returns that folder. `study` files it under another study than its sweep names. Without
    captures it holds what was timed, and is a fraction as large. is_private: it names no file of a user's script.
    more_tables: see `ingest`.

    Shows what it holds first, then asks `confirm`, and returns None when that says no. Raises PublishError for a name
    that cannot be a folder, a study that no question is about, a recording with anything private in it, one too large,
    and one whose runs are on the site under another name; RecordingError and ResultsError where `source` cannot be
    read.
    """
    if not NAME.fullmatch(name):
        raise PublishError(f"{name} cannot be a name: use small letters, digits, dots, - and _, such as h100-bf16")
    if study is not None and study not in STUDIES:
        raise PublishError(f"no question is about a study {study}: choose one of {', '.join(STUDIES)}")
    data.mkdir(parents=True, exist_ok=True)
    store.recordings_in(data)  # what a killed publication had moved aside is there again, whatever comes of this one
    with _draft(data / f".{name}.draft") as draft:
        recording = _recording(source, draft / "ingested", more_tables)
        manifest = store.read_manifest(recording)
        folder = draft / name
        changed = {"name": name} | ({} if study is None else {"study": study})
        target = data / find_study_folder(study if study is not None else manifest.get("study", "")) / name
        check_folder(target, is_recording)
        left_out = allowed.rewrite(recording, folder, manifest | changed, with_captures, is_private)
        (scratch := draft / "parts").mkdir()
        (written,) = load_recordings([folder], scratch)
        run_ids = set(written.runs["run_id"].astype(str))
        for line in _describe_contents(folder, written):
            show("".join(char if char.isprintable() else " " for char in line))  # nothing moves the terminal's cursor
        if not with_captures:
            show("left out, as asked: what nsys recorded")
        for what in left_out:
            show(make_printable(f"left out, since no recording has it: {what}"))
        _check(folder, Scanner(manifest.get(HASHED_NAMES, ())), run_ids, target)
        there = f" in place of the recording of {_created(target)}" if target.exists() else ""
        if not confirm(f"Put this into {target}{there}, to be published with the site?"):
            return None
        target.parent.mkdir(exist_ok=True)
        replace_folder(folder, target, is_recording)
    return target


@contextmanager
def _draft(folder: Path) -> Iterator[Path]:
    """Give a folder to write in. It is removed in the end, and also before, since a killed publication leaves it."""
    clear(folder)
    folder.mkdir()
    try:
        yield folder
    finally:
        clear(folder)


def _recording(source: Path, draft: Path, more_tables: Sequence[ingest.ReadTables]) -> Path:
    """Return `source` itself, or the recording in `draft` that is made from its results."""
    restore(source)
    if not (source / MANIFEST).is_file():
        if lost := ingest.lost_runs(ingest.ingest(source, draft, emit=print_line, more_tables=more_tables)):
            raise PublishError(f"{source}: measured and cannot be recorded, see above: {', '.join(lost)}")
        return draft
    store.check_files(source, store.read_manifest(source))
    return source


def _created(folder: Path) -> str:
    """Return when the recording that is to be replaced was made."""
    try:
        return str(store.read_manifest(folder).get("created", "an unknown time"))
    except store.RecordingError:
        return "an unknown time"


def _check(folder: Path, scanner: Scanner, run_ids: set[str], target: Path) -> None:
    findings = scanner.scan(folder)
    if findings:
        listed = "\n".join(f"  {finding}" for finding in findings[:20])
        raise PublishError(
            f"{len(findings)} texts look private, so nothing was published:\n{listed}\n"
            "Remove them at their source (the sweep's name, a status message, a run's log) and ingest again"
        )
    size = sum(file.stat().st_size for file in folder.iterdir())
    if size > LARGEST_BYTES:
        raise PublishError(
            f"{format_size(size)} are too large for git and for browsers, which get {format_size(LARGEST_BYTES)} at"
            " most: measure fewer runs, or leave out what nsys recorded (--without-captures)"
        )
    study = store.read_manifest(folder).get("study", "")
    for other in store.recordings_in(target.parent):
        if other.name == target.name:
            continue
        manifest = store.read_manifest(other)
        others = {run["run_id"] for run in manifest["runs"]}
        if manifest.get("study", "") == study and run_ids & others:
            raise PublishError(
                f"{other} has {len(run_ids & others)} of the same runs, and the report cannot show a run"
                f" twice: publish as {other.name} to replace it, or remove it first"
            )
