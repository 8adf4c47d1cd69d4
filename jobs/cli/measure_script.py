"""The code that `profile` and `tune` share: their options, the measuring of a script, and its recording."""

import dataclasses
import errno
import re
import shlex
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console

from profiler_job.jobs.cli.console import err, fail, handle_termination
from profiler_job.jobs.cli.follow_up import ingest
from profiler_job.jobs.cli.report_lock import find_report_folder, hold_report_folder
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.layout import RECORDINGS, RESERVED_NAMES
from profiler_job.jobs.contract.outputs import TargetError, check_folder, is_profiled_script, is_recording
from profiler_job.jobs.contract.quantities import format_time
from profiler_job.jobs.executor import script
from profiler_job.jobs.executor.events import Emit
from profiler_job.jobs.executor.failures import CollectorError
from profiler_job.jobs.executor.result_store import LockedError, Results
from profiler_job.jobs.executor.script_loops import describe_loop

LONGEST_NAME = 64
HOW_TO_SHORTEN = "let it run longer, or give smaller --skip and --steps"
NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}")
ScriptCommand = Annotated[
    list[str], typer.Argument(metavar="COMMAND", help="The script as you start it: python train.py ...")
]
Name = Annotated[
    str, typer.Option("--name", "-n", metavar="NAME", help="Name of its results. Default: the name of the script.")
]
SkippedSteps = Annotated[
    int, typer.Option("--skip", "--warmup", min=1, metavar="N", help="Steps before the first timed one.")
]
MeasuredSteps = Annotated[
    int, typer.Option("--steps", min=2, metavar="N", help="Steps that are timed, and steps that are captured.")
]
EndOfStep = Annotated[
    str,
    typer.Option("--step", metavar="NAME", help="Ends a step: auto, optimizer, backward, forward, or an NVTX range."),
]


def check_command(command: list[str]) -> None:
    """End the program if a command cannot be started, since its first word is not a program, or cannot be followed."""
    if shutil.which(command[0]) is None:
        raise fail(str(script.CannotStartError(command)), ExitCode.USAGE)
    if option := find_hiding_option(command):
        raise fail(
            f"{command[0]} {option}: -I and -E hide the profiler from the script, leave them out", ExitCode.USAGE
        )


def find_hiding_option(command: list[str]) -> str | None:
    """Return the word before the script that gives -I or -E to Python, alone or among others (-uE), which then ignores
    PYTHONPATH. None without one, and for programs other than Python."""
    words = iter(command[1:] if is_python(command[0]) else [])
    for word in words:
        options = re.match(r"-([^cmWX]*)([cmWX]?)(.*)", word)
        if options and re.search("[EI]", options[1]):
            return word
        if options is None or options[2] in ("c", "m"):
            return None
        if options[2] and not options[3]:
            next(words, None)
    return None


def is_python(program: str) -> bool:
    return re.fullmatch(r"python[0-9.]*", Path(program).name) is not None


def check_name(name: str, results: Path) -> None:
    """End the program if results of that name cannot be kept, or would replace others."""
    if not NAME.fullmatch(name) or name in RESERVED_NAMES:
        raise fail(
            f"--name {name}: letters, digits, dots and dashes make a name; not {', '.join(RESERVED_NAMES)}",
            ExitCode.USAGE,
        )
    for folder, is_own in ((results / name, is_profiled_script), (results / RECORDINGS / name, is_recording)):
        try:
            check_folder(folder, is_own)
        except TargetError as error:
            fix = f"{folder} holds what no `profile` wrote: choose another --name, or another folder"
            raise fail(fix if error.exit_code == ExitCode.USAGE else str(error), error.exit_code) from None


def measure(followed: script.Script, results: Path) -> tuple[Path, dict[str, Any]]:
    """Measure as `script.measure` does; end the program if that fails."""
    try:
        return attempt(followed, results)
    except script.ScriptFailedError as error:
        raise fail(str(error), ExitCode.FAILED) from None


Measured = tuple[Path, dict[str, Any]]
"""The results of a script, and what was noted of it."""


def measure_what_there_is(
    followed: script.Script, results: Path, err: Console, with_given_numbers: bool
) -> list[Measured]:
    """Measure as `measure` does. A script that takes too few steps is started once more, with smaller numbers unless
    the user gave them; one without updates is started once more for each of its loops."""
    try:
        return [attempt(followed, results)]
    except script.TooFewStepsError as error:
        shorter = script.shorten(followed, error.seen, error.num_prefills)
        if shorter is None or (with_given_numbers and (shorter.skip, shorter.steps) != (followed.skip, followed.steps)):
            raise fail(str(error), ExitCode.FAILED) from None
        err.print(
            f"the script takes {error.seen} steps: it is started once more, with --skip {shorter.skip} --steps"
            f" {shorter.steps}",
            markup=False,
        )
        return [measure(shorter, results)]
    except script.LoopsFoundError as error:
        return measure_loops(followed, error, results, err, with_given_numbers)
    except script.ScriptFailedError as error:
        raise fail(str(error), ExitCode.FAILED) from None


