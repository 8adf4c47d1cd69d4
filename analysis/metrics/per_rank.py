"""One number for the ranks of a run, which are processes: the slowest rank sets the wall time of a step, the fullest
one the memory. Nothing is summed over ranks unless its docstring says so."""

import pandas as pd


def take_largest_rank(rows: pd.DataFrame, values: list[str]) -> pd.DataFrame:
    """`rows` without `rank`: of rows that differ in nothing else but `values`, the largest of each of these. No two
    rows of one rank may be so alike."""
    by = [name for name in rows if name not in ("rank", *values)]
    return rows.groupby(by, observed=True, sort=False, dropna=False)[values].max().reset_index()


def memory_by_phase(memory: pd.DataFrame) -> pd.DataFrame:
    """Table memory, of the fullest rank: run_id, phase, and its columns in bytes."""
    rows = memory.astype({"run_id": str, "phase": str})
    return take_largest_rank(rows, [name for name in rows if name.endswith("_bytes")])


def list_kept_by_module(module_memory: pd.DataFrame) -> pd.DataFrame:
    """Table module_memory, of the fullest rank, a module that was called more than once summed: run_id, phase, module,
    kept_bytes."""
    rows = module_memory.astype({"run_id": str, "phase": str, "module": str})
    sums = rows.groupby(["run_id", "rank", "phase", "module"], sort=False)["kept_bytes"].sum().reset_index()
    return take_largest_rank(sums, ["kept_bytes"])
