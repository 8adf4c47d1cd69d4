"""What torch.compile did in a script: the lines at which it broke graphs."""

import pandas as pd

from profiler_job.analysis.insight.recorded_compiling import BREAK
from profiler_job.analysis.render.answer import Column, Table


def build_breaks_table(notes: pd.DataFrame) -> Table:
    """Build the table of graph breaks from the table `compile_notes` of a run: each once, of all ranks."""
    columns = ["where", "function", "reason"]
    rows = notes.loc[notes["kind"] == BREAK, columns].astype(str).drop_duplicates()
    kinds = Column("where", "line", "code"), Column("function", "function", "code"), Column("reason", "reason", "prose")
    return Table("graph_breaks", "Where torch.compile breaks graphs", kinds, rows)
