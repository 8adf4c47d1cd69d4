"""How long the phases of an unprofiled step take, and how long the host needs to issue them.

They say how long the GPUs wait, and whether they wait for the host.
"""

from typing import NamedTuple

import pandas as pd

from profiler_job.analysis.metrics.per_rank import take_largest_rank
from profiler_job.analysis.metrics.turns import select_fastest_processes
from profiler_job.jobs.contract import ranges

HOST_LIMITED = 0.95
"""From this part of a phase on that the host issues work, the host is what limits it."""


class Clock(NamedTuple):
    """Unprofiled medians of a phase. issue_ns: of the wall time, the host's part; NaN where it was not recorded."""

    wall_ns: float
    issue_ns: float


def clocks(steps: pd.DataFrame) -> dict[str, dict[str, Clock]]:
    """Of each run that was timed, by phase, and of the whole `step`. Of several ranks the largest of each: the others
    wait for the one whose host is slowest, and seem not to be limited by theirs."""
    rows = select_fastest_processes(steps)
    rows = rows[rows["collector"].astype(str) == "timer"].drop(columns="round", errors="ignore")
    rows = rows.assign(issue_ns=pd.to_numeric(rows["issue_ns"], errors="coerce").astype(float))
    rows = take_largest_rank(rows, ["wall_ns", "issue_ns"])
    medians = rows.groupby(["run_id", "phase"], observed=True)[["wall_ns", "issue_ns"]].median()
    known: dict[str, dict[str, Clock]] = {}
    for (run_id, phase), wall_ns, issue_ns in medians.itertuples():
        known.setdefault(str(run_id), {})[str(phase)] = Clock(float(wall_ns), float(issue_ns))
    return known


def measure_host_limited(steps: pd.DataFrame) -> dict[str, float]:
    """Of each run that was timed, how long the phases of a step take that the host limits: its GPUs wait for no longer
    than that."""
    return {
        run_id: sum(
            clock.wall_ns
            for phase, clock in timed.items()
            if phase != ranges.STEP and not clock.issue_ns <= HOST_LIMITED * clock.wall_ns
        )
        for run_id, timed in clocks(steps).items()
    }
