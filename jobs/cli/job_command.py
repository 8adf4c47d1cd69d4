"""The command `job`: everything from the checks to the site."""

from pathlib import Path
from typing import Annotated

import typer

from profiler_job.jobs.cli.console import fail
from profiler_job.jobs.cli.doctor_command import can_measure
from profiler_job.jobs.cli.follow_up import build_site, ingest, write_answers
from profiler_job.jobs.cli.measure_sweep import measure, open_event_sink, select_gpus
from profiler_job.jobs.cli.report_lock import find_report_folder, hold_report_folder
from profiler_job.jobs.cli.status_command import check_measured
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
from profiler_job.jobs.contract.layout import ANSWERS, RECORDINGS, SITE
from profiler_job.jobs.contract.outputs import check_folder, is_recording, is_site
from profiler_job.jobs.executor.result_store import Results
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP

REPORT_S = 600  # another job makes its report in seconds to minutes


def job(
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
    render_only: Annotated[
        bool, typer.Option("--render-only", help="Measure nothing; make the recording and site.")
    ] = False,
) -> None:
    """Do it all: check, measure a sweep, make its site. Everything is below --results, its recording, too.

    Exit code: like `run`; also 2 when --render-only finds no results, 70 when the recording or the site could
    not be made, and 75 when another job makes its site there. A job that has measured waits for the other one.
    """
    planned, runs, part, of_all_shards = choose_runs(sweep, only, shard, device)
    measured = Results(results, planned.name, part.folder)
    recording = results / RECORDINGS / "-".join(filter(None, (planned.name, part.folder)))
    check_folder(recording, is_recording)
    check_folder(results / SITE, is_site)
    with open_event_sink(log_format, price_per_hour, len(select_gpus(device, gpus))) as emit:
        if render_only:
            check_measured(measured)
        elif not can_measure(measured, planned, runs, device, gpus, retry, emit):
            raise fail(
                "this machine cannot measure: see the checks that failed. The site of the recordings that come with "
                "this program needs no GPU: `profiler-job site --shipped`",
                ExitCode.MISSING,
            )
        good = render_only or measure(measured, planned, runs, of_all_shards, device, gpus, retry, allow_mix, emit)
        kept = f"what was measured is kept in {measured.folder}; `profiler-job job --render-only` tries again"
        # Shards that end together have a recording each, and no site to share.
        held, wait_s = (
            (measured, 0) if part.count > 1 else (find_report_folder(results), 0 if render_only else REPORT_S)
        )
        with hold_report_folder(held, kept, wait_s):
            good &= ingest(measured.folder, recording, emit)
            if part.count == 1:
                write_answers(recording, results / ANSWERS / planned.name, emit)
                num_gpus = max(1, len(select_gpus(device, gpus)))
                price = None if price_per_hour is None else price_per_hour / num_gpus
                build_site([recording], results / "site", emit, price)
        if not good:
            raise typer.Exit(ExitCode.FAILED)
