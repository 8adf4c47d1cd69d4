"""Variants of a script that take turns while it runs: changes are switched on and off between its steps.

The program outside asks for measurements by files in a folder, `1.json`, `2.json` and so on, and reads the answer to
the first from `1.answer.json`. Between requests the script takes steps without changes. Its weights are trained by all
variants, so that only times can be compared.

Loaded into other people's scripts, as `follow` is.
"""

import json
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter_ns
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from .apply_changes import Changes
from .follow import Follower
from .host_waits import SyncCalls
from .kernel_shares import KernelTrace, add_up_kernels
from .matmul_precision import read_matmul_precision
from .measured_parts import PartsMeasurement
from .module_ranges import ModuleRanges
from .plan import Plan, Stage
from .script_facts import describe_call, find_autocast_dtype, read_machine, unwrap
from .script_places import Places
from .step_calls import CallRecorder
from .step_clock import StepClock
from .turn_order import draw_turns
from .wrapping import wrap

Steps = Generator[None, None, Any]
"""Code that runs between steps: each `yield` lets the script take one."""
IDLE_S = 120.0
"""How long a script goes on without a request: whoever started it may have been killed."""
PROFILED_STEPS = 2
FEWEST_WARMUP, MOST_WARMUP = 3, 12
SETTLED = 1.3
"""A variant is warm once a step takes at most so many times its fastest."""
LEAST_STEPS, MOST_STEPS = 2, 10
TIMED_S, MOST_TIMED = 0.5, 10
"""How long a process of one variant is timed, as far as so many times the steps that are planned are enough."""


