"""Simulated scripts for the search of `tune`, whose changes have known effects."""

import random
from dataclasses import dataclass, field
from unittest.mock import patch

from profiler_job.jobs.contract.tuning import Accumulation, Outcome, Tuning, VariantRun
from profiler_job.jobs.executor import tune_processes
from profiler_job.jobs.executor.tune_search import Search
from profiler_job.jobs.executor.tuned_script import OverBudgetError, VariantFailedError

MS = 1e6
KINDS = ("attention", "convolution", "matmul", "fill", "pageable", "copy", "other")
EFFECTS = {"bf16": 0.5, "fused_adamw": 0.1, "compile": 0.2, "fused_attention": -0.1}


@dataclass
class SimulatedScript:
    """An engine with steps of 100 ms; each change takes the part away that `effects` has for it. Time passes on its
    clock. failures: what a change raises when it is switched on. parts: shares of a step, by kind of kernel. cold_s: by
    which the first process takes longer, which finds no cache of what the script compiles. room: for processes.
    at_gate: what processes that take turns raise. cut_off_after: round of these after which the search is cut off.
    cut_off_at_run: number of the process of its own with which it is."""

    effects: dict[str, float]
    parts: dict[str, float] = field(default_factory=lambda: {"matmul": 0.6, "other": 0.3})
    failures: dict[str, Exception] = field(default_factory=dict)
    obstacles: dict[str, str] = field(default_factory=dict)
    world: int = 1
    noise: float = 0.002
    compile_s: float = 30.0
    losses: float = 0.0
    has_parts: bool = False
    is_compiled: bool = False
    cold_s: float = 0.0
    interrupt_at: int = 10**9
    now: float = 0.0
    num_asked: int = 0
    asked: list = field(default_factory=list)
    starts_s: float = 5.0
    num_started: int = 0
    is_running: bool = False
    room: int = 6
    cores: int = 16
    at_gate: Exception | None = None
    accumulation: Accumulation | str = "a step has one backward pass"
    plans: list = field(default_factory=list)
    traced: list = field(default_factory=list)
    is_whole: bool = False
    patch_digest: str = "1"
    following_ns: float = 0.0
    patch_loss: float = 0.0
    bare_failures: dict[str, Exception] = field(default_factory=dict)
    bare_runs: list = field(default_factory=list)
    is_bare: bool = False
    cut_off_after: int = 0
    cut_off_at_run: int = 0
    num_run: int = 0
    draw: random.Random = field(default_factory=lambda: random.Random(7))

    def time_step(self, changes) -> float:
        step = 100 * MS
        for name in changes:
            step *= 1 - self.effects.get(name, 0.0)
        return (step + (0.0 if self.is_bare else self.following_ns)) * self.draw.lognormvariate(0, self.noise)

    def fail(self, changes) -> None:
        failures = self.failures | (self.bare_failures if self.is_bare else {})
        for name in changes or ("",):
            if name in failures:
                self.is_running = False
                raise failures[name]

    def pass_time(self, seconds: float, left_s: float) -> None:
        self.now += min(seconds, left_s)
        if seconds > left_s:
            raise OverBudgetError("the time was over")

    def ask(self, request, left_s):
        self.num_asked += 1
        if self.num_asked >= self.interrupt_at:
            raise KeyboardInterrupt
        if not self.is_running:
            self.is_running = True
            self.pass_time(self.start(), left_s)
        if request["kind"] == "describe":
            machine = {"gpu_name": "GPU", "torch": "2", "places": [], "parameter_dtypes": {"torch.float32": 9}}
            machine |= {
                "ends_with_optimizer": True,
                "compiled": self.is_compiled,
                "device_type": "cuda",
                "num_workers": 4,
            }
            return machine | {"world": self.world, "obstacles": self.obstacles, "forwards": 1, "inputs": []}
        if request["kind"] == "profile":
            self.fail(request["variant"])
            step = self.time_step(request["variant"])
            kernels = {kind: step * self.parts.get(kind, 0.0) for kind in KINDS}
            busy = sum(kernels.values())
            more = {"busy": busy, "matmul_fp32": 0.0, "unaligned": 0.0}
            phases = {"optimizer": step * self.parts.get("other", 0.0) / 3}
            shares = {"step_ns": step, "kernels": kernels | more, "phases": phases, "num_syncs": 0}
            shares |= {"issue": {"": MS}}
            return shares | {"num_alloc_retries": 0, "float32_matmul_precision": "highest", "room": self.room}
        if request["kind"] == "calls":
            raise VariantFailedError("calls cannot be recorded")
        variants = request["variants"]
        self.asked.append([tuple(each) for each in variants])
        for changes in variants:
            self.fail(changes)
        compiles = any(name.startswith(("compile", "cuda_graphs")) for name in variants[-1])
        self.pass_time(1.0 + (self.compile_s if compiles else 0.0), left_s)
        return {"rounds": [[self.time_step(each) for each in variants] for _ in range(request["rounds"])]}

    def start(self) -> float:
        self.starts_s = 5.0 + (0.0 if self.num_started else self.cold_s)
        self.num_started += 1
        return self.starts_s

    def trace(self, changes, left_s, by_module):
        self.traced.append((tuple(changes), by_module))
        self.fail(changes)

    def prepare_accumulation(self, facts):
        return self.accumulation

    def write(self, changes):
        return self.patch_digest if self.is_whole else ""

    def run(self, changes, left_s, is_bare=False):
        self.is_running, self.is_bare = False, is_bare
        self.num_run += 1
        if self.num_run == self.cut_off_at_run:
            raise KeyboardInterrupt
        self.fail(changes)
        self.pass_time(self.start(), left_s)
        made = self.note_run(changes, 1)
        self.is_bare = False
        return made

    def note_run(self, changes, num_turns):
        self.bare_runs += [tuple(changes)] if self.is_bare else []
        losses = [3.0, 2.0 + ((self.patch_loss if self.is_bare else self.losses) if changes else 0.0)]
        times = tuple(self.time_step(changes) for _ in range(num_turns))
        return VariantRun(times_ns=times, peak_bytes=10 - len(changes), losses=losses, num_losses_per_step=1.0)

    def take_turns(self, variants, plan, left_s, note):
        self.is_running, self.is_bare = False, plan.is_bare
        end = self.now + left_s
        self.plans.append(plan)
        for changes in variants:
            self.fail(changes)
        self.pass_time(self.start(), left_s)
        self.num_started += plan.num_each * len(variants) - 1
        if self.at_gate:
            raise self.at_gate
        rounds_s = plan.num_rounds * len(variants) * plan.num_each * max(plan.turn_s, 0.2)
        self.pass_time(rounds_s, end - self.now)
        made = [[self.note_run(changes, plan.num_rounds) for _ in range(plan.num_each)] for changes in variants]
        for number in range(1, plan.num_rounds + 1):
            cut = [[run.model_copy(update={"times_ns": run.times_ns[:number]}) for run in runs] for runs in made]
            note(cut)
            if number == self.cut_off_after:
                raise KeyboardInterrupt
        self.is_bare = False
        return made

    def end(self):
        self.is_running = False


