"""The search of `tune`: measure the change that could save most, keep it if the script is measurably faster, and go on
with what that leaves, until nothing could save 1% or the time is over.

What can be switched between steps takes turns in one process, also what compiles, pads or keeps activations: its rounds
are paired, while fresh processes of one variant differ by more than many changes give. Processes alternate for what is
fixed at their start, and to confirm the winner: the script with its patch, and nothing that follows it.
"""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import reduce
from statistics import median
from typing import Any

from profiler_job.jobs.contract.changes import (
    BF16,
    CHANGES,
    COMPILE,
    COMPILE_BLOCKS,
    CUDA_GRAPHS,
    FEWER_ACCUMULATIONS,
    FOREACH,
    FUSED_ADAMW,
    FUSED_ATTENTION,
    KEEP_ACTIVATIONS,
    LABELS,
    LOADER_WORKERS,
    PADDING,
    TF32,
    TRIABLE,
    add_change,
)
from profiler_job.jobs.contract.paired_ratio import (
    FEWEST_PAIRS,
    SPREAD_OF_CPU,
    SPREAD_OF_GPU,
    compare_rounds,
    is_decided,
    is_faster,
)
from profiler_job.jobs.contract.quantities import format_time
from profiler_job.jobs.contract.ranges import DATA
from profiler_job.jobs.contract.tuning import (
    BaseStep,
    Confirmation,
    ExpectedRatio,
    LadderStep,
    Method,
    NoLossCode,
    Outcome,
    Place,
    Tried,
    TuneRatio,
    Tuning,
    VariantRun,
)
from profiler_job.jobs.executor.predicted_steps import StepParts
from profiler_job.jobs.executor.script import infer_batch
from profiler_job.jobs.executor.tune_bounds import COMPILING, LEAST_SAVING, bound_saving, find_precision
from profiler_job.jobs.executor.tune_confirmation import compare_steps, confirm_winner, does_idle
from profiler_job.jobs.executor.tune_expectations import expect, expect_of_code, measure_parts
from profiler_job.jobs.executor.tune_ladder import MOST_ROUNDS, measure_ladder
from profiler_job.jobs.executor.tune_processes import WARM, compare_pairs, count_most_pairs, estimate_s, measure_pairs
from profiler_job.jobs.executor.tune_traces import trace_ends
from profiler_job.jobs.executor.tuned_script import Engine, OverBudgetError, VariantFailedError

TURN_S = 0.15
FIRST_ROUNDS = 3
"""Rounds after which a clear difference is believed; the ladder is measured again as a whole."""
PAIRS_OF_PROCESSES = 2
"""Pairs of processes of a candidate if they run one after another."""
REMAKING = (COMPILE, COMPILE_BLOCKS, CUDA_GRAPHS, BF16, FUSED_ATTENTION)
"""Changes after which others, which were no faster, are measured again: they change what limits a step."""
MOST_TRIES = 2
COMPILE_S = 40.0
"""Time that must be left for a change that compiles."""
OTHER_S = 5.0
MARGIN = 1.2
"""How many times as long as estimated the last pair of processes may take."""
LONGEST_RESERVE = 0.45
"""Part of the budget that is kept for more than one pair of processes of the winner and of the script, at most."""
WEAKER_THAN = {
    TF32: (BF16,),
    FOREACH: (FUSED_ADAMW,),
    COMPILE: (COMPILE_BLOCKS, CUDA_GRAPHS),
    COMPILE_BLOCKS: (COMPILE, CUDA_GRAPHS),
}
"""Changes that would take the place of a kept one which does more."""
COVERED = "covered by {label}"
COMPILED_AGAIN = (BF16, TF32, FUSED_ATTENTION, PADDING, KEEP_ACTIVATIONS)
"""Changes of what a compiled model computes."""
MUCH = 0.02
"""Part of a step that such a change must be able to save to be measured before the model is compiled."""
LEAST_WAITS = 0.1
"""Part of a step that is spent on batches from which on workers of loaders may limit it."""
LEAST_HIDDEN = 0.03
"""Part of the kernel time that a change must save to go with what relieves the CPU, though the step is as long."""
SEEN = {Outcome.FAILED, Outcome.OUT_OF_MEMORY, Outcome.NOT_POSSIBLE, Outcome.KEPT, Outcome.BOUND}
"""Outcomes after which a candidate is not tried again."""


