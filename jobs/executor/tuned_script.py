"""A script that is tuned: a process of it in which variants take turns (see `jobs.follow.turns`), and processes of one
variant each. What it prints goes to a log. Processes of one variant that take turns are in `gated_processes`."""

import json
import math
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal, Protocol

from profiler_job.jobs.contract.changes import FEWER_ACCUMULATIONS, LABELS
from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.tuning import Accumulation, Tuning, VariantRun
from profiler_job.jobs.executor.failures import describe_exit
from profiler_job.jobs.executor.larger_micro_batches import LargerMicroBatches, edit_command
from profiler_job.jobs.executor.script import FOLLOW, INJECTED, CannotStartError, end_group, read_noted
from profiler_job.jobs.executor.script_requests import ScriptRequests

POLL_S = 0.02
MEMORY_FULL = "out of memory"
LONGEST_MESSAGE = 200
SWITCHED = "turns"
SAVED = "saved"
"""Folder for what a process of the script saves, which may be as large as its model and optimizer."""
TOO_SHORT = "no error, but it takes too few steps to be measured: let it take 100 or more"


class VariantFailedError(ProfilerError):
    """A process of a script ended before it was measured. The message says how. is_oom: its memory was full. is_short:
    it ended without an error, so it takes too few steps. is_of_change: right before, the variant that it is compared
    with did not fail."""

    def __init__(self, message: str, is_oom: bool = False, is_short: bool = False):
        super().__init__(message)
        self.is_oom, self.is_short, self.is_of_change = is_oom, is_short, False


class OverBudgetError(ProfilerError):
    """The time for a measurement is over."""


