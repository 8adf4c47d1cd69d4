"""From the results of several machines to the results of one sweep, as if one machine had measured it."""

import filecmp
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profiler_job.analysis.recording.ingest import ResultsError, check_files_only, read_finished, read_plan
from profiler_job.analysis.recording.merge_nodes import are_nodes, name_of, read_nodes, write_nodes
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.integrity import clear, find_damage, restore
from profiler_job.jobs.contract.layout import (
    ALL_RUNS,
    CALIBRATION,
    CAPTURE,
    IN_FLIGHT,
    MACHINE_FIELDS,
    MERGED,
    RAW,
    RECORD,
    SHARDS,
    SWEEP,
    FinishedRecord,
    Machine,
)
from profiler_job.jobs.contract.outputs import check_folder, is_merged, replace_folder
from profiler_job.jobs.contract.versions import COMPARED, find_mixed_facts, format_counts


@dataclass(kw_only=True)
class Merged:
    """What `merge` did: `runs` in the order of the sweep; `missing` run_id -> why; `copies` kept once; `modes` of the
    runs, none for a script."""

    sweep: str
    runs: list[str]
    missing: dict[str, str] = field(default_factory=dict)
    copies: dict[str, list[Path]] = field(default_factory=dict)
    modes: set[str] = field(default_factory=set)


def merge(
    folders: Sequence[Path], out: Path, emit: Callable[[str], None] = lambda line: None, *, allow_mix: bool = False
) -> Merged:
    """Join the shards in `folders` (shard folders, or folders that hold them) into the results folder `out`.

    The result equals what one machine writes: the same sweep.json, and the folder of each finished run. If `profile`
    measured a script on several machines, the result has the ranks of all of them in one run. A run that no shard
    finished is missing; equal copies of a run are kept once. `emit` gets a line for each of them, and for facts that
    differ between machines. Raises ResultsError if shards belong to different sweeps, if two shards hold different
    measurements of a run, if runs were measured with different versions (unless `allow_mix`), if ranks of a script are
    missing or there twice, and if `out` cannot be replaced.
    """
    restore(out)
    shards = _find_shards(folders)
    _check_out(out, shards)
    if are_nodes(shards):
        parts = read_nodes(shards)
        _compare_machines([part.record.machine for part in parts], allow_mix, emit)
        name = name_of(parts, out)
        write_nodes(parts, name, out)
        return Merged(sweep=name, runs=[name])
    for shard in shards:
        check_files_only(shard)
    plan = _read_common_plan(shards)
    holders: dict[str, list[Path]] = {run_id: [] for run_id in plan["runs"]}
    machines: dict[str, Machine] = {}
    modes: dict[str, str] = {}
    merged = Merged(sweep=plan["sweep"], runs=[])
    for shard in shards:
        for file in sorted(shard.glob(f"*/{RECORD}")):
            run_id = file.parent.name
            if run_id not in holders:
                emit(f"{run_id}: in {shard}, but not in the sweep; left out")
            elif difference := _find_other_parameter(record := read_finished(file.parent), plan):
                merged.missing[run_id] = f"{shard} measured it with another {difference}"
            elif damage := find_damage(file.parent, record.files):
                merged.missing[run_id] = f"{shard} finished it, but {damage}; copy it again, or run that shard again"
            elif _lost_its_capture(record, file.parent):
                merged.missing[run_id] = f"{shard} finished it, but its {CAPTURE} is not there; copy it again"
            else:
                holders[run_id].append(file.parent)
                machines.setdefault(run_id, record.machine)
                modes[run_id] = str(record.run.get("mode", ""))
    for run_id, places in holders.items():
        if not places:
            merged.missing.setdefault(run_id, _explain_missing(run_id, shards))
            emit(f"{run_id}: missing; {merged.missing[run_id]}")
            continue
        merged.missing.pop(run_id, None)
        merged.runs.append(run_id)
        merged.modes.add(modes[run_id])
        if len(places) > 1:
            _check_copies(run_id, places)
            merged.copies[run_id] = places
            emit(f"{run_id}: {len(places)} equal copies, kept once ({_list_places(places)})")
    _compare_machines([machines[run_id] for run_id in merged.runs], allow_mix, emit)
    _write(out, plan, {run_id: holders[run_id][0] for run_id in merged.runs}, shards)
    return merged


def _find_shards(folders: Sequence[Path]) -> list[Path]:
    """Find the folders that hold runs: the given ones, or the shards below them."""
    shards: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise ResultsError(
                f"{folder} is not a folder: give shard folders, or the folder that holds them", exit_code=ExitCode.USAGE
            )
        below = [*folder.glob(SHARDS), *(shard for shard in folder.glob(f"*/{SHARDS}") if shard.parent.name != RAW)]
        held = sorted((shard for shard in below if (shard / SWEEP).is_file()), key=_make_sort_key)
        sweeps = sorted({str(shard.parent) for shard in held})
        if len(sweeps) > 1:
            raise ResultsError(
                f"{folder} holds shards of several sweeps ({', '.join(sweeps)}): give the folder of one",
                exit_code=ExitCode.USAGE,
            )
        if (folder / SWEEP).is_file():
            held.append(folder)
        if not held:
            raise ResultsError(
                f"{folder} holds no sweep.json and no {SHARDS}: give what the profiling job wrote",
                exit_code=ExitCode.USAGE,
            )
        shards += held
    unique = {os.path.realpath(shard): shard for shard in shards}
    return list(unique.values())


