"""The command `tune`: find the fastest that a training script can run, and what to write into it."""

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Literal

import typer

from profiler_job.jobs.cli.console import err, fail, out
from profiler_job.jobs.cli.follow_up import ask, print_tuned
from profiler_job.jobs.cli.measure_script import (
    NAME,
    EndOfStep,
    Name,
    ScriptCommand,
    SkippedSteps,
    check_command,
    hold_results,
    is_python,
)
from profiler_job.jobs.cli.script_name import choose_default_name, find_source
from profiler_job.jobs.cli.sweep_options import ResultsFolder
from profiler_job.jobs.contract.changes import TRIABLE, ChangeSetError, RefusalCode, parse_changes
from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.tuning import (
    TRACE_ENDING,
    TUNE,
    Accumulation,
    CodePatch,
    Tuning,
    VariantRun,
    name_now,
    name_trace,
    name_tuned_folder,
    read_tuning,
    write_tuning,
)
from profiler_job.jobs.executor.gated_processes import take_gated_turns
from profiler_job.jobs.executor.larger_micro_batches import (
    NO_FILE,
    LargerMicroBatches,
    choose_accumulation,
    find_edit_obstacle,
)
from profiler_job.jobs.executor.machine import list_gpu_names, read_driver_version, read_torch_version
from profiler_job.jobs.executor.nodes import find_node
from profiler_job.jobs.executor.temporary import remove_abandoned
from profiler_job.jobs.executor.tune_search import Search
from profiler_job.jobs.executor.tuned_script import (
    GatePlan,
    NoteRuns,
    TunedScript,
    TurnsProcess,
    VariantFailedError,
    run_variant,
)

CODE = "profiler_job.analysis.changes"
"""Module that prints the code to write for changes."""
PATCH = "profiler_job.analysis.changes.patch"
"""Module that prints the digests of a script, and its patch."""
COMPILED = "--compiled"
"""Option of PATCH: the script compiles its model itself."""
KEEPS_GRADIENTS = "--keeps-gradients"
"""Option of PATCH: gradients are there when a backward pass of the script begins."""
DEVICE = "--device="
"""Option of PATCH: the type of device that the script ran on."""
WORKERS = "--workers="
"""Option of PATCH: the workers that a DataLoader was given."""
ACCUMULATION = "--accumulation="
"""Option of PATCH: the larger micro-batches that are measured."""
STARTED_BY = "--command="
"""Option of PATCH: the command that started the script."""
LOG = "log.txt"
"""File in the folder of a tuned script: what its processes printed."""
PROCESSES = ".processes"
KEPT = "originals"
"""Folder with what the files of a script were before the patch."""
TIMED_STEPS = 10
RESULTS = Path("results")
ENDED_BY_OPTIMIZER = ("auto", "optimizer")
"""What ends a step that can be timed without following the script."""
Form = Literal["text", "json", "md", "csv"]


