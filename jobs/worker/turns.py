"""Runs of one model that take turns in one process: what changes from minute to minute meets all of them alike.

They share weights, gradients and the moments of AdamW, so that a group needs little more memory than its largest run:
each other run keeps only its batch, its buffers and the memory of its CUDA graphs. The weights are trained by all, so
that only times can be compared; losses and memory come from the process that each run has alone.
"""

import gc
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from profiler_job.jobs.contract.messages import GO, Failed, Measured, Seconds
from profiler_job.jobs.follow.turn_order import draw_turns
from profiler_job.jobs.worker.answers import answer, build_failed, build_measured, write_output_to
from profiler_job.jobs.worker.host_speed import time_host_loop
from profiler_job.jobs.worker.stepper import HostTime, Stepper

RECOMPILATIONS = 8
"""Of each compiled run: PyTorch's default for a program, in which all runs of a group are."""


class Turns:
    """The runs of a task. steppers: by their place in the task, of those that have not failed. times: of their measured
    steps, turn by turn. failed: messages about the others."""

    def __init__(self, task: dict[str, Any], device: torch.device, connection: Connection):
        self.task, self.device, self.connection = task, device, connection
        self.steppers: dict[int, Stepper] = {}
        self.seconds: dict[int, Seconds] = {}
        self.times: dict[int, list[dict[str, HostTime]]] = {}
        self.failed: dict[int, Failed] = {}

    def warm_up(self, number: int) -> None:
        """Build a run, and run its warm-up steps."""
        started = time.perf_counter()
        shared = next(iter(self.steppers.values()), None)
        if shared:  # in place of the gradients there is room for the weights that are built and given up
            shared.optimizer.zero_grad()
        self.steppers[number] = stepper = Stepper(self.task["runs"][number], self.device, shared=shared)
        stepper.synchronize()
        built = time.perf_counter()
        for _ in range(self.task["warmup_steps"]):
            stepper.step()
        self.times[number] = []
        self.seconds[number] = {"build": built - started, "warm_up": time.perf_counter() - built, "measure": 0.0}

    def take_turn(self, number: int) -> None:
        """Run a step that does not count, and the measured steps of a turn."""
        stepper = self.steppers[number]
        stepper.set_precision(stepper.run["precision"])
        stepper.step()
        begin = time.perf_counter()
        self.times[number] += [stepper.step() for _ in range(self.task["steps"])]
        self.seconds[number]["measure"] += time.perf_counter() - begin

    def attempt(self, what: Callable[[int], None], number: int) -> None:
        """Do `what` with a run. If memory runs out, the run ends, and the others go on."""
        answer(self.connection, {"event": "turn", "number": number})
        try:
            what(number)
            self.steppers[number].forget_outputs()
        except Exception as error:
            traceback.print_exc()
            self.failed[number] = failed = build_failed(error, self.steppers.get(number), self.device, {})
            if not isinstance(error, torch.OutOfMemoryError):  # which may have broken the CUDA context for good
                answer(self.connection, failed)
                sys.exit(1)
        if number in self.failed:
            self.steppers.pop(number, None)
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def build_answer(self, number: int, host_loop_ns: int) -> Measured | Failed:
        """Build the message about a run."""
        if number in self.failed:
            return self.failed[number]
        stepper, times = self.steppers[number], self.times[number]
        stepper.set_precision(stepper.run["precision"])  # which is one of the settings
        measured = build_measured(stepper, times, {"memory": [], "figures": []}, self.seconds[number])
        for row in measured["steps"]:
            row["round"] = row["step"] // self.task["steps"]
        measured["host_loop_ns"] = host_loop_ns
        return measured


def take_turns(task: dict[str, Any], device: torch.device, connection: Connection) -> None:
    """Carry out a task of turns: build and warm up each run, send `ready`, wait for `go`, let the runs take turns by
    rounds, send `turned`. A run that runs out of memory leaves the others; another failure is sent as `failed`."""
    if compiled := sum(run["compile"] != "off" for run in task["runs"]):
        torch._dynamo.config.recompile_limit = RECOMPILATIONS * compiled
    turns, numbers = Turns(task, device, connection), range(len(task["runs"]))
    for number in numbers:
        write_output_to(task["logs"][number])
        print(f"by turns: {task['runs'][number]}", flush=True)
        turns.attempt(turns.warm_up, number)
    answer(connection, {"event": "ready"})
    if connection.recv() != GO:
        return
    loops_ns: list[int] = []  # a host may change its speed from round to round
    for round_, number in draw_turns(len(numbers), task["rounds"], task["seed"]):
        if len(loops_ns) <= round_:
            loops_ns.append(time_host_loop())
        if number in turns.steppers:
            turns.attempt(turns.take_turn, number)
    host_loop_ns = round(statistics.median(loops_ns))
    runs = [turns.build_answer(number, host_loop_ns) for number in numbers]
    answer(connection, {"event": "turned", "runs": runs})
