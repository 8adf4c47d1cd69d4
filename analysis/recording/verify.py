"""Are results and recordings still what was written?"""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.ingest import ResultsError, read_plan
from profiler_job.analysis.recording.load_parts import load_recordings
from profiler_job.jobs.contract.integrity import DIGEST, find_damage
from profiler_job.jobs.contract.layout import (
    MANIFEST,
    RAW,
    RECORD,
    SWEEP,
    VERIFIED,
    FinishedRecord,
    RecordError,
    read_record,
)


@dataclass(kw_only=True)
class Verified:
    """The finished runs and recordings that `verify` checked: the damage of each; those that are `unsealed`: an older
    version wrote them, without SHA-256 of their files; and the runs of sweeps that are `unfinished`: they have no
    record, since they were not measured or it was lost."""

    num_runs: int = 0
    num_recordings: int = 0
    damage: dict[Path, str] = field(default_factory=dict)
    unsealed: list[Path] = field(default_factory=list)
    unfinished: list[Path] = field(default_factory=list)


def verify(folder: Path) -> Verified:
    """Compare every finished run and every recording in `folder`, or below it, with its record."""
    verified = Verified()
    for file in sorted(folder.rglob(RECORD)):
        if RAW not in file.relative_to(folder).parts[:1]:
            verified.num_runs += 1
            _verify_run(file, verified)
    for file in sorted(folder.rglob(SWEEP)):
        try:
            planned = [str(run) for run in read_plan(file).get("runs", [])]
        except ResultsError as error:
            verified.damage[file.parent] = str(error)
            continue
        verified.unfinished += [file.parent / run for run in planned if not (file.parent / run / RECORD).is_file()]
    for file in sorted(folder.rglob(MANIFEST)):
        verified.num_recordings += 1
        _verify_recording(file.parent, verified)
    return verified


def _verify_run(file: Path, verified: Verified) -> None:
    try:
        record = read_record(file, FinishedRecord)
    except RecordError as error:
        verified.damage[file.parent] = f"{file.name} is not a valid record of a run ({error.reason})"
        return
    if damage := find_damage(file.parent, record.files):
        verified.damage[file.parent] = damage
    elif record.schema_version < VERIFIED:
        verified.unsealed.append(file.parent)


def _verify_recording(folder: Path, verified: Verified) -> None:
    damage, manifest = [], {}
    try:
        manifest = store.read_manifest(folder)
        store.check_files(folder, manifest)
        with tempfile.TemporaryDirectory() as scratch:
            load_recordings([folder], Path(scratch))
    except store.RecordingError as error:
        damage.append(str(error))
    tables = manifest.get("tables", {})
    unknown = sorted({file.stem for file in folder.glob("*.parquet")} - tables.keys())
    if unknown and (tables or DIGEST in manifest):  # the oldest manifests list none
        names = ", ".join(f"{name}.parquet" for name in unknown)
        damage.append(f"{folder / MANIFEST} does not list {names}; delete what does not belong there")
    if damage:
        verified.damage[folder] = "; ".join(damage)
    elif DIGEST not in manifest or not all("sha256" in table for table in tables.values()):
        verified.unsealed.append(folder)