class ScriptEngine:
    """Measures variants of a script: by turns in one process, or each in a process of its own."""

    def __init__(self, script: TunedScript, tuning: Tuning, changes: Sequence[str], traces: Path):
        """traces: folder for traces of its steps."""
        self.script, self.tuning, self.traces = script, tuning, traces
        self.turns = TurnsProcess(script, changes)
        self.digests: dict[tuple[str, ...], str] = {}  # of patches
        self.starts_s = 0.0
        self.num_run = 0

    @property
    def num_started(self) -> int:
        return self.turns.num_started + self.num_run

    @property
    def is_running(self) -> bool:
        return self.turns.running is not None

    def ask(self, request: dict[str, Any], left_s: float) -> Any:
        answer = self.turns.ask(request, left_s)
        self.starts_s = self.turns.starts_s
        return answer

    def trace(self, changes: Sequence[str], left_s: float, by_module: bool) -> None:
        file = str((self.traces / name_trace(changes)).absolute())
        self.ask({"kind": "trace", "variant": list(changes), "file": file, "by_module": by_module}, left_s)

    def prepare_accumulation(self, facts: Mapping[str, Any]) -> Accumulation | str:
        wanted = choose_accumulation(facts)
        if isinstance(wanted, str):
            return wanted
        source = find_source(list(self.script.command))
        made = ask_of_code("accumulate", source, write_accumulation(wanted), write_command(self.tuning))
        reason = made.get("error", made.get("reason", NO_FILE))
        if reason or (made["texts"] and (reason := find_edit_obstacle(self.script.command, source))):
            return str(reason)
        given = {"command": made["command"], "script": source, "texts": made["texts"]}
        self.script = replace(self.script, larger=LargerMicroBatches(accumulation=wanted, **given))
        return wanted

    def write(self, changes: Sequence[str]) -> str:
        changes, source = tuple(changes), self.script.source
        if changes in self.script.patches:
            return self.digests[changes]
        if find_edit_obstacle(self.script.command, source) or self.script.step not in ENDED_BY_OPTIMIZER:
            return ""
        made = ask_of_code("edit", source, *name_changes(self.tuning, changes))
        if not made.get("is_full") or not made["digest"]:
            return ""
        patch = made["texts"], tuple(made["command"]) or self.script.command
        self.script = replace(self.script, patches={**self.script.patches, changes: patch})
        self.digests[changes] = made["digest"]
        return self.digests[changes]

    def run(self, changes: Sequence[str], left_s: float, is_bare: bool = False) -> VariantRun:
        self.turns.end()  # so that a later request starts another one
        self.num_run += 1
        began = monotonic()
        run = run_variant(self.script, changes, left_s, is_bare)
        self.starts_s = monotonic() - began
        return run

    def take_turns(
        self, variants: Sequence[Sequence[str]], plan: GatePlan, left_s: float, note: NoteRuns
    ) -> list[list[VariantRun]]:
        self.turns.end()
        self.num_run += plan.num_each * len(variants)
        runs, ready_s = take_gated_turns(self.script, variants, plan, left_s, note)
        self.starts_s = min(self.starts_s, ready_s)  # one alone takes no longer than several that share the cores
        return runs

    def end(self) -> None:
        self.turns.end()


def tune(
    command: ScriptCommand,
    results: ResultsFolder = RESULTS,
    name: Name = "",
    changes: Annotated[
        list[str] | None,
        typer.Option("--changes", metavar="NAME,...", help="Try these alone. Default: all that fit."),
    ] = None,
    budget: Annotated[float, typer.Option(min=0.1, metavar="MINUTES", help="Time for all of it.")] = 10.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Of a script that sets none, and of the order of turns.")] = 0,
    skip: SkippedSteps = 10,
    step: EndOfStep = "auto",
    again: Annotated[bool, typer.Option("--again", help="Begin anew, also if a result is there.")] = False,
    price: Annotated[float | None, typer.Option(min=0, metavar="USD", help="Price of the GPU for an hour.")] = None,
    form: Annotated[Form, typer.Option("--format", "-f", metavar="FORMAT", help="text, json, md or csv.")] = "text",
    write: Annotated[bool, typer.Option("--write", help="Write the patch; keep a copy.")] = False,
) -> None:
    """Find the fastest that a script can run, and what to write.

    Changes are switched on and off while it runs, and what is measurably faster is kept. The same command again goes on
    where it was. Exit code: 1 the script failed, 2 usage, or a change needs other code, 74 results cannot be written,
    75 another job holds the folder, 130 interrupted, 143 terminated.
    """
    if math.inf in (budget, price):
        raise fail("--budget and --price: inf is not a number of minutes or dollars", ExitCode.USAGE)
    asked = check_changes(changes)
    check_command(command)
    if find_node(command) is not None:
        raise fail("`tune` starts a script on this machine alone: give it one that trains here", ExitCode.USAGE)
    chosen = name or choose_default_name(command)
    if not NAME.fullmatch(chosen):
        raise fail(f"--name {chosen}: letters, digits, dots and dashes make a name", ExitCode.USAGE)
    folder = results / name_tuned_folder(chosen)
    source = find_source(command)
    digests = ask_of_code("digest", source).get("digests", {})
    options = list_options(results, name, asked)
    begun = None if again else find_begun(folder, command, asked, digests, skip, step)
    if begun is not None and begun.is_complete:
        err.print(f"tuned before ({folder / TUNE}); --again begins anew", markup=False, soft_wrap=True)
        begun.options = options
        finish(begun, folder, price, form, write)
        return
    tuning = begun or Tuning(
        name=chosen,
        command=tuple(command),
        script=source,
        asked=asked,
        budget_s=60 * budget,
        seed=seed,
        started_at=name_now(),
        digests=digests,
    )
    tuning.budget_s, tuning.options, tuning.skip, tuning.step = 60 * budget, options, skip, step
    tuning.driver = read_driver_version()
    try:
        with hold_results(results, folder.name, at_signal="ended early; the same command goes on where it was"):
            search(tuning, folder, skip, step, print_progress if form == "text" else print_aside)
    except VariantFailedError as error:
        raise fail(f"{error} (see {folder / LOG})", ExitCode.FAILED) from None
    finish(tuning, folder, price, form, write)


