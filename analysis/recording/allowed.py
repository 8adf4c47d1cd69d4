"""Write anew the part of a recording that may be published: the columns and types of `table_schema.TABLES` and the
fields of a manifest. Whatever else its files hold (metadata of pandas, of tables and columns, of the files) is left
out."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from profiler_job.analysis.recording import store, table_schema
from profiler_job.analysis.recording.manifest_fields import Manifest
from profiler_job.analysis.recording.scan import HASHED_NAMES, is_text
from profiler_job.analysis.recording.store import RecordingError
from profiler_job.jobs.contract.integrity import DIGEST, read_facts
from profiler_job.jobs.contract.invalid_data import describe_invalid
from profiler_job.jobs.contract.layout import MANIFEST
from profiler_job.jobs.contract.messages import COUNTED_CALLS, NEXT_BATCH, SAMPLED

STATUS_NUMBER = re.compile(r"status_[a-z]+(_[a-z]+)*")
"""Columns of `runs` that only some failures have (`status_step`, bytes of an out of memory): numbers."""


OF_CAPTURES = ("ranges", "kernels", "api", "memops", "nsys_sums", "waits", "wait_stacks")
"""Tables of what nsys recorded."""
OF_SOURCES = ("waits", "sync_calls", "wait_stacks", "compile_notes")
"""Tables that name files and functions of a user's script, or quote what PyTorch says of them."""

_NOT_SAID = {"tables", DIGEST, HASHED_NAMES}
"""Fields that are written anew, or that nobody misses."""


def rewrite(
    source: Path, target: Path, manifest: dict[str, Any], with_captures: bool = True, is_private: bool = False
) -> list[str]:
    """Write what may be published of the recording `source` into the folder `target`, which holds nothing else then;
    returns a line for each thing that was left out. Without captures, what nsys recorded is left out, too; is_private:
    and also what names files and functions of a user's script.

    Raises RecordingError if a table is missing or cannot be read, or if a column or a field of the manifest has a wrong
    type.
    """
    try:
        allowed = Manifest.model_validate(manifest).model_dump(exclude_unset=True)
    except ValidationError as error:
        key, why = describe_invalid(error)
        raise RecordingError(f"{source / MANIFEST}: {key}: {why}; ingest again") from error
    left_out = [f"{MANIFEST}: {key}" for key in manifest if key not in {*Manifest.model_fields, *_NOT_SAID}]
    if not with_captures:
        allowed |= {"without_captures": True, "protocol": allowed.get("protocol", {}) | {"profiled_steps": [0]}}
    tables = {}
    target.mkdir()
    for name in table_schema.TABLES:
        file = source / f"{name}.parquet"
        if store.is_left_out(source, name, manifest):
            continue
        table = store.read_table(name, file)
        if not with_captures:
            table = _drop_capture(name, table)
        if is_private and name in OF_SOURCES:
            table = table.slice(0, 0)
        kept = {column: _convert_column(table, name, column, file) for column in table.column_names}
        left_out += [f"{file.name}: column {column}" for column, values in kept.items() if values is None]
        if not store.has_file(name, table.num_rows):
            continue
        written = pa.table({column: values for column, values in kept.items() if values is not None})
        store.write_table(name, written, target / file.name, is_small=True)
        tables[name] = {"rows": table.num_rows, **read_facts(target / file.name).model_dump()}
    store.write_manifest(target, allowed | {"tables": tables})
    return left_out


def _drop_capture(name: str, table: pa.Table) -> pa.Table:
    """Keep what was measured without nsys."""
    if name in OF_CAPTURES:
        return table.slice(0, 0)
    if name == "steps":
        return table.filter(pc.not_equal(table["collector"].cast(pa.string()), "nsys"))
    if name == "sync_calls":
        return _drop_captured_calls(table)
    if name == "figures":
        return table.filter(pc.invert(pc.starts_with(table["figure"].cast(pa.string()), SAMPLED)))
    if name == "runs":
        none = pa.array([0] * table.num_rows, pa.int64())
        return table.set_column(table.column_names.index("profiled_steps"), "profiled_steps", none)
    return table


def _drop_captured_calls(table: pa.Table) -> pa.Table:
    """Keep the calls that the script itself shows. What they copy and how long they take is of the capture, but for
    batches of a DataLoader."""
    calls = pc.list_element(pc.split_pattern(table["call"].cast(pa.string()), ": ", max_splits=1), 0)
    is_batch = pc.equal(calls, NEXT_BATCH)
    kept = is_batch
    for name in COUNTED_CALLS:
        kept = pc.or_(kept, pc.starts_with(calls, name))
    table = table.set_column(table.column_names.index("call"), "call", calls.dictionary_encode())
    if "time_ns" in table.column_names:
        times = pc.if_else(is_batch, table["time_ns"], pa.scalar(-1, pa.int64()))
        table = table.set_column(table.column_names.index("time_ns"), "time_ns", times)
    return table.filter(kept)


def _convert_column(table: pa.Table, name: str, column: str, file: Path) -> pa.Array | None:
    """Convert the values of a column to the type that it must have; None for a column that is not allowed."""
    values = table[column].unify_dictionaries().combine_chunks()
    kind = store.arrow_types(name).get(column)
    if kind is None:
        number = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
        return values if name == "runs" and number and STATUS_NUMBER.fullmatch(column) else None
    try:
        return _cast(values, kind)
    except (pa.ArrowException, TypeError) as error:
        raise RecordingError(f"{file}: column {column} is {values.type}, and should be {kind}: ingest again") from error


def _cast(values: Any, kind: pa.DataType) -> pa.Array:
    """Cast `values` to `kind`. Raises TypeError if text would come from something else, or something else from text."""
    stored = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    wanted = kind.value_type if pa.types.is_dictionary(kind) else kind
    if is_text(stored) != is_text(wanted) and not pa.types.is_null(stored):
        raise TypeError(stored)
    if not pa.types.is_dictionary(kind):
        return (values.dictionary_decode() if pa.types.is_dictionary(values.type) else values).cast(kind)
    if not pa.types.is_dictionary(values.type):
        return values.cast(kind.value_type).dictionary_encode()
    used = pc.unique(values.indices).drop_null().sort()  # a word that no row uses would be stored, too
    indices = pc.index_in(values.indices, value_set=used).cast(kind.index_type)
    return pa.DictionaryArray.from_arrays(indices, values.dictionary.take(used).cast(kind.value_type))
