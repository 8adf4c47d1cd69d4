"""Measure the runs of a sweep on this machine."""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from profiler_job.jobs.cli.console import fail, handle_termination
from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.extras import MissingExtraError, check_extra
from profiler_job.jobs.executor.events import EventSink, JsonEvents, Meter, Terminal
from profiler_job.jobs.executor.failures import CollectorError
from profiler_job.jobs.executor.preflight import check_writable
from profiler_job.jobs.executor.result_store import LockedError, Results
from profiler_job.jobs.executor.sweep_runner import MixedVersionsError, StoppedError, SweepRunner
from profiler_job.jobs.executor.sweep_state import SIGNAL_S
from profiler_job.jobs.executor.visible_gpus import find_visible_gpus
from profiler_job.jobs.sweep.plan import Sweep


@contextmanager
def open_event_sink(log_format: str, price_per_hour: float | None, num_gpus: int) -> Iterator[EventSink]:
    """Yield the event sink of a job. The last event has the exit code, the time and the cost of the job."""
    meter = Meter(price_per_hour)
    emit: EventSink = JsonEvents() if log_format == "json" else Terminal(meter, num_gpus)

    def terminate(number: int, frame: object) -> None:
        raise fail("terminated before it began to measure", 128 + number)

    try:
        handle_termination(terminate)
        yield emit
    except typer.Exit as ended:
        emit("job_finished", exit_code=ended.exit_code, **meter.read())
        raise
    emit("job_finished", exit_code=0, **meter.read())


def select_gpus(device: str, gpus: int) -> list[int]:
    """Return the indices of the GPUs to use; fewer than `gpus` if fewer are visible."""
    return (find_visible_gpus() if device == "cuda" else [0])[: gpus or None]


def measure(
    folder: Results,
    sweep: Sweep,
    runs: list[Run],
    of_all_shards: list[Run] | None,
    device: str,
    gpus: int,
    retry: bool,
    allow_mix: bool,
    emit: EventSink,
) -> bool:
    """Measure what is not finished, and return whether every run is ok or out of memory. Ends the program if it
    cannot go on."""
    used = select_gpus(device, gpus)
    if not used:
        raise fail("no NVIDIA GPU is visible; `doctor` says what is missing", ExitCode.MISSING)
    if gpus > len(used):
        raise fail(f"--gpus {gpus}: {len(used)} visible; give fewer, or 0 for all of them", ExitCode.USAGE)
    if device == "cuda" and (most := max((run.gpus for run in runs), default=1)) > len(used):
        fix = "take a machine with as many, or leave them out with --only gpus=1"
        raise fail(f"some runs need {most} GPUs, and {len(used)} would be used: {fix}", ExitCode.MISSING)
    try:
        check_extra("gpu")
    except MissingExtraError as error:
        raise fail(str(error), error.exit_code) from None
    runner = SweepRunner(
        folder,
        sweep.protocol,
        emit,
        device=device,
        gpus=used,
        retry=retry,
        allow_mix=allow_mix,
        calibrate=sweep.calibrate,
    )
    received: list[int] = []
    first_at = 0.0

    def terminate(number: int, frame: object) -> None:
        nonlocal first_at
        if not received:
            first_at = time.monotonic()
        elif time.monotonic() - first_at > SIGNAL_S:  # whoever asks again cannot wait
            runner.kill()
            os._exit(128 + number)
        received.append(number)
        runner.stop()

    handle_termination(terminate)
    try:
        with folder.lock():
            folder.save_sweep(sweep, runs, of_all_shards)
            statuses = runner.run(runs)
    except LockedError as error:
        raise fail(f"{error}; wait for it, or choose another --results", ExitCode.LOCKED) from None
    except StoppedError:
        raise typer.Exit(128 + received[0]) from None
    except MixedVersionsError as error:
        raise fail(str(error), ExitCode.USAGE) from None
    except CollectorError as error:
        raise fail(f"{error}; what was measured so far is kept", ExitCode.MISSING) from None
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        writable = check_writable(*folder.written)
        advice = "free some space" if full else writable.fix or "fix this"
        message = f"{error.filename or folder.folder}: {error.strerror or error}{' (disk full)' if full else ''}"
        kept = f"what was measured so far is kept. To resume, {advice} and run again"
        raise fail(f"{message}; {kept}", ExitCode.CANNOT_WRITE) from None
    finally:
        emit.close()
    if received:
        raise typer.Exit(128 + received[0])
    return all(status in ("ok", "oom") for status in statuses.values())
