"""What is compared: a recording, the results of a sweep, or one capture, as the same tables."""

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import modules
from profiler_job.analysis.capture.attribution import Attribution, attribute
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.comparison.errors import ComparisonProblem, NotComparableError
from profiler_job.analysis.metrics.run_grid import explain_unmeasured
from profiler_job.analysis.recording import ingest, store
from profiler_job.analysis.reference import kernel_families
from profiler_job.analysis.show.profiles import find_profiles
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.axes import AXES, find_value_label
from profiler_job.jobs.contract.layout import MANIFEST, RECORD, SWEEP
from profiler_job.jobs.contract.words import format_count

CAPTURE_RUN = "capture"
"""The run_id of a capture, which names no run."""
GRAPH = "CUDA graph execution, whose kernels are not visible"


@dataclass(kw_only=True)
class Side:
    """One of the two sides of a comparison. A recording has its tables, with the runs that finished. A capture has the
    needed columns, without `timer` steps and without processes. has_steps: whether a capture has ranges of steps; if
    not, all of it is one step. recorded_at: when, in UTC, as in the recording or the capture; "" if not known. blocks:
    of a capture, what its elementwise kernels launch (`count_blocks`). unfinished: why a run has no numbers. notes:
    notes for the reader. recording: what it was made of; None for a capture."""

    label: str
    is_capture: bool = False
    has_steps: bool = True
    recording: store.Recording | None = None
    runs: pd.DataFrame
    steps: pd.DataFrame
    kernels: pd.DataFrame
    memops: pd.DataFrame
    processes: pd.DataFrame | None = None
    recorded_at: str = ""
    blocks: pd.DataFrame | None = None
    unfinished: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def load_side(path: Path, only: Iterable[str] = (), skip: int = 0) -> Side:
    """Read the side at `path`: a folder of a recording or of the results of a sweep, or a capture.

    only: KEY=VALUE of the runs to take. skip: number of first steps of a capture to leave out. Raises
    NotComparableError, and what reading it raises (RecordingError, ResultsError, ExportError).
    """
    selection = parse_selection(only)
    if is_capture(path):
        _refuse_folder_of_others(path)
        if selection:
            raise NotComparableError(
                ComparisonProblem.BAD_OPTION, f"{path} is a capture of one run: leave {next(iter(selection))}=... out"
            )
        return make_capture_side(read(path, details=False, grids=True), skip)
    if (path / MANIFEST).is_file():
        return _select(make_recording_side(store.load(path)), selection, path)
    with tempfile.TemporaryDirectory() as folder:
        recording = Path(folder) / (path.resolve().name or "results")
        ingest.ingest(path, recording)
        return _select(make_recording_side(store.load(recording)), selection, path)


def _refuse_folder_of_others(path: Path) -> None:
    """Raise NotComparableError if `path` is a folder that cannot be compared, but may hold some that can."""
    if not path.is_dir() or any(path.glob("*.parquet")):
        return
    recordings, captures = store.recordings_in(path), find_profiles(path)
    for inside, what in ((recordings, "recording"), (captures, "capture")):
        if inside:
            raise NotComparableError(
                ComparisonProblem.NOT_A_RECORDING,
                f"{path} is a folder that holds {format_count(len(inside), what)}: give one of them, "
                f"such as {inside[0]}",
            )
    empty = "is empty" if not any(path.iterdir()) else "holds no recording, no results of a sweep and no capture"
    raise NotComparableError(
        ComparisonProblem.NOT_A_RECORDING,
        f"{path} {empty}: give the folder of a recording or of results, or a capture of nsys",
    )


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


def make_recording_side(recording: store.Recording) -> Side:
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
    return Side(label=label, runs=finished, steps=steps, kernels=kernels, memops=memops, unfinished=unfinished)


# ------------------------------------------------------------------------------------------------------------- captures


def make_capture_side(capture: Capture, skip: int = 0) -> Side:
    """Make a side of a capture. If it has no range of a step, all of it is one step. Raises NotComparableError if no
    step is left, or no GPU work in the steps."""
    attribution = attribute(capture)
    notes = [f"{what}: {consequence}" for what, consequence in (capture.problems | attribution.problems).items()]
    is_whole = not bool((attribution.ranges["step"] >= 0).any())
    if is_whole:
        notes.append(f"{capture.source} has no range of a step: all of it counts as one step")
        if skip:
            raise NotComparableError(
                ComparisonProblem.BAD_OPTION, f"{capture.source} has no range of a step: leave --skip out"
            )
    steps = _make_whole_step(capture) if is_whole else _make_steps(attribution)
    kernels, memops = _make_operations(capture, attribution, is_whole)
    if len(capture.graphs):
        executions = format_count(len(capture.graphs), "CUDA graph execution")
        notes.append(f"{executions} in {capture.source}, whose kernels are not visible")
    steps, kernels, memops = (frame[frame["step"] >= skip] for frame in (steps, kernels, memops))
    if not len(steps):
        raise NotComparableError(ComparisonProblem.NO_RUN, f"{capture.source} has no step left: give a smaller --skip")
    if not len(kernels) and not len(memops):
        raise NotComparableError(
            ComparisonProblem.NO_RUN, f"{capture.source} has no kernel in its steps: record more of the program"
        )
    run = pd.DataFrame({"run_id": [CAPTURE_RUN], "status": ["ok"]})
    return Side(
        label=capture.source,
        is_capture=True,
        has_steps=not is_whole,
        runs=run,
        steps=steps,
        kernels=kernels,
        memops=memops,
        recorded_at=capture.recorded_at,
        blocks=count_blocks(kernels, steps["step"].nunique()),
        notes=notes,
    )


