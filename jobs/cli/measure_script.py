"""What `profile` and `try` share: their options, the measuring of a script, and its recording."""

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from profiler_job.jobs.cli.console import fail, when_terminated
from profiler_job.jobs.cli.follow_up import ingest
from profiler_job.jobs.cli.report_lock import reporting, reports
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.layout import RESERVED_NAMES, SCRIPT, SWEEP
from profiler_job.jobs.executor import script
from profiler_job.jobs.executor.events import Emit
from profiler_job.jobs.executor.failures import CollectorError
from profiler_job.jobs.executor.result_store import Locked, Results, read_json

LONGEST_NAME = 64
NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}")
ScriptCommand = Annotated[
    list[str], typer.Argument(metavar="COMMAND...", help="The script as you start it: python train.py ...")
]
Name = Annotated[str, typer.Option("--name", "-n", help="Name of its results. Default: that of the script.")]
SkippedSteps = Annotated[int, typer.Option("--skip", "--warmup", min=1, help="Steps before the first timed one.")]
MeasuredSteps = Annotated[
    int, typer.Option("--steps", min=2, help="Steps that are timed, and steps that are captured.")
]
EndOfStep = Annotated[
    str, typer.Option("--step", help="What ends a step: auto, optimizer, forward, or the name of an NVTX range.")
]


def check_name(name: str, results: Path) -> None:
    """Ends the program where results of that name cannot be kept, or would replace others."""
    if not NAME.fullmatch(name) or name in RESERVED_NAMES:
        raise fail(
            f"--name {name}: letters, digits, dots and dashes make a name; not {', '.join(RESERVED_NAMES)}",
            ExitCode.USAGE,
        )
    if not may_replace(results / name):
        raise fail(
            f"{results / name} holds what no `profile` wrote: choose another --name, or another folder", ExitCode.USAGE
        )


def measure(followed: script.Script, results: Path) -> tuple[Path, dict]:
    """As `script.measure`; ends the program where it cannot."""
    try:
        return attempt(followed, results)
    except script.ScriptFailed as error:
        raise fail(str(error), ExitCode.FAILED) from None


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
        raise fail(f"{error}; wait for it, or choose another --name", ExitCode.LOCKED) from None
    except CollectorError as error:
        raise fail(str(error), ExitCode.MISSING) from None
    except FileNotFoundError as error:
        raise fail(f"{error.filename}: {error.strerror}", ExitCode.USAGE) from None
    except OSError as error:
        raise fail(f"{error.filename or results}: {error.strerror or error}", ExitCode.CANNOT_WRITE) from None


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
    return f"profiler-job site --recording {shlex.quote(str(recording))}"


def overhead(noted: dict) -> str:
    """What following costs: a step of the script alone, captured, and with its modules followed, on the host."""
    alone = median(step["host_ns"] for step in noted["steps"])
    kinds = {"captured": noted["captured_ns"], "with its modules followed": noted["followed_ns"]}
    slower = [f"{median(walls) / 1e6:.1f} ms {kind}" for kind, walls in kinds.items() if walls]
    return f"a step takes the host {', '.join([f'{alone / 1e6:.1f} ms alone', *slower])}"


def may_replace(folder: Path) -> bool:
    """Whether nothing is lost with a folder but an older profile: a sweep may have the name of a script."""
    is_script = (read_json(folder / SWEEP, dict) or {}).get(SCRIPT)
    return bool(is_script) or not folder.exists() or not any(folder.iterdir())
