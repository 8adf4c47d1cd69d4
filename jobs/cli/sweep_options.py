"""Options that several commands share, and the runs of a sweep that they select."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from profiler_job.jobs.cli.console import err, fail
from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.find_nsys import find_nsys
from profiler_job.jobs.executor.preflight import RESULTS_OF_IMAGE
from profiler_job.jobs.sweep.plan import Sweep, SweepError, load_sweep, select_runs
from profiler_job.jobs.sweep.shards import Shard, detect_shard, parse_shard, select_shard_runs

SweepFile = Annotated[
    Path,
    typer.Option(
        "--sweep",
        metavar="FILE",
        help="Sweep file, or the name of one that ships, such as tiny.",
        show_default="jobs/sweep.yaml",
    ),
]
ResultsFolder = Annotated[
    Path, typer.Option("--results", "-o", metavar="FOLDER", envvar=RESULTS_OF_IMAGE, help="Folder of the results.")
]
Only = Annotated[
    str,
    typer.Option(metavar="KEY=VALUE,...", help="Only these runs, e.g. size=small,mode=forward; repeat a key for more."),
]
ShardOption = Annotated[
    str, typer.Option("--shard", metavar="I/N", help="Part of the sweep; detected from batch engines.")
]
Device = Annotated[Literal["cuda", "cpu"], typer.Option(help="cuda, or cpu to try things out without a GPU.")]
Retry = Annotated[bool, typer.Option("--retry", help="Measure failed runs and timeouts again.")]
AllowMix = Annotated[
    bool, typer.Option("--allow-mix", help="Go on if finished runs were measured with other versions.")
]
Gpus = Annotated[int, typer.Option(min=0, metavar="N", help="How many GPUs to use; 0 for all visible ones.")]
PricePerHour = Annotated[
    float | None,
    typer.Option(min=0, metavar="PRICE", help="Price of the machine: shows the cost of the job, and of tokens."),
]
LogFormat = Annotated[Literal["text", "json"], typer.Option(help="text or json (one event a line).")]


def choose_runs(
    sweep_file: Path, only: str, shard_text: str, device: str = "cuda"
) -> tuple[Sweep, list[Run], Shard, list[Run] | None]:
    """Return the sweep, its runs after --only and --shard, the shard, and the runs of all shards if there are several.
    On the CPU, which launches no kernels, nothing is captured if there is no nsys. Ends the program on a configuration
    error."""
    try:
        sweep = load_sweep(sweep_file)
        if device == "cpu" and sweep.profiled_steps and find_nsys() is None:
            err.print("no nsys here: steps are timed and none is captured")
            sweep = sweep.model_copy(update={"profiled_steps": 0})
        selected = select_runs(sweep, only)
        shard, engine = (parse_shard(shard_text), "") if shard_text else detect_shard()
        if engine:
            err.print(f"shard {shard.index} of {shard.count}, assigned by {engine}")
        return sweep, select_shard_runs(selected, shard, sweep.protocol), shard, selected if shard.count > 1 else None
    except SweepError as error:
        raise fail(str(error), ExitCode.USAGE) from None
