"""What the GPU waits for in a script that was measured, as tables of a recording: from the steps in which Python was
sampled, and from the calls that were counted inside the script."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.attribution import Attribution, attribute
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.capture.inferred import infer_phases
from profiler_job.analysis.capture.modules import link_modules
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.capture.selection import find_gpus
from profiler_job.analysis.changes.evidence import KEPT_PARTS
from profiler_job.analysis.insight.call_advice import advise_calls, list_noted_calls
from profiler_job.analysis.insight.clean_gaps import CleanGaps
from profiler_job.analysis.insight.copy_times import measure_marked_copies, time_allocations
from profiler_job.analysis.insight.results import Summary
from profiler_job.analysis.insight.summary import summarise
from profiler_job.analysis.insight.sync_times import NO_LINE, measure_sync_times, name_copy, name_waited_copies
from profiler_job.analysis.insight.wait_lines import NAMED_PARTS, PART
from profiler_job.analysis.recording.ingest import first_rank, processes_by_rank
from profiler_job.analysis.reference.kernel_families import BUILT_IN
from profiler_job.jobs.contract.integrity import load_json
from profiler_job.jobs.contract.layout import CAPTURE, HOST_WAITS, SAMPLES, TIMINGS
from profiler_job.jobs.contract.messages import BATCHES, SAMPLED
from profiler_job.jobs.contract.ranges import STEP

READS, WAITED = "reads a value or copies", "waits for"
"""Calls in `sync_calls` begin with it: what is counted inside a script, and a copy that only samples show."""
TIMES = ("wait_ns", "cpu_ns", "late_launch_ns", "data_ns", "nothing_ns", "sync_ns", "copies_ns", "between_ns")
LEAST_SHARE = 0.005
"""Least share of the waiting of a line that is recorded."""


class CleanSteps(NamedTuple):
    """A capture of steps without samples."""

    capture: Capture
    attribution: Attribution


def read_waits(run: Path) -> dict[str, pd.DataFrame]:
    """Read the tables `waits`, `wait_stacks`, `sync_calls` and `figures` (without run_id) of the run in a folder; {} if
    nothing was counted. Raises ExportError."""
    noted = load_json(run / HOST_WAITS) if (run / HOST_WAITS).is_file() else {}
    is_marked = bool(noted.get("syncs")) or "copies" in noted
    steps = read_clean_steps(run) if is_marked or (run / SAMPLES).is_file() else None
    calls, batches = time_calls(noted.get("syncs", []), steps), noted.get("batches", [])
    copies = find_copies(noted["copies"], steps) if "copies" in noted else []
    copies += find_allocations(noted["allocations"], steps) if "allocations" in noted else []
    tables = {"sync_calls": pd.DataFrame(every)} if (every := [*calls, *copies, *batches]) else {}
    if not (run / SAMPLES).is_file():
        return tables
    summary = summarise(read(run / SAMPLES, details=False), clean=(clean := find_clean_gaps(run, steps)))
    facts = summary.capture
    num = facts["num_sampled_steps"] or 1
    rows = summary.sections["waits"]
    if every := [*list_calls(calls, summary, num, copies), *batches]:
        tables["sync_calls"] = pd.DataFrame(every)
    if not len(rows):
        return tables
    rows = rows[rows["share"].astype(float) >= LEAST_SHARE].astype({"share": float})
    per_step = {name: np.rint(rows[name].astype(float) / num).astype(np.int64) for name in TIMES}
    tables["waits"] = advise_calls(rows.assign(**per_step), list_noted_calls(c for c in calls if c["rank"] == 0))
    scalars = {
        "steps": float(num),
        "covered": float(facts["sampled_share"]),
        "waiting_ns": facts["waiting_ns"] / num,
        "step_ns": facts["waiting_span_ns"] / num,
        "call_ns": clean.call_ns if clean else 0.0,
        "period_ns": facts["sample_period_ns"],
    }
    parts = summary.sections["wait_parts"].itertuples(index=False)
    scalars |= {f"{PART}{row.part}": float(row.share) for row in parts if row.part in {*NAMED_PARTS, *KEPT_PARTS}}
    scalars["own_share"] = facts["own_python_ns"] * float(rows["share"].sum() / rows["wait_ns"].sum())
    named = [{"rank": 0, "figure": f"{SAMPLED}{name}", "unit": "", "value": value} for name, value in scalars.items()]
    tables["figures"] = pd.DataFrame(named)
    stacks = summary.sections["wait_stacks"]
    tables["wait_stacks"] = stacks.assign(wait_ns=np.rint(stacks["wait_ns"].astype(float) / num).astype(np.int64))
    return tables


def time_calls(counted: list[dict[str, Any]], steps: CleanSteps | None) -> list[dict[str, Any]]:
    """Return rows of `sync_calls` of the calls that were counted inside the script, timed in the clean steps, with what
    they copy in followed ones."""
    times: dict[int, dict[int, float]] = {}
    copies: dict[int, dict[int, list[str]]] = {}
    processes: dict[int, int] = {}
    if steps is not None and counted:
        times = measure_sync_times(steps.capture, steps.attribution)
        copies = name_waited_copies(steps.capture, steps.attribution)
        processes = _list_processes(steps)
    rows = []
    for call in counted:
        process, number = processes.get(call["rank"], -1), call.get("number", NO_LINE)
        row = {name: value for name, value in call.items() if name != "number"}
        row["time_ns"] = round(times.get(process, {}).get(number, -1))
        rows.append(_add_copies(row, copies.get(process, {}).get(number, [])))
    return rows


def find_copies(lines: list[dict[str, Any]], steps: CleanSteps | None) -> list[dict[str, Any]]:
    """Return rows of `sync_calls` of the copies in followed steps that the CPU does not wait for. lines: that copy by a
    method of a tensor; other copies have no line."""
    if steps is None:
        return []
    processes = _list_processes(steps)
    ranks = {process: rank for rank, process in processes.items()}
    known = {(line["rank"], line["number"]): (line["where"], line["function"]) for line in lines}
    rows = []
    for copy in measure_marked_copies(steps.capture, steps.attribution).itertuples(index=False):
        rank = ranks.get(copy.process, 0)
        where, function = known.get((rank, copy.number), ("", ""))
        time_ns = -1 if np.isnan(copy.time_ns) else round(copy.time_ns)
        place = {"rank": rank, "where": where, "function": function}
        rows.append(place | {"call": copy.text, "count": copy.count, "time_ns": time_ns})
    return rows


def find_allocations(made: list[dict[str, Any]], steps: CleanSteps | None) -> list[dict[str, Any]]:
    """Return rows of `sync_calls` of the calls that allocate GPU memory or free it in the last followed step. made:
    calls of PyTorch's allocator, in order; others, of libraries, have no line. If there are others, it is not known
    which call is whose, nor how long it takes."""
    if steps is None:
        return []
    times = time_allocations(steps.capture, steps.attribution)
    rows = []
    for rank, process in _list_processes(steps).items():
        for name, of_name in times[times["process"] == process].groupby("name", sort=False)["time_ns"]:
            calls = [(call["where"], call["function"]) for call in made if (call["rank"], call["call"]) == (rank, name)]
            missing = len(of_name) - len(calls)
            frame = pd.DataFrame(calls + [("", "")] * max(missing, 0), columns=["where", "function"])
            frame["time_ns"] = of_name.to_numpy(float) if missing == 0 else np.nan
            for (where, function), mine in frame.groupby(["where", "function"], sort=False)["time_ns"]:
                time_ns = mine.sum(skipna=False)
                place = {"rank": rank, "where": where, "function": function, "call": name, "count": float(len(mine))}
                rows.append(place | {"time_ns": -1 if np.isnan(time_ns) else round(time_ns)})
    return rows


def _list_processes(steps: CleanSteps) -> dict[int, int]:
    """List the process of each rank."""
    ranges = steps.attribution.ranges
    return dict(enumerate(processes_by_rank(ranges).tolist(), start=first_rank(ranges)))


def _add_copies(call: dict[str, Any], texts: list[str]) -> dict[str, Any]:
    """Add to a row of `sync_calls` what it copies, unless that is known."""
    is_open = call["call"].startswith(READS) and ": " not in call["call"]
    return call | {"call": f"{call['call']}: {', '.join(texts)}"} if texts and is_open else call


def list_calls(
    counted: list[dict[str, Any]], summary: Summary, num_steps: int, copied: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """List the calls of a step that wait for the GPU, copy from or to the host or allocate, by line, as rows of
    `sync_calls`. counted: rows of those that were counted inside the script; samples show them once more, which adds
    what they copy if followed steps do not show it, but no row. copied: rows of `find_copies` and
    `find_allocations`; samples may name the lines of those that have none."""
    copies = summary.sections["copy_lines"]
    texts = [name_copy(row.operation, row.host_memory) for row in copies.itertuples()]
    copies = copies.assign(text=pd.Series(texts, index=copies.index, dtype=object))
    waited = copies[copies["is_waited"].astype(bool)]
    reads = {call["where"] for call in counted if call["call"].startswith(READS)}
    in_line = waited.groupby("where", sort=False)["text"].agg(lambda values: ", ".join(dict.fromkeys(values)))
    alone = Counter((call["where"], call["rank"]) for call in counted)
    rows = []
    for call in counted:
        where = call["where"]
        is_alone = alone[where, call["rank"]] == 1
        rows.append(_add_copies(call, [in_line[where]] if is_alone and where in in_line.index else []))
    is_counted = waited["where"].isin(reads | {""}) if reads else waited["where"].isin(reads)
    named = [(f"{WAITED} {row.text}", row) for row in waited[~is_counted].itertuples()]
    marked = {(row["where"], row["call"]) for row in copied if row["where"]}
    is_open = {row["call"] for row in copied if not row["where"]}
    is_known = {text for _, text in marked} - is_open  # all such calls have a line
    others = [(row.text, row) for row in copies.drop(waited.index).itertuples()]
    others += [(row.call, row) for row in summary.sections["allocation_lines"].itertuples()]
    named += [(text, row) for text, row in others if text not in is_known and (row.where, text) not in marked]
    rows += [row for row in copied if row["where"]]
    for name, row in named:
        time_ns = -1 if np.isnan(row.time_ns) else round(row.time_ns / num_steps)
        place = {"rank": 0, "where": row.where, "function": row.function}
        rows.append(place | {"call": name, "count": row.count / num_steps, "time_ns": time_ns})
    return rows


def read_clean_steps(run: Path) -> CleanSteps | None:
    """Read the captured steps of a run that have no samples; None without a capture. Raises ExportError."""
    if not (run / CAPTURE).is_file():
        return None
    capture = read(run / CAPTURE, details=False)
    return CleanSteps(capture, attribute(capture))


def find_clean_gaps(run: Path, steps: CleanSteps | None) -> CleanGaps | None:
    """Find how long the GPUs wait in the clean steps of a run; None without any, or if nothing ran."""
    if steps is None:
        return None
    capture, attribution = steps
    gpus = {name: find_gpus(capture, getattr(capture, name)) for name in ("kernels", "graphs", "memops")}
    if not any(map(len, gpus.values())):
        return None
    timings = load_json(run / TIMINGS)
    rows = timings["steps"]
    walls = [row["wall_ns"] for row in rows if row["phase"] == STEP and row.get("rank", 0) == 0]
    step_ns = median(walls) if walls else None
    scalars = {row["figure"]: row["value"] for row in timings.get("figures", ()) if row.get("rank", 0) == 0}
    links = link_modules(capture, attribution)
    linked = {
        kind: getattr(attribution, kind).assign(module=getattr(links, kind)["module"]) for kind in ("kernels", "memops")
    }
    attribution = infer_phases(capture, replace(attribution, **linked))
    return CleanGaps(capture, attribution, gpus, BUILT_IN, step_ns, scalars.get(f"{BATCHES}ns"))
