"""Tables and facts of a capture as an entry of `capture_cache`: a Parquet file with one row; a column for each table,
which is a list of the table's rows; and the facts, as JSON."""

import json
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from profiler_job.analysis.capture.capture_cache import About, CacheEntry

ENDING = ".parquet"


class CachedResult(NamedTuple):
    """facts: what JSON can hold. tables: by name; categories come back as text."""

    facts: dict[str, Any]
    tables: dict[str, pd.DataFrame]


def load_tables(entry: CacheEntry | None) -> CachedResult | None:
    """Return what was kept; None if there is nothing that counts."""
    return entry.load(_decode) if entry else None


def keep_tables(entry: CacheEntry, result: CachedResult) -> None:
    """Write a result, unless the capture changed since, or writing fails."""
    entry.keep(partial(_encode, result=result))


def _encode(about: About, result: CachedResult) -> bytes:
    columns, formats = {}, {}
    for name, frame in result.tables.items():
        categories = [column for column in frame if isinstance(frame[column].dtype, pd.CategoricalDtype)]
        batch = pa.RecordBatch.from_pandas(frame.astype(dict.fromkeys(categories, str)))
        formats[name] = batch.schema.metadata[b"pandas"].decode()
        columns[name] = pa.ListArray.from_arrays(pa.array([0, len(frame)], pa.int32()), batch.to_struct_array())
    facts = json.dumps({"about": about, "formats": formats, "facts": result.facts})
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"": pa.array([facts]), **columns}), sink, compression="zstd")
    return bytes(sink.getvalue())


def _decode(content: bytes) -> tuple[About, CachedResult]:
    table = pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
    kept = json.loads(table[""][0].as_py())
    tables = {}
    for name, pandas_format in kept["formats"].items():
        batch = pa.RecordBatch.from_struct_array(table[name].chunk(0).flatten())
        tables[name] = batch.replace_schema_metadata({b"pandas": pandas_format.encode()}).to_pandas()
    return kept["about"], CachedResult(kept["facts"], tables)
