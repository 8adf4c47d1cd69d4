"""From what each of several machines recorded of one run of a script, its own ranks, to the results of that run."""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from profiler_job.analysis.recording.ingest import ResultsError, check_files_only, read_finished, read_json, read_plan
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.integrity import add_digest, clear, find_damage, read_all_facts
from profiler_job.jobs.contract.layout import (
    CAPTURE,
    LOG,
    MERGED,
    NSYS_LOG,
    NSYS_SUMS_FILE,
    RECORD,
    SCRIPT,
    SWEEP,
    TIMINGS,
    FinishedRecord,
    name_node_file,
)
from profiler_job.jobs.contract.outputs import is_merged, replace_folder

_OF_NODE = re.compile(r"-node-\d+$")
_OF_EACH = (CAPTURE, NSYS_SUMS_FILE, LOG, NSYS_LOG)
"""Files of a run that are kept for each machine."""


@dataclass(frozen=True, kw_only=True)
class _Part:
    """What a machine recorded. folder: of the run."""

    folder: Path
    record: FinishedRecord
    timings: dict[str, list[dict[str, Any]]]

    @property
    def ranks(self) -> list[int]:
        return sorted({row["rank"] for row in self.timings["steps"]})


def are_nodes(folders: Sequence[Path]) -> bool:
    """Whether these are results of scripts: each of one run."""
    return all(read_plan(folder / SWEEP).get(SCRIPT) for folder in folders)


def read_nodes(folders: Sequence[Path]) -> list[_Part]:
    """Read what the machines recorded, by rank. Raises ResultsError if that is not all of one run."""
    parts = sorted((_read(folder) for folder in folders), key=lambda part: part.ranks)
    first = parts[0]
    for part in parts[1:]:
        if not part.record.shared_id or part.record.shared_id != first.record.shared_id:
            raise ResultsError(
                f"{first.folder} and {part.folder} are not said to be of one run on several machines: give what the"
                " same `profile` left on each of them, which its machines began together",
                exit_code=ExitCode.USAGE,
            )
    for part, after in pairwise(parts):
        if shared := sorted({*part.ranks} & {*after.ranks}):
            raise ResultsError(
                f"{part.folder} and {after.folder} both have rank {shared[0]}: remove one of the two",
                exit_code=ExitCode.USAGE,
            )
    here = [rank for part in parts for rank in part.ranks]
    if missing := sorted({*range(int(first.record.run.get("gpus") or 1))} - {*here}):
        listed = ", ".join(map(str, missing))
        raise ResultsError(
            f"no folder has rank {listed}: give the folders of all machines of {first.folder.name}",
            exit_code=ExitCode.USAGE,
        )
    return parts


def _read(folder: Path) -> _Part:
    check_files_only(folder)
    runs = [file.parent for file in folder.glob(f"*/{RECORD}")]
    if len(runs) != 1:
        raise ResultsError(
            f"{folder} holds {len(runs)} runs, and a script is one: profile it again", exit_code=ExitCode.USAGE
        )
    record, timings = read_finished(runs[0]), read_json(runs[0] / TIMINGS)
    if damage := find_damage(runs[0], record.files):
        raise ResultsError(f"{folder}: {damage}; copy it again")
    rows = timings.get("steps")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) and "rank" in row for row in rows):
        raise ResultsError(f"{runs[0] / TIMINGS} has no steps with ranks: profile the script again")
    return _Part(folder=runs[0], record=record, timings=timings)


def name_of(parts: Sequence[_Part], out: Path) -> str:
    """Return the name of the run: the name of its parts without the number of a machine."""
    names = {_OF_NODE.sub("", part.record.run_id) for part in parts}
    return names.pop() if len(names) == 1 else out.name


def write_nodes(parts: Sequence[_Part], name: str, out: Path) -> None:
    """Write the run with the ranks of all machines to the results folder `out`, which is whole or not there."""
    draft = out.with_name(f".{out.name}.draft")
    clear(draft)
    run = draft / name
    run.mkdir(parents=True)
    for node, part in enumerate(parts):
        for file in _OF_EACH:
            if (part.folder / file).is_file():
                shutil.copy(part.folder / file, run / name_node_file(file, node))
    tables = {table: [row for part in parts for row in part.timings.get(table, [])] for table in parts[0].timings}
    (run / TIMINGS).write_text(json.dumps(tables, indent=1), encoding="utf-8")
    records = [part.record for part in parts]
    record = records[0].model_copy(
        update={
            "run_id": name,
            "hashed_names": sorted({hashed for record in records for hashed in record.hashed_names}),
            "started_at": min((record.started_at for record in records if record.started_at), default=None),
            "ended_at": max((record.ended_at for record in records if record.ended_at), default=None),
            "wall_s": max((record.wall_s for record in records if record.wall_s is not None), default=None),
            "files": read_all_facts(run.iterdir()),
        }
    )
    (run / RECORD).write_text(json.dumps(add_digest(record.model_dump(mode="json")), indent=1), encoding="utf-8")
    plan = {"sweep": name, SCRIPT: True, "runs": [name]}
    (draft / SWEEP).write_text(json.dumps(plan, indent=1), encoding="utf-8")
    merged = {"shards": [part.folder.name for part in parts]}
    (draft / MERGED).write_text(json.dumps(merged), encoding="utf-8")
    replace_folder(draft, out, is_merged)