def measure_loops(
    followed: script.Script, error: script.LoopsFoundError, results: Path, err: Console, with_given_numbers: bool
) -> list[Measured]:
    """Measure each loop of a script that no optimizer steps in; several have the kind of their steps in their names."""
    planned = []
    for loop in error.loops:
        part = script.plan_loop(followed, loop)
        if part is None or (with_given_numbers and (part.skip, part.steps) != (followed.skip, followed.steps)):
            err.print(f"not measured, since too short for --skip and --steps: {describe_loop(loop)}", markup=False)
            continue
        if len(error.loops) > 1:
            part = dataclasses.replace(part, name=f"{followed.name[: LONGEST_NAME - 9]}-{loop['kind']}")
            check_name(part.name, results)
        planned.append((part, loop))
    if not planned:
        raise fail(f"{error}; {HOW_TO_SHORTEN}", ExitCode.FAILED)
    measured = []
    for part, loop in planned:
        err.print(
            f"the script has {describe_loop(loop)}: it is started once more, with --step {part.step} --skip"
            f" {part.before + part.skip} --steps {part.steps}",
            markup=False,
        )
        measured.append(measure(part, results))
    return measured


def attempt(followed: script.Script, results: Path) -> tuple[Path, dict[str, Any]]:
    """Measure as `script.measure` does. Raises ScriptFailedError; any other error ends the program."""
    try:
        with hold_results(results, followed.name):
            return script.measure(followed, results)
    except CollectorError as error:
        raise fail(str(error), ExitCode.MISSING) from None


@contextmanager
def hold_results(results: Path, name: str, at_signal: str = "") -> Iterator[None]:
    """Lock the results of a script while it is measured. The program ends with a message and an exit code at a signal,
    if another job measures it, if its command cannot be started, or if results cannot be written. at_signal: what is
    printed when a signal ends it."""
    received: list[int] = []

    def terminate(number: int, frame: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    handle_termination(terminate)
    try:
        with Results(results, f".{name}").lock(is_removed=True):
            yield
    except KeyboardInterrupt:
        if at_signal:
            err.print(at_signal, style="yellow")
        raise typer.Exit(128 + (received or [signal.SIGINT])[0]) from None
    except LockedError as error:
        raise fail(f"{error}; wait for it, or choose another --name", ExitCode.LOCKED) from None
    except (script.CannotStartError, TargetError) as error:
        raise fail(str(error), error.exit_code) from None
    except OSError as error:
        why = f"{error.filename or results} cannot be written ({error.strerror or error})"
        space = "free some space, or " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise fail(f"{why}; {space}give another folder with --results", ExitCode.CANNOT_WRITE) from None


@contextmanager
def make_recording(folder: Path, results: Path, emit: Emit) -> Iterator[tuple[Path, bool]]:
    """Make the recording of a script that was measured. Yield it, and whether it holds all that was measured. Ends the
    program if it cannot be made, or if what the caller makes from it fails."""
    recording = results / "recordings" / folder.name
    ingesting = f"`profiler-job ingest {shlex.quote(str(folder))} --out {shlex.quote(str(recording))}`"
    again = f"{ingesting}, then `{format_site_command(recording)}`"
    advice = f"what was measured is kept in {folder}; {again} makes its site"
    with hold_report_folder(find_report_folder(results), advice, wait_s=600):
        yield recording, ingest(folder, recording, emit)


def format_site_command(*recordings: Path) -> str:
    """Return the command that builds the site of some recordings."""
    named = (f"--recording {shlex.quote(str(recording))}" for recording in recordings)
    return f"profiler-job site {' '.join(named)}"


def describe_overhead(noted: dict[str, Any]) -> str:
    """Return one line on what profiling costs: the time of a step on the CPU alone, captured (or with its phases timed
    by events), and with its modules followed."""
    alone = median(step["host_ns"] for step in noted["steps"])
    how = "with its phases timed" if "profiled_ns" in noted else "captured"
    kinds = {how: noted["captured_ns"], "with its modules followed": noted["followed_ns"]}
    slower = [f"{format_time(median(walls))} {kind}" for kind, walls in kinds.items() if walls]
    return f"a step takes the CPU {', '.join([f'{format_time(alone)} alone', *slower])}"
