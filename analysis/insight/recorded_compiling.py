"""What torch.compile did in a script that was measured, as tables of a recording: what was noted inside the script, and
what its graph breaks cost in the captured steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from pydantic import ValidationError

from profiler_job.analysis.capture.attribution import attribute
from profiler_job.analysis.capture.graph_breaks import Break, find_breaks
from profiler_job.analysis.capture.inferred import infer_phases
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight.broken_lines import BREAK, COUNTED, measure_lines, sum_breaks
from profiler_job.analysis.insight.recorded_waits import read_waits
from profiler_job.analysis.recording.ingest import ResultsError, first_rank, processes_by_rank
from profiler_job.jobs.contract.compiling import Compiling, CompilingRecord, Recompilation
from profiler_job.jobs.contract.integrity import load_json
from profiler_job.jobs.contract.invalid_data import describe_invalid
from profiler_job.jobs.contract.layout import CAPTURE, COMPILING
from profiler_job.jobs.contract.messages import COMPILE
from profiler_job.jobs.contract.quantities import format_time
from profiler_job.jobs.contract.ranges import PASSES
from profiler_job.jobs.contract.words import format_count, inflect

AGAIN, GIVEN_UP, NOT_KNOWN = "compiled again", "given up", "modules not known"
"""Kinds of notes, next to BREAK."""
MOST_AGAIN = 4
"""Functions that were compiled again, of which a sentence says why."""


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
    breaks: dict[int, list[Break]] = {}
    if any(each.breaks for each in ranks) and (run / CAPTURE).is_file():
        breaks = read_breaks(run / CAPTURE)
        of_all = [each for of_rank in breaks.values() for each in of_rank]
        scalars += [(ranks[0].rank, name, value) for name, value in sum_breaks(of_all).items()]
    named = [{"rank": rank, "figure": f"{COMPILE}{name}", "unit": "", "value": value} for rank, name, value in scalars]
    notes = [note for each in ranks for note in list_notes(each, breaks.get(each.rank, []))]
    return {"figures": pd.DataFrame(named)} | ({"compile_notes": pd.DataFrame(notes)} if notes else {})


def list_scalars(compiling: Compiling) -> dict[str, float]:
    """List what was counted in a rank, and the time of compiling in ns, by name."""
    seconds = {} if compiling.seconds is None else {"ns": compiling.seconds * 1e9}
    counted = {name: getattr(compiling, name) for name in ("graphs", "late_graphs", "cached_graphs")}
    return {name: float(num) for name, num in counted.items() if num is not None} | seconds


def list_notes(compiling: Compiling, breaks: Sequence[Break]) -> list[dict[str, object]]:
    """List the notes of a rank, as rows of `compile_notes`. breaks: of its captured steps."""
    not_known = {f"{phase}_{name}": -1 for phase in PASSES for name in COUNTED}
    rows: list[dict[str, object]] = [
        {"kind": BREAK, "where": line.where, "function": line.function, "reason": line.reason, **not_known, **costs}
        for line, costs in zip(compiling.breaks, measure_lines(compiling.breaks, breaks))
    ]
    for again in compiling.recompilations:
        kind = GIVEN_UP if again.gave_up else AGAIN
        rows.append(
            {"kind": kind, "where": again.where, "function": again.function, "reason": again.reason, **not_known}
        )
    for reason in [*compiling.errors, *filter(None, [compiling.compiled_autograd])]:
        rows.append({"kind": NOT_KNOWN, "where": "", "function": "", "reason": reason, **not_known})
    return [{"rank": compiling.rank} | row for row in rows]


def read_breaks(file: Path) -> dict[int, list[Break]]:
    """Read the graph breaks of the captured steps, by rank. Raises ExportError."""
    capture = read(file, details=False)
    attribution = infer_phases(capture, attribute(capture))
    breaks = find_breaks(capture, attribution)
    first, processes = first_rank(attribution.ranges), processes_by_rank(attribution.ranges)
    return {rank: [each for each in breaks if each.process == process] for rank, process in enumerate(processes, first)}


def describe_compiling(notes: pd.DataFrame, scalars: Mapping[str, float]) -> list[str]:
    """Describe what torch.compile did in a script, in sentences; none if it compiled nothing. notes: the table
    `compile_notes`. scalars: figures of one rank by name."""
    of = {name.removeprefix(COMPILE): value for name, value in scalars.items() if name.startswith(COMPILE)}
    if not of.get("graphs") and not of.get("cached_graphs") and not len(notes):
        return []
    took = f" in {format_time(of['ns'])}" if of.get("ns") else ""
    made = format_count(int(of["graphs"]), "graph") if of.get("graphs") else "no graph with Inductor"
    lines = [f"torch.compile made {made}{took}."]
    if num := int(of.get("late_graphs", 0)):
        lines.append(
            f"Of these, {num:,} {'was' if num == 1 else 'were'} made in measured steps, which took longer for it. "
            "Measure with a larger --skip."
        )
    if num := int(of.get("cached_graphs", 0)):
        lines.append(f"{format_count(num, 'graph')} came from PyTorch's cache, so the modules inside are not known.")
    lines += describe_recompilations(_list_recompilations(notes))
    for phase in PASSES:
        if breaks := of.get(f"{phase}_breaks"):
            idle, kernels = format_time(of[f"{phase}_idle_ns"]), of[f"{phase}_kernels"]
            lines.append(
                f"The {phase} pass of a captured step has {breaks:.3g} {inflect(breaks, 'graph break')}. There the GPU "
                f"is idle for {idle}, and runs {kernels:.3g} {inflect(kernels, 'kernel')} that no graph has."
            )
    unknown = notes.loc[notes["kind"] == NOT_KNOWN, "reason"].astype(str).drop_duplicates()
    return lines + [f"The modules of some kernels are not known. Reason: {why}." for why in unknown]


def _list_recompilations(notes: pd.DataFrame) -> list[Recompilation]:
    """List what the first rank compiled again."""
    rows = notes[notes["kind"].isin([AGAIN, GIVEN_UP])]
    rows = rows[rows["rank"] == rows["rank"].min()].astype({"kind": str, "where": str, "function": str, "reason": str})
    return [
        Recompilation(reason=row.reason, where=row.where, function=row.function, gave_up=row.kind == GIVEN_UP)
        for row in rows.itertuples()
    ]


def describe_recompilations(recompilations: Sequence[Recompilation]) -> list[str]:
    """Describe each function that was compiled again in measured steps, with the guard that failed, and what to do."""
    by_function: dict[tuple[str, str], list[Recompilation]] = {}
    for again in recompilations:
        by_function.setdefault((again.function, again.where), []).append(again)
    lines = [_describe_function(each) for each in by_function.values()]
    if len(lines) > MOST_AGAIN:
        lines = [*lines[:MOST_AGAIN], f"The same holds for {format_count(len(lines) - MOST_AGAIN, 'other function')}."]
    advice = "Keep what a guard names the same in all steps, or give torch.compile dynamic=True if it is a size."
    return [*lines, advice] if lines else []


def _describe_function(each: Sequence[Recompilation]) -> str:
    last = each[-1]
    place = f"{last.function} ({last.where})" if last.where else last.function
    guard = f"The guard that failed{' the last time' if len(each) > 1 else ''}: {last.reason}."
    if last.gave_up:
        return f"torch.compile compiled {place} too often and gave it up: where no guard holds, Python runs it. {guard}"
    times = f" {format_count(len(each), 'time')}" if len(each) > 1 else ""
    return f"torch.compile compiled {place} again{times} in measured steps. {guard}"


TABLES_OF_SCRIPTS = (read_waits, read_compiling)
"""What reads the tables of a script's run that are not of its steps alone, for `ingest`."""