def _make_steps(attribution: Attribution) -> pd.DataFrame:
    placed = attribution.ranges
    rank = ingest.processes_by_rank(placed).get_indexer(placed["process"])
    return ingest.nsys_steps(placed, rank).assign(run_id=CAPTURE_RUN)


def _make_whole_step(capture: Capture) -> pd.DataFrame:
    return pd.DataFrame(
        {"run_id": [CAPTURE_RUN], "rank": 0, "collector": "nsys", "step": 0, "phase": ranges.STEP}
        | {"wall_ns": capture.events_ns}
    )


def _make_operations(capture: Capture, attribution: Attribution, is_whole: bool) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Make the kernels and memops of the steps, as a recording has them. A graph that was traced as a whole counts as a
    kernel."""
    if modules.is_followed(attribution.ranges).any():
        links = modules.link_modules(capture, attribution)
        linked = {"kernels": links.kernels["module"], "memops": links.memops["module"]}
    else:
        linked = {name: getattr(attribution, name)["module"] for name in ("kernels", "memops")}
    linked["graphs"] = attribution.graphs["module"]
    processes = ingest.processes_by_rank(attribution.ranges)
    frames = {}
    for name in ("kernels", "memops", "graphs"):
        operations, place = getattr(capture, name), getattr(attribution, name)
        frame = pd.DataFrame(
            {
                "run_id": pd.Categorical.from_codes(np.zeros(len(operations), np.int8), [CAPTURE_RUN]),
                "rank": 0 if is_whole else processes.get_indexer(operations["process"]),
                "step": 0 if is_whole else place["step"].to_numpy(),
                "phase": place["phase"].array,
                "module": linked[name].array,
                **{column: place[column].to_numpy() for column in ("launch_ns", "launch_end_ns")},
                **{column: operations[column].to_numpy() for column in ("start_ns", "end_ns", "device")},
            }
        )
        if is_whole:  # device 0 of two processes may be different GPUs
            frame["device"] = pd.factorize(pd.MultiIndex.from_frame(operations[["process", "device"]]))[0]
        frames[name] = frame
    named = capture.kernels["kernel_name"].cat
    families = [kernel_families.find_family(str(name)) for name in named.categories]
    frames["kernels"]["kernel_name"] = capture.kernels["kernel_name"].array
    frames["kernels"]["family"] = _make_categories(named.codes.to_numpy(), families)
    if "grid_x" in capture.kernels:
        grid = capture.kernels[["grid_x", "grid_y", "grid_z"]].to_numpy(dtype=np.float64)
        frames["kernels"]["blocks"] = grid.prod(axis=1)
    frames["memops"]["operation"] = capture.memops["operation"].array
    kernels = frames["kernels"]
    if len(capture.graphs):
        graphs = frames["graphs"].assign(kernel_name=GRAPH, family="CUDA graph")
        names = {name: str for name in ("run_id", "phase", "module", "kernel_name", "family")}
        kernels = pd.concat([kernels.astype(names), graphs.astype(names)], ignore_index=True).astype(
            dict.fromkeys(names, "category")
        )
    return tuple(frame[frame["step"] >= 0] for frame in (kernels, frames["memops"]))


def count_blocks(kernels: pd.DataFrame, num_steps: int) -> pd.DataFrame | None:
    """Count calls, blocks and nanoseconds (ns) of a step, by phase and kernel_name. Only elementwise kernels count,
    because their blocks grow with the tensors, and not the optimizer's, whose tensors have the size of the model. None
    if grids are not known."""
    if "blocks" not in kernels:
        return None
    is_meant = (kernels["family"] == "elementwise") & (kernels["phase"] != ranges.OPTIMIZER) & (kernels["blocks"] > 0)
    rows = kernels[is_meant]
    rows = rows.assign(ns=rows["end_ns"] - rows["start_ns"])
    by_name = rows.groupby([rows["phase"].astype(str), rows["kernel_name"].astype(str)])
    return by_name.agg(calls=("ns", "size"), blocks=("blocks", "sum"), ns=("ns", "sum")) / num_steps


def _make_categories(codes: np.ndarray, values: list[str]) -> pd.Categorical:
    """Return the value of each code; several codes may have one value."""
    number, names = pd.factorize(np.array(values, dtype=object)) if values else (np.empty(0, np.int64), [])
    return pd.Categorical.from_codes(number[codes] if values else codes, pd.Index(names, dtype=object))
