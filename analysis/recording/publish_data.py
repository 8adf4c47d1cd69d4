"""Puts a recording into site/data, after showing all that becomes public by it and looking for what must not."""

import getpass
import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.recording import ingest, store
from jobs.contract.integrity import replace
from jobs.contract.privacy import PRIVATE, SECRET_VARIABLE
from jobs.contract.studies import STUDIES

LARGEST_BYTES = 25 * 2**20
"""Recordings live in git and are loaded by browsers."""

NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


class PublishError(ValueError):
    """A recording that cannot be published. The message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A text of the recording that looks private: `kind` of PRIVATE, where it is, and how it begins."""

    kind: str
    where: str
    beginning: str


def private_patterns(environment: Mapping[str, str] = os.environ) -> dict[str, re.Pattern]:
    """PRIVATE, and what this machine is called, who uses it, and which secrets its environment holds."""
    patterns = {kind: re.compile(pattern) for kind, pattern in PRIVATE.items()}
    user = getpass.getuser()
    for kind, word in (("host", socket.gethostname()), ("user", "" if user == "root" else user)):
        if word:
            patterns[f"this {kind}"] = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
    for name, value in environment.items():
        if SECRET_VARIABLE.search(name) and len(value) >= 8:
            patterns[f"value of {name}"] = re.compile(re.escape(value))
    return patterns


def scan(folder: Path, patterns: Mapping[str, re.Pattern]) -> list[Finding]:
    """What in the recording looks private: every distinct text of its tables, their metadata, and its manifest."""
    return [
        Finding(
            kind=kind,
            where=where,
            beginning=match.group()[: min(12, len(match.group()) // 2)] + "...",  # not the secret itself
        )
        for where, text in _texts(folder)
        for kind, pattern in patterns.items()
        if (match := pattern.search(text))
    ]


def _texts(folder: Path) -> Iterator[tuple[str, str]]:
    for file in sorted(folder.iterdir()):
        if file.suffix != ".parquet":
            for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
                yield f"{file.name}:{number}", line
            continue
        table = pq.read_table(file)
        for key, value in (table.schema.metadata or {}).items():
            yield f"{file.name}, metadata", f"{key.decode(errors='replace')}: {value.decode(errors='replace')}"
        for name in table.column_names:
            yield f"{file.name}, a column's name", name
            column = table[name].combine_chunks()
            if pa.types.is_dictionary(column.type):
                column = column.dictionary  # what is stored, also where no row uses it
            if pa.types.is_string(column.type):
                yield from ((f"{file.name}, {name}", text) for text in column.unique().to_pylist() if text)


def contents(folder: Path) -> list[str]:
    """What a recording holds, in lines for a person to read before it becomes public."""
    manifest = _manifest(folder)
    lines = [f"{'table':12} {'rows':>12} {'bytes':>12}  columns"]
    for name, size in manifest["tables"].items():
        columns = pq.read_schema(folder / f"{name}.parquet").names
        lines.append(f"{name:12} {size['rows']:>12,} {size['bytes']:>12,}  {', '.join(columns)}")
    lines += ["", "manifest.json"]
    for key, value in manifest.items():
        if key == "runs":
            lines += [f"  runs: {len(value)}", *(f"    {_status(run)}" for run in value)]
        elif key != "tables":
            lines.append(f"  {key}: {value}")
    total = sum(file.stat().st_size for file in folder.iterdir())
    return [*lines, "", f"{total:,} bytes in {len(list(folder.iterdir()))} files"]


def _status(run: dict) -> str:
    detail = " ".join(str(run[key]) for key in ("phase", "message") if run.get(key))
    return f"{run['run_id']:44} {run['status']} {detail}".rstrip()


def publish_data(
    source: Path,
    name: str,
    data: Path,
    confirm: Callable[[str], bool],
    show: Callable[[str], None] = print,
    study: str | None = None,
) -> Path | None:
    """Put the recording `source` (or the one made from results folder `source`) into `data/name`; returns that folder.
    `study` files it under another study than its sweep names.

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
    with tempfile.TemporaryDirectory(prefix=".publish-", dir=data) as draft:
        folder = _draft(source, Path(draft) / name)
        if study is not None:
            _write_manifest(folder, {"study": study})
        loaded = store.load(folder)
        for line in contents(folder):
            show(line)
        _check(folder, set(loaded.runs["run_id"].astype(str)), data / name)
        there = f" in place of the recording of {_created(data / name)}" if (data / name).exists() else ""
        if not confirm(f"Put this into {data / name}{there}, to be published with the site?"):
            return None
        replace(folder, data / name)
    return data / name


def _draft(source: Path, draft: Path) -> Path:
    if not (source / "manifest.json").is_file():
        if lost := ingest.lost_runs(ingest.ingest(source, draft, report=ingest.print_line)):
            raise PublishError(f"{source}: measured and cannot be recorded, see above: {', '.join(lost)}")
        return draft
    store.check_files(source, store.read_manifest(source))
    draft.mkdir()
    for file in (*(f"{table}.parquet" for table in store.TABLES), "manifest.json"):
        if (source / file).is_file():  # what is missing, loading says
            shutil.copyfile(source / file, draft / file)
    _write_manifest(draft, {"name": draft.name})
    return draft


def _write_manifest(folder: Path, changed: dict[str, str]) -> None:
    store.write_manifest(folder, store.read_manifest(folder) | changed)


def _created(folder: Path) -> str:
    return store.read_manifest(folder).get("created", "an unknown time")


def _manifest(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))


def _check(folder: Path, run_ids: set[str], target: Path) -> None:
    found = scan(folder, private_patterns())
    if found:
        listed = "\n".join(f"  {one.kind} in {one.where}: {one.beginning}" for one in found[:20])
        raise PublishError(
            f"{len(found)} texts look private, so nothing was published:\n{listed}\n"
            "Remove them at their source (the sweep's name, a status message, a run's log) and ingest again"
        )
    size = sum(file.stat().st_size for file in folder.iterdir())
    if size > LARGEST_BYTES:
        raise PublishError(
            f"{size / 2**20:.1f} MiB are too large for git and for browsers, which get {LARGEST_BYTES // 2**20} MiB at"
            " most: measure fewer runs"
        )
    study = _manifest(folder).get("study", "")
    for other in sorted(manifest.parent for manifest in target.parent.glob("[!.]*/manifest.json")):
        manifest = _manifest(other)
        others = {run["run_id"] for run in manifest["runs"]}
        if other.name != target.name and manifest.get("study", "") == study and run_ids & others:
            raise PublishError(
                f"{other} has {len(run_ids & others)} of the same runs, and the report cannot show a run"
                f" twice: publish as {other.name} to replace it, or remove it first"
            )
