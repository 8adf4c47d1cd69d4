"""What torch.compile did in a script: the lines at which it broke graphs, and what each costs."""

import pandas as pd

from profiler_job.analysis.insight.broken_lines import sum_lines
from profiler_job.analysis.render.answer import Column, Table


def build_breaks_table(notes: pd.DataFrame) -> Table:
    """Build the table of graph breaks from the table `compile_notes` of a run: each once, those with most idle time
    first. Costs are of a captured step, in the mean over the ranks of which they are known."""
    columns = (
        Column("where", "line", "code"),
        Column("function", "function", "code"),
        Column("reason", "reason", "prose"),
        Column("forward_breaks", "times a step", "amount", absent="not known"),
        Column("forward_idle_ns", "GPU idle in forward", "ms", absent="not known"),
        Column("backward_idle_ns", "in backward", "ms", absent="not known"),
        Column("kernels", "kernels between graphs", "amount", absent="not known"),
    )
    return Table("graph_breaks", "Where torch.compile breaks graphs", columns, sum_lines(notes))
