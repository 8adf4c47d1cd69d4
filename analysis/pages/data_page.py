"""What the recordings hold, column by column, and where to get them."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from profiler_job.analysis.recording.times import TICK_NS
from profiler_job.analysis.render.answer import Answer, Column, Table, assemble

SLUG = "data"
TITLE = "Data"


def answer(dictionary: pd.DataFrame, downloads: Mapping[str, Mapping[str, Any]]) -> Answer:
    """The data dictionary (table, column, dtype, unit, meaning), one table per table of a recording; and of each
    recording (`downloads`: manifests by folder in site/data) what it is, its runs, and its files with rows, bytes."""
    recordings = [
        {
            "folder": folder,
            "name": folder.rpartition("/")[2],
            "study": manifest.get("study", ""),
            "manifest": manifest,
            "num_runs": len(manifest.get("runs", ())),
            "bytes": sum(table["bytes"] for table in manifest.get("tables", {}).values()),
            "files": [{"table": name, **table} for name, table in manifest.get("tables", {}).items()],
        }
        for folder, manifest in downloads.items()
    ]
    recordings.sort(key=lambda recording: (recording["study"], recording["name"]))
    columns = (
        Column("column", "column", "code"),
        Column("dtype", "type"),
        Column("unit", "unit"),
        Column("meaning", "meaning", "prose"),
    )
    tables = [
        Table(f"columns-{name}", f"Columns of {name}", columns, rows.reset_index(drop=True))
        for name, rows in dictionary.groupby("table", sort=False)
    ]
    facts = {"recordings": recordings, "tick_ns": TICK_NS, "names": list(dict.fromkeys(dictionary["table"]))}
    return assemble(facts, [], tables, [])
