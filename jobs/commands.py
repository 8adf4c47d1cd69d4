"""The commands of the GPU side: job does everything; plan, doctor, run, status and render are its parts."""

import errno
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import track

from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.integrity import restore
from profiler_job.jobs.contract.layout import MANIFEST, RunRecord
from profiler_job.jobs.contract.words import counted
from profiler_job.jobs.executor.events import EventSink, JsonEvents, Meter, Terminal, clock
from profiler_job.jobs.executor.failures import CollectorError
from profiler_job.jobs.executor.nodes import Node, this_node
from profiler_job.jobs.executor.preflight import RESULTS_OF_IMAGE, check_writable, checks
from profiler_job.jobs.executor.result_store import Locked, NoResults, Results
from profiler_job.jobs.executor.stop import SHUTDOWN_S, Stop
from profiler_job.jobs.executor.sweep_runner import MixedVersions, Stopped, SweepRunner
from profiler_job.jobs.executor.sweep_state import SIGNAL_S
from profiler_job.jobs.executor.together import Others, own_facts, work_for_first
from profiler_job.jobs.executor.visible_gpus import visible_gpus
from profiler_job.jobs.follow_up import StepFailed, build_site, ingest, own_recordings, shipped_recordings
from profiler_job.jobs.memory import (
    QUICK_S,
    Refused,
    Simulation,
    is_predictable,
    is_reference,
    prediction_seconds,
    shape_of,
    simulate_runs,
)
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP, Sweep, SweepError, load_sweep, select
from profiler_job.jobs.sweep.plan_table import PlanTable
from profiler_job.jobs.sweep.shards import Shard, detect_shard, parse_shard, runs_of_shard

# Exit codes, after sysexits.h where it has one.
SOME_RUNS_FAILED = 1
USAGE = 2
CANNOT_MEASURE = 69
CANNOT_REPORT = 70
CANNOT_WRITE = 74
LOCKED = 75
REPORT_S = 600  # another job makes its report in seconds to minutes

out, err = Console(highlight=False), Console(stderr=True, highlight=False, soft_wrap=True)

SweepFile = Annotated[Path, typer.Option("--sweep", help="Sweep file.", show_default="jobs/sweep.yaml")]
ResultsFolder = Annotated[
    Path, typer.Option("--results", envvar=RESULTS_OF_IMAGE, help="Folder that receives the results.")
]
Only = Annotated[str, typer.Option(help="Only these runs, e.g. size=small,mode=forward; repeat a key for more values.")]
ShardOption = Annotated[str, typer.Option("--shard", help="Part I/N of the sweep; detected from batch engines.")]
Device = Annotated[Literal["cuda", "cpu"], typer.Option(help="cuda, or cpu to try things out without a GPU.")]
Retry = Annotated[bool, typer.Option("--retry", help="Measure failed runs and timeouts again.")]
AllowMix = Annotated[
    bool, typer.Option("--allow-mix", help="Go on where finished runs were measured with other versions.")
]
Gpus = Annotated[int, typer.Option(min=0, help="How many GPUs to use; 0 for all visible ones.")]
PricePerHour = Annotated[
    float | None, typer.Option(min=0, help="Price of the machine, to show the cost of the job, and of tokens.")
]
LogFormat = Annotated[Literal["text", "json"], typer.Option(help="text or json (one event a line).")]


def fail(message: str, code: int) -> typer.Exit:
    err.print(f"error: {message}", style="red", markup=False)
    return typer.Exit(code)


def chosen(
    sweep_file: Path, only: str, shard_text: str, num_gpus: int = 0
) -> tuple[Sweep, list[Run], Shard, list[Run] | None]:
    """The sweep, its runs after --only and --shard, the shard, and those of all shards if there are several. Machines
    that measure together, as of `node_of_runs` with `num_gpus`, all have the same one. Ends the program on a
    configuration error."""
    try:
        sweep = load_sweep(sweep_file)
        selected = select(sweep.runs, only)
        if shard_text:
            shard, engine = parse_shard(shard_text), ""
        else:
            shard, engine = detect_shard(is_together=node_of_runs(selected, num_gpus) is not None)
        if engine:
            err.print(f"shard {shard.index} of {shard.count}, assigned by {engine}")
        return sweep, runs_of_shard(selected, shard, sweep.protocol), shard, selected if shard.count > 1 else None
    except SweepError as error:
        for line in str(error).splitlines():
            err.print(line, style="red", markup=False)
        raise typer.Exit(USAGE) from None


