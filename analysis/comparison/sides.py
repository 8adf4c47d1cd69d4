"""What is compared: a recording, the results of a sweep, or one capture, as the same tables."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from profiler_job.analysis.comparison.errors import ComparisonProblem, NotComparableError
from profiler_job.analysis.comparison.totals import MeasuredCase
from profiler_job.analysis.metrics.run_grid import explain_unmeasured
from profiler_job.analysis.recording.run_table import read_whole
from profiler_job.jobs.contract.axes import AXES, find_value_label
from profiler_job.jobs.contract.layout import MANIFEST, RECORD, SWEEP
from profiler_job.jobs.contract.words import format_count

if TYPE_CHECKING:
    from profiler_job.analysis.recording.store import Recording

CAPTURE_RUN = "capture"
"""The run_id of a capture, which names no run."""


@dataclass(kw_only=True)
class Side:
    """One of the two sides of a comparison. A recording has its tables, with the runs that finished. A capture has the
    needed columns, without `timer` steps and without processes. has_steps: whether a capture has ranges of steps; if
    not, all of it is one step. recorded_at: when, in UTC, as in the recording or the capture; "" if not known. blocks:
    of a capture, what its elementwise kernels launch (`count_blocks`). unfinished: why a run has no numbers. notes:
    notes for the reader. recording: what it was made of; None for a capture. measured, limits: of a capture without its
    rows, what was measured of it, and what `run_limit.split_steps` made of them. sequence: the same
    for captures without steps that launch the same kernels in the same order."""

    label: str
    is_capture: bool = False
    has_steps: bool = True
    recording: "Recording | None" = None
    runs: pd.DataFrame
    steps: pd.DataFrame
    kernels: pd.DataFrame
    memops: pd.DataFrame
    processes: pd.DataFrame | None = None
    recorded_at: str = ""
    blocks: pd.DataFrame | None = None
    unfinished: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    measured: MeasuredCase | None = None
    limits: pd.DataFrame | None = None
    sequence: str = ""


def select_runs(side: Side, only: Iterable[str], path: Path) -> Side:
    """Select the runs of `only`, KEY=VALUE, of the side at `path`. Raises NotComparableError."""
    selection = parse_selection(only)
    if side.is_capture and selection:
        raise NotComparableError(
            ComparisonProblem.BAD_OPTION, f"{path} is a capture of one run: leave {next(iter(selection))}=... out"
        )
    return _select(side, selection, path)


def is_capture(path: Path) -> bool:
    """Whether a path is read as a capture: neither a folder of a recording nor of results."""
    return not (path.is_dir() and ((path / MANIFEST).is_file() or _holds_results(path)))


def is_sweep(path: Path) -> bool:
    """Whether a path is the folder of the results of one sweep."""
    return path.is_dir() and ((path / SWEEP).is_file() or any(path.glob(f"*/{RECORD}")))


def shortlist(names: Sequence[str], num: int = 3) -> str:
    """List the first of many names, and how many others there are."""
    others = len(names) - num
    return ", ".join(names[:num]) + (f" and {format_count(others, 'other')}" if others > 0 else "")


def _holds_results(path: Path) -> bool:
    return is_sweep(path) or any(path.glob(f"*/{SWEEP}"))


def parse_selection(only: Iterable[str]) -> dict[str, set[str]]:
    """Parse the wanted values by axis or run_id. Raises NotComparableError if one is not KEY=VALUE."""
    wanted: dict[str, set[str]] = {}
    for part in (part.strip() for text in only for part in text.split(",")):
        name, equals, value = part.partition("=")
        if not equals or name not in (*AXES, "run_id"):
            raise NotComparableError(
                ComparisonProblem.BAD_OPTION,
                f"{part} chooses no runs: give KEY=VALUE, where KEY is run_id or one of {', '.join(AXES)}",
            )
        wanted.setdefault(name, set()).add(value)
    return wanted


def _select(side: Side, selection: dict[str, set[str]], path: Path) -> Side:
    runs = side.runs
    for name, values in selection.items():
        known = list(map(str, sorted(set(runs[name]))))
        labels = runs[name].map(lambda value, name=name: str(find_value_label(name, value)))
        runs = runs[runs[name].astype(str).isin(values) | labels.isin(values)]
        if not len(runs):
            wanted = f"{name}={', '.join(sorted(values))}"
            reasons = [f"{run} ({side.unfinished[run]})" for run in sorted(values & side.unfinished.keys())]
            if name == "run_id" and reasons:
                raise NotComparableError(
                    ComparisonProblem.NO_RUN,
                    f"{path}: {shortlist(reasons)} has no numbers: choose another run, or measure it again",
                )
            raise NotComparableError(
                ComparisonProblem.NO_RUN,
                f"{path} has no such finished run with {wanted}: it has {shortlist(known, 20)}",
            )
    side.runs = runs
    return side


def make_recording_side(recording: "Recording") -> Side:
    """Make a side of a recording, with all its finished runs."""
    tables = (recording.runs, recording.steps, recording.kernels, recording.memops)
    side = make_tables_side(recording.label, *tables)
    side.recording = recording
    side.processes = recording.processes
    side.recorded_at = str(recording.manifest.get("recorded_from", ""))
    return side


def make_tables_side(
    label: str, runs: pd.DataFrame, steps: pd.DataFrame, kernels: pd.DataFrame, memops: pd.DataFrame
) -> Side:
    """Tables of a recording as a side, with all its finished runs."""
    texts = {name: str for name in runs if isinstance(runs[name].dtype, pd.CategoricalDtype)}
    runs = runs.astype(texts | {"run_id": str})
    finished = runs[runs["status"] == "ok"].reset_index(drop=True)
    unfinished = {row["run_id"]: explain_unmeasured(row) for _, row in runs[runs["status"] != "ok"].iterrows()}
    return Side(
        label=label,
        runs=finished,
        steps=steps,
        kernels=read_whole(kernels),
        memops=read_whole(memops),
        unfinished=unfinished,
    )
