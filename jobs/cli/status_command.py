"""The command `status`: show how far a sweep is."""

from collections import Counter
from pathlib import Path

from profiler_job.jobs.cli.console import fail, out
from profiler_job.jobs.cli.sweep_options import Only, ResultsFolder, ShardOption, SweepFile, choose_runs
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.layout import RunRecord
from profiler_job.jobs.contract.words import format_count
from profiler_job.jobs.executor.result_store import NoResultsError, Results
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP


def check_measured(folder: Results) -> None:
    """End the program if no job wrote results."""
    try:
        folder.check_exists()
    except NoResultsError as error:
        raise fail(str(error), ExitCode.USAGE) from None


def describe_timed(record: RunRecord) -> str:
    """Return the state of a run that is not finished: `timed`, or `timed by 1 of 3 processes`."""
    num_timed = len(record.timed)
    return "timed" if record.is_timed else f"timed by {num_timed} of {format_count(record.processes, 'process')}"


def status(
    sweep: SweepFile = DEFAULT_SWEEP,
    results: ResultsFolder = Path("results"),
    only: Only = "",
    shard: ShardOption = "",
) -> None:
    """Show how far a running or finished sweep is. Exit code 2 if no job wrote results of it."""
    planned, runs, part, _ = choose_runs(sweep, only, shard)
    folder = Results(results, planned.name, part.folder)
    check_measured(folder)
    protocol = folder.find_protocol(planned.protocol)
    counts: Counter[str] = Counter()
    reached = Counter(timed=0, profiled=0, finished=0)
    for run in runs:
        record = folder.finished(run, protocol)
        timed = folder.timed(run, protocol)
        damage = "" if record else folder.damage(run)
        begun = folder.read_in_flight(run) or (describe_timed(timed) if timed else "waiting")
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
    out.print(
        f"of {format_count(len(runs), 'run')} {', '.join(f'{number} {what}' for what, number in reached.items())}"
    )
