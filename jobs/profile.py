"""The command `profile`: a training script as it is, from its steps to a site."""

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from profiler_job.jobs.commands import (
    CANNOT_MEASURE,
    CANNOT_WRITE,
    LOCKED,
    SOME_RUNS_FAILED,
    USAGE,
    ResultsFolder,
    err,
    fail,
    out,
    reporting,
    reports,
    when_terminated,
)
from profiler_job.jobs.contract.layout import RESERVED_NAMES, SCRIPT, SWEEP
from profiler_job.jobs.executor import script
from profiler_job.jobs.executor.events import Emit, Terminal
from profiler_job.jobs.executor.failures import CollectorError
from profiler_job.jobs.executor.nodes import node_of
from profiler_job.jobs.executor.result_store import Locked, Results, read_json
from profiler_job.jobs.follow_up import build_site, can_build_site, ingest, summarise_recording

LONGEST_NAME = 64
NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}")


ScriptCommand = Annotated[
    list[str], typer.Argument(metavar="-- COMMAND...", help="The script as you start it: python train.py ...")
]
Name = Annotated[str, typer.Option("--name", help="Name of its results. Default: that of the script.")]
SkippedSteps = Annotated[int, typer.Option("--skip", min=1, help="Steps before the first timed one.")]
MeasuredSteps = Annotated[
    int, typer.Option("--steps", min=2, help="Steps that are timed, and steps that are captured.")
]
EndOfStep = Annotated[
    str, typer.Option("--step", help="What ends a step: auto, optimizer, forward, or the name of an NVTX range.")
]


def profile(
    command: ScriptCommand,
    results: ResultsFolder = Path("results"),
    name: Name = "",
    skip: SkippedSteps = 10,
    steps: MeasuredSteps = 5,
    step: EndOfStep = "auto",
    go_on: Annotated[bool, typer.Option("--go-on", help="Let the script go on afterwards.")] = False,
) -> None:
    """Profile a training script as it is: which module each kernel is of, backward included.

    Exit code: 1 the script ended before enough steps or launched no kernel, 2 usage, 69 nsys is missing, 70 the
    recording or the site could not be made, 74 results cannot be written, 75 another job holds the folder, 130
    interrupted, 143 terminated.
    """
    node = node_of(command)
    chosen, site = (name or default_name(command), "site")
    if node is not None:  # each machine is given the same command, and may write to the same disk
        of_node = f"-node-{node}"
        chosen, site = chosen[: LONGEST_NAME - len(of_node)] + of_node, site + of_node
    check_name(chosen, results)
    followed = script.Script(command=command, name=chosen, skip=skip, steps=steps, step=step, goes_on=go_on)
    folder, noted = measure(followed, results)
    out.print(overhead(noted), soft_wrap=True)
    if noted["world"] > noted["ranks"]:
        out.print(part_of_ranks(noted), soft_wrap=True)
    emit = Terminal()
    with recorded(folder, results, emit) as (recording, good):
        if can_build_site():
            build_site([recording], results / site, emit)
        else:
            summarise_recording(recording, emit)
    emit.close()
    if not can_build_site():
        build = f"`{build_command(recording)}`"
        out.print(f"no site was built: that needs a checkout of this project, where {build} builds it", soft_wrap=True)
    if code := noted["exit_code"]:
        err.print(f"the script ended with exit code {code}, after its steps were captured", style="yellow")
    if not good:
        raise typer.Exit(SOME_RUNS_FAILED)


def check_name(name: str, results: Path) -> None:
    """Ends the program where results of that name cannot be kept, or would replace others."""
    if not NAME.fullmatch(name) or name in RESERVED_NAMES:
        raise fail(
            f"--name {name}: letters, digits, dots and dashes make a name; not {', '.join(RESERVED_NAMES)}", USAGE
        )
    if not may_replace(results / name):
        raise fail(f"{results / name} holds what no `profile` wrote: choose another --name, or another folder", USAGE)


