"""Processes of variants of a script that start together, warm up, and then take turns: one takes steps while the others
wait at a gate (see `jobs.follow.turns`). A machine whose speed changes within minutes is as fast for all in a round."""

import random
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from profiler_job.jobs.contract.tuning import VariantRun
from profiler_job.jobs.executor.tuned_script import (
    POLL_S,
    FollowedProcess,
    GatePlan,
    NoteRuns,
    OverBudgetError,
    TunedScript,
    VariantFailedError,
    check_applied,
)

END_S = 3.0
"""Time that is kept for the end of the processes."""
HANGS_S = 60.0
"""A turn that takes so long has no end."""


@dataclass(eq=False)
class GatedProcess:
    """A process of the variant of that number. times_ns: of its turns. answer: its latest one."""

    variant: int
    running: FollowedProcess
    times_ns: list[float] = field(default_factory=list)
    answer: dict[str, Any] = field(default_factory=dict)

    def ask(self, turn_s: float) -> None:
        """Ask for a turn; for none (0), it answers as soon as it waits at the gate."""
        assert self.running.requests is not None
        self.running.requests.send({"turn_s": turn_s})

    def has_answered(self) -> bool:
        """Return whether the answer is there. Raises VariantFailedError if the process has ended, or could not be given
        its changes."""
        assert self.running.requests is not None
        has_ended = self.running.has_ended  # before the answer is looked for, which may be its last
        answer = self.running.requests.read_answer()
        if answer is None and has_ended:
            raise self.running.explain_end()
        if answer is not None:
            self.answer = answer
            check_applied(answer["not_applied"])
        return answer is not None

    def make_run(self) -> VariantRun:
        known = {name: self.answer[name] for name in ("peak_bytes", "losses", "num_losses_per_step")}
        return VariantRun(times_ns=tuple(self.times_ns), **known)


class GatedProcesses:
    """The processes that still run. One that ends, or hangs, is left out; the last one of its variant is an error. end:
    time on the clock of time.monotonic at which all has to be over."""

    def __init__(self, processes: Sequence[GatedProcess], end: float):
        self.processes, self.end = list(processes), end

    def collect(self, asked: Iterable[GatedProcess], hangs_at: float) -> None:
        """Wait for the answers of processes. hangs_at: time at which those without one hang. Raises VariantFailedError
        if a variant has no process left, and OverBudgetError."""
        left = list(asked)
        while left := [process for process in left if not self.is_done(process)]:
            now = time.monotonic()
            if now > self.end:
                raise OverBudgetError("the time was over")
            if now > hangs_at:
                for process in left:
                    self.leave_out(process, VariantFailedError("a process took too long to its next step"))
                return
            time.sleep(POLL_S)

    def is_done(self, process: GatedProcess) -> bool:
        """Return whether a process has answered, or was left out."""
        try:
            return process.has_answered()
        except VariantFailedError as error:
            self.leave_out(process, error)
            return True

    def leave_out(self, process: GatedProcess, error: VariantFailedError) -> None:
        """End a process. Raise the error if it was the last of its variant, or if its script takes too few steps."""
        if error.is_short:  # its turns so far count
            raise error
        self.processes.remove(process)
        process.running.end()
        if all(other.variant != process.variant for other in self.processes):
            raise error

    def take_round(self, turn_s: float, draw: random.Random) -> None:
        """Let each process take a turn, in random order. Of a round that does not end nothing is kept."""
        times: dict[GatedProcess, float] = {}
        for process in draw.sample(self.processes, len(self.processes)):
            process.ask(turn_s)
            self.collect([process], time.monotonic() + HANGS_S)
            if process in self.processes:
                times[process] = median(process.answer["steps"])
        for process in self.processes:
            process.times_ns.append(times[process])

    def make_runs(self) -> list[list[VariantRun]]:
        """Return the processes of each variant with their turns."""
        variants = sorted({process.variant for process in self.processes})
        return [
            [process.make_run() for process in self.processes if process.variant == variant and process.times_ns]
            for variant in variants
        ]

    def take_rounds(self, plan: GatePlan, note: NoteRuns) -> None:
        """Take rounds while there is time for another one. note: receives the processes after each. Raises
        OverBudgetError if there was no time for the first, and VariantFailedError, but not if a script ends without an
        error after the first."""
        draw, longest_s = random.Random(plan.seed), 0.0
        for number in range(plan.num_rounds):
            began = time.monotonic()
            if began + longest_s > self.end:
                return
            try:
                self.take_round(plan.turn_s, draw)
            except OverBudgetError:
                if not number:
                    raise
                return
            except VariantFailedError as error:
                if not number or not error.is_short:
                    raise
                return
            longest_s = max(longest_s, time.monotonic() - began)
            note(self.make_runs())


def take_gated_turns(
    script: TunedScript, variants: Sequence[Sequence[str]], plan: GatePlan, left_s: float, note: NoteRuns
) -> tuple[list[list[VariantRun]], float]:
    """Let processes of variants of a script take turns. Return the processes of each variant, which all took part in
    the same rounds, and the time in seconds after which all had warmed up. note: receives the processes after each
    round.

    Raises VariantFailedError if a variant has no process left, OverBudgetError, and CannotStartError.
    """
    began = time.monotonic()
    processes: list[GatedProcess] = []
    with ExitStack() as at_end:
        at_end.callback(copy_logs, script, processes)
        for number in range(plan.num_each):
            for variant, changes in enumerate(variants):
                name = f"gated-{number}-{variant}"
                of_process = replace(script, log=script.folder / f"{name}.txt")
                running = of_process.start(name, "gate", changes=list(changes), times_only=True, bare=plan.is_bare)
                at_end.callback(running.end)
                processes.append(GatedProcess(variant, running))
                processes[-1].ask(0.0)
        at_end.callback(close_gates, processes)
        gated = GatedProcesses(processes, began + left_s - END_S)
        gated.collect(processes, began + plan.ready_s)
        ready_s = time.monotonic() - began
        gated.take_rounds(plan, note)
        runs = gated.make_runs()
    return runs, ready_s


def close_gates(processes: Sequence[GatedProcess]) -> None:
    """Have all processes end at the same time."""
    for process in processes:
        if process.running.requests is not None:
            process.running.requests.close()


def copy_logs(script: TunedScript, processes: Sequence[GatedProcess]) -> None:
    """Append what each process printed to the log of the script."""
    with script.log.open("ab") as log:
        for process in processes:
            log.write(process.running.script.log.read_bytes())