@dataclass
class CpuLimitedScript(SimulatedScript):
    """A step takes 100 ms of the CPU, 20 in CUDA graphs; kernels take 60, less what changes save of them."""

    def time_step(self, changes) -> float:
        cpu = (20 if "cuda_graphs" in changes else 100) * MS * self.draw.lognormvariate(0, self.noise)
        return max(cpu, self.time_kernels(changes))

    def time_kernels(self, changes) -> float:
        kernels = 60 * MS
        for name in changes:
            kernels *= 1 - self.effects.get(name, 0.0)
        return kernels

    def ask(self, request, left_s):
        answer = super().ask(request, left_s)
        if request["kind"] == "profile":
            kernels = self.time_kernels(request["variant"])
            answer["kernels"] |= {
                "busy": kernels,
                "matmul": kernels / 2,
                "other": kernels / 2,
                "unaligned": kernels / 4,
            }
        return answer


def search(script: SimulatedScript, tuning: Tuning | None = None, minutes: float = 10.0, asked=None) -> Tuning:
    """Search with a simulated script, and return the result as it was saved last."""
    tuning = tuning or Tuning(name="train", command=("python",), budget_s=60 * minutes, asked=asked)
    saved: list[str] = []
    try:
        with patch.object(tune_processes, "count_cores", lambda: script.cores):
            Search(script, tuning, lambda now: saved.append(now.model_dump_json()), print, lambda: script.now).run()
    finally:
        script.last = Tuning.model_validate_json(saved[-1])
    return script.last


def list_ladder(tuning: Tuning) -> list[str]:
    return [step.change for step in tuning.ladder]


def outcomes(tuning: Tuning, name: str) -> list[Outcome]:
    return [tried.outcome for tried in tuning.tried if tried.change == name]
