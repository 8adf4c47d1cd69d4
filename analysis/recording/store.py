"""A recording: the tidy tables that everything after reading works from.

`table_schema.TABLES` is the one place that names columns, types, units and meanings: writing, checking, loading and the
data dictionary all come from it. A recording is a folder with `manifest.json` and one Parquet file for each table that
has rows. Integers are nanoseconds and bytes; times count from the start of a run's first step. Times of launches are
rounded, all others are exact. Files hold starts and ends as differences, or as times if an older version wrote them;
see `times`.
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import ValidationError

from profiler_job.analysis.recording import times
from profiler_job.analysis.recording.manifest_fields import ReadManifest
from profiler_job.analysis.recording.table_schema import (
    AT_LEAST_ONE,
    FAMILY,
    OF_FINISHED_RUNS,
    OPTIONAL_TABLES,
    TABLES,
    Column,
)
from profiler_job.analysis.reference import cuda_api, kernel_families
from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.integrity import (
    DIGEST,
    FileFacts,
    add_digest,
    clear,
    find_damage,
    is_intact,
    load_json,
    read_facts,
    restore,
)
from profiler_job.jobs.contract.invalid_data import describe_invalid
from profiler_job.jobs.contract.layout import MANIFEST, SCRIPT, STATUSES
from profiler_job.jobs.contract.modes import MODES
from profiler_job.jobs.contract.outputs import check_folder, is_recording, replace_folder
from profiler_job.jobs.contract.studies import find_recordings

pd.set_option("mode.string_storage", "python")
"""Tables here are many and most are small: pyarrow's strings, the default, take longer for each of them."""