@dataclass(frozen=True, kw_only=True)
class TunedScript:
    """command: as given. folder: for what is exchanged with its processes. log: file for what it prints. skip: steps
    before the first timed one. steps: that are timed in a process of one variant. step: what ends one, as in
    `jobs.follow.plan.Plan`. seed: of scripts that set none. larger: what gives it larger micro-batches; None if these
    are not tried. source: its file as the command names it. patches: texts of its files with the patch for some
    changes, by whole path, and the command then."""

    command: Sequence[str]
    folder: Path
    log: Path
    skip: int
    steps: int
    step: str
    seed: int
    larger: LargerMicroBatches | None = None
    source: str = ""
    patches: Mapping[tuple[str, ...], tuple[Mapping[str, str], Sequence[str]]] = field(default_factory=dict)

    def start(self, name: str, asked_for: Literal["turns", "gate"] | None = None, **plan: Any) -> "FollowedProcess":
        """Start a process of the script. name: of its folder, which is made anew. asked_for: what of
        `jobs.follow.plan.Plan` its requests are; None if it gets none. Raises CannotStartError."""
        folder = (self.folder / name).absolute()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        fixed = {"out": str(folder / "noted"), "skip": self.skip, "steps": self.steps, "step": self.step}
        fixed["scratch"] = str(folder / SAVED)
        requests = ScriptRequests() if asked_for else None
        if asked_for and requests:
            plan[asked_for] = str(requests.folder.path)
        changes = tuple(plan.get("changes", ()))
        if plan.get("bare"):  # they are in the texts of its files
            plan["changes"] = ()
        text = json.dumps(fixed | {"seed": self.seed, "followed": 0, "prefills": 0} | plan)
        path = os.pathsep.join(filter(None, (str(INJECTED), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {FOLLOW: text, "PYTHONPATH": path}
        command = self.command
        if plan.get("bare"):
            if changes:
                texts, command = self.patches[changes]
                command = edit_command(command, self.source, texts, folder)
        elif self.larger and asked_for != "turns" and FEWER_ACCUMULATIONS in changes:
            command, more = self.larger.prepare(folder)
            environment |= more
        with self.log.open("ab") as log:
            begin = log.tell()
            try:
                process = subprocess.Popen(
                    command, env=environment, start_new_session=True, stdout=log, stderr=subprocess.STDOUT
                )
            except OSError as error:
                if requests:
                    requests.remove()
                raise CannotStartError(self.command, f"cannot be started ({error.strerror or error})") from None
        return FollowedProcess(process, text, folder, self, begin, requests)


@dataclass
class FollowedProcess:
    """A process of a script. plan: the text of it. folder: of its facts. begin: of what it prints, in the log.
    requests: that it waits for; None if it gets none."""

    process: subprocess.Popen[bytes]
    plan: str
    folder: Path
    script: TunedScript
    begin: int
    requests: ScriptRequests | None = None

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def end(self) -> None:
        """End the process and all that it started."""
        try:
            if not self.has_ended:
                end_group(self.process, self.plan)
        finally:
            if self.requests:
                self.requests.remove()
            shutil.rmtree(self.folder / SAVED, ignore_errors=True)

    def explain_end(self) -> VariantFailedError:
        """Return the error that says how the process ended."""
        code = self.process.poll()
        with self.script.log.open("rb") as log:
            log.seek(self.begin)
            printed = log.read().decode("utf-8", errors="replace")
        lines = [line.strip() for line in printed.splitlines() if line.strip()]
        how = describe_exit(code) if code else TOO_SHORT
        message = f"`{shlex.join(self.script.command)}` ended ({how})"
        if code and lines:
            named = [line for line in lines if MEMORY_FULL in line.lower()]
            named = named or [line for line in lines if "Error" in line] or lines
            message += f": {named[-1][:LONGEST_MESSAGE]}"
        return VariantFailedError(message, is_oom=bool(code) and MEMORY_FULL in printed.lower(), is_short=not code)


class TurnsProcess:
    """The process in which variants of a script take turns. It is started when it is needed, and again when it has
    ended. changes: those that may be asked for. starts_s: how long the latest took until it read its first request: the
    answer to that may take compilations."""

    def __init__(self, script: TunedScript, changes: Sequence[str]):
        self.script, self.changes = script, changes
        self.running: FollowedProcess | None = None
        self.starts_s = 0.0
        self.num_started = 0

    def ask(self, request: dict[str, Any], left_s: float = math.inf) -> Any:
        """Return the answer to a request. Raises VariantFailedError, OverBudgetError and CannotStartError."""
        began = time.monotonic()
        is_new = self.running is None or self.running.has_ended
        if is_new:
            self.end()
            self.num_started += 1
            self.running = self.script.start(SWITCHED, "turns", changes=self.changes)
        assert self.running is not None and self.running.requests is not None
        self.running.requests.send(request)
        while (answer := self.running.requests.read_answer()) is None:
            if is_new and self.running.requests.is_read():
                self.starts_s, is_new = time.monotonic() - began, False
            if self.running.has_ended and self.running.requests.read_answer() is None:
                raise self.running.explain_end()
            if time.monotonic() - began > left_s:
                self.end()
                raise OverBudgetError("the time was over")
            time.sleep(POLL_S)
        if is_new:
            self.starts_s = time.monotonic() - began
        return answer

    def end(self) -> None:
        """End the process, if there is one."""
        if self.running is not None:
            self.running.end()
            self.running = None


@dataclass(frozen=True, kw_only=True)
class GatePlan:
    """Turns of processes of one variant each. num_each: processes of each variant. num_rounds: at most, as the time
    allows. turn_s: time of a turn. ready_s: time after which a process hangs that has not warmed up. seed: of the order
    of turns. is_bare: see `Engine.run`."""

    num_each: int
    num_rounds: int
    turn_s: float
    ready_s: float
    seed: int
    is_bare: bool = False


NoteRuns = Callable[[list[list[VariantRun]]], None]
"""Receives processes of each variant."""


class Engine(Protocol):
    """What measures variants of a script."""

    @property
    def starts_s(self) -> float:
        """Time that the latest processes took to their first request; all of it if one was not asked for any."""

    @property
    def num_started(self) -> int:
        """How many processes were started."""

    @property
    def is_running(self) -> bool:
        """Whether a process is there in which variants take turns."""

    def ask(self, request: dict[str, Any], left_s: float) -> Any:
        """Answer a request as `jobs.follow.turns` does. Raises VariantFailedError and OverBudgetError."""

    def trace(self, changes: Sequence[str], left_s: float, by_module: bool) -> None:
        """Keep a trace of steps of a variant (see `jobs.follow.turns`). Raises VariantFailedError and
        OverBudgetError."""

    def prepare_accumulation(self, facts: Mapping[str, Any]) -> Accumulation | str:
        """Prepare processes with larger micro-batches; return the reason if there can be none. facts: of the script."""

    def write(self, changes: Sequence[str]) -> str:
        """Make the patch for changes, and return its digest if the patched script can run: nothing is left to write. ""
        if it cannot."""

    def run(self, changes: Sequence[str], left_s: float, is_bare: bool = False) -> VariantRun:
        """Run a variant in a process of its own. is_bare: nothing is followed but the times and losses of steps, and
        changes are those that were written. Raises VariantFailedError and OverBudgetError."""

    def take_turns(
        self, variants: Sequence[Sequence[str]], plan: GatePlan, left_s: float, note: NoteRuns
    ) -> list[list[VariantRun]]:
        """Let processes of one variant each take turns (see `gated_processes`). note: receives the processes after each
        round. Raises VariantFailedError and OverBudgetError."""

    def end(self) -> None:
        """End what runs."""


class TunedSearch(Protocol):
    """What every part of a search needs of it. left_s: time of the budget that is left. reserve_s: what the end of the
    search needs of it. starts_s: what the start of a process takes."""

    engine: Engine
    tuning: Tuning

    @property
    def left_s(self) -> float: ...

    @property
    def reserve_s(self) -> float: ...

    @property
    def starts_s(self) -> float: ...


def run_variant(
    script: TunedScript, changes: Sequence[str], left_s: float = math.inf, is_bare: bool = False
) -> VariantRun:
    """Run a variant of a script in a new process, until its steps are timed (see `Engine.run`). Raises
    VariantFailedError, OverBudgetError and CannotStartError."""
    began = time.monotonic()
    running = script.start("process", changes=list(changes), times_only=True, bare=is_bare)
    try:
        while not running.has_ended:
            if time.monotonic() - began > left_s:
                raise OverBudgetError("the time was over")
            time.sleep(POLL_S)
    finally:
        running.end()
    ranks = read_noted(running.folder / "noted")
    if not ranks or not ranks[0]["steps"]:
        raise running.explain_end()
    noted = ranks[0]
    check_applied(noted["not_applied"])
    walls = [step["wall_ns"] for step in noted["steps"]]
    peak = max(rank["peak_allocated_bytes"] for rank in ranks)
    per_step = len(noted["losses"]) / max(noted["seen"], 1)
    losses = noted["losses"][: round(per_step * (script.skip + script.steps))]  # as many of each process
    return VariantRun(times_ns=(median(walls),), peak_bytes=peak, losses=losses, num_losses_per_step=max(per_step, 1.0))


def check_applied(not_applied: Mapping[str, str]) -> None:
    """Raise VariantFailedError if a process could not be given its changes. not_applied: reasons by change."""
    if not_applied:
        raise VariantFailedError("; ".join(f"{LABELS.get(name, name)}: {why}" for name, why in not_applied.items()))
