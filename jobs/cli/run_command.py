"""The command `run`: measure a sweep."""

from pathlib import Path

import typer

from profiler_job.jobs.cli.measure_sweep import measure, open_event_sink, select_gpus
from profiler_job.jobs.cli.sweep_options import (
    AllowMix,
    Device,
    Gpus,
    LogFormat,
    Only,
    PricePerHour,
    ResultsFolder,
    Retry,
    ShardOption,
    SweepFile,
    choose_runs,
)
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.executor.result_store import Results
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP


def run(
    sweep: SweepFile = DEFAULT_SWEEP,
    results: ResultsFolder = Path("results"),
    only: Only = "",
    shard: ShardOption = "",
    retry: Retry = False,
    allow_mix: AllowMix = False,
    device: Device = "cuda",
    gpus: Gpus = 0,
    price_per_hour: PricePerHour = None,
    log_format: LogFormat = "text",
) -> None:
    """Measure the runs of a sweep that are not finished yet.

    Exit code: 0 every run is ok or out of memory, 1 some run failed, 2 configuration, or finished runs were measured
    with other versions (GPU, driver, CUDA, torch, nsys, commit) than this machine has, 69 this machine cannot measure,
    74 results cannot be written, 75 another job holds the folder, 129 hung up, 130 interrupted, 143 terminated.
    """
    planned, runs, part, of_all_shards = choose_runs(sweep, only, shard, device)
    folder = Results(results, planned.name, part.folder)
    with open_event_sink(log_format, price_per_hour, len(select_gpus(device, gpus))) as emit:
        if not measure(folder, planned, runs, of_all_shards, device, gpus, retry, allow_mix, emit):
            raise typer.Exit(ExitCode.FAILED)
