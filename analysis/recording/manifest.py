"""The manifest of a recording: what was measured where, and when."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd

from profiler_job.jobs.contract.layout import FinishedRecord
from profiler_job.jobs.contract.privacy import scrub_text

PROTOCOL = ("protocol_version", "processes", "seed", "warmup_steps", "measured_steps", "profiled_steps")
"""Columns of runs that say how they were measured."""


def describe_recording(
    name: str, sweep: str, runs: pd.DataFrame, schemas: set[str], not_run: list[str]
) -> dict[str, Any]:
    """Return the `manifest.json` of a recording. not_run: ids of the runs of the sweep without a result."""

    def values(column: str) -> str:
        return ", ".join(sorted({str(value) for value in runs[column].dropna()}))

    started = sorted(str(moment) for moment in runs["started_at"].dropna())
    return {
        "name": name,
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "gpu": values("gpu_name"),
        **{column: values(column) for column in ("driver", "cuda", "torch", "nsys", "python", "commit")},
        "recorded_from": started[0] if started else "",
        "sweep": scrub_text(sweep),
        "protocol": {name: sorted({int(value) for value in runs[name].dropna()}) for name in PROTOCOL},
        "runs": [
            {
                "run_id": row["run_id"],
                "status": row["status"],
                "phase": row["status_phase"],
                "message": row["status_message"],
            }
            for _, row in runs.iterrows()
        ],
        "not_run": not_run,
        "nsys_schema": ", ".join(sorted(schemas)),
    }


def find_end(run_id: str, record: FinishedRecord, emit: Callable[[str], None]) -> str:
    """Return when a run ended, "" if its record does not have it. Stages may be far apart, so only older records end
    `wall_s` after their start, and records whose clock was set back, with a line to `emit`."""
    try:
        start = datetime.fromisoformat(record.started_at) if record.started_at else None
        end = datetime.fromisoformat(record.ended_at) if record.ended_at else None
        if start and end and end < start:
            emit(f"{run_id}: ended before it began, by the clock of its machine; it took {record.wall_s or 0:.1f} s")
        if start and record.wall_s is not None and (end is None or end < start):
            end = start + timedelta(seconds=record.wall_s)
    except (ValueError, TypeError, OverflowError):  # no times, or one of them without its time zone
        return ""
    return end.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if end else ""
