"""From the results folder of a sweep to a recording."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pydantic import BaseModel, ValidationError

from profiler_job.analysis.capture import collective_messages, inferred, intervals, modules, nsys_reports
from profiler_job.analysis.capture.attribution import Attribution, attribute
from profiler_job.analysis.capture.believed_launches import NOT_BELIEVED
from profiler_job.analysis.capture.blocks import sum_by
from profiler_job.analysis.capture.capture_data import Capture, ExportError
from profiler_job.analysis.capture.followed_gaps import fill_gaps
from profiler_job.analysis.capture.math_paths import find_precision
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.recording import store, table_schema
from profiler_job.analysis.recording.manifest import PROTOCOL, describe_recording, find_end
from profiler_job.analysis.recording.scan import HASHED_NAMES
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.integrity import create, find_damage, load_json, restore
from profiler_job.jobs.contract.invalid_data import describe_invalid
from profiler_job.jobs.contract.layout import (
    CALIBRATION,
    LOG,
    MACHINE_FIELDS,
    NSYS_SUMS_FILE,
    RECORD,
    SCRIPT,
    SWEEP,
    FinishedRecord,
    RecordError,
    list_captures,
    name_node_file,
    name_timings_file,
    read_record,
)
from profiler_job.jobs.contract.privacy import PRIVATE_LINE, find_name, find_private, scrub_text
from profiler_job.jobs.contract.words import format_count

_ABOUT_RUN = ("autograd_multithreading", "float32_matmul_precision", *PROTOCOL)
LOG_LINES, LOG_BYTES = 12, 2**20  # of the end of a log: what is kept, and where that is looked for
READING_FILES, READING_CAPTURE = "reading the files", "reading the capture"
"""Phases of runs that were measured, but from which no recording can be made."""
CALIBRATED = ("figure", "unit", "value", "low", "high", "repeats")


ReadTables = Callable[[Path], Mapping[str, pd.DataFrame]]


class ResultsError(ProfilerError, ValueError):
    """A results folder that cannot be ingested. The message names the place, the fault and the remedy."""

    exit_code = ExitCode.DAMAGED


def ingest(
    results: Path | str,
    out: Path | str,
    emit: Callable[[str], None] = lambda line: None,
    label: str = "",
    more_tables: Sequence[ReadTables] = (),
) -> dict[str, Any]:
    """Turn the sweep in `results` into a recording in `out`; returns its manifest. `label` distinguishes it from other
    recordings of the same runs; by default it is the name of `out`. more_tables: make further tables from the folder
    of a script's run, as of what the GPU waits for; they raise ExportError.

    A run whose files are not what was written, or whose status is ok and whose capture is missing, broken, without
    kernels or without its steps, is recorded as such; `lost_runs` names these. `emit` gets one line for each run that
    is not ok, and for each problem of the capture of a run that is ok; the manifest has these under `problems`. Raises
    ResultsError if there is no sweep to read.
    """
    restore(Path(out))
    folder = _sweep_folder(Path(results))
    check_files_only(folder)
    sweep = read_plan(folder / SWEEP) if (folder / SWEEP).is_file() else {}
    order = [str(run_id) for run_id in sweep.get("runs", [])]
    present = sorted(file.parent.name for file in folder.glob(f"*/{RECORD}"))
    if not present:
        raise ResultsError(
            f"{folder} has no run: it should hold <run_id>/run.json; give the folder of one sweep",
            exit_code=ExitCode.USAGE,
        )
    run_ids = [run_id for run_id in order if run_id in present] + [run_id for run_id in present if run_id not in order]
    records = {run_id: read_finished(folder / run_id) for run_id in run_ids}
    parts: dict[str, list[pd.DataFrame]] = {name: [] for name in table_schema.TABLES}
    schemas: set[str] = set()
    problems: dict[str, list[str]] = {}
    for run_id, record in records.items():
        tables, schema, wrong = _run_tables(folder / run_id, run_id, record)
        if tables["runs"].iloc[0]["status"] == "ok" and record.run.get("workload") == SCRIPT:
            for read_tables in more_tables:
                wrong += _add_tables(tables, folder / run_id, run_id, read_tables)
        for problem in wrong:
            emit(f"{run_id}: {problem}")
            problems.setdefault(run_id, []).append(problem)
        schemas |= {schema} - {""}
        for name, frame in tables.items():
            parts[name].append(frame)
        row = tables["runs"].iloc[0]
        if row["status"] != "ok":
            emit(f"{run_id}: {row['status']} {row['status_phase'] or ''} {row['status_message'] or ''}".rstrip())
    not_run = [run_id for run_id in order if run_id not in present]
    for run_id in not_run:
        emit(f"{run_id}: in the sweep, and not run")
    tables = {name: join_frames(name, frames) for name, frames in parts.items()}
    manifest = describe_recording(
        label or Path(out).name, str(sweep.get("sweep", folder.name)), tables["runs"], schemas, not_run
    )
    ends = [end for run_id, record in records.items() if (end := find_end(run_id, record, emit))]
    manifest["recorded_to"] = max(ends, default=manifest["recorded_from"])
    manifest |= {"problems": problems} if problems else {}
    if sweep.get(SCRIPT):
        manifest[SCRIPT] = True
    manifest |= {"study": str(sweep.get("study", "")), "calibration": _calibration(folder / CALIBRATION)}
    manifest[HASHED_NAMES] = sorted({name for record in records.values() for name in record.hashed_names})
    store.write(out, tables, manifest)
    return store.read_manifest(Path(out))


def _add_tables(tables: dict[str, pd.DataFrame], run: Path, run_id: str, read_tables: ReadTables) -> list[str]:
    """Add what `read_tables` makes to `tables`; returns why there is nothing, if that is a problem."""
    try:
        for name, frame in read_tables(run).items():
            rows = _with_run(name, frame, run_id)
            tables[name] = join_frames(name, [tables[name], rows]) if name in tables else rows
    except ExportError as error:
        return [f"{error.problem}: no line is known that the GPU waits for"]
    return []


def check_files_only(folder: Path) -> None:
    """Raise ResultsError if a sweep holds anything but folders and files: to read a pipe, or a device that a link leads
    to, may never end."""
    for path in (*folder.glob("*"), *folder.glob("*/*")):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ResultsError(f"{path} is not a file (a pipe, a socket or a device): remove it")


def lost_runs(manifest: dict[str, Any]) -> list[str]:
    """List the measured runs of a recording whose files are damaged or whose capture cannot be used."""
    return [run["run_id"] for run in manifest["runs"] if run["phase"] in (READING_FILES, READING_CAPTURE)]


def _calibration(file: Path) -> list[dict[str, Any]]:
    """Read the peak rates of the GPU, measured before the runs; empty if the sweep did not ask for them. Older ones do
    not name their GPU."""
    if not file.is_file():
        return []
    try:
        rates = load_json(file)
        if not isinstance(rates, list):
            raise TypeError(f"it is a {type(rates).__name__}")
        return [{name: rate[name] for name in CALIBRATED} | {"gpu_name": rate.get("gpu_name", "")} for rate in rates]
    except (ValueError, TypeError, KeyError) as error:
        raise ResultsError(f"{file} is not a list of rates ({error}): remove it and run the sweep again") from error


def _sweep_folder(results: Path) -> Path:
    if not results.is_dir():
        raise ResultsError(f"{results} is not a folder: give the results folder of a sweep", exit_code=ExitCode.USAGE)
    if (results / SWEEP).is_file() or any(results.glob(f"*/{RECORD}")):
        return results
    sweeps = sorted(file.parent for file in results.glob("*/sweep.json"))
    if len(sweeps) == 1:
        return sweeps[0]
    held = f"holds {len(sweeps)} sweeps ({', '.join(sweep.name for sweep in sweeps)})" if sweeps else "holds no sweep"
    raise ResultsError(f"{results} {held}: give the folder of one sweep, with its sweep.json", exit_code=ExitCode.USAGE)


def read_json(file: Path) -> dict[str, Any]:
    """Read the object in a JSON file. Raises ResultsError."""
    try:
        data = load_json(file)
    except (OSError, ValueError) as error:
        raise ResultsError(f"{file} cannot be read ({error}): run the sweep again") from error
    if not isinstance(data, dict):
        raise ResultsError(f"{file} is not a JSON object: run the sweep again")
    return data


class _Block(BaseModel):
    """The part of a block of a sweep that is read here and by `merge`."""

    custom_sizes: dict[str, dict[str, Any]] = {}


class _Plan(BaseModel):
    """What of a sweep is read here and by `merge`."""

    sweep: Any = ""
    runs: list[str] = []
    runs_of_all_shards: list[str] = []
    custom_sizes: dict[str, dict[str, Any]] = {}
    blocks: list[_Block] = []


def read_plan(file: Path) -> dict[str, Any]:
    """Read a sweep as planned. Raises ResultsError."""
    plan = read_json(file)
    try:
        _Plan.model_validate(plan)
    except ValidationError as error:
        where, why = describe_invalid(error)
        raise ResultsError(f"{file}: {where} is not what a sweep has ({why}): run the sweep again") from error
    return plan


def read_finished(run: Path) -> FinishedRecord:
    """Read the record of the finished run in a folder. Raises ResultsError."""
    try:
        record = read_record(run / RECORD, FinishedRecord)
        if misfit := store.find_misfit("runs", pd.DataFrame({name: [value] for name, value in record.run.items()})):
            raise RecordError(run / RECORD, f"run.{misfit}")
        return record
    except RecordError as error:
        raise ResultsError(str(error)) from error


def join_frames(name: str, frames: list[pd.DataFrame]) -> pd.DataFrame:
    """Join the rows of a table from several runs; an empty table without any."""
    frames = [frame for frame in frames if len(frame)]
    if not frames:
        return store.empty(name)
    joined = {}
    for column in dict.fromkeys(column for frame in frames for column in frame.columns):
        pieces = [frame[column] if column in frame else pd.Series([None] * len(frame)) for frame in frames]
        if all(isinstance(piece.dtype, pd.CategoricalDtype) for piece in pieces):
            # Joining codes, not strings: hundreds of thousands of long kernel names otherwise. Names of one type,
            # because an empty part of a capture leaves `object` where others have `str`.
            pieces = [piece.cat.rename_categories(piece.cat.categories.astype(object)) for piece in pieces]
            joined[column] = pd.api.types.union_categoricals(pieces, sort_categories=False)
        else:
            joined[column] = pd.concat(pieces, ignore_index=True)
    return pd.DataFrame(joined)


# -------------------------------------------------------------------------------------------------------------- one run


def _run_tables(folder: Path, run_id: str, record: FinishedRecord) -> tuple[dict[str, pd.DataFrame], str, list[str]]:
    """Read the tables of one run, the schema version of its capture ("" without one), and the problems of the
    capture."""
    damage = find_damage(folder, record.files)
    tables: dict[str, pd.DataFrame] = {}
    if not damage:
        try:
            tables |= _timer_tables(folder, run_id, [process.group for process in record.timed] or [""])
        except ResultsError:
            raise
        except ValueError as error:
            damage = str(error)
    if damage:
        detail = {"phase": READING_FILES, "message": f"{damage}; run the sweep again, which measures it anew"}
        empty = {name: store.empty(name) for name in table_schema.TABLES}
        return empty | {"runs": _run_row(record, run_id, "failed", detail, empty["memory"]).assign(log=None)}, "", []
    status: str = record.status
    detail = record.status_detail.model_dump(exclude_unset=True) if record.status_detail else {}
    schema, problems = "", []
    tables["nsys_sums"] = _nsys_sums(folder, run_id)
    if status == "ok" and record.profiled_steps != 0:
        captured: list[_Captured] = []
        for file in list_captures(folder):
            if status == "ok":
                status, problem, of_capture = _read_capture(file, len(captured), run_id, record)
                captured.append(of_capture)
        if status == "ok" and tables["steps"].empty:
            status, problem = "failed", "timings.json holds no steps"
        if status == "ok" and _share_a_rank(captured):
            status, problem = "failed", "captures of several machines have the same rank"
        schema = ", ".join(sorted({part.schema for part in captured} - {""}))
        if status == "ok":
            problems = list(dict.fromkeys(problem for part in captured for problem in part.problems))
            joined = _joined([part.tables for part in captured])
            tables |= joined | {"steps": join_frames("steps", [tables["steps"], joined["steps"]])}
        else:
            detail = {"phase": READING_CAPTURE, "message": problem}
    tables["runs"] = _run_row(record, run_id, status, detail, tables["memory"]).assign(
        log=_log(folder / LOG, record.hashed_names)
    )
    if record.run.get("workload") == SCRIPT and "kernels" in tables:
        kernels = tables["kernels"]
        if precision := find_precision(kernels[kernels["step"] >= 0]):  # casts by hand show in kernels alone
            tables["runs"]["precision"] = precision
    return tables, schema, problems


class _Captured(NamedTuple):
    """The tables of a capture, its problems, and its schema version ("" if it cannot be read)."""

    tables: Mapping[str, pd.DataFrame] = MappingProxyType({})
    problems: Sequence[str] = ()
    schema: str = ""


def _read_capture(file: Path, node: int, run_id: str, record: FinishedRecord) -> tuple[str, str, _Captured]:
    """Read the capture of machine `node` of a run: the run's status by it, the problem if that is not ok, and what is
    recorded of it."""
    try:
        capture = read(file)
        status, problem = _judge(capture, attribution := attribute(capture), record.profiled_steps)
    except ExportError as error:
        return "failed", f"{file.name} {error.problem}", _Captured()
    if status != "ok":
        return status, problem, _Captured(schema=capture.schema_version)
    _write_statistics(file, capture)
    wrong = capture.problems | attribution.problems
    problems = [f"{what}: {consequence}" for what, consequence in wrong.items()]
    links = modules.link_modules(capture, attribution)
    problems += dict.fromkeys(  # threads of a phase often have the same
        f"modules of {line.phase}, step {line.step}: unknown, {line.reason}"
        for line in links.problems.itertuples(index=False)
    )
    if record.run.get("workload") == SCRIPT:
        attribution = fill_gaps(capture, inferred.place_batches(capture, attribution))
    tables = make_capture_tables(capture, attribution, links, run_id, node)
    return "ok", "", _Captured(tables, problems, capture.schema_version)


def _write_statistics(file: Path, capture: Capture) -> None:
    """Write the tables of `nsys stats` next to the capture, as text, where its folder can be written."""
    with suppress(OSError), create(file.with_suffix(".stats.txt")) as opened:
        opened.write(nsys_reports.format_reports(capture))


def _share_a_rank(captured: Sequence[_Captured]) -> bool:
    ranks = [rank for part in captured for rank in part.tables["kernels"]["rank"].unique()]
    return len(ranks) > len(set(ranks))


def _joined(captures: Sequence[Mapping[str, pd.DataFrame]]) -> dict[str, pd.DataFrame]:
    """Join the tables of one or several captures of a run; ranges and threads are numbered on from one to the next."""
    num_ranges = num_threads = 0
    parts: list[dict[str, pd.DataFrame]] = []
    for tables in captures:
        placed, kernels = tables["ranges"], tables["kernels"]
        below = placed["parent_id"].where(placed["parent_id"] < 0, placed["parent_id"] + num_ranges)
        inside = kernels["range_id"].where(kernels["range_id"] < 0, kernels["range_id"] + num_ranges)
        numbers = {"range_id": placed["range_id"] + num_ranges, "thread": placed["thread"] + num_threads}
        numbered = {"ranges": placed.assign(parent_id=below, **numbers), "kernels": kernels.assign(range_id=inside)}
        parts.append({**tables, **numbered})
        num_ranges, num_threads = (int(numbers[name].max()) + 1 for name in ("range_id", "thread"))
    return {name: join_frames(name, [part[name] for part in parts]) for name in parts[0]}


def _timer_tables(folder: Path, run_id: str, groups: Sequence[str]) -> dict[str, pd.DataFrame]:
    """Read what the unprofiled processes of a run measured; memory and numerics come from the first. groups: of each
    process, "" if the run had it alone. Raises ValueError with the name of a file whose values have wrong types."""
    parts: dict[str, list[pd.DataFrame]] = {}
    for process, group in enumerate(groups):
        file = folder / name_timings_file(process)
        timings = read_json(file) if file.is_file() else {}
        known: dict[str, dict[str, Any]] = {"steps": {"process": process, "collector": "timer"}}
        known |= {"processes": {"process": process, "group": group}, "telemetry": {"process": process}}
        known |= {name: {} for name in ("memory", "module_memory", "figures") if process == 0}
        for name, constant in known.items():
            try:
                parts.setdefault(name, []).append(_rows(name, timings, run_id, **constant))
            except ValueError as error:
                raise ValueError(f"{file.name}: {error}") from None
    return {name: join_frames(name, frames) for name, frames in parts.items()}


def _judge(capture: Capture, attribution: Attribution, expected: int | None) -> tuple[str, str]:
    """Status of a run that says ok and profiled `expected` steps, by what its capture holds, and what is wrong."""
    if not len(capture.kernels):
        return "no_kernels", "the capture holds no kernels"
    if (attribution.kernels["api"] == NOT_BELIEVED).mean() > 0.5:
        return "failed", f"the launches of most kernels are not to be believed ({'; '.join(attribution.problems)})"
    placed = attribution.ranges[attribution.ranges["step"] >= 0]
    num_steps = placed.groupby("process")["step"].nunique()
    if not len(num_steps) or (attribution.kernels["step"] < 0).all():
        return "failed", f"no kernel of the capture lies in a range `{ranges.STEP}`"
    if expected is not None and (num_steps != expected).any():
        wrong = num_steps[num_steps != expected].iloc[0]
        where = "" if len(num_steps) == 1 else f" of one of {len(num_steps)} processes"
        return "failed", f"the capture holds {format_count(wrong, 'step')}{where}, and {expected} were profiled"
    return "ok", ""


def _run_row(
    record: FinishedRecord, run_id: str, status: str, detail: dict[str, Any], memory: pd.DataFrame
) -> pd.DataFrame:
    machine = record.machine.model_dump(exclude_unset=True)
    peak = memory["peak_allocated_bytes"].max() if len(memory) else None
    row = {
        "run_id": run_id,
        "status": status,
        "status_phase": detail.get("phase"),
        "status_message": detail.get("message"),
        **record.run,
        **({"num_parameters": record.num_parameters} if record.num_parameters else {}),
        **{name: machine.get(name) for name in MACHINE_FIELDS},
        **{name: getattr(record, name) for name in _ABOUT_RUN},
        "peak_memory_bytes": peak,
        "started_at": record.started_at,
        "wall_s": record.wall_s,
        **{f"status_{key}": value for key, value in detail.items() if isinstance(value, int | float)},
    }
    for column in table_schema.TABLES["runs"]:
        value = row.setdefault(column.name, None)
        if column.dtype == "string" and value is not None:
            row[column.name] = str(value)  # a record may say anything
    row = {name: _scrubbed(value) for name, value in row.items()}
    return pd.DataFrame({name: [value] for name, value in row.items()}, dtype=object)


def _log(file: Path, hashed_names: list[str]) -> str | None:
    """Read the last lines that the run printed, scrubbed, without any that may hold a secret or a name of the machine;
    None if none is left."""
    if not file.is_file():
        return None
    with open(file, "rb") as opened:
        start = max(0, opened.seek(0, os.SEEK_END) - LOG_BYTES)
        opened.seek(start)
        lines = opened.read(LOG_BYTES).decode(errors="replace").splitlines()
    if start:  # of the first line the beginning is not there, and what it would have told of a secret
        lines = lines[1:] or [f"(a line of more than {LOG_BYTES} bytes is left out)"]
    lines = "\n".join(lines).strip().splitlines()
    kept: list[str] = []
    in_key = False  # between the end of a private key and its beginning, the way that lines are read here
    for line in reversed(lines):
        scrubbed = scrub_text(line)
        in_key = (in_key or "-----END" in line) and "-----BEGIN" not in line
        private = PRIVATE_LINE.search(line) or find_private(scrubbed) or find_name(scrubbed, hashed_names)
        kept = kept if private or in_key else [scrubbed, *kept]
        if len(kept) == LOG_LINES:
            break
    return "\n".join(kept) or None


def _rows(table: str, timings: dict[str, Any], run_id: str, **known: str | int) -> pd.DataFrame:
    """Read the rows of a table in timings.json; `known` is the same in each row. Rows without a rank belong to rank 0.
    Raises ValueError if the values do not have the table's types."""
    columns = [column for column in table_schema.TABLES[table] if column.name not in ("run_id", *known)]
    names = [column.name for column in columns]
    needed = [column.name for column in columns if not column.optional and column.name != "rank"]
    rows = timings.get(table, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) and row.keys() >= set(needed) for row in rows):
        raise ValueError(f"{table} is not a list of rows with {', '.join(needed)}")
    values = [[_scrubbed(({"rank": 0} | row).get(column.name, column.before)) for column in columns] for row in rows]
    frame = pd.DataFrame(values, columns=names, dtype=object)
    if misfit := store.find_misfit(table, frame):
        raise ValueError(f"{table}: {misfit}")
    return frame.infer_objects().assign(run_id=run_id, **known)


