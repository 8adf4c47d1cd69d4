"""What torch.compile did in a script that was measured, as tables of a recording: what was noted inside the script, and
what its graph breaks cost in the captured steps."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from pydantic import ValidationError

from profiler_job.analysis.capture.attribution import attribute
from profiler_job.analysis.capture.graph_breaks import find_breaks
from profiler_job.analysis.capture.inferred import infer_phases
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight.recorded_waits import read_waits
from profiler_job.analysis.recording.ingest import ResultsError
from profiler_job.jobs.contract.compiling import Compiling, CompilingRecord
from profiler_job.jobs.contract.integrity import load_json
from profiler_job.jobs.contract.invalid_data import describe_invalid
from profiler_job.jobs.contract.layout import CAPTURE, COMPILING
from profiler_job.jobs.contract.messages import COMPILE
from profiler_job.jobs.contract.quantities import format_time
from profiler_job.jobs.contract.words import format_count, inflect

BREAK, NOT_KNOWN = "graph break", "modules not known"
"""Kinds of notes."""


def read_compiling(run: Path) -> dict[str, pd.DataFrame]:
    """Read the tables `compile_notes` and `figures` (without run_id) of the run in a folder; {} if nothing was
    compiled. Raises ExportError, and ResultsError if its file is of another version."""
    if not (run / COMPILING).is_file():
        return {}
    try:
        ranks = CompilingRecord.model_validate(load_json(run / COMPILING)).ranks
    except ValidationError as error:
        where, why = describe_invalid(error)
        raise ResultsError(f"{run / COMPILING} is of another version ({where}: {why}): measure again") from error
    scalars = [(each.rank, name, value) for each in ranks for name, value in list_scalars(each).items()]
    if any(each.breaks for each in ranks) and (run / CAPTURE).is_file():
        scalars += [(ranks[0].rank, name, value) for name, value in measure_breaks(run / CAPTURE).items()]
    named = [{"rank": rank, "figure": f"{COMPILE}{name}", "unit": "", "value": value} for rank, name, value in scalars]
    notes = [note for each in ranks for note in list_notes(each)]
    return {"figures": pd.DataFrame(named)} | ({"compile_notes": pd.DataFrame(notes)} if notes else {})


def list_scalars(compiling: Compiling) -> dict[str, float]:
    """List what was counted in a rank, and the time of compiling in ns, by name."""
    seconds = {} if compiling.seconds is None else {"ns": compiling.seconds * 1e9}
    counted = {name: getattr(compiling, name) for name in ("graphs", "late_graphs", "cached_graphs")}
    return {name: float(num) for name, num in counted.items() if num is not None} | seconds


def list_notes(compiling: Compiling) -> list[dict[str, object]]:
    """List the notes of a rank, as rows of `compile_notes`."""
    about = {"rank": compiling.rank}
    unknown = [*compiling.errors, *filter(None, [compiling.compiled_autograd])]
    return [
        *(about | {"kind": BREAK} | each.model_dump() for each in compiling.breaks),
        *(about | {"kind": NOT_KNOWN, "where": "", "function": "", "reason": reason} for reason in unknown),
    ]


def measure_breaks(file: Path) -> dict[str, float]:
    """Measure the graph breaks of a captured step in forward, in the mean over steps and processes: how many there are,
    the kernels between their graphs, and how long the GPU is idle at them (ns). {} if none is seen. Raises
    ExportError."""
    capture = read(file, details=False)
    attribution = infer_phases(capture, attribute(capture))
    ranges = attribution.ranges
    num = len(ranges.loc[ranges["step"] >= 0, ["process", "step"]].drop_duplicates())
    breaks = find_breaks(capture, attribution)
    if not breaks:
        return {}
    return {
        "breaks": len(breaks) / num,
        "break_kernels": sum(each.launches for each in breaks) / num,
        "break_idle_ns": sum(each.idle_ns for each in breaks) / num,
    }


def describe_compiling(notes: pd.DataFrame, scalars: Mapping[str, float]) -> list[str]:
    """Describe what torch.compile did in a script, in sentences; none if it compiled nothing. notes: the table
    `compile_notes`. scalars: figures of one rank by name."""
    of = {name.removeprefix(COMPILE): value for name, value in scalars.items() if name.startswith(COMPILE)}
    if not of.get("graphs") and not of.get("cached_graphs") and not len(notes):
        return []
    took = f" in {format_time(of['ns'])}" if of.get("ns") else ""
    lines = [f"torch.compile made {format_count(int(of.get('graphs', 0)), 'graph')}{took}."]
    if num := int(of.get("cached_graphs", 0)):
        lines.append(f"{format_count(num, 'graph')} came from PyTorch's cache, so the modules inside are not known.")
    if num := int(of.get("late_graphs", 0)):
        lines.append(
            f"Of these, {num:,} {'was' if num == 1 else 'were'} made in measured steps, which took longer for it. "
            "Measure with a larger --skip, or find out why torch.compile compiles again."
        )
    if breaks := of.get("breaks"):
        kernels = of["break_kernels"]
        lines.append(
            f"The forward pass of a captured step has {breaks:.3g} {inflect(breaks, 'graph break')}. There the GPU is "
            f"idle for {format_time(of['break_idle_ns'])}, and runs {kernels:.3g} {inflect(kernels, 'kernel')} that no "
            "graph has."
        )
    unknown = notes.loc[notes["kind"] == NOT_KNOWN, "reason"].astype(str).drop_duplicates()
    return lines + [f"The modules of some kernels are not known. Reason: {why}." for why in unknown]


TABLES_OF_SCRIPTS = (read_waits, read_compiling)
"""What reads the tables of a script's run that are not of its steps alone, for `ingest`."""