class Search:
    """A search that goes on where `tuning` is. save: receives it after each candidate. say: receives lines on it."""

    def __init__(
        self,
        engine: Engine,
        tuning: Tuning,
        save: Callable[[Tuning], None],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self.engine, self.tuning, self.save, self.say, self.clock = engine, tuning, save, say, clock
        self.began = clock()
        self.used_before_s = tuning.used_s
        self.deadline = self.began + tuning.budget_s
        self.draw = random.Random(tuning.seed)
        self.facts: dict[str, Any] = {}
        self.shares: dict[str, Any] = {}  # of the variant that is fastest until now
        self.compiled_s = 0.0  # the longest that a change took to compile
        self.parts: StepParts | None = None
        self.expected: dict[str, ExpectedRatio] = {}
        self.runs: dict[tuple[str, ...], Sequence[VariantRun]] = {}
        self.hidden: tuple[str, ...] = ()  # changes that save kernel time, while the CPU limits the step
        self.is_by_processes = False

    # -------------------------------------------------------------------------------------------------- the whole

    def run(self) -> None:
        """Search until the end, and leave the result. Raises VariantFailedError if the script itself fails."""
        self.tuning.is_complete = False
        self.tuning.tried = [tried for tried in self.tuning.tried if tried.outcome is not Outcome.NOT_REACHED]
        try:
            try:
                self.begin()
                is_whole = self.climb()
                expect_of_code(self)
                measure_ladder(self)
                trace_ends(self)
            finally:
                self.engine.end()
                self.parts = None  # to measure more of them, the script would have to start again
            is_whole &= self.try_processes()
            confirm_winner(self)
            compare_steps(self)
            pairs = self.tuning.find_pairs()
            is_left = any(step.losses.reason is NoLossCode.NOT_MEASURED for step in self.tuning.ladder)
            self.tuning.is_complete = is_whole and not is_left and not (pairs and pairs.is_cut_off)
        except OverBudgetError:
            pass
        finally:
            self.note_not_reached()
            self.update()

    @property
    def left_s(self) -> float:
        return self.deadline - self.clock()

    @property
    def reserve_s(self) -> float:
        """Time that is kept for processes of the winner and of the script without changes."""
        most = count_most_pairs(self)
        wanted_s = min(estimate_s(self, most), LONGEST_RESERVE * self.tuning.budget_s)
        return max(wanted_s, MARGIN * estimate_s(self, min(1, most)))

    @property
    def compiles_s(self) -> float:
        """Time that a process of the variant that is fastest until now compiles, with a cache."""
        return WARM * self.compiled_s if self.is_compiled else 0.0

    def allow_s(self, name: str) -> float:
        """Return the time that a candidate may take: if it compiles, its process at the end does so again. What is only
        a bound leaves time for candidates that need processes and may be kept."""
        left_s = self.left_s - self.reserve_s
        if CHANGES[name].is_bound:
            left_s -= MARGIN * self.count_for_processes() * estimate_s(self, count_most_pairs(self))
        return (left_s + self.compiles_s) / (1 + WARM) if self.does_compile(name) else left_s

    @property
    def room(self) -> int:
        """How many processes of the script the machine has room for: none of several ranks, which share a port."""
        return 0 if self.is_by_processes else int(self.shares.get("room", 0))

    @property
    def waits_for_batches(self) -> bool:
        """Whether steps may wait for batches that workers of a loader fetch."""
        waits = self.shares["phases"].get(DATA, 0.0) >= LEAST_WAITS * self.shares["step_ns"]
        return waits or LOADER_WORKERS in self.current

    @property
    def starts_s(self) -> float:
        """Time that the next process takes to its first request: it finds in a cache what the first one read from a
        disk, and what the script compiles itself."""
        return self.engine.starts_s * (WARM if self.engine.num_started < 2 else 1.0)

    @property
    def current(self) -> tuple[str, ...]:
        return self.tuning.ladder[-1].changes if self.tuning.ladder else ()

    @property
    def is_compiled(self) -> bool:
        """Whether the variant that is fastest until now is compiled, by the script or by a change."""
        return self.facts.get("compiled", False) or any(name in COMPILING for name in self.current)

    @property
    def candidates(self) -> tuple[str, ...]:
        return TRIABLE if self.tuning.asked is None else self.tuning.asked

    def update(self) -> None:
        self.tuning.used_s = round(self.used_before_s + self.clock() - self.began, 1)
        self.save(self.tuning)

    def ask(self, kind: str, left_s: float | None = None, **request: Any) -> Any:
        """Ask the process in which variants take turns. One that has just taken all its steps is started once more, if
        there is time for it. left_s: for all of it, else what is left."""
        end = self.deadline if left_s is None else self.clock() + left_s
        try:
            return self.engine.ask({"kind": kind} | request, end - self.clock())
        except VariantFailedError as error:
            if not error.is_short:
                raise
            if end - self.clock() < self.starts_s:
                raise OverBudgetError("too little time was left to start the script again") from None
            return self.engine.ask({"kind": kind} | request, end - self.clock())

    # ------------------------------------------------------------------------------------------------- the script

    def begin(self) -> None:
        """Learn about the script: its model, and which changes it cannot be given."""
        self.facts = self.ask("describe")
        self.is_by_processes = self.facts["world"] > 1
        if other := self.tuning.list_other(gpu_name=self.facts["gpu_name"], torch=self.facts["torch"]):
            self.say(f"what was measured before is of another machine: {', '.join(other)}; the search begins anew")
            self.tuning.begin_anew()
            self.used_before_s = 0.0
        self.tuning.gpu_name, self.tuning.torch = self.facts["gpu_name"], self.facts["torch"]
        self.tuning.device_type, self.tuning.num_workers = self.facts["device_type"], self.facts["num_workers"]
        self.tuning.places = [Place(**place) for place in self.facts["places"]]
        if FEWER_ACCUMULATIONS in self.candidates:
            prepared = self.engine.prepare_accumulation(self.facts)
            self.tuning.accumulation = None if isinstance(prepared, str) else prepared
            self.facts["obstacles"] |= {FEWER_ACCUMULATIONS: prepared} if isinstance(prepared, str) else {}
        for name, reason in self.facts["obstacles"].items():
            if name in self.candidates and not self.list_tried(name):
                self.tuning.tried.append(Tried(change=name, outcome=Outcome.NOT_POSSIBLE, message=reason))
        self.look()
        measure_parts(self)
        if self.tuning.base is None:
            self.tuning.base = self.describe_base()
            self.say(f"without changes: {format_time(self.tuning.base.step_ns)} a step")
        self.update()

    def look(self, left_s: float | None = None) -> None:
        """Learn what limits the variant that is fastest until now. left_s: as of `ask`."""
        if self.is_by_processes:
            run = self.engine.run(self.current, self.left_s)
            self.shares = {"step_ns": run.step_ns, "kernels": None, "phases": {}}
        else:
            self.shares = self.ask("profile", left_s, variant=list(self.current))

    def describe_base(self) -> BaseStep:
        noted = {"inputs": self.facts.get("inputs", []), "forwards": self.facts["forwards"], "steps": []}
        sequences, tokens = infer_batch(noted)
        per_token = self.facts.get("flops_per_token") or 0.0
        return BaseStep(
            step_ns=self.shares["step_ns"],
            tokens_per_step=tokens or None,
            sequences_per_step=sequences or None,
            flops=per_token * tokens or None,
            precision=self.find_precision(()),
            kernels=self.shares["kernels"],
            num_parameters=self.facts.get("num_parameters"),
            is_compiled=self.facts.get("compiled", False),
            keeps_gradients=self.facts.get("keeps_gradients", False),
        )

    def find_precision(self, changes: tuple[str, ...]) -> str:
        before = self.tuning.base.precision if self.tuning.base else ""
        if changes and not {BF16, TF32}.intersection(changes):
            return before
        known = self.facts.get("autocast", ""), self.facts.get("parameter_dtypes", {})
        return find_precision(self.facts, changes, *known)

    # ------------------------------------------------------------------------------------------------- the search

    def climb(self) -> bool:
        """Measure one candidate after the other, and keep what is faster. Return whether none is left out."""
        while True:
            bounds = self.bound_candidates()
            fitting = [(name, saving) for name, saving in bounds if self.estimate_s(name) <= self.allow_s(name)]
            if not fitting:
                return not bounds
            try:
                self.measure(*fitting[0])
            except OverBudgetError:
                return False
            finally:
                self.update()

    def bound_candidates(self) -> list[tuple[str, float | None]]:
        """Return the candidates that are worth a measurement, and what each could save; what could save most in a
        second of the search comes first. What could save much in the model itself comes before what compiles it: each
        change of a compiled model compiles it again. What is only a bound comes last."""
        worthwhile: list[tuple[str, float | None]] = []
        for name in self.candidates:
            if CHANGES[name].needs_process or not self.is_open(name):
                continue
            saving = self.bound(name)
            if saving is not None and saving < LEAST_SAVING:
                self.skip(name, saving)
                continue
            worthwhile.append((name, saving))

        def rank(candidate: tuple[str, float | None]) -> tuple[bool, bool, float]:
            name, saving = candidate
            is_first = name in COMPILED_AGAIN and not self.is_compiled and (saving is None or saving >= MUCH)
            if expected := expect(self, name):
                saving = 1 - 1 / expected.times_as_fast
            return CHANGES[name].is_bound, not is_first, -(saving or 0.0) / self.estimate_s(name)

        return sorted(worthwhile, key=rank)

    def count_for_processes(self) -> int:
        """Count the candidates that need a process from its start and are worth a measurement."""
        open_ones = (name for name in self.candidates if CHANGES[name].needs_process and self.is_open(name))
        savings = [self.bound(name) for name in open_ones]
        return sum(saving is None or saving >= LEAST_SAVING for saving in savings)

    def bound(self, name: str) -> float | None:
        """Return the part of a step that a change could save at most; None if it is not known."""
        if self.is_by_processes:
            return None
        if expected := expect(self, name):
            return max(0.0, 1 - 1 / expected.high)
        precision = self.find_precision(self.current)
        return bound_saving(name, self.shares, self.current, precision, is_compiled=self.is_compiled)

    def list_tried(self, name: str) -> list[Tried]:
        return [tried for tried in self.tuning.tried if tried.change == name]

    def is_open(self, name: str) -> bool:
        """Return whether a candidate is to be measured, or measured again after a change that remade the script."""
        tried = self.list_tried(name)
        if name in self.current or any(each.outcome in SEEN for each in tried):
            return False
        if self.find_stronger(name):
            return False
        measured = [each for each in tried if each.outcome is Outcome.NOT_FASTER]
        if len(measured) >= MOST_TRIES:
            return False
        newer = set(self.current) - set(measured[-1].on_top_of) if measured else set(REMAKING)
        return bool(newer.intersection(REMAKING))

    def find_stronger(self, name: str) -> str | None:
        """Return the kept change that does more than a candidate, which would take its place; None if there is none."""
        return next((stronger for stronger in WEAKER_THAN.get(name, ()) if stronger in self.current), None)

    def skip(self, name: str, saving: float) -> None:
        """Note that a candidate could save too little on top of the changes until now."""
        known = [each for each in self.list_tried(name) if each.outcome is Outcome.SKIPPED_BELOW_1_PERCENT]
        if known:
            known[0].on_top_of, known[0].could_save = self.current, saving
        elif not self.list_tried(name):
            self.tuning.tried.append(
                Tried(
                    change=name,
                    on_top_of=self.current,
                    outcome=Outcome.SKIPPED_BELOW_1_PERCENT,
                    could_save=saving,
                )
            )

    def estimate_s(self, name: str) -> float:
        """Estimate how long a measurement takes."""
        return max(COMPILE_S, self.compiled_s) if self.does_compile(name) else OTHER_S

    def does_compile(self, name: str) -> bool:
        """Return whether a change compiles: what changes a compiled model compiles it again."""
        return name in COMPILING or (self.is_compiled and name in COMPILED_AGAIN)

    def measure(self, name: str, could_save: float | None) -> None:
        """Measure a candidate on top of the changes that were kept, and keep it if it is faster."""
        began, before, compiles = self.clock(), self.current, self.does_compile(name)
        end = began + self.allow_s(name)
        hidden = self.hidden if name in COMPILING else ()
        after = reduce(add_change, (*hidden, name), before)
        tried = Tried(
            change=name,
            on_top_of=before,
            outcome=Outcome.NOT_REACHED,
            could_save=could_save,
            expected=None if hidden else expect(self, name),
        )
        self.tuning.tried = [
            each
            for each in self.tuning.tried
            if not (each.change == name and each.outcome is Outcome.SKIPPED_BELOW_1_PERCENT)
        ]
        bound = "" if could_save is None else f", which could save up to {could_save:.0%}"
        with_them = f" with {' and '.join(LABELS[each] for each in hidden)}" if hidden else ""
        self.say(f"measuring {LABELS[name]}{with_them}{bound}")
        try:
            by_processes = self.is_by_processes or CHANGES[name].needs_process
            tried.method = Method.PROCESSES if by_processes else Method.TURNS
            times = self.pair_processes(before, after) if by_processes else self.pair_turns(before, after, end)
            tried.ratio, tried.step_ns, tried.peak_bytes = times
            tried.outcome = self.judge(name, tried.ratio)
            if tried.outcome is Outcome.NOT_FASTER and self.is_cpu_limited and not by_processes:
                self.note_hidden(tried, after)
        except VariantFailedError as error:
            if hidden:  # it may be one of these that fails
                self.hidden = ()
                return self.measure(name, could_save)
            tried.outcome = Outcome.OUT_OF_MEMORY if error.is_oom else Outcome.FAILED
            tried.message = str(error)
        except OverBudgetError:
            tried.message = "the time was over while it was measured"
            self.tuning.tried.append(tried)
            raise
        finally:
            tried.seconds = round(self.clock() - began, 1)
            if compiles:
                self.compiled_s = max(self.compiled_s, tried.seconds)
        self.tuning.tried.append(tried)
        self.say(format_tried(tried))
        if tried.outcome is Outcome.KEPT:
            self.keep(tried, after)

    def note_hidden(self, tried: Tried, after: tuple[str, ...]) -> None:
        """Note a change that saves kernel time which the CPU hides: it is measured again with what relieves the CPU, in
        one compilation."""
        if tried.change in COMPILING or self.is_compiled:
            return
        try:
            kernels = self.ask("profile", self.left_s - self.reserve_s, variant=list(after))["kernels"]
        except OverBudgetError:
            return
        before_ns = self.shares["kernels"]["busy"]
        saved = 1 - kernels["busy"] / before_ns if kernels and before_ns else 0.0
        if saved >= LEAST_HIDDEN:
            self.hidden = add_change(self.hidden, tried.change)
            tried.message = f"it saves {saved:.0%} of the kernel time, but the GPU waits for the CPU"

    def judge(self, name: str, ratio: TuneRatio) -> Outcome:
        if CHANGES[name].is_bound:
            return Outcome.BOUND
        return Outcome.KEPT if is_faster(ratio) else Outcome.NOT_FASTER

    def keep(self, tried: Tried, changes: tuple[str, ...]) -> None:
        assert tried.ratio is not None and tried.step_ns is not None and tried.method is not None
        is_first = not self.tuning.ladder
        self.tuning.confirmation = Confirmation()  # of a search before, it is of another winner
        for name in {*changes} - {tried.change, *self.current}:
            self.list_tried(name)[-1].outcome = Outcome.KEPT
        self.tuning.ladder.append(
            LadderStep(
                change=tried.change,
                changes=changes,
                method=tried.method,
                step_ns=tried.step_ns,
                ratio_before=tried.ratio,
                ratio_base=tried.ratio if is_first else None,
                precision=self.find_precision(changes),
                peak_bytes=tried.peak_bytes,
            )
        )
        self.update()
        if not CHANGES[tried.change].needs_process:
            with suppress(VariantFailedError):  # then what limits it is as it was
                self.look(self.left_s - self.reserve_s)
                self.tuning.ladder[-1].kernels = self.shares["kernels"]

    # ------------------------------------------------------------------------------------------------- measuring

    def pair_turns(self, before: tuple[str, ...], after: tuple[str, ...], end: float) -> tuple[TuneRatio, float, None]:
        """Let two variants take turns until it is decided which is faster. Return the ratio and the step of the second
        in ns. end: time on the clock at which they have to be done."""
        rounds: list[list[float]] = []
        while True:
            rounds += self.take_turns([before, after], FIRST_ROUNDS, end - self.clock())
            ratio = compare_rounds([times[0] for times in rounds], [times[1] for times in rounds], spread=self.spread)
            if len(rounds) < FEWEST_PAIRS and not is_faster(ratio):
                continue
            if is_decided(ratio) or len(rounds) >= MOST_ROUNDS:
                self.note_base(before, [times[0] for times in rounds])
                return ratio, median(times[1] for times in rounds), None

    def note_base(self, before: tuple[str, ...], times: Sequence[float]) -> None:
        """Take the step of the script without changes (ns) from the rounds of a candidate, if it took part in them."""
        if not before and self.tuning.base is not None:
            self.tuning.base.step_ns = median(times)

    def take_turns(self, variants: Sequence[tuple[str, ...]], num_rounds: int, left_s: float) -> list[list[float]]:
        seed = self.draw.randrange(2**31)
        request = {"variants": [list(each) for each in variants], "rounds": num_rounds, "turn_s": TURN_S, "seed": seed}
        rounds: list[list[float]] = self.ask("rounds", left_s, **request)["rounds"]
        return rounds

    def pair_processes(self, before: tuple[str, ...], after: tuple[str, ...]) -> tuple[TuneRatio, float, int | None]:
        """Measure two variants in processes of their own. Return the ratio, the step of the second in ns, and its peak
        of memory."""
        pairs = measure_pairs(self, before, after, PAIRS_OF_PROCESSES, self.reserve_s, stops_if_slower=True)
        self.note_base(before, [run.step_ns for run in pairs.before])
        peak = max(run.peak_bytes for run in pairs.after)
        return compare_pairs(pairs, self.spread), median(run.step_ns for run in pairs.after), peak or None

    @property
    def is_cpu_limited(self) -> bool:
        """Whether the GPU waits for the CPU in the variant that is fastest until now."""
        return does_idle(self.shares.get("kernels"), self.shares["step_ns"])

    @property
    def do_processes_decide(self) -> bool:
        """Whether processes of their own are the result: the CPU limits the winner, or the script without changes."""
        base = self.tuning.base
        return self.is_cpu_limited or (base is not None and does_idle(base.kernels, base.step_ns))

    @property
    def spread(self) -> float:
        """By how much fresh processes of one variant differ."""
        return SPREAD_OF_GPU if self.shares.get("kernels") and not self.is_cpu_limited else SPREAD_OF_CPU

    def try_processes(self) -> bool:
        """Measure what needs a process from its start. Return whether nothing was left out."""
        for name in self.candidates:
            if not CHANGES[name].needs_process or not self.is_open(name):
                continue
            saving = self.bound(name)
            if saving is not None and saving < LEAST_SAVING:
                self.skip(name, saving)
                continue
            if self.left_s < estimate_s(self, count_most_pairs(self)) + self.reserve_s:
                return False
            try:
                self.measure(name, saving)
            except OverBudgetError:
                return False
            finally:
                self.update()
        return True

    def note_not_reached(self) -> None:
        """Note the candidates for which no time was left."""
        for name in self.candidates:
            if not self.list_tried(name):
                outcome = Outcome.NOT_REACHED
                saving = self.bound(name) if self.shares else None
                stronger = self.find_stronger(name)
                saving = 0.0 if stronger else saving
                if saving is not None and saving < LEAST_SAVING:
                    outcome = Outcome.SKIPPED_BELOW_1_PERCENT
                tried = Tried(change=name, on_top_of=self.current, outcome=outcome, could_save=saving)
                tried.message = COVERED.format(label=LABELS[stronger]) if stronger else ""
                self.tuning.tried.append(tried)


def format_tried(tried: Tried) -> str:
    """Return one line on a candidate, without the time of its step, which differs from one moment to another."""
    label = LABELS[tried.change]
    if tried.ratio is None:
        return f"{label}: {tried.outcome.value.replace('_', ' ')}: {tried.message}"
    ratio = tried.ratio
    return (
        f"{label}: {tried.outcome.value.replace('_', ' ')}, {ratio.times_as_fast:.2f} times as fast "
        f"[{ratio.low:.2f}, {ratio.high:.2f}]"
    )
