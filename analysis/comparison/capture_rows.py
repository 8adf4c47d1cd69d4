"""One capture as the rows that a recording has, with the steps that it shows."""

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import modules
from profiler_job.analysis.capture.attribution import Attribution, attribute
from profiler_job.analysis.capture.blocks import count_by, sum_by
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.comparison.errors import ComparisonProblem, NotComparableError
from profiler_job.analysis.comparison.sides import CAPTURE_RUN, Side
from profiler_job.analysis.recording import ingest
from profiler_job.analysis.reference import kernel_families
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.words import format_count

GRAPH = "CUDA graph execution, whose kernels are not visible"


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
    processes = ingest.processes_by_rank(attribution.ranges)
    steps = _make_whole_step(capture) if is_whole else _make_steps(attribution.ranges, processes)
    kernels, memops = _make_operations(capture, attribution, None if is_whole else processes)
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
    run = pd.DataFrame({"run_id": [CAPTURE_RUN], "status": ["ok"], "nsys": [capture.nsys_version]})
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


def _make_steps(placed: pd.DataFrame, processes: pd.Index) -> pd.DataFrame:
    return ingest.nsys_steps(placed, processes.get_indexer(placed["process"])).assign(run_id=CAPTURE_RUN)


def _make_whole_step(capture: Capture) -> pd.DataFrame:
    return pd.DataFrame(
        {"run_id": [CAPTURE_RUN], "rank": 0, "collector": "nsys", "step": 0, "phase": ranges.STEP}
        | {"wall_ns": capture.events_ns}
    )


def _make_operations(
    capture: Capture, attribution: Attribution, processes: pd.Index | None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Make the kernels and memops of the steps, as a recording has them. A graph that was traced as a whole counts as a
    kernel. processes: by rank; None if all of the capture is one step."""
    if modules.is_followed(attribution.ranges).any():
        links = modules.link_modules(capture, attribution)
        linked = {"kernels": links.kernels["module"], "memops": links.memops["module"]}
    else:
        linked = {name: getattr(attribution, name)["module"] for name in ("kernels", "memops")}
    linked["graphs"] = attribution.graphs["module"]
    frames = {}
    for name in ("kernels", "memops", "graphs"):
        operations, place = getattr(capture, name), getattr(attribution, name)
        frame = pd.DataFrame(
            {
                "run_id": pd.Categorical.from_codes(np.zeros(len(operations), np.int8), [CAPTURE_RUN]),
                "rank": 0 if processes is None else processes.get_indexer(operations["process"]),
                "step": 0 if processes is None else place["step"].to_numpy(),
                "phase": place["phase"].array,
                "module": linked[name].array,
                **{column: place[column].to_numpy() for column in ("launch_ns", "launch_end_ns")},
                **{column: operations[column].to_numpy() for column in ("start_ns", "end_ns", "device")},
            }
        )
        if processes is None:  # device 0 of two processes may be different GPUs
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
    """Count calls, blocks and nanoseconds (ns) of a step, by phase and name of the kernel, as one text. Only
    elementwise kernels count, because their blocks grow with the tensors, and not the optimizer's, whose tensors have
    the size of the model. None if grids are not known."""
    if "blocks" not in kernels:
        return None
    is_meant = (kernels["family"] == "elementwise") & (kernels["phase"] != ranges.OPTIMIZER) & (kernels["blocks"] > 0)
    rows = kernels[is_meant]
    phases, names = (rows[name].astype("category").cat for name in ("phase", "kernel_name"))
    key = phases.codes.to_numpy(np.int64) * len(names.categories) + names.codes.to_numpy()
    number, keys = pd.factorize(key)
    texts = [
        f"{phases.categories[code // len(names.categories)]} {names.categories[code % len(names.categories)]}"
        for code in keys.tolist()
    ]
    counts = {
        "calls": count_by(number, len(keys)),
        "blocks": sum_by(number, rows["blocks"].to_numpy(), len(keys)),
        "ns": sum_by(number, (rows["end_ns"] - rows["start_ns"]).to_numpy(), len(keys)),
    }
    return pd.DataFrame(counts, pd.Index(texts, dtype=object)) / num_steps


def _make_categories(codes: np.ndarray, values: list[str]) -> pd.Categorical:
    """Return the value of each code; several codes may have one value."""
    number, names = pd.factorize(np.array(values, dtype=object)) if values else (np.empty(0, np.int64), [])
    return pd.Categorical.from_codes(number[codes] if values else codes, pd.Index(names, dtype=object))
