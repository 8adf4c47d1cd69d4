"""The sweeps that come with the program, as recordings and predictions name them: by a block, or by a whole file."""

from functools import cache

from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP, load_sweep

FILES = sorted(DEFAULT_SWEEP.parent.glob("sweeps/*.yaml"))


@cache
def list_runs() -> dict[str, tuple[str, list[Run]]]:
    """Return the study and the runs of each block, by its name, and of each file whose name no block has."""
    sweeps = [load_sweep(file) for file in (DEFAULT_SWEEP, *FILES)]
    whole = {sweep.name: (sweep.study, sweep.runs) for sweep in sweeps}
    return whole | {block.name or sweep.name: (sweep.study, block.runs) for sweep in sweeps for block in sweep.blocks}


def find_runs(name: str) -> list[Run]:
    """Return the runs of a block, or of a file."""
    return list_runs()[name][1]