def plan(
    sweep: SweepFile = DEFAULT_SWEEP,
    only: Only = "",
    shard: ShardOption = "",
    gpu_memory: Annotated[
        float, typer.Option(min=0, help="Mark the runs that will not fit a GPU sold with so many GB, e.g. 80.")
    ] = 0,
    memory: Annotated[
        bool, typer.Option("--memory", help="Predict memory however long it takes; --gpu-memory does so, too.")
    ] = False,
) -> None:
    """Print the runs of a sweep with their parameters, predicted memory and time. Needs no GPU and no torch; the
    memory of models of your own is simulated, and that needs torch."""
    planned, runs, *_ = chosen(sweep, only, shard)
    shapes = {shape_of(run) for run in runs if is_predictable(run)}
    seconds = prediction_seconds(shapes)
    with_memory = memory or gpu_memory > 0 or seconds <= QUICK_S
    limited = gpu_memory > 0 or any(run.memory_limit_gib for run in runs)
    simulated = simulate_own(runs, patient=memory or gpu_memory > 0)
    table = PlanTable(planned.protocol, with_memory, limited, gpu_memory, simulated)
    slow = f"the memory of {counted(len(shapes), 'different shape')} takes about {clock(seconds)} to predict"
    if with_memory and seconds > QUICK_S:
        err.print(slow)
    bar = track(runs, slow, console=err, transient=True, disable=not (err.is_terminal and seconds > QUICK_S))
    heading, *rows = table.lines(bar)
    out.print(heading, style="bold", soft_wrap=True)
    for row in rows:
        print(row)
    if shapes or not runs:
        predicted = "memory and time are predictions" if with_memory else "time is a prediction"
        times = counted(planned.processes, "process")
        predicted += f", time (in all {clock(table.total_s)}, each run timed in {times}) for a modest GPU"
    elif any(prediction.peaks for prediction in simulated.values()):
        predicted = "memory is the peak allocated of a simulation, without the allocator's rounding and the CUDA "
        predicted += f"context; of workload {planned.workload} no time is known before"
    else:
        predicted = f"of workload {planned.workload} neither memory nor time is known before"
    out.print(f"{counted(len(runs), 'run')}; {predicted}", soft_wrap=True)
    for problem, number in Counter(
        prediction.problem for prediction in simulated.values() if prediction.problem
    ).items():
        out.print(f"memory is n/a for {counted(number, 'run')}: {problem}", markup=False, soft_wrap=True)
    if not with_memory:
        out.print(f"{slow}, and is left out; --memory shows it all the same", soft_wrap=True)
    elif limited:
        where = f"a GPU sold with {gpu_memory:g} GB" if gpu_memory else "the memory limit of the sweep"
        out.print(f"{table.num_too_large} of {counted(len(runs), 'run')} will not fit {where}", soft_wrap=True)


def simulate_own(runs: list[Run], patient: bool) -> dict[Run, Simulation]:
    """The simulations of runs of one GPU that are not of the reference Transformer. Ends the program where the workload
    does not take what the sweep says."""
    own = [run for run in runs if not is_reference(run) and run.gpus == 1]
    try:
        return dict(zip(own, simulate_runs(own, patient))) if own else {}
    except Refused as error:
        raise fail(str(error), USAGE) from None


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
    used = gpus_to_use(device, gpus)
    planned, runs, part, of_all_shards = chosen(sweep, only, shard, len(used))
    node = node_of_runs(of_all_shards or runs, len(used))  # a shard may have none: the first measures it
    if node and node.number:
        measure_for_first(node, planned, runs, device, used)
        return
    folder = Results(results, planned.name, part.folder)
    with telling(log_format, price_per_hour, len(used)) as emit:
        if not measure(folder, planned, runs, of_all_shards, device, gpus, retry, allow_mix, emit, node):
            raise typer.Exit(SOME_RUNS_FAILED)


def node_of_runs(runs: list[Run], num_gpus: int) -> Node | None:
    """This machine, where it and others measure some of the runs together: those of more GPUs than it has."""
    return this_node() if num_gpus and any(run.gpus > num_gpus for run in runs) else None


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
    return (visible_gpus() if device == "cuda" else [0])[: gpus or None]


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


