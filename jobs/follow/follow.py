"""Follow a training script from inside, without changes to the script.

A step ends when the script's optimizer has stepped; in a script without one, when a backward pass has ended; without
these, when its model has been called. An optimizer that is made and does not step may step later, so such a script is
followed to its end, and its loops are noted (see `loops`).

The steps have stages (`Stage`): some are skipped; some are timed without a profiler; nsys captures some with a range
for each phase; and nsys captures some more with a range for each module. These last steps are slower and serve only to
find which module launches which kernel. Then the script is stopped, or goes on alone. Without nsys, CUDA events time
the same phases and modules (see `event_ranges`), or torch.profiler captures the steps (see `trace_ranges`).

Phases are opened around what PyTorch itself offers: `next` of a DataLoader, calls of the outermost module,
`torch.autograd.backward`, clipping, `zero_grad` and `step` of an optimizer, a gradient scaler. What the script computes
stays the same to the bit: nothing is cast, copied or reordered, and no random number is drawn, unless the plan has
changes for it (see `apply_changes`).

Each rank of a script follows itself; all enter and leave the captured steps together (see `script_ranks`).

Imported inside the script (see `sitecustomize`). It needs torch and the other files of this folder.
"""

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from time import monotonic, perf_counter_ns
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.utils.data import get_worker_info

from .apply_changes import Changes
from .call_watch import CallWatch
from .compiled_functions import CompiledFunctions
from .compiled_graphs import CompiledGraphs
from .ending_optimizer import EndingOptimizer, is_in_graph, list_parameters
from .entries import CALLED, Entries
from .event_ranges import EventRanges
from .generation import DECODE, LONGEST_WAIT, PREFILL, Generation
from .host_waits import HostWaits
from .loops import FEWEST, MOST_BATCHES, CallCounts
from .losses import Losses
from .model_calls import StepCalls, is_checkpointed
from .module_ranges import ModuleRanges, list_tensors
from .nsys_capture import NsysCapture
from .plan import Plan, Stage
from .script_facts import describe_parameters, make_facts, read_machine
from .script_graphs import ScriptGraphs
from .script_ranks import FollowError, Ranks
from .step_clock import StepClock
from .step_memory import COMPILED, StepMemory
from .trace_ranges import TraceRanges
from .wrapping import call_plainly, replace_closure

LOOK_ON_S = 10.0
"""How long a script goes on after a loop of forward passes was measured, in case a loop with backward follows."""

MIXED = "mixed"
"""In place of a stage: the script has loops of several kinds, and its steps are only counted."""


