"""Measure the runs of a sweep, on this machine or together with others."""

import errno
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

import typer

from profiler_job.jobs.cli.console import err, fail, when_terminated
from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.exit_codes import CANNOT_MEASURE, CANNOT_WRITE, LOCKED, USAGE
from profiler_job.jobs.executor.events import EventSink, JsonEvents, Meter, Terminal
from profiler_job.jobs.executor.failures import CollectorError
from profiler_job.jobs.executor.nodes import Node
from profiler_job.jobs.executor.preflight import check_writable
from profiler_job.jobs.executor.result_store import Locked, Results
from profiler_job.jobs.executor.stop import SHUTDOWN_S, Stop
from profiler_job.jobs.executor.sweep_runner import MixedVersions, Stopped, SweepRunner
from profiler_job.jobs.executor.sweep_state import SIGNAL_S
from profiler_job.jobs.executor.together import Others, own_facts, work_for_first
from profiler_job.jobs.executor.visible_gpus import find_visible_gpus
from profiler_job.jobs.sweep.plan import Sweep


def digest_of(sweep: Sweep, runs: list[Run]) -> str:
    """The same on machines that are to measure the same."""
    return sha256(json.dumps([sweep.model_dump(mode="json"), [run.run_id for run in runs]]).encode()).hexdigest()


def measure_for_first(node: Node, sweep: Sweep, runs: list[Run], device: str, gpus: list[int]) -> None:
    """Have the GPUs of this machine measured with by the first; ends the program where that fails."""
    check_divisible(node, runs, len(gpus))
    err.print(f"machine {node.number + 1} of {node.size}: the first one measures, with the GPUs of this one, too")

    received: list[int] = []
    first_at = 0.0
    stop = Stop()

    def terminate(number: int, frame) -> None:
        nonlocal first_at
        if not received:
            received.append(number)
            first_at = time.monotonic()
            stop.set()
            # Engines tell all machines to end: a capture that the first is ending needs this one a little longer.
            signal.setitimer(signal.ITIMER_REAL, SHUTDOWN_S)
        elif time.monotonic() - first_at > SIGNAL_S:
            raise typer.Exit(128 + received[0])

    when_terminated(terminate)
    signal.signal(signal.SIGALRM, terminate)
    try:
        work_for_first(node, digest_of(sweep, runs), device, gpus, with_nsys=sweep.profiled_steps > 0, stop=stop)
    except CollectorError as error:
        if received:
            raise typer.Exit(128 + received[0]) from None
        raise fail(str(error), CANNOT_MEASURE) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if received:
        raise typer.Exit(128 + received[0])


def check_divisible(node: Node, runs: list[Run], num_gpus: int) -> None:
    """Ends the program where a run cannot be divided among the machines."""
    for run in runs:
        if run.gpus > num_gpus and (run.gpus % node.size or run.gpus > num_gpus * node.size):
            raise fail(
                f"{run.run_id}: {run.gpus} GPUs are not as many on each of {node.size} machines, or more than the "
                f"{num_gpus} that each would use",
                CANNOT_MEASURE,
            )


def others_of(node: Node, sweep: Sweep, runs: list[Run], num_gpus: int) -> Others:
    """The other machines, all of which have come. Ends the program as `check_divisible`. Raises CollectorError."""
    check_divisible(node, runs, num_gpus)
    others = Others(node)
    others.wait(digest_of(sweep, runs), own_facts(with_nsys=sweep.profiled_steps > 0))
    return others


@contextmanager
def telling(log_format: str, price_per_hour: float | None, num_gpus: int) -> Iterator[EventSink]:
    """The report of a job, from its start; last of all it tells how the job ended, how long it took and its cost."""
    meter = Meter(price_per_hour)
    emit: EventSink = JsonEvents() if log_format == "json" else Terminal(meter, num_gpus)

    def terminate(number: int, frame) -> None:
        raise fail("terminated before it began to measure", 128 + number)

    try:
        when_terminated(terminate)
        yield emit
    except typer.Exit as ended:
        emit("job_finished", exit_code=ended.exit_code, **meter.read())
        raise
    emit("job_finished", exit_code=0, **meter.read())


def gpus_to_use(device: str, gpus: int) -> list[int]:
    """Their indices; fewer than `gpus` where fewer are visible."""
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
    node: Node | None = None,
) -> bool:
    """Measure what is not finished, and return whether every run is ok or out of memory. Ends the program where it
    cannot go on. node: this machine, where it is the first of several that measure together."""
    used = gpus_to_use(device, gpus)
    if not used:
        raise fail("no NVIDIA GPU is visible; `doctor` says what is missing", CANNOT_MEASURE)
    if gpus > len(used):
        raise fail(f"--gpus {gpus}: {len(used)} visible; give fewer, or 0 for all of them", USAGE)
    if node is None and device == "cuda" and (most := max((run.gpus for run in runs), default=1)) > len(used):
        fix = "take a machine with as many, start `run` on several, or leave them out with --only gpus=1"
        raise fail(f"some runs need {most} GPUs, and {len(used)} would be used: {fix}", CANNOT_MEASURE)
    others = None
    if node:
        try:
            others = others_of(node, sweep, runs, len(used))
        except CollectorError as error:
            raise fail(str(error), CANNOT_MEASURE) from None
    runner = SweepRunner(
        folder,
        sweep.protocol,
        emit,
        device=device,
        gpus=used,
        retry=retry,
        allow_mix=allow_mix,
        calibrate=sweep.calibrate,
        others=others,
    )
    received: list[int] = []
    first_at = 0.0
    wrong = "the first machine ended before the sweep did"

    def terminate(number: int, frame) -> None:
        nonlocal first_at
        if not received:
            first_at = time.monotonic()
        elif time.monotonic() - first_at > SIGNAL_S:  # whoever asks again cannot wait
            runner.kill()
            os._exit(128 + number)
        received.append(number)
        runner.stop()

    when_terminated(terminate)
    try:
        with folder.lock():
            folder.save_sweep(sweep, runs, of_all_shards)
            statuses = runner.run(runs)
        wrong = ""
    except Locked as error:
        raise fail(f"{error}; wait for it, or choose another --results", LOCKED) from None
    except Stopped:
        raise typer.Exit(128 + received[0]) from None
    except MixedVersions as error:
        raise fail(str(error), USAGE) from None
    except CollectorError as error:
        if received:  # engines tell all machines to end, and another one was faster
            raise typer.Exit(128 + received[0]) from None
        wrong = str(error)
        raise fail(f"{error}; what was measured so far is kept", CANNOT_MEASURE) from None
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        writable = check_writable(*folder.written)
        advice = "free some space" if full else writable.fix or "mend this"
        message = f"{error.filename or folder.folder}: {error.strerror or error}{' (disk full)' if full else ''}"
        kept = f"what was measured so far is kept. To resume, {advice} and run again"
        raise fail(f"{message}; {kept}", CANNOT_WRITE) from None
    finally:
        if others:
            others.end(wrong)
        emit.close()
    if received:
        raise typer.Exit(128 + received[0])
    return all(status in ("ok", "oom") for status in statuses.values())