def list_options(results: Path, name: str, asked: Sequence[str] | None) -> tuple[str, ...]:
    """Return the options with which the same results are found again."""
    given = {
        "--results": "" if results == RESULTS else str(results),
        "--name": name,
        "--changes": ",".join(asked or ()),
    }
    return tuple(word for option, value in given.items() if value for word in (option, value))


def finish(tuning: Tuning, folder: Path, price: float | None, form: Form, writes: bool) -> None:
    """Make the patch for the winner, write it into the script if that is asked for, and print the result."""
    tuning.usd_per_hour = tuning.usd_per_hour if price is None else price
    if tuning.winner is not None and not (tuning.patch and tuning.patch.written):
        made = ask_of_code("make", tuning.script, *name_changes(tuning, tuning.winner.changes))
        tuning.patch = None if not made or "error" in made else CodePatch.model_validate(made)
    write_tuning(folder, tuning)
    if writes:
        write_patch(tuning, folder)
    print_tuned(folder, form)


def write_patch(tuning: Tuning, folder: Path) -> None:
    """Write the patch into the script, and note it; end the program if that cannot be."""
    if tuning.winner is None or tuning.patch is None or not tuning.patch.diff:
        is_by_hand = tuning.patch is not None and tuning.patch.to_write
        err.print("no file changes: see what to write" if is_by_hand else "there is no patch to write", style="yellow")
        return
    if tuning.patch.written:
        err.print(f"written before: {', '.join(tuning.patch.written)}", style="yellow", markup=False)
        return
    kept, digests = str((folder / KEPT).absolute()), json.dumps(tuning.digests)
    made = ask_of_code("write", tuning.script, kept, digests, *name_changes(tuning, tuning.winner.changes))
    if "error" in made:
        raise fail(made["error"], ExitCode.USAGE)
    tuning.patch = CodePatch.model_validate(made)
    write_tuning(folder, tuning)
    err.print(f"written: {', '.join(tuning.patch.written)}; what they were is in {folder / KEPT}", markup=False)


def name_changes(tuning: Tuning, changes: Sequence[str]) -> list[str]:
    """Name changes for the module that makes patches."""
    options = [f"{DEVICE}{tuning.device_type}", f"{WORKERS}{tuning.num_workers}", write_command(tuning)]
    if tuning.base is not None:
        options += [COMPILED] if tuning.base.is_compiled else []
        options += [KEEPS_GRADIENTS] if tuning.base.keeps_gradients else []
    options += [write_accumulation(tuning.accumulation)] if tuning.accumulation else []
    return [*options, *changes]