class TurnsFollower(Follower):
    """A script whose variants take turns (`plan.turns`), or whose steps are only timed (`plan.times_only`)."""

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
        self.num_backwards = 0  # since the last step
        self.backwards: list[int] = []

    # ------------------------------------------------------------------------------------------ steps and stages

    def enter(self, stage: Stage) -> None:
        super().enter(stage)
        if stage is Stage.TIMED and self.stage is stage:
            if torch.cuda.is_initialized():
                torch.cuda.reset_peak_memory_stats()
            self.running = self.answer_requests() if self.plan.turns else self.time_steps()
            next(self.running)

    def advance(self) -> None:
        self.backwards.append(self.num_backwards)
        self.num_backwards = 0
        if self.running is None:
            super().advance()
            return
        self.facts["seen"] += 1
        self.num_steps += 1
        try:
            next(self.running)
        except StopIteration:
            self.running = None
            self.begin(Stage.DONE)
            self.watch.end()
            self.write()
            self.ranks.leave()
            self.end_script()

    def time_steps(self) -> Steps:
        """Note the times of the steps that are planned, and of more if these are short: what the CPU limits is slower
        at one moment than at another. Ranks end with the same step."""
        clock, begin = StepClock(), monotonic()
        most = self.plan.steps if self.ranks.world > 1 else MOST_TIMED * self.plan.steps
        for number in range(1, most + 1):
            yield
            clock.note_end()
            is_last = number == most or (number >= self.plan.steps and monotonic() - begin >= TIMED_S)
            if is_last or number == self.plan.steps:  # the script may end before more
                self.synchronize()
                _, self.facts["steps"] = clock.list_steps()
            if is_last:
                return

    # --------------------------------------------------------------------------------------- what the script does

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
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

    def backward(self, called: Any, tensors: Any, *args: Any, **options: Any) -> Any:
        self.places.note("backward")
        self.num_backwards += not self.in_backward
        return super().backward(called, tensors, *args, **options)

    def make_autocast(self, called: Any, context: torch.autocast, *args: Any, **options: Any) -> None:
        super().make_autocast(called, context, *args, **options)
        if context._enabled:
            self.places.note("autocast")

    # ------------------------------------------------------------------------------------------------- requests

    def answer_requests(self) -> Steps:
        """Answer requests, one after the other. A script of several ranks answers one, which says so."""
        folder, number = Path(self.plan.turns), 1
        folder.mkdir(parents=True, exist_ok=True)
        last = monotonic()
        while True:
            file = folder / f"{number}.json"
            if self.ranks.world > 1 and self.ranks.rank:
                return
            if not file.exists():
                if monotonic() - last > IDLE_S:
                    return
                yield
                continue
            request = json.loads(file.read_text(encoding="utf-8"))
            answer = self.describe() if request["kind"] == "describe" else (yield from self.measure(request))
            write_json(folder / f"{number}.answer.json", answer)
            number += 1
            last = monotonic()
            if self.ranks.world > 1:  # each rank would switch at another step
                return

    def measure(self, request: dict[str, Any]) -> Steps:
        if request["kind"] == "profile":
            return self.profile_steps(request["variant"])
        if request["kind"] == "calls":
            return self.record_calls()
        if request["kind"] == "parts":
            return self.measure_parts(request["parts"])
        return self.take_turns(request["variants"], request["rounds"], request["turn_s"], request["seed"])

    def describe(self) -> dict[str, Any]:
        """Return what is known of the script, and which changes cannot be switched on."""
        backwards = self.backwards[self.plan.skip // 2 :]
        facts: dict[str, Any] = self.first_call | read_machine() | self.ranks_facts()
        facts["forwards"] = max(1, round(median(backwards))) if backwards else 1
        facts["autocast"] = facts.get("autocast") or self.made_autocast or find_autocast_dtype()
        facts["obstacles"] = self.changes.explain_obstacles()
        facts["places"] = self.places.list_facts()
        facts["seen"] = self.facts["seen"]
        return facts

    def ranks_facts(self) -> dict[str, int]:
        return {"world": self.ranks.world, "rank": self.ranks.rank}

    def profile_steps(self, variant: Sequence[str]) -> Steps:
        """Return what the GPU and the CPU do in steps of a variant, in ns in a step."""
        yield from self.warm_up(variant)
        wall_ns = median((yield from self.time_turn(LEAST_STEPS + 1)))
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
            "kernels": add_up_kernels(operations, PROFILED_STEPS) if operations else None,
            "phases": phases,
            "num_syncs": len(syncs.list_calls(PROFILED_STEPS)),
            "num_alloc_retries": retries,
            "float32_matmul_precision": read_matmul_precision(),
        }

    def record_calls(self) -> Steps:
        """Return the calls of a step without changes (`calls`), its optimizer, and how long the CPU takes to launch
        each phase (`issue`, ns)."""
        yield from self.warm_up(())
        self.synchronize()
        self.parts, self.issued = [], IssueClock()
        for _ in range(PROFILED_STEPS):
            yield
            self.issued.note("", self.synchronize)
        issue = {name: time_ns / PROFILED_STEPS for name, time_ns in self.issued.times.items()}
        self.issued = None
        self.recorder = CallRecorder(lambda: self.phases[0] if self.phases else "")
        with self.recorder:
            yield
        self.parts = None
        return {"calls": self.recorder.calls, "optimizer": self.changes.describe_optimizer(), "issue": issue}

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
        """Take steps of a variant until they are as fast as they get: it may be compiled in the first."""
        self.changes.switch(variant)
        fastest = float("inf")
        for number in range(1, MOST_WARMUP + 1):
            self.synchronize()
            begin = perf_counter_ns()
            yield
            self.synchronize()
            took = perf_counter_ns() - begin
            fastest = min(fastest, took)
            if number >= FEWEST_WARMUP and took <= SETTLED * fastest:
                break

    def time_turn(self, num_steps: int) -> Steps:
        """Return the time of each of the next steps, in ns; the GPU's where there is one."""
        clock = StepClock()
        for _ in range(num_steps):
            yield
            clock.note_end()
        self.synchronize()
        return [step["wall_ns"] for step in clock.list_steps()[1]]

    def take_turns(self, variants: Sequence[Sequence[str]], num_rounds: int, turn_s: float, seed: int) -> Steps:
        """Return the median step of each variant in each round (`rounds`, ns). In a round each variant has a turn of a
        few steps, in random order; the first step after a switch does not count."""
        lengths = []
        for variant in variants:
            yield from self.warm_up(variant)
            steps = yield from self.time_turn(LEAST_STEPS)
            lengths.append(max(LEAST_STEPS, min(MOST_STEPS, round(turn_s * 1e9 / max(median(steps), 1)))))
        rounds = [[0.0] * len(variants) for _ in range(num_rounds)]
        for round_, number in draw_turns(len(variants), num_rounds, seed):
            self.changes.switch(variants[number])
            yield
            rounds[round_][number] = median((yield from self.time_turn(lengths[number])))
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


def write_json(file: Path, content: Any) -> None:
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(content), encoding="utf-8")
    draft.replace(file)


def count_flops(model: nn.Module, inputs: list[dict[str, Any]]) -> float:
    """Count the FLOPs of forward and backward passes for one token, by the formula of PaLM: six for each weight of a
    linear layer, and of attention 12 for each layer, dimension and token of context, if the model's `config` shows
    these."""
    linear_layers: list[Any] = [
        part
        for part in model.modules()
        if isinstance(part, nn.Linear) or type(part).__name__ == "Conv1D"  # the linear layer of GPT-2
    ]
    weights: int = sum(part.weight.numel() for part in linear_layers)
    config = getattr(unwrap(model), "config", None)
    known = [getattr(config, name, 0) for name in ("num_hidden_layers", "hidden_size")]
    layers, width = (number if isinstance(number, int) else 0 for number in known)
    context = next((int(each["shape"][1]) for each in inputs if len(each["shape"]) == 2), 0)
    return 6.0 * weights + 12.0 * layers * width * context
