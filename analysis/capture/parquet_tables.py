"""Read columns of an nsys export in a folder of Parquet files."""

import stat
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from profiler_job.analysis.capture import limits, parquet_pages
from profiler_job.analysis.capture.blocks import BLOCK
from profiler_job.analysis.capture.capture_data import ExportError, ExportProblem
from profiler_job.analysis.capture.export_columns import gather_columns
from profiler_job.analysis.capture.export_schema import NO_VALUE, READ
from profiler_job.jobs.contract.exit_codes import ExitCode


class ParquetTables:
    """Columns of an export in a folder with one Parquet file a table, named as the SQLite tables are. Times with a unit
    become nanoseconds; a table may have no rows."""

    def __init__(self, folder: Path):
        if next(folder.glob("*.parquet"), None) is None:
            raise ExportError(
                ExportProblem.NOT_AN_EXPORT,
                folder,
                "is a folder without .parquet files",
                "give the folder that nsys export wrote",
                exit_code=ExitCode.USAGE,
            )
        files = {table: folder / f"{table}.parquet" for table in READ}
        self._files = {table: file for table, file in files.items() if file.exists()}
        self._names = limits.UniqueNames()
        self._about = {table: _read_footer(file, table, folder) for table, file in self._files.items()}

    def list_tables(self) -> set[str]:
        return set(self._files)

    def list_problems(self) -> dict[str, str]:
        return {}

    def list_columns(self, table: str) -> list[str]:
        about = self._about.get(table)
        return [about.schema.column(i).path for i in range(about.num_columns)] if about else []

    def num_rows(self, table: str) -> int:
        return self._about[table].num_rows

    def read_integers(self, table: str, columns: Sequence[str]) -> list[np.ndarray]:
        self._check(table, columns, _NUMBERS)
        with pq.ParquetFile(self._files[table]) as file:
            batches = file.iter_batches(BLOCK, columns=list(columns))
            chunks = ([_convert_integers(batch.column(name), table) for name in columns] for batch in batches)
            return gather_columns(table, columns, self.num_rows(table), chunks)

    def read_objects(self, table: str, columns: Sequence[str]) -> list[list[Any]]:
        self._check(table, columns, (*_NUMBERS, "BYTE_ARRAY"))
        # Strings stay with their numbers: one string under a million rows is one string.
        with pq.ParquetFile(self._files[table], read_dictionary=list(columns)) as file:
            data = file.read(columns=list(columns))
        return [[*chain.from_iterable(map(self._unpack, data.column(name).chunks))] for name in columns]

    def _unpack(self, chunk: pa.Array) -> Iterable[Any]:
        if not pa.types.is_dictionary(chunk.type):
            return chunk.to_pylist()
        limits.NAMES_BYTES.check(chunk.dictionary.nbytes)
        values = [*map(self._decode_object, chunk.dictionary.to_pylist()), None]
        return map(values.__getitem__, pc.fill_null(chunk.indices, -1).to_pylist())

    def _decode_object(self, value: Any) -> Any:
        value = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        return self._names(value) if isinstance(value, str) else value

    def _check(self, table: str, columns: Sequence[str], kinds: Sequence[str]) -> None:
        """Raise ValueError if the columns are not plain ones of these physical types, or their pages exceed the
        limits."""
        about = self._about[table]
        if not about.num_rows:  # then a file has no pages
            return
        numbers = [i for i in range(about.num_columns) if about.schema.column(i).path in columns]
        for column in map(about.schema.column, numbers):
            if column.physical_type not in kinds or column.max_repetition_level or column.max_definition_level > 1:
                raise ValueError(f"{table} has a value that is not a whole number in column {column.path}")
        with self._files[table].open("rb") as file:
            parquet_pages.check(file, about, numbers, table)


_UNITS_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_NUMBERS = ("INT32", "INT64", "BOOLEAN", "FLOAT", "DOUBLE")


def _read_footer(file: Path, table: str, folder: Path) -> pq.FileMetaData:
    """Read the footer of a table. Raises ExportError if `file` is not a regular file, and LimitError."""
    if not stat.S_ISREG(file.stat().st_mode):
        raise ExportError(
            ExportProblem.NOT_AN_EXPORT,
            folder,
            f"holds {file.name}, which is not a file",
            "give the folder that nsys export wrote",
        )
    size = file.stat().st_size
    with file.open("rb") as opened:
        opened.seek(max(size - 8, 0))
        footer, magic = int.from_bytes(opened.read(4), "little"), opened.read(4)
    if magic == b"PAR1" and footer < size:
        limits.FOOTER_BYTES.check(footer, table)
    about = pq.read_metadata(file)
    limits.COLUMNS.check(about.num_columns, table)
    limits.check_density(about.num_rows, size, table)
    return about


def _convert_integers(column: pa.Array, table: str) -> np.ndarray:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.type == pa.uint64():
        column = column.view(pa.int64())  # ids beyond 2**63 wrap, as they do in SQLite
    if pa.types.is_date(column.type) or pa.types.is_decimal(column.type):
        raise ValueError(f"{table} has a value that is a {column.type}")
    try:
        if pa.types.is_temporal(column.type):
            unit = _UNITS_NS[column.type.unit]
            number = column.view(pa.int32() if pa.types.is_time32(column.type) else pa.int64()).cast(pa.int64())
            column = pc.multiply_checked(number, pa.scalar(unit, pa.int64()))
        return column.cast(pa.int64()).fill_null(NO_VALUE).to_numpy()
    except pa.ArrowInvalid as error:
        raise ValueError(f"{table} has a value that is not a whole number") from error