def _scrubbed(value: Any) -> Any:
    return scrub_text(value) if isinstance(value, str) else value


def _nsys_sums(folder: Path, run_id: str) -> pd.DataFrame:
    """Read nsys's statistics of the step and the phases, on all machines of the run; empty if one of them has none."""
    parts: list[pd.DataFrame] = []
    for node in range(len(list_captures(folder))):
        try:
            printed = pd.read_csv(folder / name_node_file(NSYS_SUMS_FILE, node))
            printed["range"] = printed["NVTX Range"].fillna("").str.removeprefix(":")
            parts.append(printed[["range", "Kernel Name", "Kern Inst", "Total Time (ns)"]])
        except (OSError, ValueError, KeyError):
            return store.empty("nsys_sums")
    rows = pd.concat(parts)
    rows = rows[rows["range"].isin((ranges.STEP, *ranges.ALL_PHASES))]
    totals = rows.groupby(["range", "Kernel Name"], as_index=False)[["Kern Inst", "Total Time (ns)"]].sum()
    totals.columns = ["range", "kernel_name", "calls", "total_ns"]
    return _with_run("nsys_sums", totals, run_id)


def make_capture_tables(
    capture: Capture, attribution: Attribution, links: modules.ModuleLinks, run_id: str, node: int = 0
) -> dict[str, pd.DataFrame]:
    """Make the tables of what a capture holds of its steps. Times count from the first range of a step, or else from
    the first launch in one; processes without ranges come last among the ranks."""
    placed = attribution.ranges
    in_steps = placed.index[placed["step"] >= 0]
    launches = attribution.kernels["launch_ns"][attribution.kernels["step"] >= 0]
    starts = placed["start_ns"].to_numpy()[in_steps] if len(in_steps) else launches.to_numpy()
    origin = int(starts.min()) if len(starts) else 0
    processes, first = processes_by_rank(placed), first_rank(placed)
    others = capture.kernels["process"][~capture.kernels["process"].isin(processes)].unique()
    processes = processes.append(pd.Index(others, dtype=processes.dtype)) if len(others) else processes

    def rank(frame: pd.DataFrame) -> np.ndarray:
        places: np.ndarray = processes.get_indexer(frame["process"])
        return places + first

    ranges_table = pd.DataFrame(
        {
            "rank": rank(placed),
            "range_id": range(len(placed)),
            "parent_id": placed["parent_id"],
            "step": placed["step"],
            "phase": placed["phase"],
            "name": placed["name"],
            "path": placed["path"],
            "thread": pd.factorize(placed["thread"])[0],
            "start_ns": placed["start_ns"] - origin,
            "end_ns": placed["end_ns"] - origin,
        }
    )
    place = attribution.kernels
    kernels = capture.kernels.assign(rank=rank).drop(columns=["process", "correlation"])
    kernels = kernels.assign(**{name: place[name] for name in ("range_id", "step", "phase", "attribution")})
    kernels = kernels.assign(**{name: links.kernels[name] for name in links.kernels})
    kernels["launch_ns"], kernels["launch_end_ns"] = place["launch_ns"] - origin, place["launch_end_ns"] - origin
    kernels["node"] = node
    kernels["message_bytes"] = collective_messages.find_messages(capture, attribution)["bytes"]
    not_recorded = ["process", "correlation", "graph_node", "host_memory"]
    memops = capture.memops.assign(rank=rank).drop(columns=not_recorded)
    place = attribution.memops
    memops = memops.assign(**{name: place[name] for name in ("step", "phase", "attribution")})
    memops = memops.assign(**{name: links.memops[name] for name in links.memops})
    memops["launch_ns"] = place["launch_ns"] - origin
    for frame in (kernels, memops):
        frame["start_ns"] -= origin
        frame["end_ns"] -= origin
    api = _api_totals(capture, attribution, rank(capture.api))
    # A capture begins before the measured steps and ends after them; only what they launched is recorded.
    tables = {
        "steps": nsys_steps(placed, rank(placed)),
        "ranges": ranges_table[~modules.is_followed(placed)],
        "kernels": kernels[kernels["step"] >= 0],
        "memops": memops[memops["step"] >= 0],
        "api": api[api["step"] >= 0],
    }
    return {name: _with_run(name, frame, run_id) for name, frame in tables.items()}


