"""The command `doctor`: check that this machine can measure."""

from pathlib import Path

import typer

from profiler_job.jobs.cli.sweep_options import (
    Device,
    Gpus,
    Only,
    ResultsFolder,
    Retry,
    ShardOption,
    SweepFile,
    choose_runs,
)
from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.executor.events import EventSink, Terminal
from profiler_job.jobs.executor.preflight import run_checks
from profiler_job.jobs.executor.result_store import Results
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP, Sweep


def doctor(
    sweep: SweepFile = DEFAULT_SWEEP,
    results: ResultsFolder = Path("results"),
    only: Only = "",
    shard: ShardOption = "",
    retry: Retry = False,
    device: Device = "cuda",
    gpus: Gpus = 0,
) -> None:
    """Check that this machine can measure. Checked are GPU, torch, nsys, memory and disk. Exit code 69 if it cannot."""
    planned, runs, part, _ = choose_runs(sweep, only, shard, device)
    if not can_measure(Results(results, planned.name, part.folder), planned, runs, device, gpus, retry, Terminal()):
        raise typer.Exit(ExitCode.MISSING)


def can_measure(
    folder: Results, sweep: Sweep, runs: list[Run], device: str, gpus: int, retry: bool, emit: EventSink
) -> bool:
    """Emit one event for each check, and return whether none failed."""
    left = [run for run in runs if folder.final(run, sweep.protocol, retry) is None]
    outcomes = run_checks(folder, left, sweep.protocol, device, gpus)
    for check in outcomes:
        emit("check", **check._asdict())
    return all(check.state != "failed" for check in outcomes)