def _make_sort_key(shard: Path) -> tuple[int | str, ...]:
    return tuple(int(part) if part.isdigit() else part for part in [str(shard.parent), *shard.name.split("-")])


def _check_out(out: Path, shards: list[Path]) -> None:
    if any(Path(os.path.realpath(shard)).is_relative_to(os.path.realpath(out)) for shard in shards):
        raise ResultsError(
            f"{out} holds the shards themselves: give another folder with --out", exit_code=ExitCode.USAGE
        )
    check_folder(out, is_merged)


def _read_common_plan(shards: list[Path]) -> dict[str, Any]:
    """Read the sweep that all shards belong to, as one machine would write it to sweep.json."""
    first, *others = plans = [read_plan(shard / SWEEP) for shard in shards]
    for shard, plan in zip(shards, plans):
        if "sweep" not in plan:
            raise ResultsError(f"{shard / SWEEP} names no sweep: run the sweep again")
        mine = plan.pop("runs", [])
        plan["runs"] = plan.pop(ALL_RUNS, mine)
    for shard, plan in zip(shards[1:], others):
        different = [key for key in first.keys() | plan.keys() if first.get(key) != plan.get(key)]
        if different:
            raise ResultsError(
                f"{shards[0]} and {shard} are not parts of one sweep: they differ in {', '.join(sorted(different))};"
                " give shards of one sweep file and one --only",
                exit_code=ExitCode.USAGE,
            )
    return first


def _find_other_parameter(record: FinishedRecord, plan: dict[str, Any]) -> str:
    """Return a parameter of a run that no block of the sweep asks for, as in a run of an earlier sweep; "" if there is
    none."""
    measured, wrong = record.parameters(), ""
    for block in plan.get("blocks") or [{}]:
        wanted = plan | block
        wanted |= wanted.get("custom_sizes", {}).get(record.run.get("size"), {})
        both = measured.keys() & wanted.keys()
        lists = {name: wanted[name] if isinstance(wanted[name], list) else [wanted[name]] for name in both}
        wrong = next((name for name in sorted(both) if measured[name] not in lists[name]), "")
        if not wrong:
            return ""
    return wrong


def _lost_its_capture(record: FinishedRecord, run: Path) -> bool:
    """Whether a run lacks its capture, as when a copy was cut short."""
    return record.status == "ok" and (record.profiled_steps or 0) > 0 and not (run / CAPTURE).is_file()


def _explain_missing(run_id: str, shards: list[Path]) -> str:
    for shard in shards:
        if (shard / run_id).is_dir():
            return f"{shard} began it and did not finish; run that shard again"
    for shard in shards:
        if run_id in read_plan(shard / SWEEP).get("runs", []):
            return f"{shard} has not begun it; run that shard again"
    return "no folder given has it; give the shard that does, or run it"


def _check_copies(run_id: str, places: list[Path]) -> None:
    first, *others = places
    for other in others:
        names = {file.name for place in (first, other) for file in place.iterdir()} - {IN_FLIGHT}
        _, different, absent = filecmp.cmpfiles(first, other, names, shallow=False)
        if different or absent:
            raise ResultsError(
                f"run {run_id} was measured twice: {first} and {other} differ in {', '.join(different + absent)};"
                " remove one of the two",
                exit_code=ExitCode.USAGE,
            )


def _compare_machines(machines: list[Machine], allow_mix: bool, emit: Callable[[str], None]) -> None:
    """Compare the facts of machines, and report those that differ between runs. Raises ResultsError if they make a
    mix."""
    by_name = find_mixed_facts([machine.model_dump() for machine in machines], MACHINE_FIELDS)
    different = {name: f"{name}: {format_counts(values)}" for name, values in by_name.items()}
    mixed = [words for name, words in different.items() if name in COMPARED]
    if mixed and not allow_mix:
        raise ResultsError(
            f"shards were measured with different versions ({'; '.join(mixed)}): give shards of the same, or allow it"
            " with --allow-mix, and every page says so",
            exit_code=ExitCode.USAGE,
        )
    for words in different.values():
        emit(f"shards were measured with different {words}")


def _write(out: Path, plan: dict[str, Any], runs: dict[str, Path], shards: list[Path]) -> None:
    """Write to a draft next to `out` first, so that `out` is whole or not there."""
    draft = out.with_name(f".{out.name}.draft")
    clear(draft)
    try:
        draft.mkdir(parents=True)
        for run_id, folder in runs.items():
            shutil.copytree(folder, draft / run_id, ignore=shutil.ignore_patterns(IN_FLIGHT, "*.draft"))
        for calibration in [shard / CALIBRATION for shard in shards if (shard / CALIBRATION).is_file()][:1]:
            shutil.copy(calibration, draft / CALIBRATION)
        (draft / SWEEP).write_text(json.dumps(plan, indent=1), encoding="utf-8")
        (draft / MERGED).write_text(json.dumps({"shards": [shard.name for shard in shards]}), encoding="utf-8")
        replace_folder(draft, out, is_merged)
    finally:
        clear(draft)


def _list_places(places: list[Path]) -> str:
    return ", ".join(str(place.parent) for place in places)
