"""Groups of runs that take turns: variants of one model that share processes."""

from collections.abc import Iterable

from profiler_job.jobs.contract.axes import Run, find_default
from profiler_job.jobs.contract.layout import Protocol


def group_runs(runs: Iterable[Run], protocol: Protocol) -> list[list[Run]]:
    """Return the runs in groups, both in the order of the runs: those that differ in the axes of `turns` alone. Without
    turns each run is a group."""
    defaults = {str(axis): find_default(axis) for axis in protocol.turns}
    groups: dict[Run, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.model_copy(update=defaults), []).append(run)
    return list(groups.values())