def measure(followed: script.Script, results: Path) -> tuple[Path, dict]:
    """As `script.measure`; ends the program where it cannot."""
    try:
        return attempt(followed, results)
    except script.ScriptFailed as error:
        raise fail(str(error), SOME_RUNS_FAILED) from None


def attempt(followed: script.Script, results: Path) -> tuple[Path, dict]:
    """As `script.measure`. Raises ScriptFailed; ends the program where it cannot for another reason."""
    received: list[int] = []

    def terminate(number: int, frame) -> None:
        received.append(number)
        raise KeyboardInterrupt

    when_terminated(terminate)
    try:
        with Results(results, f".{followed.name}").lock():
            return script.measure(followed, results)
    except KeyboardInterrupt:
        raise typer.Exit(128 + (received or [2])[0]) from None
    except Locked as error:
        raise fail(f"{error}; wait for it, or choose another --name", LOCKED) from None
    except CollectorError as error:
        raise fail(str(error), CANNOT_MEASURE) from None
    except FileNotFoundError as error:
        raise fail(f"{error.filename}: {error.strerror}", USAGE) from None
    except OSError as error:
        raise fail(f"{error.filename or results}: {error.strerror or error}", CANNOT_WRITE) from None


@contextmanager
def recorded(folder: Path, results: Path, emit: Emit) -> Iterator[tuple[Path, bool]]:
    """The recording of a script that was measured, and whether all of it is in it. Ends the program where it, or what
    is made of it within this, cannot be made."""
    recording = results / "recordings" / folder.name
    ingesting = f"`profiler-job ingest {shlex.quote(str(folder))} --out {shlex.quote(str(recording))}`"
    again = f"{ingesting}, then `{build_command(recording)}`"
    advice = f"what was measured is kept in {folder}; {again} makes its report"
    with reporting(reports(results), advice, wait_s=600):
        yield recording, ingest(folder, recording, emit)


def build_command(recording: Path) -> str:
    return f"profiler-job render --recording {shlex.quote(str(recording))}"


def overhead(noted: dict) -> str:
    """What following costs: a step of the script alone, captured, and with its modules followed, on the host."""
    alone = median(step["host_ns"] for step in noted["steps"])
    kinds = {"captured": noted["captured_ns"], "with its modules followed": noted["followed_ns"]}
    slower = [f"{median(walls) / 1e6:.1f} ms {kind}" for kind, walls in kinds.items() if walls]
    return f"a step takes the host {', '.join([f'{alone / 1e6:.1f} ms alone', *slower])}"


def part_of_ranks(noted: dict) -> str:
    """Which of all ranks were measured here, where the others are on other machines."""
    first, size = noted["rank"], noted["ranks"]
    here = f"rank {first}" if size == 1 else f"ranks {first} to {first + size - 1}"
    return (
        f"{here} of {noted['world']} measured: the other machines have recordings of their own, and `merge` joins them"
    )


def may_replace(folder: Path) -> bool:
    """Whether nothing is lost with a folder but an older profile: a sweep may have the name of a script."""
    is_script = (read_json(folder / SWEEP, dict) or {}).get(SCRIPT)
    return bool(is_script) or not folder.exists() or not any(folder.iterdir())


LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
"""Modules that start the script, with values of their own options before it."""


def default_name(command: list[str]) -> str:
    """That of the script, as `script_name` has it, without what `--name` may not hold: my-train of "my train.py"."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", script_name(command)).strip("._-")[:LONGEST_NAME] or SCRIPT
    return f"{name}-{SCRIPT}" if name in RESERVED_NAMES else name


def script_name(command: list[str]) -> str:
    """train of `python -u path/train.py --lr 1` and of `torchrun --nproc-per-node 2 train.py`, package of `python -m
    package`, nothing of code on the command line."""
    words = command[1:] or command
    for before, word in zip(["", *words], words):
        if before == "-m" and word not in LAUNCHERS:
            return word
        if before == "-c":
            return ""
        if word.endswith(".py"):
            return Path(word).stem
    return Path(next((word for word in words if not word.startswith("-")), command[0])).stem