_SORT = {
    "steps": ["collector", "rank", "process", "step"],
    "processes": ["rank", "process"],
    "telemetry": ["rank", "process", "at_ns"],
    "ranges": ["range_id"],
    "kernels": ["rank", "launch_ns", "start_ns"],
    "api": ["rank", "step", "phase", "name"],
    "memops": ["rank", "launch_ns", "start_ns"],
    "nsys_sums": ["range", "kernel_name"],
    "memory": [],
    "module_memory": [],
    "figures": [],
    "waits": [],
    "sync_calls": [],
    "wait_stacks": [],
    "compile_notes": [],
}
_ARROW = {
    "category": pa.dictionary(pa.int32(), pa.string()),
    "string": pa.string(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
}

_ROWS_OF_GROUP = 1 << 20
_FAST = {"compression": "zstd", "compression_level": 15}
# Each page is packed alone: the fewer, the smaller.
_SMALL = {"compression": "brotli", "compression_level": 10, "max_rows_per_page": 1 << 20, "data_page_size": 16 << 20}
_FEW_ROWS = 10_000
"""Without pyarrow's schema, a quarter of a file with so few rows, other programs read text in place of categories."""

FILES = {MANIFEST, *(f"{name}.parquet" for name in TABLES)}
"""All that a recording holds."""


class RecordingError(ProfilerError, ValueError):
    """A folder that is not a whole recording. The message says which file, what is wrong and what to do."""

    exit_code = ExitCode.DAMAGED


@dataclass(kw_only=True)
class Recording:
    """The tables of one recording, as `TABLES` describes them, and its manifest. `kernels` also has `family`."""

    manifest: dict[str, Any]
    runs: pd.DataFrame
    steps: pd.DataFrame
    processes: pd.DataFrame
    telemetry: pd.DataFrame
    ranges: pd.DataFrame
    kernels: pd.DataFrame
    api: pd.DataFrame
    memops: pd.DataFrame
    nsys_sums: pd.DataFrame
    memory: pd.DataFrame
    module_memory: pd.DataFrame
    figures: pd.DataFrame
    waits: pd.DataFrame
    sync_calls: pd.DataFrame
    wait_stacks: pd.DataFrame
    compile_notes: pd.DataFrame

    @property
    def label(self) -> str:
        """What tells it from other recordings of the same runs."""
        return str(self.manifest.get("name", ""))


def side_by_side(recordings: Sequence[Recording]) -> dict[str, pd.DataFrame]:
    """Join the tables of several recordings, each with the column `label` first: (label, run_id) names a run among
    them.

    Raises RecordingError if two have one label.
    """
    labels = [recording.label for recording in recordings]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise RecordingError(
            f"two recordings are called {twice[0]}: ingest one of them again with another --label",
            exit_code=ExitCode.USAGE,
        )
    tables: dict[str, pd.DataFrame] = {}
    for name in TABLES:
        parts = [getattr(recording, name).astype({"run_id": str}) for recording in recordings]
        labelled = [part.assign(label=recording.label) for recording, part in zip(recordings, parts)]
        joined = pd.concat(labelled, ignore_index=True)
        tables[name] = joined[["label", *(column for column in joined if column != "label")]]
    return tables


def empty(table: str) -> pd.DataFrame:
    """Make a frame of `table` without rows."""
    return pd.DataFrame({column.name: _series(pd.Series([], dtype=object), column) for column in TABLES[table]})


def dictionary() -> pd.DataFrame:
    """Return the data dictionary: table, column, dtype, unit, meaning; one row for each column of each table, in memory
    and then in its file only."""
    rows = [_describe(table, column) for table, columns in TABLES.items() for column in (*columns, *_stored(table))]
    position = max(i for i, row in enumerate(rows) if row[:2] == ("kernels", "kernel_name"))
    rows.insert(position + 1, _describe("kernels", FAMILY))
    return pd.DataFrame(rows, columns=["table", "column", "dtype", "unit", "meaning"])


def _describe(table: str, column: Column) -> tuple[str, str, str, str, str]:
    return table, column.name, column.dtype, column.unit, column.meaning


def _stored(table: str) -> list[Column]:
    """Return the columns that only its file has."""
    names = [column.name for column in TABLES[table]]
    step = Column(times.RANGE_STEP, "int64", times.MEANING_OF_RANGE_STEP)
    launches = times.meanings_of_launches(names)
    return [
        *([step] if times.has_range_steps(names) else []),
        *(Column(name, "int64", meaning) for name, meaning in launches),
        *(Column(name, "int64", meaning) for pair in _pairs(table) for name, meaning in times.meanings(pair)),
    ]


def _pairs(table: str) -> list[times.Pair]:
    return times.pairs_of([column.name for column in TABLES[table]])


def write(folder: Path | str, tables: Mapping[str, pd.DataFrame], manifest: dict[str, Any]) -> None:
    """Write a recording, sorted, and its manifest with rows, bytes and SHA-256 of each table that has rows. It replaces
    the one that may be in `folder` as a whole, or not at all. Times of launches are rounded; see `times`.

    Raises RecordingError if the tables break what `TABLES` promises, if `folder` holds anything else, or if it cannot
    be written.
    """
    folder = Path(folder).absolute()
    if others := [file.name for file in files_of(folder) if file.name not in FILES]:
        raise RecordingError(
            f"{folder} holds {others[0]}, which is of no recording: give another folder", exit_code=ExitCode.USAGE
        )
    check_folder(folder, is_recording)
    run_ids = list(tables["runs"]["run_id"].astype(str))
    checked = {name: _checked(name, _ordered(name, _rounded(tables[name]), run_ids)) for name in TABLES}
    draft = folder.with_name(f".{folder.name}.draft")
    try:
        clear(draft)
        draft.mkdir(parents=True)
        written = {}
        for name, frame in checked.items():
            if has_file(name, len(frame)):
                write_table(name, _arrow(name, frame), file := draft / f"{name}.parquet")
                written[name] = {"rows": len(frame), **read_facts(file).model_dump()}
        write_manifest(draft, manifest | {"tables": written})
        replace_folder(draft, folder, is_recording)
    except OSError as error:
        raise RecordingError(
            f"{folder} cannot be written ({error.strerror or error})", exit_code=ExitCode.CANNOT_WRITE
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def has_file(table: str, num_rows: int) -> bool:
    """Whether a table of so many rows is written: one without rows is not, but for `runs`."""
    return num_rows > 0 or table == "runs"


def _rounded(frame: pd.DataFrame) -> pd.DataFrame:
    """Return `frame` with the launches that its file will have, for it is sorted by them."""
    start, end = times.LAUNCHES[:2]
    columns = [name for name in (start, end, "start_ns") if name in frame]
    if not {start, "start_ns"} <= {*columns} or not all(is_whole(frame[name]) for name in columns):
        return frame
    launch, launch_end = times.round_launches(
        frame[start].to_numpy(np.int64),
        frame[end].to_numpy(np.int64) if end in frame else None,
        frame["start_ns"].to_numpy(np.int64),
    )
    return frame.assign(**{start: launch}, **({} if launch_end is None else {end: launch_end}))


def is_whole(values: pd.Series) -> bool:
    """Whether all values are there and are integers."""
    return pd.api.types.is_integer_dtype(values) and not values.isna().any()


def files_of(folder: Path) -> list[Path]:
    """List the content of a folder, which need not exist."""
    return sorted(folder.iterdir()) if folder.is_dir() else []


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest of a recording, with a digest of itself."""
    text = json.dumps(add_digest(manifest), indent=2, ensure_ascii=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def recordings_in(folder: Path) -> list[Path]:
    """List the recordings in `folder` and in its folders of studies, by name, as `find_folders` finds them. Raises
    RecordingError."""
    try:
        return find_recordings(folder)
    except OSError as error:
        raise _not_restored(error) from error


def _restore(folder: Path) -> None:
    try:
        restore(folder)
    except OSError as error:
        raise _not_restored(error) from error


def _not_restored(error: OSError) -> RecordingError:
    return RecordingError(
        f"{error.filename} is what was to be replaced when a program was killed, and cannot be called"
        f" {error.filename2} again ({error.strerror}): rename it"
    )


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a recording. It is put back if a program that replaced it was killed. Raises RecordingError
    if there is none, or if it is not what was written."""
    file = folder / MANIFEST
    _restore(folder)
    if not file.is_file():
        raise RecordingError(
            f"{folder} is not a recording: it has no {MANIFEST}; make one with `ingest`", exit_code=ExitCode.USAGE
        )
    try:
        manifest = load_json(file)
        if not isinstance(manifest, dict):
            raise ValueError(f"it is a {type(manifest).__name__}")
        ReadManifest.model_validate(manifest)
    except ValidationError as error:
        why = ": ".join(filter(None, describe_invalid(error)))
        raise RecordingError(f"{file} is not a manifest ({why}); ingest again") from error
    except (OSError, ValueError) as error:
        raise RecordingError(f"{file} is not a manifest ({error}); ingest again") from error
    if DIGEST in manifest and not is_intact(manifest):
        raise RecordingError(f"{file} is not what was written (its digest differs); ingest again")
    return manifest


def check_files(folder: Path, manifest: dict[str, Any]) -> None:
    """Raise RecordingError if a table differs from its entry in the manifest. Older manifests have only its bytes."""
    for name, written in manifest.get("tables", {}).items():
        file = folder / f"{name}.parquet"
        damage = ""
        if "sha256" in written:
            damage = find_damage(folder, {file.name: FileFacts.model_validate(written)})
        elif file.is_file() and file.stat().st_size != written.get("bytes"):  # reading reports a missing one
            damage = f"{file.name} has not the {written.get('bytes')} bytes that were written"
        if damage:
            raise RecordingError(f"{folder}: {damage}; the recording is not whole: ingest again")


def _ordered(name: str, frame: pd.DataFrame, run_ids: list[str]) -> pd.DataFrame:
    if name == "runs":
        return frame.reset_index(drop=True)
    rank = pd.Index(run_ids).get_indexer(frame["run_id"].astype(str))
    unknown = frame["run_id"][rank < 0]
    if len(unknown):
        raise RecordingError(f"table {name} has rows of {unknown.iloc[0]}, which table runs does not have")
    keyed = frame.assign(run_id=pd.Categorical.from_codes(rank, run_ids), _run=rank)
    for column in [column for column in _SORT[name] if column in frame]:
        if not pd.api.types.is_numeric_dtype(frame[column]):  # by text, not by order of categories
            keyed[f"_{column}"] = frame[column].astype(str).to_numpy()
    by = ["_run", *[f"_{c}" if f"_{c}" in keyed else c for c in _SORT[name] if c in frame]]
    return keyed.sort_values(by, kind="stable", ignore_index=True)[list(frame.columns)]


def _series(values: pd.Series, column: Column) -> pd.Series:
    """Convert `values` to the type of the column; integers stay free of gaps unless a value is truly absent."""
    if column.dtype == "category":
        return values if isinstance(values.dtype, pd.CategoricalDtype) else values.astype("category")
    if column.dtype == "string":
        return values.astype(object)
    if values.isna().any():
        return values.astype(
            {"int32": "Int32", "int64": "Int64", "float64": "float64", "bool": "boolean"}[column.dtype]
        )
    return values.astype(column.dtype)


def find_misfit(table: str, frame: pd.DataFrame) -> str:
    """Find the first column with a value of a wrong type, and that value; "" if there is none."""
    columns = {column.name: column for column in TABLES[table]}
    for name, values in frame.items():
        column = columns.get(str(name))
        for value in values:
            try:
                if isinstance(value, list | dict):
                    raise TypeError("not a value of a column")
                if column and value is None and table != "runs" and not column.nullable:
                    raise TypeError("a row without it")
                if column:
                    _series(pd.Series([value], dtype=object), column)
            except (TypeError, ValueError, OverflowError):
                wanted = column.dtype if column else "number or text"
                return f"{name} is {json.dumps(value)[:100]}, where {wanted} should be"
    return ""


def _checked(name: str, frame: pd.DataFrame) -> pd.DataFrame:
    columns = TABLES[name]
    lacking = _lacking(name, frame.columns)
    if lacking:
        raise RecordingError(f"table {name} lacks column {', '.join(lacking)}: give every column of TABLES['{name}']")
    typed = {column.name: _series(frame[column.name], column) for column in columns if column.name in frame}
    # Runs keep what is not in TABLES: a new field of Run is a new column with no second list.
    typed |= {extra: frame[extra] for extra in frame.columns if name == "runs" and extra not in typed}
    frame = pd.DataFrame(typed)
    if name == "runs":
        if frame["run_id"].duplicated().any():
            raise RecordingError(f"run {frame['run_id'][frame['run_id'].duplicated()].iloc[0]} is there twice")
        strange = set(frame["status"].astype(str)) - set(STATUSES)
        if strange:
            raise RecordingError(f"unknown status {', '.join(sorted(strange))}: one of {', '.join(STATUSES)}")
    for column in columns:
        may_be_null = name == "runs" or column.nullable or column.name not in frame
        if not may_be_null and column.dtype.startswith("int") and frame[column.name].isna().any():
            raise RecordingError(f"table {name} has rows without {column.name}")
    if _ends_before_it_starts(frame):
        raise RecordingError(f"table {name} has a row that ends before it starts")
    return frame


def _starts_and_ends(frame: pd.DataFrame) -> list[str]:
    """List the columns of start and end, if it has both."""
    both = ["start_ns", "end_ns"]
    return both if {*both} <= {*frame.columns} else []


def _ends_before_it_starts(frame: pd.DataFrame) -> bool:
    return bool(_starts_and_ends(frame)) and bool((frame["end_ns"] < frame["start_ns"]).any())


def _lacking(name: str, columns: Iterable[str]) -> list[str]:
    return [column.name for column in TABLES[name] if not column.optional and column.name not in columns]


def _arrow(name: str, frame: pd.DataFrame) -> pa.Table:
    arrays, fields = [], []
    types = arrow_types(name)
    for column in frame.columns:
        kind = types.get(column)
        values = frame[column]
        if kind is not None and pa.types.is_dictionary(kind):
            values = values.cat.remove_unused_categories()
            array = pa.DictionaryArray.from_arrays(
                pa.array(values.cat.codes.to_numpy().astype(np.int32), mask=values.isna().to_numpy()),
                pa.array([str(category) for category in values.cat.categories], pa.string()),
            )
        else:
            array = pa.array(values, type=kind, from_pandas=True)
        arrays.append(array)
        fields.append(pa.field(column, array.type))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def arrow_types(name: str) -> dict[str, pa.DataType]:
    """Return the types of a table's columns, in memory."""
    return {column.name: _ARROW[column.dtype] for column in TABLES[name]}


def write_table(name: str, table: pa.Table, file: Path, is_small: bool = False) -> None:
    """Write the Parquet file of a table. is_small: in a sixth fewer bytes, and ten times as slowly, for what is
    published. Raises OSError."""
    table = times.to_differences(table, _pairs(name))
    # Neighbours among numbers share their upper bytes more often than their values; text repeats, and is a dictionary.
    numbers = [field.name for field in table.schema if pa.types.is_integer(field.type)]
    options = {"store_schema": table.num_rows > _FEW_ROWS, **_SMALL} if is_small else _FAST
    known = signature(pq.write_table).parameters  # older versions of pyarrow lack max_rows_per_page
    pq.write_table(
        table,
        file,
        use_dictionary=[column for column in table.column_names if column not in numbers],
        column_encoding=dict.fromkeys(numbers, "BYTE_STREAM_SPLIT") or None,
        row_group_size=_ROWS_OF_GROUP,
        write_statistics=False,
        **{name: value for name, value in options.items() if name in known},
    )


def read_as_dictionaries(name: str, columns: Iterable[str]) -> list[str]:
    """List those columns of a table's file that are dictionaries in memory: small files do not say so."""
    kinds = arrow_types(name)
    return [column for column in columns if column in kinds and pa.types.is_dictionary(kinds[column])]


def load(folder: Path | str) -> Recording:
    """Read a recording. Adds `family` to kernels, and gives API functions the names that they are ingested with now,
    whatever version of an entry point an older recording has in them.

    All tables share the order of run_id in `runs` as their categories. Raises RecordingError where a file is absent,
    unreadable, not what was written, or lacks a column.
    """
    manifest, tables = load_tables(Path(folder), TABLES)
    add_families(tables["kernels"])
    return Recording(manifest=manifest, **tables)


def load_tables(folder: Path, names: Iterable[str]) -> tuple[dict[str, Any], dict[str, pd.DataFrame]]:
    """Read the manifest of a recording and some of its tables, `runs` and `api` among them, without families. Raises
    RecordingError."""
    manifest = read_manifest(folder)
    check_files(folder, manifest)
    tables = {name: load_table(folder, name, manifest) for name in names}
    run_ids = list(tables["runs"]["run_id"].astype(str))
    if len(set(run_ids)) < len(run_ids):
        twice = next(run for number, run in enumerate(run_ids) if run in run_ids[:number])
        raise RecordingError(f"{folder / 'runs'}.parquet has run {twice} twice; ingest again")
    for name, frame in tables.items():
        set_runs(frame, run_ids, folder / f"{name}.parquet")
    tables["api"] = _named_alike(tables["api"])
    return manifest, tables


def set_runs(frame: pd.DataFrame, run_ids: list[str], file: Path) -> None:
    """Give a table the order of `run_ids` as the categories of run_id. Raises RecordingError if it has another run."""
    unknown = set(frame["run_id"].unique().astype(str)) - set(run_ids)
    if unknown:
        raise RecordingError(f"{file} has rows of {min(unknown)}, which runs.parquet does not have")
    frame["run_id"] = frame["run_id"].cat.set_categories(run_ids)


def add_families(kernels: pd.DataFrame) -> None:
    """Add the column `family` to the table of kernels."""
    families = [kernel_families.find_family(str(name)) for name in kernels["kernel_name"].cat.categories]
    codes, categories = pd.factorize(np.array(families, dtype=object)) if families else (np.empty(0, int), [])
    code = kernels["kernel_name"].cat.codes.to_numpy()
    family = pd.Categorical.from_codes(codes[code] if families else code, pd.Index(categories, dtype=object))
    kernels.insert(kernels.columns.get_loc("kernel_name") + 1, "family", family)


def _named_alike(api: pd.DataFrame) -> pd.DataFrame:
    """`api` with one row for each run, rank, step, phase and function, called as `cuda_api.strip_version` has it."""
    names = api["name"].cat
    base = pd.Series({name: cuda_api.strip_version(str(name)) for name in names.categories}, dtype=object)
    if (base == base.index).all():
        return api
    by = ["run_id", "rank", "step", "phase", "name"]
    renamed = api.assign(name=api["name"].map(base).astype("category"))
    return renamed.groupby(by, observed=True, sort=False, as_index=False)[["calls", "total_ns"]].sum()


def _holds_numbers(values: pd.Series) -> bool:
    """Whether all values that are there are numbers; of a column without values the type says nothing."""
    return bool(pd.api.types.is_numeric_dtype(values)) or not values.notna().any()


def read_table(name: str, file: Path) -> pa.Table:
    """Read the Parquet file of a table, with its times. Raises RecordingError."""
    with reading(file):
        return restore_times(name, pq.read_table(file, read_dictionary=read_as_dictionaries(name, arrow_types(name))))


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Raise RecordingError if `file` is not there, or if it turns out that it cannot be read."""
    if not file.is_file():
        raise RecordingError(f"{file} is missing: the recording is not whole; ingest again")
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise RecordingError(f"{file} cannot be read ({' '.join(str(error).split())[:200]}); ingest again") from error


def restore_times(name: str, stored: pa.Table) -> pa.Table:
    """Convert rows of whole runs of a table to their form in memory. Raises ValueError and KeyError."""
    return _with_early(times.to_times(stored, _pairs(name)))


def _with_early(table: pa.Table) -> pa.Table:
    """Older recordings call kernels exact that seem to begin before their launch."""
    if not {"attribution", "launch_ns", "start_ns"} <= {*table.column_names}:
        return table
    attribution = table["attribution"].cast(pa.string())
    is_early = pc.and_(pc.greater(table["launch_ns"], table["start_ns"]), pc.equal(attribution, "exact"))
    if not pc.any(is_early).as_py():
        return table
    place = table.column_names.index("attribution")
    attribution = pc.if_else(pc.fill_null(is_early, False), "early", attribution)
    return table.set_column(place, "attribution", attribution.dictionary_encode())


def is_left_out(folder: Path, table: str, manifest: Mapping[str, Any]) -> bool:
    """Whether a recording has no file of a table, because the table has no rows or the recording is older."""
    written = manifest.get("tables", {})
    without_rows = bool(written) and table not in written and table != "runs"
    return (without_rows or table in OPTIONAL_TABLES) and not (folder / f"{table}.parquet").exists()


def load_table(folder: Path, name: str, manifest: Mapping[str, Any] | None = None) -> pd.DataFrame:
    """Read one table of a recording. Raises RecordingError."""
    file = folder / f"{name}.parquet"
    left_out = is_left_out(folder, name, read_manifest(folder) if manifest is None else manifest)
    return make_frame(name, make_empty(name) if left_out else read_table(name, file), file)


def make_empty(name: str) -> pa.Table:
    """Make a table without rows, as it is in memory."""
    return pa.schema(arrow_types(name).items()).empty_table()


def make_frame(name: str, table: pa.Table, file: Path) -> pd.DataFrame:
    """Make a frame of rows of the table in `file`, with the types of its columns. Raises RecordingError."""
    lacking = _lacking(name, table.column_names)
    if lacking:
        raise RecordingError(f"{file} lacks column {', '.join(lacking)}: it is from another version; ingest again")
    frame = table.to_pandas(ignore_metadata=True)
    for column in TABLES[name]:
        if column.name not in frame:
            frame[column.name] = _series(pd.Series(column.before, index=frame.index, dtype=object), column)
        elif column.nullable:
            try:
                frame[column.name] = _series(frame[column.name], column)
            except (TypeError, ValueError, OverflowError):
                raise RecordingError(f"{file} has no {column.dtype} in {column.name}; ingest again") from None
        if column.dtype == "category" and not isinstance(frame[column.name].dtype, pd.CategoricalDtype):
            frame[column.name] = frame[column.name].astype("category")
    numbers = [column.name for column in TABLES[name] if column.dtype in ("int32", "int64", "float64")]
    if wrong := [column for column in numbers if not _holds_numbers(frame[column])]:
        raise RecordingError(f"{file} has no numbers in {wrong[0]}; ingest again")
    if name == "runs":
        finished = frame[frame["status"].astype(str) == "ok"]
        for key, rows, allowed in (("status", frame, STATUSES), ("mode", finished, MODES)):
            if strange := {*rows[key].dropna().astype(str)} - {*allowed}:
                raise RecordingError(f"{file} has a run of the unknown {key} {min(strange)}; ingest again")
        # The batch of a script may not be known, as where a step trains two models.
        counted = finished.assign(batch_size=finished["batch_size"].mask(finished["workload"] == SCRIPT))
        if without := [column for column in AT_LEAST_ONE if (counted[column].dropna() < 1).any()]:
            raise RecordingError(f"{file} has a finished run with {without[0]} below 1; ingest again")
        known = {column: finished[column].notna() for column in OF_FINISHED_RUNS}
        if without := [column for column, has in known.items() if has.any() and not has.all()]:
            raise RecordingError(f"{file} has a finished run without {without[0]}; ingest again")
    if not all(pd.api.types.is_numeric_dtype(frame[column]) for column in _starts_and_ends(frame)):
        raise RecordingError(f"{file} has times that are no numbers; ingest again")
    if _ends_before_it_starts(frame):
        raise RecordingError(f"{file} has a row that ends before it starts; ingest again")
    return frame
