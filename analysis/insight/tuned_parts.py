"""The parts of a step of a tuned script, as it is and tuned: from the traces that `tune` keeps next to its result.

A trace shows phases, modules and kernels. The time of the step, and what limits it, are those of steps without one (see
`tuned_limits`), so that both figures of a page agree.
"""

from pathlib import Path
from typing import NamedTuple

import pandas as pd

from profiler_job.analysis.capture.attribution import attribute
from profiler_job.analysis.capture.capture_data import ExportError
from profiler_job.analysis.capture.modules import link_modules
from profiler_job.analysis.capture.torch_trace import read_trace
from profiler_job.analysis.insight.run_limit import split_steps
from profiler_job.analysis.insight.step_parts import measure_step_parts
from profiler_job.analysis.insight.tuned_ladder import TunedLadder
from profiler_job.analysis.insight.tuned_limits import find_tuned_limits
from profiler_job.analysis.metrics.step_limits import PARTS
from profiler_job.analysis.recording.ingest import make_capture_tables
from profiler_job.analysis.recording.store import add_families
from profiler_job.jobs.contract.ranges import STEP
from profiler_job.jobs.contract.step_limit import StepLimit
from profiler_job.jobs.contract.tuning import name_trace

AS_IT_IS, TUNED = "The step as it is", "The step tuned"


class TunedStep(NamedTuple):
    """A step of a tuned script: its title, its parts (`step_parts.COLUMNS`), and what limits it."""

    title: str
    parts: pd.DataFrame
    limit: StepLimit


def read_tuned_steps(folder: Path, ladder: TunedLadder) -> list[TunedStep]:
    """Read the steps whose traces are in the folder of a result: as the script is, and tuned. A trace that is missing,
    or cannot be read, leaves its step out."""
    winner = ladder.tuning.winner
    limits = list(find_tuned_limits(ladder).items())
    last = ladder.steps["label"].iloc[-1] if len(ladder.steps) else ""
    chosen: list[tuple[str, tuple[str, ...], dict[str, StepLimit]]] = [(AS_IT_IS, (), dict(limits[:1]))]
    if winner is not None:
        chosen.append((TUNED, winner.changes, {label: limit for label, limit in limits[1:] if label == last}))
    steps = []
    for title, changes, known in chosen:
        for limit in known.values():
            parts = _read_parts(folder / name_trace(changes), limit)
            if len(parts):
                steps.append(TunedStep(title, parts, limit))
    return steps


def _read_parts(file: Path, limit: StepLimit) -> pd.DataFrame:
    """Read the parts of the step in a trace; no rows without one, or without kernels in a step."""
    nothing = pd.DataFrame(columns=["phase"])
    if not file.is_file():
        return nothing
    try:
        capture = read_trace(file)
        attribution = attribute(capture)
        tables = make_capture_tables(capture, attribution, link_modules(capture, attribution), file.name)
    except ExportError:
        return nothing
    kernels, memops = tables["kernels"].copy(), tables["memops"]
    if not len(kernels):
        return nothing
    add_families(kernels)
    known = {column: limit.parts.get(name, 0.0) for name, column in PARTS.items()}
    of_step = pd.DataFrame([{"run_id": file.name, "phase": STEP, "timer_ns": limit.step_ns, **known}])
    return measure_step_parts(of_step, split_steps(kernels, memops), kernels, memops)
