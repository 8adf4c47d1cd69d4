"""What each module costs in a step, backward and optimizer included, as the pages of runs and questions show it."""

import pandas as pd

from analysis.answer import Column, Table
from analysis.metrics import kernel_time
from jobs.contract import ranges


def of_followed_runs(totals: pd.DataFrame) -> pd.DataFrame:
    """Kernel totals of runs in whose backward pass modules were followed. Libraries open ranges of their own in
    backward: what tells a followed one is the gradient of the loss."""
    followed = totals.query("phase == @ranges.BACKWARD and module == @ranges.LOSS_MODULE")["run_id"].unique()
    return totals[totals["run_id"].isin(followed)]


def module_tree(totals: pd.DataFrame) -> pd.DataFrame:
    """`kernel_time.by_module` of runs in whose backward pass modules were followed; no rows of others."""
    return kernel_time.by_module(of_followed_runs(totals))


def module_table(tree: pd.DataFrame, case: tuple[Column, ...] = ()) -> Table:
    """What each module costs in a step, by phase."""
    phases = [f"{phase}_ns" for phase in ranges.ALL_PHASES if f"{phase}_ns" in tree]
    shown = tree.assign(**{name: tree[name].where(tree[name] > 0) for name in phases})
    return Table(
        "tree",
        "What each module costs in a step, with what is inside it",
        (
            *case,
            Column("module", "module", "code"),
            Column("total_ns", "time", "ms"),
            Column("step_share", "of the step", "share", bar=True),
            *(Column(name, name.removesuffix("_ns"), "ms", absent="—") for name in phases),
            Column("ratio", "backward ÷ forward", "ratio", absent="—"),
        ),
        shown,
    )