class Follower:
    """State of a script that is followed, and what was noted of it so far."""

    def __init__(self, plan: Plan, ranges: ModuleRanges, events: EventRanges | None = None):
        self.plan, self.ranges, self.events = plan, ranges, events
        self.capture: NsysCapture | TraceRanges = NsysCapture()
        self.changes, self.waits = Changes(plan.changes), HostWaits(plan, ranges)
        self.losses = Losses(copies=plan.times_only)
        self.ranks = Ranks(Path(plan.out))
        self.process = os.getpid()  # what forks from it, such as the workers of a DataLoader, is not followed
        self.stage = Stage.SKIPPED
        self.num_steps = 0  # in this stage
        self.ending = EndingOptimizer(plan.skip)
        self.has_optimizer = plan.step == "optimizer"
        self.has_compiled, self.captures = False, ScriptGraphs(self)
        self.graphs, self.functions = CompiledGraphs(lambda: self.update is not None), CompiledFunctions(self)
        self.counts, self.generation = CallCounts(), Generation()
        self.is_counting = plan.step == "auto"  # calls and backward passes, until an optimizer steps
        self.kind = "backward" if plan.step == "backward" else "forward"  # of a step without an optimizer
        self.waiting: Stage | None = None  # the stage that begins with the next prefill
        self.num_waited = self.num_updates = self.opened_at = 0
        self.phases: list[str] = []  # open, outermost first; of these only the last has a range
        self.depth = self.in_backward = 0  # of module calls on this thread, and of backward passes
        self.clock = StepClock(has_begun=False)
        self.update: Any = None  # the ranges of parameters while an optimizer steps
        self.facts, self.memory = make_facts(), StepMemory(ranges)
        self.calls, self.entries = StepCalls(), Entries(self.enter_model)
        self.optimized = set[int]()  # ids of parameters that optimizers changed
        self.made_autocast = ""  # type of the last one that the script made, not of those that are off
        self.watch = CallWatch(self.call)
        self.has_ended = False  # and raised SystemExit, which a script may catch
        self.models: WeakSet[nn.Module] = WeakSet()  # what the script itself calls, where its calls end steps
        self.hooks, self.kinds = list[Any](), list[tuple[str, int]]()  # of timed steps of generation: kind and tokens
        self.is_last = False  # the last followed step
        self.looks_on_until = 0.0  # on the clock of time.monotonic, for loops of another kind

    # -------------------------------------------------------------------------------------------------- steps

    def end_step(self) -> None:
        """A step of the script has ended."""
        if self.captures.note_end():
            return
        if get_worker_info() is not None:  # a spawned worker of a DataLoader, whose transforms may be modules
            self.begin(Stage.DONE)
            self.watch.end()
            return
        try:
            self.advance()
        except FollowError as error:
            self.refuse(error)

    def refuse(self, error: FollowError) -> None:
        """End the script, which cannot be followed."""
        self.begin(Stage.DONE)
        self.facts["refused"] = str(error)
        self.write()
        raise SystemExit(1) from None

    def advance(self) -> None:
        """Advance to the next step, which may be of another stage."""
        self.note_caught_end()
        self.facts["seen"] += 1
        self.num_steps += 1
        if self.facts["seen"] == 1:
            self.note_progress("skipped")
        if self.looks_on_until and monotonic() > self.looks_on_until:
            self.end_script()
        if self.stage is Stage.TIMED and self.waiting is None:
            self.clock.note_end()
            self.kinds.append(self.kind_of_step)
        if self.waiting is not None:
            self.num_waited += 1
            if self.num_waited >= LONGEST_WAIT:
                self.enter(self.waiting)
        elif self.stage is Stage.SKIPPED:
            if self.num_steps >= self.plan.skip:
                self.enter_next(Stage.TIMED)
        elif self.stage is Stage.TIMED:
            if self.num_steps == self.plan.steps:
                self.enter_next(Stage.CAPTURED)
        elif self.stage is Stage.CAPTURED:
            self.close_range("captured_ns")
            self.facts["captured_kinds"].append(self.kind_of_step)
            if self.num_steps == self.plan.steps:
                self.enter_next(Stage.FOLLOWED) if self.plan.followed else self.finish()
            else:
                self.open_range()
        elif self.stage is Stage.FOLLOWED:
            self.close_range("followed_ns")
            self.finish() if self.num_steps == self.plan.followed else self.open_range()

    def enter_next(self, stage: Stage) -> None:
        """Enter a stage; of the last `prefills` stages each begins with a prefill, where the script generates text."""
        is_waiting = self.plan.prefills > Stage.FOLLOWED.value - stage.value
        if is_waiting and self.generation.kind and self.plan.step == "auto" and self.ends_with_forward():
            if stage is Stage.CAPTURED:
                self.note_times()
                self.watch_calls()
            self.waiting, self.num_waited = stage, 0
        else:
            self.enter(stage)

    def enter(self, stage: Stage) -> None:
        """Enter a stage at the end of a step, or right before a prefill."""
        self.waiting = None
        if stage is Stage.TIMED:
            if not self.ranks.join():
                self.begin(Stage.DONE)
                self.watch.end()
                return
            self.begin(stage)
            self.synchronize()
            self.clock, self.kinds = StepClock(), []
            return
        if stage is Stage.CAPTURED:
            if self.stage is Stage.TIMED and not self.facts["steps"]:
                self.note_times()
            self.begin(stage)
            self.watch_calls()
            self.begin_capture()
        else:
            self.begin(stage)
        self.open_range()

    def begin(self, stage: Stage) -> None:
        self.stage, self.num_steps = stage, 0
        self.memory.end()
        self.waits.begin(stage)
        self.graphs.is_measured = stage not in (Stage.SKIPPED, Stage.DONE)
        self.functions.use_ranges(stage.is_captured or self.captures.is_capturing)
        self.graphs.calls.use(self.ranges if stage is Stage.FOLLOWED and self.events is None else None)
        self.facts["stage"] = stage.name.lower()
        self.entries.begin(stage)
        self.note_progress(self.facts["stage"])
        if stage is Stage.TIMED:
            is_without_hooks = self.watch.refuses_hooks(self.models)
            if not (is_without_hooks and self.ends_with_forward()):
                self.watch.end()  # each call of a module would be slower by a microsecond or two
            self.changes.settle()
            if not is_without_hooks and self.ends_with_forward():
                for model in self.models:
                    self.hooks.append(model.register_forward_pre_hook(self.before_call, with_kwargs=True))
                    self.hooks.append(model.register_forward_hook(self.after_call, always_call=True))

    def note_progress(self, what: str) -> None:
        """Note how far the script is, for `profile` to print."""
        if self.ranks.rank == self.ranks.first and self.process == os.getpid():
            self.ranks.write_progress(what)

    def note_times(self) -> None:
        """Note how long the timed steps took, and write it."""
        self.synchronize()
        self.facts["timed_ns"], times = self.clock.list_steps()
        self.facts["steps"] = [
            {**step, "kind": kind, "tokens": num_tokens} for step, (kind, num_tokens) in zip(times, self.kinds)
        ]
        self.write(is_last=False)

    def begin_capture(self) -> None:
        """Have nsys capture all ranks: the first to ask begins it, and the first to end it ends it for all."""
        self.ranks.meet("before the capture")
        (self.events or self.capture).begin()
        self.ranks.meet("in the capture")
        if self.ranks.world > 1:  # a capture numbers processes by the system's ids
            self.ranges.push(f"modules:rank {self.ranks.rank} of {self.ranks.world}")
            self.ranges.pop()

    def end_capture(self) -> None:
        self.synchronize()
        self.ranks.meet("at the end of the capture")
        if self.events is not None:
            self.facts |= self.events.list_facts(self.plan.steps, self.plan.followed)
        else:
            self.capture.end(self.ranks.folder / f"{self.ranks.rank}.trace.json.gz")
        self.ranks.meet("after the capture")

    def open_range(self) -> None:
        if self.stage is Stage.FOLLOWED:
            self.ranges.forget()
            self.is_last = self.num_steps == self.plan.followed - 1
            reason = COMPILED if self.has_compiled else "the script goes on" if self.plan.goes_on else ""
            self.memory.begin(self.is_last, reason, list(self.ending.known))
        if self.captures.step_graph is None:
            self.calls.forget()
        self.opened_at = perf_counter_ns()
        if self.events is not None:
            self.events.open_step(self.num_steps + (self.plan.steps if self.stage is Stage.FOLLOWED else 0))
        else:
            self.capture.open_step("modules:step" if self.stage is Stage.FOLLOWED else "step")

    def close_range(self, kind: str) -> None:
        """End the range of a step, and note how long the host took for it."""
        self.facts[kind].append(perf_counter_ns() - self.opened_at)
        self.memory.end()
        if self.is_last and self.events is None:
            self.graphs.write(self.ranges.push, self.ranges.pop, self.ranges.known_paths, passes=self.ranges.passes)
            self.captures.write(self.ranges.push, self.ranges.pop)
        (self.events or self.capture).close_step()
        is_captured, is_replayed = self.stage is Stage.CAPTURED, self.captures.step_graph is not None
        self.facts |= self.calls.end_step(self.made_autocast, is_captured, is_replayed, self.ending.list_held())

    def finish(self) -> None:
        self.end_capture()
        self.begin(Stage.DONE)
        self.functions.forget()
        self.watch.end()
        self.facts |= self.memory.list_facts()
        self.write()
        self.ranks.leave()
        if self.plan.goes_on:
            return
        if self.is_counting and self.ends_with_forward() and not self.generation.has_decoded:
            self.watch_calls()  # a loop of forward and backward may follow one of forward alone
            self.looks_on_until = monotonic() + LOOK_ON_S
        else:
            self.end_script()

    def end_script(self) -> None:
        self.looks_on_until = 0.0
        self.has_ended = True
        self.say(f"{self.facts['seen']} steps were followed, the script ends here")
        raise SystemExit(0)

    def note_caught_end(self) -> None:
        if self.has_ended:
            self.has_ended = False
            self.say("the script caught SystemExit, by which it was to end: it goes on alone")

    @property
    def kind_of_step(self) -> tuple[str, int]:
        """Return what a step of generation was, and its tokens. A rollout is not a step where an optimizer ends it."""
        return ("", 0) if self.optimized else (self.generation.kind, self.generation.num_tokens)

    @property
    def num_needed(self) -> int:
        return self.plan.skip + 2 * self.plan.steps + self.plan.followed

    def give_up(self) -> None:
        """Measure nothing more: a loop of another kind has begun in the measured steps. Its steps are counted."""
        self.waiting = None
        if self.stage.is_captured and self.events is None:
            self.capture.end(None)
        self.begin(Stage.DONE)
        self.facts["stage"] = MIXED
        self.watch_calls()

    def say(self, text: str) -> None:
        """Print a line among the lines of the script, once for all ranks."""
        if self.ranks.rank == self.ranks.first:
            print(f"profiler-job: {text}", file=sys.stderr)

    def synchronize(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def ends_with_forward(self) -> bool:
        return self.plan.step == "forward" or self.ends_without_optimizer("forward")

    def ends_without_optimizer(self, kind: str) -> bool:
        """Return whether a step ends with a call or a backward pass (`kind`), as far as the script shows until now."""
        return self.kind == kind and self.plan.step == "auto" and not self.has_optimizer

    # -------------------------------------------------------------------------------------------------- phases

    @property
    def follows_modules(self) -> bool:
        return self.stage is Stage.FOLLOWED or self.captures.is_capturing

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A phase, with a range while nsys captures. One inside another counts as the other."""
        self.entries.note_phase(name)
        is_measured = self.stage.is_captured and self.waiting is None
        if not (is_measured or self.captures.is_capturing) or self.phases or self.process != os.getpid():
            yield
            return
        self.phases.append(name)
        is_named = self.events is None and name in (PREFILL, DECODE)  # of a range of the script, it is forward
        path = "" if name in CALLED else None
        plain = self.ranges.opened(f"generation: {name}" if is_named else name)
        try:
            with self.memory.phase(name), self.ranges.outermost(name, path) if self.follows_modules else plain:
                yield
        finally:
            self.phases.pop()

    # --------------------------------------------------------------------------------------- what PyTorch calls

    def watch_calls(self) -> None:
        """Have `call` see every call of a module from now on."""
        while self.hooks:
            self.hooks.pop().remove()
        self.watch.begin()

    def call(
        self, called: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        if self.process != os.getpid():
            return called(module, *args, **options)
        run = functools.partial(self.ranges.call, called) if self.follows_modules else call_plainly(called)
        if self.depth or self.in_backward:
            self.calls.note_part(module, args, options)
            return run(module, args, options)
        self.entries.note_call(module)
        self.depth += 1
        is_loss = isinstance(module, nn.modules.loss._Loss)
        try:
            if not is_loss:
                self.note_generation(args, options)
                if self.captures.is_capturing or self.stage.is_captured:
                    self.calls.begin(module, args, options)
                    self.memory.note_model(module)
            with self.phase("loss" if is_loss else self.name_call(nn.Module.parameters(module))):
                returned = run(module, args, options)
            if not self.graphs.backward.calls:  # a hook would be a part of what compiled autograd compiles
                self.calls.note_returned(returned)
        finally:
            self.depth -= 1
            self.calls.end()
        if is_loss:
            return returned
        if self.is_counting and not self.captures.is_capturing:
            self.counts.note_call()
        if self.ends_with_forward():
            self.models.add(module)
            self.end_step()
        return returned

    def note_generation(self, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Note what a call that ends a step may generate. A prefill begins the stage that waits for one."""
        self.generation.note_call(args, options)
        if self.waiting is not None and self.generation.kind == PREFILL:
            self.enter(self.waiting)

    def name_call(self, parameters: Iterable[Any]) -> str:
        """Return the phase of a call of a model by the script."""
        has_gradients = torch.is_grad_enabled() and self.entries.has_gradients
        if self.generation.kind and not (has_gradients and self.optimized):
            return self.generation.kind
        if has_gradients or not self.optimized:
            return "forward"
        if not any(id(each) in self.optimized for each in parameters) or is_checkpointed():
            return "forward"
        if self.stage is Stage.CAPTURED:
            self.facts["evaluations"] += 1
        return "evaluation"

    def before_call(self, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """The script, or another of its models, calls one of its models while steps are timed."""
        if not self.depth and self.process == os.getpid():
            self.note_generation(args, options)
        self.depth += 1

    def after_call(self, module: nn.Module, args: tuple[Any, ...], returned: Any) -> None:
        """A model has been called, which ends a step where it returns to the script."""
        self.depth -= 1
        if not self.depth and returned is not None and self.process == os.getpid():
            if self.is_counting:
                self.counts.note_call()
            self.end_step()

    def enter_model(
        self, called: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """Call a model by one of its methods."""
        if self.depth or self.in_backward:
            return called(module, *args, **options)
        return self.call(called, module, args, options)

    def scaler_step(self, called: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Step of a gradient scaler, which leaves out the optimizer's if gradients are not finite."""
        num_updates = self.num_updates
        returned = called(*args, **options)
        self.facts["skipped_updates"] += self.num_updates == num_updates and self.stage is not Stage.DONE
        return returned

    def make_autocast(self, called: Callable[..., Any], context: torch.autocast, *args: Any, **options: Any) -> None:
        called(context, *args, **options)
        if context._enabled:
            self.made_autocast = str(context.fast_dtype)

    def backward(self, called: Callable[..., Any], tensors: Any, *args: Any, **options: Any) -> Any:
        if self.process != os.getpid():
            return called(tensors, *args, **options)
        if not (self.in_backward or self.stage is Stage.DONE or self.captures.is_capturing):
            self.losses.note(tensors)
        roots = tensors if isinstance(tensors, tuple | list) else [tensors]
        # Labels are made before the phase begins: they take the CPU milliseconds.
        labels = self.ranges.labelling(roots) if self.follows_modules else nullcontext(nullcontext())
        with labels as of_pass, self.phase("backward"), of_pass:
            self.in_backward += 1
            try:
                returned = called(tensors, *args, **options)
            finally:
                self.in_backward -= 1
        if not self.in_backward and not self.depth:
            self.after_backward()
        return returned

    def after_backward(self) -> None:
        """The script has had a backward pass, which ends a step if no optimizer does."""
        if self.stage is Stage.CAPTURED or self.captures.is_capturing:
            self.facts["num_backward"] += 1
        if self.captures.note_end():
            return
        if self.is_counting:
            self.counts.note_backward()
            if self.kind == "forward":
                self.choose_kind()
            is_only_counted = self.looks_on_until or self.facts["stage"] == MIXED
            if is_only_counted and not self.plan.goes_on and self.counts.num_backward >= self.num_needed:
                self.end_script()  # another start measures both loops
        if self.plan.step == "backward" or self.ends_without_optimizer("backward"):
            self.end_step()

    def choose_kind(self) -> None:
        """A backward pass has ended, no optimizer has stepped until now, and calls have ended the steps."""
        if self.stage is Stage.DONE:
            return
        if self.stage is not Stage.SKIPPED or (not self.has_optimizer and self.counts.between[0] > FEWEST):
            self.give_up()
        elif not self.has_optimizer:
            self.kind, self.num_steps = "backward", 0
            self.facts["seen"] = 0
        elif self.counts.num_backward >= MOST_BATCHES:
            self.kind, self.has_optimizer, self.num_steps = "backward", False, self.plan.skip - 1
            self.facts["seen"] = self.counts.num_backward - 1

    def before_update(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[Any, ...] | None:
        """Begin the update of an optimizer. A closure, in which the script computes loss and gradients, does not
        count."""
        if is_in_graph(optimizer) or self.process != os.getpid() or not self.ending.counts(optimizer):
            return None
        replaced = replace_closure(args, options, lambda closure: self.outside_update(optimizer, closure))
        if replaced is None:
            self.open_update(optimizer)
        return replaced

    def outside_update(self, optimizer: torch.optim.Optimizer, closure: Callable[..., Any]) -> Callable[..., Any]:
        def outside() -> Any:
            self.close_update()
            try:
                return closure()
            finally:
                self.open_update(optimizer)

        return outside

    def open_update(self, optimizer: torch.optim.Optimizer) -> None:
        self.update = self.updating(optimizer)
        self.update.__enter__()

    def close_update(self) -> None:
        if self.update is not None:
            self.update.__exit__(None, None, None)
            self.update = None

    @contextmanager
    def updating(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        with self.phase("optimizer"):
            if not self.follows_modules:
                yield
                return
            self.memory.note_update(optimizer)
            parameters = [p for p in list_parameters(optimizer) if p.grad is not None]
            held = ((p, p.grad, *list_tensors(optimizer.state[p].values())) for p in parameters if p in optimizer.state)
            with self.ranges.label_optimizer(held, self.graphs.has_update):
                yield

    def after_update(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """An optimizer has stepped, which may end a step (see `ending_optimizer`)."""
        if is_in_graph(optimizer) or self.process != os.getpid() or not self.ending.counts(optimizer):
            return
        self.close_update()
        if self.captures.note_end():
            return
        self.num_updates += 1
        if self.stage is Stage.DONE and not (self.is_counting or self.facts["stage"] == MIXED):
            return self.note_caught_end()
        if optimizer not in self.ending.known:
            self.optimized |= {id(parameter) for parameter in list_parameters(optimizer)}
        use = self.ending.note_update(optimizer)
        if self.is_counting:
            self.is_counting = False
            self.facts["loops"] = self.counts.list_loops()
            if self.stage is Stage.SKIPPED:
                self.has_optimizer = True
                self.watch.end()
            elif not self.has_optimizer:
                self.give_up()
        if self.facts["stage"] == MIXED:
            self.facts["loops"] = self.ending.count_loop()
            if self.facts["loops"][0]["num"] >= self.num_needed and not self.plan.goes_on:
                self.end_script()
        if self.stage is Stage.DONE or self.captures.step_graph or self.plan.step not in ("auto", "optimizer"):
            return
        chosen = self.ending.chosen
        if chosen is not None and self.stage in (Stage.SKIPPED, Stage.TIMED) and self.ending.is_over(chosen):
            self.captures.begin_again()
        if self.ending.chosen is None:
            if len(use.updates) == 1:
                self.facts["optimizers"].append(type(optimizer).__name__)
            if not self.ending.choose(use):
                if self.ending.is_least(use):
                    self.facts["seen"] = max(self.facts["seen"], len(use.updates))
                return
            self.num_steps = self.facts["seen"] = self.plan.skip - 1
        if self.ending.chosen is use:
            if self.stage is Stage.CAPTURED and not self.calls.has_noted:
                self.facts |= describe_parameters(list_parameters(optimizer)) | {"training": True}
            self.end_step()

    # ---------------------------------------------------------------------------------------------- what is kept

    def write(self, is_last: bool = True) -> None:
        """Keep what is known: for whoever started the script, in a file of this rank. is_last: losses, too, which are
        waited for."""
        if self.process != os.getpid() or get_worker_info() is not None:
            return
        if self.is_counting:
            self.facts["loops"] = self.counts.list_loops()
        self.facts["num_prefills"] = self.generation.num_prefills if self.generation.has_decoded else 0
        if not self.facts["seen"] and not self.facts["loops"]:
            return
        with suppress(FollowError):
            self.ranks.join()
        if self.ranks.has_joined:
            if is_last:
                self.facts["losses"] = self.losses.values()
            facts = self.facts | self.changes.facts() | self.waits.list_facts()
            facts |= self.graphs.list_facts() | self.captures.list_facts() | read_machine()
            self.ranks.write(facts)
