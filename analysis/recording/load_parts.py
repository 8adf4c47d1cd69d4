"""Load recordings whose kernels are too many for memory: their large tables in parts (`run_table`), read once from the
recording, batch by batch, and kept in a folder for the time that they are needed."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.run_table import Part, RunTable
from profiler_job.analysis.recording.table_schema import TABLES

LARGE = ("ranges", "kernels", "memops")
"""Tables whose rows grow with the kernels."""
PART_KERNELS = 100_000
"""Kernels of a part, about: what is computed of them takes some hundred bytes for each."""
MOST_KERNELS = 1_500_000
"""Kernels of the recordings of one study that are held in memory: they take about 1 GB."""
BATCH_ROWS = 1 << 16


def load_recordings(folders: Sequence[Path], scratch: Path) -> list[store.Recording]:
    """Load recordings: in memory, or, if a study has more than MOST_KERNELS, with their LARGE tables in parts
    below `scratch`, an empty folder that is needed as long as the tables. Raises RecordingError."""
    kernels: Counter[str] = Counter()
    for folder in folders:
        manifest = store.read_manifest(folder)
        kernels[manifest.get("study", "")] += manifest.get("tables", {}).get("kernels", {}).get("rows", 0)
    if max(kernels.values(), default=0) <= MOST_KERNELS:
        with ThreadPoolExecutor() as pool:
            return [*pool.map(store.load, folders)]
    return [_load_in_parts(folder, scratch / str(number)) for number, folder in enumerate(folders)]


def _load_in_parts(folder: Path, scratch: Path) -> store.Recording:
    scratch.mkdir()
    manifest, tables = store.load_tables(folder, [name for name in TABLES if name not in LARGE])
    run_ids = list(tables["runs"]["run_id"].astype(str))
    left_out = {name for name in LARGE if store.is_left_out(folder, name, manifest)}
    num_kernels = {} if "kernels" in left_out else _count_rows(folder / "kernels.parquet")
    part_of = _divide(run_ids, num_kernels)
    large = {name: _split(folder / f"{name}.parquet", name in left_out, part_of, scratch) for name in LARGE}
    return store.Recording(manifest=manifest, **tables, **large)


def _count_rows(file: Path) -> dict[str, int]:
    """Count the rows of each run."""
    counts: Counter[str] = Counter()
    with store.reading(file):
        for batch in pq.ParquetFile(file).iter_batches(BATCH_ROWS, columns=["run_id"]):
            counts.update({run["values"]: run["counts"] for run in batch["run_id"].value_counts().to_pylist()})
    return counts


def _divide(run_ids: list[str], num_kernels: Mapping[str, int]) -> dict[str, int]:
    """Return the part of each run, from 0. A part begins with a run that has kernels, if it is not the first."""
    part, held, part_of = 0, 0, {}
    for run in run_ids:
        rows = num_kernels.get(run, 0)
        if held and rows and held + rows > PART_KERNELS:
            part, held = part + 1, 0
        part_of[run], held = part, held + rows
    return part_of


def _split(file: Path, is_left_out: bool, part_of: Mapping[str, int], scratch: Path) -> RunTable:
    """Write a table in parts, all with the categories of the whole table."""
    name, run_ids = file.stem, [*part_of]
    members: dict[int, list[str]] = {}
    for run, part in part_of.items():
        members.setdefault(part, []).append(run)
    categories = {} if is_left_out else _list_categories(file)

    def write(number: int, table: pa.Table) -> Part:
        frame = store.make_frame(name, table, file)
        for column, values in categories.items():
            known = frame[column].cat.categories
            frame[column] = frame[column].cat.set_categories([*values, *known[~known.isin(values)]])
        store.set_runs(frame, run_ids, file)
        if name == "kernels":
            store.add_families(frame)
        return Part.write(frame, members[number], scratch / f"{name}-{number}")

    written = {} if is_left_out else {number: write(number, rows) for number, rows in _read_parts(file, part_of)}
    return RunTable(tuple(written.get(number) or write(number, store.make_empty(name)) for number in members))


def _list_categories(file: Path) -> dict[str, list[str]]:
    """List the texts of each column of the file that has them in a dictionary, in the order of the file."""
    texts: dict[str, dict[str, None]] = {}
    with store.reading(file):
        stored = _open(file)
        names = [field.name for field in stored.schema_arrow if pa.types.is_dictionary(field.type)]
        for group in range(stored.num_row_groups):
            for column in names:
                for chunk in stored.read_row_group(group, columns=[column])[column].chunks:
                    texts.setdefault(column, {}).update(dict.fromkeys(chunk.dictionary.to_pylist()))
    return {column: [*values] for column, values in texts.items() if column != "run_id"}


def _open(file: Path) -> pq.ParquetFile:
    columns = pq.read_schema(file).names
    return pq.ParquetFile(file, read_dictionary=store.read_as_dictionaries(file.stem, columns))


def _read_parts(file: Path, part_of: Mapping[str, int]) -> Iterator[tuple[int, pa.Table]]:
    """Yield the parts of a table that have rows. Raises RecordingError if its runs have another order than `runs`."""
    held: list[pa.RecordBatch] = []
    current = 0
    with store.reading(file):
        for batch in _open(file).iter_batches(BATCH_ROWS):
            runs = batch["run_id"]
            runs = runs if pa.types.is_dictionary(runs.type) else runs.dictionary_encode()
            parts = pd.Series([part_of.get(str(run), current) for run in runs.dictionary.to_pylist()], dtype=int)
            of_row = parts.to_numpy()[runs.indices.to_numpy()]
            bounds = [0, *(i + 1 for i in (of_row[1:] != of_row[:-1]).nonzero()[0]), len(of_row)]
            for start, end in pairwise(bounds):
                if end > start and of_row[start] != current:
                    if of_row[start] < current:
                        raise ValueError("its runs are not in the order of runs.parquet")
                    if held:
                        yield current, _join(file, held)
                    held, current = [], int(of_row[start])
                held.append(batch.slice(start, end - start))
        if held:
            yield current, _join(file, held)


def _join(file: Path, batches: Collection[pa.RecordBatch]) -> pa.Table:
    return store.restore_times(file.stem, pa.Table.from_batches(batches).unify_dictionaries())
