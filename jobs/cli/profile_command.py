"""The command `profile`: measure a training script as it is, and make its site."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from profiler_job.jobs.cli.console import err, out
from profiler_job.jobs.cli.event_summary import print_summary
from profiler_job.jobs.cli.follow_up import build_site, print_findings, summarise_captures
from profiler_job.jobs.cli.measure_script import (
    LONGEST_NAME,
    EndOfStep,
    MeasuredSteps,
    Name,
    ScriptCommand,
    SkippedSteps,
    check_command,
    check_name,
    describe_overhead,
    format_site_command,
    make_recording,
    measure_what_there_is,
)
from profiler_job.jobs.cli.script_name import choose_default_name
from profiler_job.jobs.cli.script_notes import describe_memory, describe_script
from profiler_job.jobs.cli.sweep_options import ResultsFolder
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.extras import find_missing, install_command
from profiler_job.jobs.contract.layout import list_captures
from profiler_job.jobs.contract.outputs import check_folder, is_site
from profiler_job.jobs.executor import script
from profiler_job.jobs.executor.events import Terminal
from profiler_job.jobs.executor.nodes import find_node


class CollectorName(StrEnum):
    """What times the phases and modules of a script."""

    NSYS = "nsys"
    TORCH = "torch"
    EVENTS = "events"


ChosenCollector = Annotated[
    CollectorName,
    typer.Option(
        metavar="NAME",
        help="nsys; torch (torch.profiler, slower, needs no nsys); or events (phases and modules by CUDA events).",
    ),
]


def profile(
    context: typer.Context,
    command: ScriptCommand,
    results: ResultsFolder = Path("results"),
    name: Name = "",
    skip: SkippedSteps = 10,
    steps: MeasuredSteps = 5,
    step: EndOfStep = "auto",
    go_on: Annotated[bool, typer.Option("--go-on", help="Let the script go on afterwards.")] = False,
    no_samples: Annotated[
        bool,
        typer.Option("--no-samples", help="Do not start it once more to sample its Python where the GPU waits for it."),
    ] = False,
    collector: ChosenCollector = CollectorName.NSYS,
) -> None:
    """Profile a training script as it is: steps, modules, kernels. Kernels of the backward pass have
    modules, too.

    Exit code: 1 the script ended before enough steps or launched no kernel, 2 usage, 69 nsys is missing, 70 the
    recording or the site could not be made, 74 results cannot be written, 75 another job holds the folder, 130
    interrupted, 143 terminated.
    """
    check_command(command)
    node = find_node(command)
    chosen, site = (name or choose_default_name(command), "site")
    if node is not None:  # each machine is given the same command, and may write to the same disk
        of_node = f"-node-{node}"
        chosen, site = chosen[: LONGEST_NAME - len(of_node)] + of_node, site + of_node
    check_name(chosen, results)
    with_events = collector is CollectorName.EVENTS
    with_site = not with_events and not find_missing("site")
    if with_site:
        check_folder(results / site, is_site)
    elif not with_events:
        err.print(f"no site will be built; this installs what it needs: {install_command('site')}", markup=False)
    followed = script.Script(
        command=command,
        name=chosen,
        skip=skip,
        steps=steps,
        step=step,
        goes_on=go_on,
        events=with_events,
        samples=not no_samples and not go_on,
        trace=collector is CollectorName.TORCH,
    )
    sources = [context.get_parameter_source(name) for name in ("skip", "steps")]
    is_given = any(source is None or source.name != "DEFAULT" for source in sources)
    measured = measure_what_there_is(followed, results, err, with_given_numbers=is_given)
    emit = Terminal()
    recordings: list[Path] = []
    is_whole = True
    for folder, noted in measured:
        if len(measured) > 1:
            out.print(f"{folder.name}:", markup=False)
        lines = describe_overhead(noted), *describe_script(noted), *describe_memory(noted), *describe_ranks(noted)
        for line in lines:
            out.print(line, soft_wrap=True, markup=False)
        with make_recording(folder, results, emit) as (recording, good):
            recordings.append(recording)
            is_whole &= good
            if not with_events:
                print_findings(recording, emit)
            if with_site and folder is measured[-1][0]:
                build_site(recordings, results / site, emit)
            elif not with_events and not with_site:
                summarise_captures(folder, emit)
        if followed.trace:
            out.print(describe_traces(list_captures(folder / folder.name)), markup=False, soft_wrap=True)
        if with_events:
            print_summary(noted, out)
            out.print(f"recorded: {recording}", markup=False, soft_wrap=True)
    emit.close()
    if not with_events and not with_site:
        then = f"{install_command('site')}, then {format_site_command(*recordings)}"
        out.print(f"no site was built; to build it: {then}", markup=False, soft_wrap=True)
    if code := next((noted["exit_code"] for _, noted in measured if noted["exit_code"]), 0):
        err.print(f"the script ended with exit code {code}, after its steps were captured", style="yellow")
    if not is_whole:
        raise typer.Exit(ExitCode.FAILED)


def describe_traces(traces: list[Path]) -> str:
    """Return one line on where torch.profiler's traces are, and what they do not show."""
    return (
        f"traces of torch.profiler, for `show`, `compare` and other programs: {', '.join(map(str, traces))}. They are "
        "of this script's processes alone, and the CPU's times are longer than under nsys; where the site says nsys, "
        "it is torch.profiler"
    )


def describe_ranks(noted: dict[str, Any]) -> list[str]:
    """Return a line on which ranks were measured here, if other machines have the others."""
    if noted["world"] == noted["ranks"]:
        return []
    first, size = noted["rank"], noted["ranks"]
    here = f"rank {first}" if size == 1 else f"ranks {first} to {first + size - 1}"
    return [
        f"{here} of {noted['world']} measured: the other machines have recordings of their own, and `merge` joins them"
    ]
