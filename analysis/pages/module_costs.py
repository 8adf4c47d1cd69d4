"""What each module costs in a step, backward and optimizer included, as the pages of runs and questions show it."""

from typing import Any

import pandas as pd

from profiler_job.analysis.metrics import kernel_time
from profiler_job.analysis.pages.extreme_rows import span
from profiler_job.analysis.render.answer import Column, Table
from profiler_job.jobs.contract import ranges


def select_followed_runs(totals: pd.DataFrame) -> pd.DataFrame:
    """Kernel totals of runs in whose backward pass modules were followed. Libraries open ranges of their own in
    backward: what tells a followed one is the gradient of the loss."""
    followed = totals.query("phase == @ranges.BACKWARD and module == @ranges.LOSS_MODULE")["run_id"].unique()
    return totals[totals["run_id"].isin(followed)]


def module_tree(totals: pd.DataFrame) -> pd.DataFrame:
    """`kernel_time.sum_by_module` of runs in whose backward pass modules were followed; no rows of others."""
    return kernel_time.sum_by_module(select_followed_runs(totals))


def select_longest_context(rows: pd.DataFrame) -> pd.DataFrame:
    """The cases of the longest context: a page of all modules of all cases is too large to read and to load."""
    return rows[rows["context_length"] == rows["context_length"].max()] if "context_length" in rows else rows


def select_largest_model(rows: pd.DataFrame) -> pd.DataFrame:
    """The cases of the largest model, of rows in model order: where a case has many rows, one model is what fits."""
    return rows[rows["size"] == rows["size"].iloc[-1]] if len(rows) else rows


def find_most_frequent_module(rows: pd.DataFrame) -> dict[str, Any]:
    """Find the most frequent module of rows, in how many it is, and its shares of a step."""
    counts = rows["module"].value_counts()
    module = min(counts[counts == counts.max()].index)
    of_module = rows[rows["module"] == module]
    return {"module": module, "num_cases": len(of_module), "share": span(of_module["step_share"])}


def top_modules(tree: pd.DataFrame) -> pd.DataFrame:
    """Find the module that costs most in each case, among modules with none inside."""
    leaves = tree[tree["is_leaf"].astype(bool)]
    return leaves.sort_values("total_ns", ascending=False, kind="stable").drop_duplicates("run_id").sort_index()


def module_table(
    tree: pd.DataFrame,
    case: tuple[Column, ...] = (),
    key: str = "tree",
    title: str = "What each module costs in a step, with what is inside it",
) -> Table:
    """What each module costs in a step, by phase."""
    phases = [f"{phase}_ns" for phase in ranges.ALL_PHASES if f"{phase}_ns" in tree]
    shown = tree.assign(**{name: tree[name].where(tree[name] > 0) for name in phases})
    return Table(
        key,
        title,
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
