"""Which ratios of unprofiled steps a page may lead with.

A ratio of times from fresh processes measures their hosts, too: the GPU's work repeats within about 1%, the step within
1.5 or 2 times where the GPU waits for the CPU. So a lead, a card, a title or a summary quotes a ratio only if the two
steps differ measurably, and if the processes of each step agree within MOST_APART. Ratios that were measured by turns
have intervals of their own.
"""

import math

import pandas as pd

from profiler_job.analysis.metrics import timing

MOST_APART = 0.05
"""So far apart, as a part of the shortest, the medians of a step's processes may be."""


def measure_apart(steps: pd.DataFrame) -> pd.Series:
    """Measure how far the medians of the processes of each run are apart, as a part of the shortest: by run_id. It is
    infinite if one process timed the run: nothing shows what another would take."""
    rows = steps if "process" in steps else steps.assign(process=0)
    processes = timing.measure_processes(rows).set_index("run_id")
    apart = processes["longest_ns"] / processes["shortest_ns"] - 1
    return apart.where(processes["num_processes"] > 1, math.inf)


def find_steady_runs(steps: pd.DataFrame) -> frozenset[str]:
    """Find the ids of runs that several processes timed, and whose medians are within MOST_APART."""
    apart = measure_apart(steps)
    return frozenset(apart.index[apart <= MOST_APART].astype(str))


def mark_quotable(differs: pd.Series, *steady: pd.Series, turns: pd.DataFrame | None = None) -> pd.Series:
    """Mark the rows whose ratio may be quoted: the steps differ measurably, and the runs of all sides are `steady`, or
    took turns. turns: as `turns.compare_with_base` makes it."""
    is_steady = pd.Series(True, differs.index)
    for of_side in steady:
        is_steady &= of_side.eq(True)  # missing where a side was not measured
    if turns is not None:
        is_steady |= turns["times_as_fast"].notna()
    return differs.astype(bool) & is_steady


def prefer_turns(turns: pd.DataFrame, time_ns: pd.Series, base_ns: pd.Series) -> pd.Series:
    """Return the times of bases to take ratios with: for runs that took turns with their base, the run's `time_ns` by
    their ratio within rounds. turns: as `turns.compare_with_base` makes it."""
    return (time_ns * turns["times_as_fast"]).fillna(base_ns)


def prefer_turns_band(turns: pd.DataFrame, time_ns: pd.Series, half_band_ns: pd.Series) -> pd.Series:
    """Return half the noise bands (ns) of differences between runs and their bases: for runs that took turns with their
    base, how far the interval reaches from their ratio towards 1, times the run's `time_ns`; so the difference of
    `prefer_turns` exceeds it if the interval excludes 1. turns: as `turns.compare_with_base` makes it."""
    ratio = turns["times_as_fast"]
    end = turns["low"].where(ratio > 1, turns["high"])
    return ((ratio - end).abs() * time_ns).fillna(half_band_ns)