def processes_by_rank(placed: pd.DataFrame) -> pd.Index:
    """List the processes with ranges, by rank: those with steps first, by the rank in their ranges, or else by their
    first range and by process id. Everything that is recorded is inside steps, so it belongs to these."""
    if placed["process"].nunique() < 2:
        return pd.Index(placed["process"].unique(), name="process")
    ranges_of = placed[["process", "start_ns"]].assign(outside=placed["step"] < 0, said=_read_rank(placed))
    first = ranges_of.groupby("process", as_index=False).min()
    return pd.Index(first.sort_values(["outside", "said", "start_ns", "process"])["process"])


def first_rank(placed: pd.DataFrame) -> int:
    """Return the number of the first rank here: above 0 if the ranks before it are on other machines."""
    said = _read_rank(placed)
    return int(said.min()) if said.notna().any() else 0


def _read_rank(placed: pd.DataFrame) -> pd.Series:
    """Read the rank that the name of each range gives; NaN for none."""
    names = placed["name"].astype("category")
    said = names.cat.categories.astype(str).str.extract(ranges.SAID_RANK)["rank"].astype(float)
    return pd.Series(np.append(said, np.nan)[names.cat.codes], placed.index)


def _with_run(name: str, frame: pd.DataFrame, run_id: str) -> pd.DataFrame:
    run = pd.Categorical.from_codes([0] * len(frame), [run_id])
    frame = frame.reset_index(drop=True)
    return frame.assign(run_id=run)[[column.name for column in table_schema.TABLES[name]]]


