"""What the recording holds, column by column, and where to get it."""

from collections.abc import Mapping

import pandas as pd

from analysis.answer import Answer, Column, Table, assemble

SLUG = "data"
TITLE = "Data"


def answer(dictionary: pd.DataFrame, manifest: Mapping) -> Answer:
    """The data dictionary (table, column, dtype, unit, meaning), one table per table of the recording, and the files
    with rows and bytes."""
    sizes = manifest.get("tables", {})
    files = [{"table": name, "rows": one["rows"], "bytes": one["bytes"]} for name, one in sizes.items()]
    columns = (
        Column("column", "column", "code"),
        Column("dtype", "type"),
        Column("unit", "unit"),
        Column("meaning", "meaning", "prose"),
    )
    tables = [
        Table(f"columns-{name}", f"{name}", columns, rows.reset_index(drop=True))
        for name, rows in dictionary.groupby("table", sort=False)
    ]
    facts = {"files": files, "names": list(dict.fromkeys(dictionary["table"])), "manifest": dict(manifest)}
    return assemble(facts, [], tables, [])
