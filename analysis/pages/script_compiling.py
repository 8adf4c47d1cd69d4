"""What torch.compile did in a script: the lines at which it broke graphs, and what each costs."""

import pandas as pd

from profiler_job.analysis.insight.recorded_compiling import BREAK, COUNTED
from profiler_job.analysis.render.answer import Column, Table
from profiler_job.jobs.contract.ranges import PASSES

_LINE = ["where", "function", "reason"]


def build_breaks_table(notes: pd.DataFrame) -> Table:
    """Build the table of graph breaks from the table `compile_notes` of a run: each once, those with most idle time
    first. Costs are of a captured step, in the mean over the ranks of which they are known."""
    costs = [f"{phase}_{name}" for phase in PASSES for name in COUNTED]
    rows = notes.loc[notes["kind"] == BREAK, [*_LINE, *costs]]
    rows = rows.astype(dict.fromkeys(_LINE, str) | dict.fromkeys(costs, float))
    rows[costs] = rows[costs].mask(rows[costs] < 0)
    rows = rows.groupby(_LINE, sort=False, as_index=False).mean()
    rows["kernels"] = rows[[f"{phase}_kernels" for phase in PASSES]].sum(axis=1, min_count=1)
    idle = rows[[f"{phase}_idle_ns" for phase in PASSES]].sum(axis=1)
    columns = (
        Column("where", "line", "code"),
        Column("function", "function", "code"),
        Column("forward_breaks", "times a step", "amount", absent="not known"),
        Column("forward_idle_ns", "GPU idle in forward", "ms", absent="not known"),
        Column("backward_idle_ns", "in backward", "ms", absent="not known"),
        Column("kernels", "kernels between graphs", "amount", absent="not known"),
        Column("reason", "reason", "prose"),
    )
    order = (-idle).sort_values(kind="stable").index
    return Table("graph_breaks", "Where torch.compile breaks graphs", columns, rows.loc[order].reset_index(drop=True))