def when_terminated(handler: Callable[[int, Any], None]) -> None:
    """Have `handler` called when this program is told to end. A hang-up that is ignored stays so: nohup asks for it."""
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        signal.signal(number, handler)


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
    render_only: Annotated[bool, typer.Option("--render-only", help="Only the report of what was measured.")] = False,
) -> None:
    """Everything: check this machine, measure the sweep, make its recording and the site, all below --results.

    Exit code: as of `run`; 2 also when there are no results for --render-only; 70 when everything was measured and the
    recording or the site could not be made; 75 also when another job makes its report there, which one that has
    measured waits for.
    """
    planned, runs, part, of_all_shards = chosen(sweep, only, shard)
    with telling(log_format, price_per_hour, len(gpus_to_use(device, gpus))) as emit:
        measured = Results(results, planned.name, part.folder)
        if render_only:
            check_measured(measured)
        elif not can_measure(measured, planned, runs, device, gpus, retry, emit):
            raise fail(
                "this machine cannot measure: see the checks that failed. The report of the recording that comes with "
                "this program needs no GPU: `profiler-job render --shipped`",
                CANNOT_MEASURE,
            )
        good = render_only or measure(measured, planned, runs, of_all_shards, device, gpus, retry, allow_mix, emit)
        recording = results / "recordings" / "-".join(filter(None, (planned.name, part.folder)))
        kept = f"what was measured is kept in {measured.folder}; `profiler-job job --render-only` tries again"
        # Shards that end together have a recording each, and no site to share.
        held, wait_s = (measured, 0) if part.count > 1 else (reports(results), 0 if render_only else REPORT_S)
        with reporting(held, kept, wait_s):
            good &= ingest(measured.folder, recording, emit)
            if part.count == 1:
                num_gpus = max(1, len(gpus_to_use(device, gpus)))
                price = None if price_per_hour is None else price_per_hour / num_gpus
                build_site([recording], results / "site", emit, price)
        if not good:
            raise typer.Exit(SOME_RUNS_FAILED)


def render(
    results: ResultsFolder = Path("results"),
    recording: Annotated[
        list[Path] | None,
        typer.Option(help="Recording to show; repeat for several. Default: those in RESULTS/recordings."),
    ] = None,
    shipped: Annotated[
        bool, typer.Option("--shipped", help="Show the recordings that come with this program; replaces no report.")
    ] = False,
    log_format: LogFormat = "text",
) -> None:
    """Build the site of the recordings in RESULTS/recordings, where `job` puts them, in RESULTS/site. Needs no GPU.

    Exit code: 2 there is no recording, two have one name, or --shipped would replace a report, 70 the site cannot be
    built, 74 it cannot be written, 75 another job makes its report there.
    """
    shown = recordings_to_show(results, recording or [], shipped)
    emit = JsonEvents() if log_format == "json" else Terminal()
    writable = check_writable(results, reports(results).folder, results / "site")
    if writable.state == "failed":
        raise fail(f"{writable.found}; {writable.fix}", CANNOT_WRITE)
    with reporting(reports(results), "check the recording with `profiler-job report --recording`"):
        build_site(shown, results / "site", emit)


def recordings_to_show(results: Path, named: list[Path], shipped: bool) -> list[Path]:
    """Those named, the shipped ones on request, or else those of `results`. Ends the program where there are none,
    where two have one name, and where the shipped ones would replace a report or hide what was measured."""
    for folder in named:
        restore(folder)
    if not shipped:
        if absent := [folder for folder in named if not (folder / MANIFEST).is_file()]:
            raise fail(f"--recording {absent[0]}: no recording is there; `ingest` makes one", USAGE)
        named = [Path(os.path.abspath(folder)) for folder in named]  # `.` has no name
        by_name = {folder.name: folder for folder in named}
        if same := [folder for folder in named if by_name[folder.name] is not folder]:
            both = f"--recording {same[0]} and {by_name[same[0].name]}"
            raise fail(f"{both}: a site holds one recording of a name; rename one of the folders", USAGE)
        if shown := named or own_recordings(results):
            return shown
        ways = "`job` makes one, --recording names another folder, --shipped shows those that come with this program"
        raise fail(f"{results / 'recordings'} holds no recording: {ways}", USAGE)
    if named:
        raise fail("--shipped and --recording: give one of them", USAGE)
    own = [*own_recordings(results), *filter(Path.exists, [results / "site"])]
    if own:
        raise fail(f"--shipped: {own[0]} is there already, which stays; give another --results", USAGE)
    return shipped_recordings()


