"""The command `plan`: print the runs of a sweep, and what they need."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import typer
from rich.progress import track

from profiler_job.jobs.cli.console import err, fail, out
from profiler_job.jobs.cli.sweep_options import Only, ShardOption, SweepFile, choose_runs
from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.json_format import add_format_version
from profiler_job.jobs.contract.layout import Protocol
from profiler_job.jobs.contract.printable import make_lines_printable
from profiler_job.jobs.contract.words import format_count
from profiler_job.jobs.executor.events import format_clock
from profiler_job.jobs.memory import (
    QUICK_S,
    FakeStepError,
    Simulation,
    estimate_prediction_seconds,
    infer_shape,
    is_predictable,
    is_reference,
    simulate_runs,
)
from profiler_job.jobs.sweep.batches import predict_extra_seconds, predict_sweep_seconds
from profiler_job.jobs.sweep.groups import group_runs
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP
from profiler_job.jobs.sweep.plan_table import PlanTable
from profiler_job.jobs.sweep.prediction import predict_seconds


def plan(
    sweep: SweepFile = DEFAULT_SWEEP,
    only: Only = "",
    shard: ShardOption = "",
    gpu_memory: Annotated[
        float,
        typer.Option(min=0, metavar="GB", help="Mark the runs that will not fit a GPU sold with so many GB, e.g. 80."),
    ] = 0,
    memory: Annotated[
        bool, typer.Option("--memory", help="Predict memory, and what holds it, however long it takes.")
    ] = False,
    form: Annotated[Literal["text", "json"], typer.Option("--format", "-f", help="How to print it.")] = "text",
) -> None:
    """Print the runs of a sweep, with predicted memory and time. Needs no GPU and no torch; the
    memory of models of your own is simulated, and that needs torch."""
    planned, runs, *_ = choose_runs(sweep, only, shard)
    workloads = " and ".join(sorted({run.workload for run in runs}))
    shapes = {infer_shape(run) for run in runs if is_predictable(run)}
    seconds = estimate_prediction_seconds(shapes)
    with_memory = memory or gpu_memory > 0 or seconds <= QUICK_S
    limited = gpu_memory > 0 or any(run.memory_limit_gib for run in runs)
    simulated = simulate_own(runs, patient=memory or gpu_memory > 0)
    table = PlanTable(planned.protocol, with_memory, limited, gpu_memory, simulated, with_owners=memory)
    slow = (
        f"the memory of {format_count(len(shapes), 'different shape')} takes about {format_clock(seconds)} to predict"
    )
    if with_memory and seconds > QUICK_S:
        err.print(slow)
    bar = track(runs, slow, console=err, transient=True, disable=not (err.is_terminal and seconds > QUICK_S))
    if form == "json":
        described = [table.describe(run) for run in bar]
        content: dict[str, Any] = {"sweep": planned.name, "runs": described}
        if planned.turns:
            content["groups"] = describe_groups(runs, planned.protocol, described)
            content["extra_time_s"] = predict_extra_seconds(runs, planned.protocol)
        print(json.dumps(add_format_version(content), indent=2))
        return
    width = out.width if out.is_terminal else None
    for row in table.lines(bar, width):
        print(make_lines_printable(row))
    if not runs or any(predict_seconds(run, planned.protocol) is not None for run in runs):
        predicted = "memory and time are predictions" if with_memory and shapes else "time is a prediction"
        times = format_count(planned.processes, "process")
        if planned.turns:
            groups = format_count(len(group_runs(runs, planned.protocol)), "group")
            times += f", all but the first shared by turns in {groups}, which need the memory of their largest runs"
        in_all = predict_sweep_seconds(runs, planned.protocol)
        if any(run.compile != "off" for run in runs):
            times = f"compiled side by side, each run timed in {times}"
        else:
            times = f"each run timed in {times}"
        total = format_clock(table.total_s if in_all is None else in_all)
        predicted += f", time (in all {total}, {times}) for an H200"
        if planned.turns and (extra_s := predict_extra_seconds(runs, planned.protocol)):
            predicted += f"; up to {format_clock(extra_s)} more if the host is slow"
    elif any(prediction.peaks for prediction in simulated.values()):
        predicted = "memory is the peak allocated of a simulation, without the allocator's rounding and the CUDA "
        predicted += f"context; of workload {workloads} no time is known before"
    else:
        predicted = f"of workload {workloads} neither memory nor time is known before"
    out.print(f"{format_count(len(runs), 'run')}; {predicted}", soft_wrap=True)
    for problem, number in Counter(
        prediction.problem for prediction in simulated.values() if prediction.problem
    ).items():
        out.print(f"memory is n/a for {format_count(number, 'run')}: {problem}", markup=False, soft_wrap=True)
    if not with_memory:
        out.print(f"{slow}, and is left out; --memory shows it all the same", soft_wrap=True)
    elif limited:
        where = f"a GPU sold with {gpu_memory:g} GB" if gpu_memory else "the memory limit of the sweep"
        out.print(f"{table.num_too_large} of {format_count(len(runs), 'run')} will not fit {where}", soft_wrap=True)


def describe_groups(
    runs: Sequence[Run], protocol: Protocol, described: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Describe the groups of runs that take turns: their run_ids, their seconds together, and the bytes of the largest,
    whose weights they share; None for what is not known. described: the runs, as `PlanTable.describe` does."""
    known = {row["run_id"]: row for row in described}
    groups = [[run.run_id for run in group] for group in group_runs(runs, protocol)]
    return [
        {
            "run_ids": ids,
            "time_s": join_known(sum, [known[run_id].get("time_s") for run_id in ids]),
            "memory_bytes": join_known(max, [known[run_id].get("memory_bytes") for run_id in ids]),
        }
        for ids in groups
    ]


def join_known(join: Callable[[list[float]], float], values: Sequence[float | None]) -> float | None:
    """Return the sum, or the largest, of values; None if one of them is not known."""
    known = [value for value in values if value is not None]
    return join(known) if len(known) == len(values) else None


def simulate_own(runs: list[Run], patient: bool) -> dict[Run, Simulation]:
    """Return the simulations of runs on one GPU that do not measure the reference Transformer and, if it may take long,
    of those that compile it. Else a compiled run is said to need what it needs uncompiled, which is more. Ends the
    program if the workload refuses the options of the sweep."""
    own = [
        run
        for run in runs
        if run.gpus == 1 and (not is_reference(run) or (patient and run.compile in ("default", "cudagraphs")))
    ]
    try:
        asked = own if patient else [run.model_copy(update={"compile": "off"}) for run in own]
        simulated = dict(zip(own, simulate_runs(asked, patient))) if own else {}
    except FakeStepError as error:
        raise fail(str(error), ExitCode.USAGE) from None
    return {run: each for run, each in simulated.items() if each.peaks or not is_reference(run)}
