"""Columns that tables of several questions share."""

import pandas as pd

from profiler_job.analysis.render.answer import Column
from profiler_job.jobs.contract.axes import find_label

COUNTS = ("context_length", "batch_size", "accumulation")


def case_headings(by: list[str], linked: bool = True) -> tuple[Column, ...]:
    """The columns that name a case; `linked` makes the size a link to the run. Runs of a study have no pages."""
    kinds = dict.fromkeys(COUNTS, "count") | ({"size": "run"} if linked else {})
    return tuple(
        Column(name, "GPU" if name == "gpu_name" else find_label(name), kinds.get(name, "text")) for name in by
    )


def band_column(value: str) -> Column:
    """Half the noise band of a comparison: two times differ if they are this far from each other."""
    return Column(value, "noise band, ±", "ms", absent="n/a")


def spread_column(clock: str, label: str) -> Column:
    """A median with its minimum and maximum below it."""
    return Column(f"{clock}_ns", label, "ms", lower=f"{clock}_min_ns", upper=f"{clock}_max_ns")


def step_columns(rows: pd.DataFrame) -> tuple[Column, ...]:
    """Statistics of the timed steps other than the median, as `differences.timed_steps` gives it."""
    return (
        Column("timer_n", "steps", "count"),
        spread_column("timer", "median"),
        Column("timer_mean_ns", "mean", "ms"),
        Column("timer_std_ns", "deviation", "ms", absent="n/a"),
        Column("deviation", "of the mean", "share", absent="n/a"),
        *interval_columns(rows, "median of processes"),
    )


def interval_columns(rows: pd.DataFrame, label: str = "of processes") -> tuple[Column, ...]:
    """The median over processes with its 95% interval, as `differences.process_intervals` gives it, and how many
    processes that is of; none where no run has so many that there is one."""
    if "of_processes_ns" not in rows or rows["of_processes_ns"].isna().all():
        return ()
    low, high = "of_processes_low_ns", "of_processes_high_ns"
    return (
        Column("of_processes_ns", label, "ms", lower=low, upper=high, absent="n/a"),
        Column("num_processes", "n", "count", absent="n/a"),
    )
