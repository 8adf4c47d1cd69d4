"""Variants of a script that take turns: in one process, in which changes are switched on and off between steps, or in
processes of one variant each, which wait at a gate while another has its turn.

The program outside asks for measurements (see `program_requests`). In one process the weights are trained by all
variants, so that only times can be compared.

Loaded into other people's scripts, as `follow` is.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter_ns
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

from .apply_changes import Changes
from .follow import Follower
from .host_waits import SyncCalls
from .kernel_shares import KernelTrace, add_up_kernels
from .matmul_precision import read_matmul_precision
from .measured_parts import PartsMeasurement
from .module_ranges import ModuleRanges
from .plan import Plan, Stage
from .program_requests import ProgramRequests
from .script_facts import (
    count_flops,
    count_room,
    count_workers,
    describe_call,
    find_autocast_dtype,
    find_device_type,
    read_machine,
)
from .script_places import Places
from .step_calls import CallRecorder
from .step_clock import StepClock
from .timed_steps import LEAST_STEPS, MOST_STEPS, Steps, settle, time_steps, time_turn
from .turn_order import draw_turns
from .wrapping import wrap

PROFILED_STEPS = 2
LEAST_WAITS = 0.1
"""Part of a step that must wait for batches for their lead to be used up."""
LAUNCHED_S, MOST_LAUNCHED = 0.5, 10
"""How long steps are timed, and launched phase by phase, as far as so many of them are enough: of two steps at one
moment the CPU took from 13 to 21 ms for the same backward pass."""
IS_BEHIND = 0.9
"""Part of the time of a phase. If launches take no more once the GPU may catch up, it held them up."""


class TurnsFollower(Follower):
    """A script whose variants take turns (`plan.turns`), or whose steps are only timed (`plan.times_only`), in turns
    with other processes if there is a `plan.gate`."""

    def __init__(self, plan: Plan, ranges: ModuleRanges):
        super().__init__(plan, ranges)
        self.changes = Changes(plan.changes, are_on=not plan.turns)
        if plan.turns:
            self.changes.see = self.note_first_call
        self.places = Places()
        self.running: Steps | None = None
        self.parts: list[tuple[str, StepClock]] | None = None  # phases of profiled steps, while they are timed
        self.issued: IssueClock | None = None  # while phases are launched one by one
        self.recorder: CallRecorder | None = None
        self.first_call: dict[str, Any] = {}  # of the model that is trained
        self.num_ahead = 0  # batches that workers of a loader have ready after a pause
        self.num_backwards = 0  # since the last step
        self.backwards: list[int] = []
        self.keeps_gradients = False  # until a backward pass begins that adds to some

    # ------------------------------------------------------------------------------------------ steps and stages

    def enter(self, stage: Stage) -> None:
        super().enter(stage)
        if stage is Stage.TIMED and self.stage is stage:
            self.running = self.choose_steps()
            self.take_step()

    def advance(self) -> None:
        self.backwards.append(self.num_backwards)
        self.changes.note_step(self.num_backwards)
        self.num_backwards = 0
        if self.running is None:
            super().advance()
            return
        self.facts["seen"] += 1
        self.num_steps += 1
        self.take_step()

    def take_step(self) -> None:
        """Let the script take a step, or end it if no more are wanted."""
        assert self.running is not None
        try:
            next(self.running)
        except StopIteration:
            self.running = None
            self.begin(Stage.DONE)
            self.watch.end()
            self.write()
            self.ranks.leave()
            self.end_script()

    def choose_steps(self) -> Steps:
        if self.plan.turns:
            return self.answer_requests()
        if self.plan.gate:
            return self.take_turns_at_gate()
        return time_steps(self.plan.steps, self.ranks.world, self.facts)

    def take_turns_at_gate(self) -> Steps:
        """Warm up, then take a turn for each request. The first step of a turn does not count, since other processes
        have had the CPU's caches, nor do those for which workers of loaders have fetched batches meanwhile."""
        waits = yield from self.measure_waits()
        num_unsteady = 1 + (math.ceil(self.num_ahead / waits) if waits >= LEAST_WAITS else 0)
        self.synchronize()
        per_step = len(self.losses.values()) / self.facts["seen"]  # until here none is too much to be kept
        requests = ProgramRequests(Path(self.plan.gate))
        while (request := requests.wait()) is not None:
            steps: list[float] = []
            if request["turn_s"]:
                for _ in range(num_unsteady):
                    yield
                steps = yield from time_turn(LEAST_STEPS, request["turn_s"])
            requests.answer({"steps": steps} | self.describe_process(per_step))

    def measure_waits(self) -> Steps:
        """Warm up, and return the part of the steps that waits for batches: with each step these are fewer by as much
        as were ready."""
        self.parts = []
        begin = perf_counter_ns()
        yield from settle()
        took = perf_counter_ns() - begin
        parts, self.parts = self.parts, None
        waits = [clock.list_steps()[1][0]["host_ns"] for name, clock in parts if name == "data"]
        return sum(waits) / took

    def describe_process(self, per_step: float) -> dict[str, Any]:
        """Return what is known of a process of one variant. losses: of as many steps as without a gate. per_step: how
        many a step has. peak_bytes: from the start of the process, since what CUDA graphs hold is allocated while they
        are captured, and not while they are replayed."""
        return {
            "losses": self.losses.values()[: round(per_step * (self.plan.skip + self.plan.steps))],
            "num_losses_per_step": max(per_step, 1.0),
            "peak_bytes": read_machine()["peak_allocated_bytes"],
            "not_applied": self.changes.facts()["not_applied"],
        }

    # --------------------------------------------------------------------------------------- what the script does

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if self.stage.is_captured:
            with super().phase(name):
                yield
            return
        if self.parts is None or self.phases or self.process != os.getpid():
            yield
            return
        self.phases.append(name)
        if self.issued is not None:
            self.issued.note("", self.synchronize)
        clock = StepClock()
        try:
            yield
        finally:
            self.phases.pop()
            clock.note_end()
            if self.issued is not None:
                self.issued.note(name, self.synchronize)
            if self.parts is not None:
                self.parts.append((name, clock))

    def note_first_call(self, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Note the model that is trained, and what it is called with."""
        if not self.first_call and torch.is_grad_enabled():
            self.places.note("model_call")
            self.first_call = describe_call(module, args, options, "")
            self.first_call["flops_per_token"] = count_flops(module, self.first_call["inputs"])

    def note_made(self, what: str) -> Callable[..., Any]:
        def make(called: Callable[..., Any], *args: Any, **options: Any) -> Any:
            self.places.note(what)
            return called(*args, **options)

        return make

    def watch_places(self) -> None:
        """Note where optimizers and loaders are made."""
        wrap(torch.optim.Optimizer, "__init__", self.note_made("optimizer"))
        wrap(DataLoader, "__init__", self.note_made("loader"))
        wrap(DataLoader, "__init__", self.note_loader)

    def note_loader(self, called: Callable[..., Any], loader: Any, *args: Any, **options: Any) -> None:
        called(loader, *args, **options)
        self.num_ahead = max(self.num_ahead, loader.num_workers * (loader.prefetch_factor or 0))

    def backward(self, called: Any, tensors: Any, *args: Any, **options: Any) -> Any:
        self.places.note("backward")
        self.num_backwards += not self.in_backward
        if self.plan.turns and self.running is None and not self.keeps_gradients:
            weights = (weight for model in self.changes.models for weight in model.parameters())
            self.keeps_gradients = any(weight.grad is not None for weight in weights)
        return super().backward(called, tensors, *args, **options)

    def make_autocast(self, called: Any, context: torch.autocast, *args: Any, **options: Any) -> None:
        super().make_autocast(called, context, *args, **options)
        if context._enabled:
            self.places.note("autocast")

    # ------------------------------------------------------------------------------------------------- requests

    def answer_requests(self) -> Steps:
        """Answer requests, one after the other. A script of several ranks answers one, which says so."""
        if self.ranks.world > 1 and self.ranks.rank:
            return
        requests = ProgramRequests(Path(self.plan.turns))
        while (request := requests.wait()) is not None:
            is_facts = request["kind"] == "describe"
            requests.answer(self.describe() if is_facts else (yield from self.measure(request)))
            if self.ranks.world > 1:  # each rank would switch at another step
                return

    def measure(self, request: dict[str, Any]) -> Steps:
        if request["kind"] == "profile":
            return self.profile_steps(request["variant"])
        if request["kind"] == "trace":
            return self.trace_steps(request["variant"], Path(request["file"]), request["by_module"])
        if request["kind"] == "calls":
            return self.record_calls()
        if request["kind"] == "parts":
            return self.measure_parts(request["parts"])
        return self.take_turns(request["variants"], request["rounds"], request["turn_s"], request["seed"])

    def describe(self) -> dict[str, Any]:
        """Return what is known of the script, and which changes cannot be switched on."""
        facts: dict[str, Any] = self.first_call | read_machine() | self.ranks_facts()
        facts |= {"device_type": find_device_type(), "num_workers": count_workers()}
        facts |= {"forwards": self.count_passes(), "keeps_gradients": self.keeps_gradients}
        facts["autocast"] = facts.get("autocast") or self.made_autocast or find_autocast_dtype()
        facts["obstacles"] = self.changes.explain_obstacles()
        facts["places"] = self.places.list_facts()
        facts["seen"] = self.facts["seen"]
        facts["ends_with_optimizer"] = self.ending.chosen is not None and self.captures.step_graph is None
        return facts

    def count_passes(self) -> int:
        """Count the backward passes of a step. The first step is of all updates before one of them ended a step."""
        chosen = self.ending.chosen
        num_steps = len(chosen.updates) if chosen else len(self.backwards)
        return max(1, round(sum(self.backwards) / max(1, num_steps)))

    def ranks_facts(self) -> dict[str, int]:
        return {"world": self.ranks.world, "rank": self.ranks.rank}

    def profile_steps(self, variant: Sequence[str]) -> Steps:
        """Return what the GPU and the CPU do in steps of a variant, in ns in a step. `issue`, of steps without changes:
        how long the CPU takes to launch each phase. What is timed comes before the trace: after a trace, launches stay
        slow in a process."""
        yield from self.warm_up(variant)
        wall_ns = median((yield from time_turn(LEAST_STEPS + 1, LAUNCHED_S, MOST_LAUNCHED)))
        issue = {} if variant else (yield from self.time_launches())
        trace, syncs = KernelTrace(), SyncCalls()
        self.synchronize()
        self.parts = []
        trace.begin()
        syncs.begin()
        for _ in range(PROFILED_STEPS):
            yield
        self.synchronize()
        syncs.end()
        operations = trace.end()
        parts, self.parts = self.parts, None
        phases: dict[str, float] = {}
        for name, clock in parts:
            took = clock.list_steps()[1][0]
            phases[name] = phases.get(name, 0.0) + max(took.values()) / PROFILED_STEPS
        retries = torch.cuda.memory_stats().get("num_alloc_retries", 0) if torch.cuda.is_initialized() else 0
        return {
            "step_ns": wall_ns,
            "issue": issue,
            "kernels": add_up_kernels(operations, PROFILED_STEPS) if operations else None,
            "phases": phases,
            "num_syncs": len(syncs.list_calls(PROFILED_STEPS)),
            "num_alloc_retries": retries,
            "room": count_room(),
            "float32_matmul_precision": read_matmul_precision(),
        }

    def trace_steps(self, variant: Sequence[str], file: Path, by_module: bool) -> Steps:
        """Write a trace of a step of a variant with its phases, and of one more with its modules, as `profile` does;
        return its `file`. by_module: whether there is one more; of a compiled model no module is called. After a trace,
        launches stay slow in a process: nothing is timed in it any more."""
        yield from self.warm_up(variant)
        self.enter(Stage.CAPTURED)
        yield
        self.close_range("captured_ns")
        if by_module:
            self.enter(Stage.FOLLOWED)
            yield
            self.close_range("followed_ns")
        self.synchronize()
        self.capture.end(file)
        self.begin(Stage.TIMED)
        return {"file": str(file)}

    def time_launches(self) -> Steps:
        """Return how long the CPU takes to launch each phase of a step, in ns. A GPU that is behind holds it up: about
        1,024 launches can wait for the GPU, and a copy that waits does so for all before it. What these take is left
        out, by steps in which the CPU lets the GPU catch up after each layer."""
        times = yield from self.time_phases()
        hooks = self.catch_up_often()
        try:
            alone = yield from self.time_phases()
        finally:
            for hook in hooks:
                hook.remove()
        return {name: alone[name] if alone.get(name, ns) <= IS_BEHIND * ns else ns for name, ns in times.items()}

    def catch_up_often(self) -> list[RemovableHandle]:
        """Let the CPU wait for the GPU, while no time is taken, after each call of a module that has parameters, and
        after each parameter's gradient."""

        def catch_up(*_: Any) -> None:
            if self.issued is not None:
                self.issued.note(self.phases[0] if self.phases else "", self.synchronize)

        models = [] if self.watch.refuses_hooks(self.changes.models) else self.changes.models
        parts = {part: [*part.parameters(recurse=False)] for model in models for part in model.modules()}
        hooks = [part.register_forward_hook(catch_up) for part, own in parts.items() if own]
        trained = {each for own in parts.values() for each in own if each.requires_grad and each.is_leaf}
        return hooks + [each.register_post_accumulate_grad_hook(catch_up) for each in trained]

    def time_phases(self) -> Steps:
        """Return the time until each phase of a step is launched, in ns: the median of steps."""
        self.synchronize()
        self.parts = []
        steps: list[dict[str, float]] = []
        begin = monotonic()
        while len(steps) < PROFILED_STEPS or (len(steps) < MOST_LAUNCHED and monotonic() - begin < LAUNCHED_S):
            self.issued = IssueClock()
            yield
            self.issued.note("", self.synchronize)
            steps.append(self.issued.times)
        self.parts = self.issued = None
        names = dict.fromkeys(name for times in steps for name in times)
        return {name: median(times.get(name, 0.0) for times in steps) for name in names}

    def record_calls(self) -> Steps:
        """Return the calls of a step without changes (`calls`), and its optimizer."""
        yield from self.warm_up(())
        self.synchronize()
        self.parts = []
        self.recorder = CallRecorder(lambda: self.phases[0] if self.phases else "")
        with self.recorder:
            yield
        self.parts = None
        return {"calls": self.recorder.calls, "optimizer": self.changes.describe_optimizer()}

    def measure_parts(self, parts: Sequence[Any]) -> Steps:
        """Return the times of parts of a step, each alone, as `PartsMeasurement` does."""
        self.synchronize()
        self.ending.is_paused = True
        try:
            times = PartsMeasurement(self.recorder.numbers if self.recorder else {}).measure(parts)
        finally:
            self.ending.is_paused = False
        yield
        return times

    def warm_up(self, variant: Sequence[str]) -> Steps:
        """Switch to a variant, and warm it up."""
        self.changes.switch(variant)
        yield from settle()

    def take_turns(self, variants: Sequence[Sequence[str]], num_rounds: int, turn_s: float, seed: int) -> Steps:
        """Return the median step of each variant in each round (`rounds`, ns). In a round each variant has a turn of a
        few steps, in random order; the first step after a switch does not count."""
        lengths = []
        for variant in variants:
            yield from self.warm_up(variant)
            steps = yield from time_turn(LEAST_STEPS)
            lengths.append(max(LEAST_STEPS, min(MOST_STEPS, round(turn_s * 1e9 / max(median(steps), 1)))))
        rounds = [[0.0] * len(variants) for _ in range(num_rounds)]
        for round_, number in draw_turns(len(variants), num_rounds, seed):
            self.changes.switch(variants[number])
            yield
            rounds[round_][number] = median((yield from time_turn(lengths[number])))
        self.changes.switch(())
        return {"rounds": rounds}


class IssueClock:
    """How long the CPU takes to launch parts of a step, each with an empty queue before it. times: ns by name."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}
        self.begin = perf_counter_ns()

    def note(self, name: str, synchronize: Callable[[], None]) -> None:
        """Note the part that ends here, and wait for the GPU."""
        self.times[name] = self.times.get(name, 0.0) + perf_counter_ns() - self.begin
        synchronize()
        self.begin = perf_counter_ns()
