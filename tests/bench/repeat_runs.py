"""A large recording made of a small one: its runs again and again under new ids, written a copy at a time."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from profiler_job.analysis.recording import store
from profiler_job.jobs.contract.integrity import read_facts


def repeat_runs(recording: Path, folder: Path, num_runs: int) -> Path:
    """Write a recording of `num_runs` runs into `folder`: the runs of `recording`, and then copies of them under other
    ids, with the number of the copy as `repeat`."""
    folder.mkdir(parents=True)
    tables = {name: pq.read_table(file) for name in store.TABLES if (file := recording / f"{name}.parquet").is_file()}
    run_ids = tables["runs"]["run_id"].to_pylist()
    written = {}
    for name, table in tables.items():
        file = folder / f"{name}.parquet"
        with pq.ParquetWriter(file, table.schema, compression="zstd", compression_level=1) as writer:
            for copy in range(-(-num_runs // len(run_ids))):
                chosen = run_ids[: num_runs - copy * len(run_ids)]
                writer.write_table(_rename(table, chosen, copy))
        written[name] = {"rows": pq.read_metadata(file).num_rows, **read_facts(file).model_dump()}
    manifest = store.read_manifest(recording)
    runs = pq.read_table(folder / "runs.parquet", columns=["run_id", "status"]).to_pylist()
    store.write_manifest(folder, manifest | {"tables": written, "runs": runs})
    return folder


def _rename(table: pa.Table, chosen: list[str], copy: int) -> pa.Table:
    """Return the rows of the `chosen` runs as rows of copy `copy`; copy 0 keeps its ids."""
    column = table["run_id"].combine_chunks()
    column = column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()
    names = column.dictionary.to_pylist()
    if len(chosen) < len(names):
        places = pa.array([names.index(run) for run in chosen if run in names], column.indices.type)
        kept = pa.compute.is_in(column.indices, places)
        table, column = table.filter(kept), column.filter(kept)
    renamed = [re.sub(r"$", f"-copy{copy}", name) if copy else name for name in names]
    ids = pa.DictionaryArray.from_arrays(column.indices, pa.array(renamed, pa.string()))
    table = table.set_column(
        table.schema.get_field_index("run_id"), "run_id", ids.cast(table.schema.field("run_id").type)
    )
    if "repeat" in table.column_names:
        repeat = pa.array([copy] * len(table), table.schema.field("repeat").type)
        table = table.set_column(table.schema.get_field_index("repeat"), "repeat", repeat)
    return table
