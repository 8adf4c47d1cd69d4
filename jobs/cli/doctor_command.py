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
from profiler_job.jobs.executor.preflight import run_checks, warn_of_torch
from profiler_job.jobs.executor.result_store import Results
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP, Sweep


def doctor(
    context: typer.Context,
    sweep: SweepFile = DEFAULT_SWEEP,
    results: ResultsFolder = Path("results"),
    only: Only = "",
    shard: ShardOption = "",
    retry: Retry = False,
    device: Device = "cuda",
    gpus: Gpus = 0,
) -> None:
    """Check that this machine can measure. Checked are GPU, torch, nsys, memory and disk. A missing torch is a warning
    unless --sweep or --only is given: scripts have their own. Exit code 69 if it cannot measure."""
    planned, runs, part, _ = choose_runs(sweep, only, shard, device)
    folder = Results(results, planned.name, part.folder)
    sources = [context.get_parameter_source(name) for name in ("sweep", "only")]
    is_of_sweep = any(source is not None and source.name != "DEFAULT" for source in sources)
    if not can_measure(folder, planned, runs, device, gpus, retry, Terminal(), is_of_sweep):
        raise typer.Exit(ExitCode.MISSING)


def can_measure(
    folder: Results,
    sweep: Sweep,
    runs: list[Run],
    device: str,
    gpus: int,
    retry: bool,
    emit: EventSink,
    is_of_sweep: bool = True,
) -> bool:
    """Emit one event for each check, and return whether none failed. is_of_sweep: whether this sweep is to be measured;
    what only a sweep needs is else a warning."""
    left = [run for run in runs if folder.final(run, sweep.protocol, retry) is None]
    outcomes = run_checks(folder, left, sweep.protocol, device, gpus)
    if not is_of_sweep:
        outcomes = [warn_of_torch(check) if check.name == "torch" else check for check in outcomes]
    for check in outcomes:
        emit("check", **check._asdict())
    return all(check.state != "failed" for check in outcomes)
