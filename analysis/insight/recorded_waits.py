"""What the GPU waits for in a script that was measured, as tables of a recording: from the steps in which Python was
sampled, and from the calls that were counted inside the script."""

from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from profiler_job.analysis.capture.attribution import attribute
from profiler_job.analysis.capture.inferred import infer_phases
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.capture.selection import find_gpus
from profiler_job.analysis.insight.clean_gaps import CleanGaps
from profiler_job.analysis.insight.results import Summary
from profiler_job.analysis.insight.summary import summarise
from profiler_job.analysis.insight.wait_lines import NAMED_PARTS, PART
from profiler_job.analysis.reference.kernel_families import BUILT_IN
from profiler_job.jobs.contract.integrity import load_json
from profiler_job.jobs.contract.layout import CAPTURE, HOST_WAITS, SAMPLES, TIMINGS
from profiler_job.jobs.contract.messages import BATCHES, SAMPLED
from profiler_job.jobs.contract.ranges import STEP

TIMES = ("wait_ns", "cpu_ns", "late_launch_ns", "sync_ns", "copies_ns", "between_ns")
LEAST_SHARE = 0.005
"""Least share of the waiting of a line that is recorded."""


def read_waits(run: Path) -> dict[str, pd.DataFrame]:
    """Read the tables `waits`, `sync_calls` and `figures` (without run_id) of the run in a folder; {} if nothing was
    counted. Raises ExportError."""
    calls = load_json(run / HOST_WAITS)["syncs"] if (run / HOST_WAITS).is_file() else []
    tables = {"sync_calls": pd.DataFrame(calls)} if calls else {}
    if not (run / SAMPLES).is_file():
        return tables
    summary = summarise(read(run / SAMPLES, details=False), clean=(clean := read_clean_gaps(run)))
    facts = summary.capture
    num = facts["num_sampled_steps"] or 1
    rows = summary.sections["waits"]
    if calls := [*calls, *list_calls(summary, num)]:
        tables["sync_calls"] = pd.DataFrame(calls)
    if not len(rows):
        return tables
    rows = rows[rows["share"].astype(float) >= LEAST_SHARE]
    per_step = {name: np.rint(rows[name].astype(float) / num).astype(np.int64) for name in TIMES}
    tables["waits"] = rows.assign(**per_step, share=rows["share"].astype(float))
    scalars = {
        "steps": float(num),
        "covered": float(facts["sampled_share"]),
        "waiting_ns": facts["waiting_ns"] / num,
        "step_ns": facts["waiting_span_ns"] / num,
        "call_ns": clean.call_ns if clean else 0.0,
    }
    parts = summary.sections["wait_parts"].itertuples(index=False)
    scalars |= {f"{PART}{row.part}": float(row.share) for row in parts if row.part in NAMED_PARTS}
    named = [{"rank": 0, "figure": f"{SAMPLED}{name}", "unit": "", "value": value} for name, value in scalars.items()]
    tables["figures"] = pd.DataFrame(named)
    return tables


def list_calls(summary: Summary, num_steps: int) -> list[dict[str, Any]]:
    """List the copies from and to the host and the allocations of a step, by line, as rows of `sync_calls`."""
    copies = summary.sections["copy_lines"].itertuples(index=False)
    named = [(f"{row.operation} ({row.host_memory or 'memory not known'})", row) for row in copies]
    named += [(row.call, row) for row in summary.sections["allocation_lines"].itertuples(index=False)]
    return [
        {"rank": 0, "where": row.where, "function": row.function, "call": call, "count": row.count / num_steps}
        for call, row in named
    ]


def read_clean_gaps(run: Path) -> CleanGaps | None:
    """Read how long the GPUs wait in the captured steps of a run that have no samples; None without a capture. Raises
    ExportError."""
    if not (run / CAPTURE).is_file():
        return None
    capture = read(run / CAPTURE, details=False)
    gpus = {name: find_gpus(capture, getattr(capture, name)) for name in ("kernels", "graphs", "memops")}
    if not any(map(len, gpus.values())):
        return None
    timings = load_json(run / TIMINGS)
    rows = timings["steps"]
    walls = [row["wall_ns"] for row in rows if row["phase"] == STEP and row.get("rank", 0) == 0]
    step_ns = median(walls) if walls else None
    scalars = {row["figure"]: row["value"] for row in timings.get("figures", ()) if row.get("rank", 0) == 0}
    attribution = infer_phases(capture, attribute(capture))
    return CleanGaps(capture, attribution, gpus, BUILT_IN, step_ns, scalars.get(f"{BATCHES}ns"))