def reports(results: Path) -> Results:
    """What a job holds while it makes the recording and the site."""
    return Results(results, "recordings")


@contextmanager
def reporting(held: Results, advice: str, wait_s: float = 0) -> Iterator[None]:
    """Holds a folder, which it waits for, while the report is made, and turns what can go wrong into a message and an
    exit code."""

    def terminate(number: int, frame) -> None:
        raise fail(f"terminated while the report was made; {advice}", 128 + number)

    when_terminated(terminate)
    try:
        if wait_s and held.is_locked():
            err.print("another job makes its report there: waiting for it")
        with held.lock(wait_s):
            yield
    except Locked as error:
        raise fail(f"{error}; wait for it, then run this again: what was measured is kept", LOCKED) from None
    except StepFailed as error:
        raise fail(f"{error}; {advice}", CANNOT_REPORT) from None
    except OSError as error:
        raise fail(f"{error.filename}: {error.strerror}; {advice}", CANNOT_REPORT) from None


def doctor(
    sweep: SweepFile = DEFAULT_SWEEP,
    results: ResultsFolder = Path("results"),
    only: Only = "",
    shard: ShardOption = "",
    retry: Retry = False,
    device: Device = "cuda",
    gpus: Gpus = 0,
) -> None:
    """Check that this machine can measure: GPU, torch, nsys, memory, disk. Exit code 69 if it cannot."""
    planned, runs, part, _ = chosen(sweep, only, shard)
    if not can_measure(Results(results, planned.name, part.folder), planned, runs, device, gpus, retry, Terminal()):
        raise typer.Exit(CANNOT_MEASURE)


def can_measure(
    folder: Results, sweep: Sweep, runs: list[Run], device: str, gpus: int, retry: bool, emit: EventSink
) -> bool:
    left = [run for run in runs if folder.final(run, sweep.protocol, retry) is None]
    outcomes = checks(folder, left, sweep.protocol, device, gpus)
    for check in outcomes:
        emit("check", **check._asdict())
    return all(check.state != "failed" for check in outcomes)


def check_measured(folder: Results) -> None:
    """Ends the program where no job wrote results."""
    try:
        folder.check_exists()
    except NoResults as error:
        raise fail(str(error), USAGE) from None


def timed_so_far(record: RunRecord) -> str:
    """How far a run is that is not finished: `timed`, or `timed by 1 of 3 processes`."""
    num_timed = len(record.timed)
    return "timed" if record.is_timed else f"timed by {num_timed} of {counted(record.processes, 'process')}"


def status(
    sweep: SweepFile = DEFAULT_SWEEP,
    results: ResultsFolder = Path("results"),
    only: Only = "",
    shard: ShardOption = "",
) -> None:
    """Show how far a running or finished sweep is. Exit code 2 where no job wrote results of it."""
    planned, runs, part, _ = chosen(sweep, only, shard)
    folder = Results(results, planned.name, part.folder)
    check_measured(folder)
    counts: Counter[str] = Counter()
    reached = Counter(timed=0, profiled=0, finished=0)
    for run in runs:
        record = folder.finished(run, planned.protocol)
        timed = folder.timed(run, planned.protocol)
        damage = "" if record else folder.damage(run)
        begun = folder.in_flight(run) or (timed_so_far(timed) if timed else "waiting")
        state = record.status if record else "damaged" if damage else begun
        counts[state] += 1
        known = record or timed
        seconds = known.seconds if known else {}
        reached.update(
            timed=known is not None and known.is_timed, profiled="export" in seconds, finished=record is not None
        )
        detail = record.status_detail if record else None
        why = f"  {detail.phase or ''}: {detail.message}" if detail else f"  {damage}" if damage else ""
        took = f"  {record.wall_s:.1f} s" if record else ""
        out.print(f"{run.run_id:44} {state}{took}{why}", markup=False, soft_wrap=True)
    running = "a job is writing here" if folder.is_locked() else "no job is writing here"
    if not folder.is_locked() and not counts.keys() - {"waiting"}:
        running = "the sweep has not begun"
    out.print(f"{', '.join(f'{number} {state}' for state, number in counts.most_common())}; {running}")
    out.print(f"of {counted(len(runs), 'run')} {', '.join(f'{number} {what}' for what, number in reached.items())}")