def nsys_steps(placed: pd.DataFrame, rank: np.ndarray) -> pd.DataFrame:
    """Host time of each step of each rank, and of each phase in it: the time that the outermost ranges of each cover.
    Ranges of autograd's threads are inside the range of the thread that called `backward`."""
    phase, parent = placed["phase"].astype(str).to_numpy(), placed["parent_id"].to_numpy()
    has = parent >= 0
    step = placed["step"].to_numpy()
    phase_root = (step >= 0) & (phase != "") & ~(has & (phase[parent] != "") & (step[parent] >= 0))
    step_root = placed["is_step"].to_numpy()
    start, end = placed["start_ns"].to_numpy(), placed["end_ns"].to_numpy()
    root = np.r_[np.flatnonzero(step_root), np.flatnonzero(phase_root)]
    codes, names = pd.factorize(np.r_[np.full(step_root.sum(), ranges.STEP), phase[phase_root]], sort=True)
    keys = intervals.make_keys(intervals.make_keys(rank[root], step[root]), codes)
    order = np.lexsort((start[root], keys))
    root, codes, (group, of_group) = root[order], codes[order], pd.factorize(keys[order])
    # What an earlier range of the same phase covers counts once.
    walls = sum_by(group, intervals.measure_new(group, start[root], end[root]), len(of_group))
    first = np.searchsorted(group, np.arange(len(of_group)))
    named = {"rank": rank[root[first]], "step": step[root[first]], "phase": names[codes[first]]}
    constant = {"collector": "nsys", "process": 0, "issue_ns": None, "round": -1}
    return pd.DataFrame(named | {"wall_ns": walls} | constant)


def _api_totals(capture: Capture, attribution: Attribution, rank: np.ndarray) -> pd.DataFrame:
    calls = pd.DataFrame(
        {
            "rank": rank,
            "step": attribution.api["step"],
            "phase": attribution.api["phase"],
            "name": capture.api["name"],
            "total_ns": capture.api["end_ns"] - capture.api["start_ns"],
        }
    )
    grouped = calls.groupby(["rank", "step", "phase", "name"], observed=True, sort=True)["total_ns"]
    return grouped.agg(calls="size", total_ns="sum").reset_index()