def write_accumulation(accumulation: Accumulation) -> str:
    """Return the option of PATCH with larger micro-batches."""
    return f"{ACCUMULATION}{accumulation.model_dump_json()}"


def write_command(tuning: Tuning) -> str:
    """Return the option of PATCH with the command of the script."""
    return f"{STARTED_BY}{json.dumps(tuning.command)}"


def ask_of_code(task: str, script: str, *arguments: str) -> dict[str, Any]:
    """Ask about the code of a script; {} if its command names no file."""
    if not script or not Path(script).is_file():
        return {}
    answer: dict[str, Any] = ask("code", [PATCH, task, str(Path.cwd()), str(Path(script).absolute()), *arguments])
    return answer


def check_changes(texts: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the changes that are asked for, None for all; end the program if one cannot be made."""
    if not texts:
        return None
    try:
        return parse_changes(texts)
    except ChangeSetError as error:
        code = ""
        if error.code is RefusalCode.NEEDS_CODE:
            code = f": {ask('what to write', [CODE, *error.names])}"
        raise fail(f"--changes {error}{code}", ExitCode.USAGE) from None


def find_begun(
    folder: Path,
    command: Sequence[str],
    asked: tuple[str, ...] | None,
    digests: Mapping[str, str],
    skip: int,
    step: str,
) -> Tuning | None:
    """Return the result of the same command, code, steps and machine to go on with; None if there is none. Ends the
    program if the folder holds another thing."""
    try:
        begun = read_tuning(folder)
    except FileNotFoundError:
        return None
    except ProfilerError as error:
        raise fail(f"{error}; choose another --name", ExitCode.USAGE) from None
    is_same = begun.command == tuple(command) and begun.asked == asked and begun.digests == digests
    if is_same and (other := begun.list_other(skip=skip, step=step, **read_machine(begun))):
        err.print(f"tuned before, but {', '.join(other)}; the search begins anew", markup=False)
        return None
    return begun if is_same else None


def read_machine(begun: Tuning) -> dict[str, str]:
    """Read what of this machine a result may not be of; "" for what is not known, and for what does not matter to it: a
    script that ran on the CPU of a machine with a GPU does so again."""
    torch = read_torch_version(begun.command[0]) if is_python(begun.command[0]) else ""
    names = list_gpu_names()
    if not names or (begun.device_type != "cuda" and begun.driver):
        return {"torch": torch}
    is_same = any(begun.gpu_name == name or begun.gpu_name.startswith(f"{name} MIG ") for name in names)
    known = {"gpu_name": begun.gpu_name if is_same else names[0], "torch": torch}
    return known | ({"driver": read_driver_version()} if begun.device_type == "cuda" else {})


def search(tuning: Tuning, folder: Path, skip: int, step: str, show: Callable[[str], None]) -> None:
    """Search, and write the result after each candidate. show: prints a line of progress."""

    def save(known: Tuning) -> None:
        if known.base is None:
            for stale in folder.glob(f"*{TRACE_ENDING}"):
                stale.unlink()
        write_tuning(folder, known)

    save(tuning)
    remove_abandoned()
    script = TunedScript(
        command=tuning.command,
        folder=folder / PROCESSES,
        log=folder / LOG,
        skip=skip,
        steps=TIMED_STEPS,
        step=step,
        seed=tuning.seed,
        source=tuning.script,
    )
    engine = ScriptEngine(script, tuning, list(TRIABLE if tuning.asked is None else tuning.asked), folder)
    try:
        Search(engine, tuning, save, show).run()
    finally:
        shutil.rmtree(script.folder, ignore_errors=True)


def print_progress(line: str) -> None:
    out.print(line, markup=False, soft_wrap=True)


def print_aside(line: str) -> None:
    """Print progress next to a result for a machine."""
    err.print(line, markup=False, soft_wrap=True)
