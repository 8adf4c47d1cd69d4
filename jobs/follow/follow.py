"""Follow a training script from inside, without changes to the script.

A step ends when the script's optimizer has stepped; in a script without one, when a backward pass has ended; without
these, when its model has been called. An optimizer that is made and does not step may step later, so such a script is
followed to its end, and its loops are noted (see `loops`).

The steps have stages (`Stage`): some are skipped; some are timed without a profiler; nsys captures some with a range
for each phase; and nsys captures some more with a range for each module. These last steps are slower and serve only to
find which module launches which kernel. Then the script is stopped, or goes on alone. Without nsys, CUDA events time
the same phases and modules (see `event_ranges`).

Phases are opened around what PyTorch itself offers: `next` of a DataLoader, calls of the outermost module,
`torch.autograd.backward`, clipping, `zero_grad` and `step` of an optimizer, a gradient scaler. What the script computes
stays the same to the bit: nothing is cast, copied or reordered, and no random number is drawn, unless the plan has
changes for it (see `apply_changes`).

Each rank of a script follows itself; all enter and leave the captured steps together (see `script_ranks`).

Loaded by its path (see `sitecustomize`). It needs torch and the other files of this folder.
"""

import atexit
import functools
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import nn
from torch.utils.data import get_worker_info

from .apply_changes import Changes, explain_presences
from .event_ranges import EventRanges
from .generation import DECODE, LONGEST_WAIT, PREFILL, Generation, find_token_shape
from .loops import FEWEST, CallCounts
from .losses import Losses
from .matmul_precision import read_matmul_precision
from .module_ranges import ModuleRanges, is_compiled, list_tensors
from .script_ranks import FollowError, Ranks
from .wrapping import replace_closure, wrap

SELDOM = 10
"""A step does not wait for an optimizer that has not stepped while another stepped SELDOM times the skipped steps."""

LOOK_ON_S = 10.0
"""How long a script goes on after a loop of forward passes was measured, in case a loop with backward follows."""

CALLED = ("forward", "evaluation", "prefill", "decode")
"""Phases that are calls of a model."""

ALIGNED = 8
"""Number of 16-bit values that a matmul loads at once."""

Stage = Enum("Stage", "SKIPPED TIMED CAPTURED FOLLOWED DONE")


class Plan(NamedTuple):
    """Plan for following a script.

    out: folder for a file about the steps of each rank. skip: number of steps before the first timed one. steps: number
    of timed steps, and of captured steps. followed: number of further captured steps with a range for each module.
    step: what ends a step: `auto`, `optimizer`, `backward`, `forward`, or the name of an NVTX range of the script.
    goes_on: whether the script goes on afterwards. changes: names of changes to the script, of modules in `changes`.
    events: whether CUDA events time the captured steps, without nsys. prefills: how many of the last stages begin with
    a prefill, if the script generates text and `step` is `auto`.
    """

    out: str
    skip: int = 10
    steps: int = 5
    followed: int = 2
    step: str = "auto"
    goes_on: bool = False
    changes: Sequence[str] = ()
    events: bool = False
    prefills: int = 3


NAMED_STEPS = ("auto", "optimizer", "backward", "forward")
"""What ends a step without a range of the script."""


UPDATES_WITHOUT_RANGE = 3
MOST_NAMES = 8
MIXED = "mixed"
"""In place of a stage: the script has loops of several kinds, and its steps are only counted."""


class Follower:
    """State of a script that is followed, and what was noted of it so far."""

    def __init__(self, plan: Plan, ranges: ModuleRanges, events: EventRanges | None = None):
        self.plan, self.ranges, self.events = plan, ranges, events
        self.changes, self.losses = Changes(plan.changes), Losses()
        self.ranks = Ranks(Path(plan.out))
        self.process = os.getpid()  # what forks from it, such as the workers of a DataLoader, is not followed
        self.stage = Stage.SKIPPED
        self.num_steps = 0  # in this stage
        self.steps_of: Counter[int] = Counter()  # by id of the optimizer, until one is chosen
        self.optimizer: int | None = None  # the one whose step ends a step
        self.has_optimizer = plan.step == "optimizer"
        self.has_compiled = False
        self.counts, self.generation = CallCounts(), Generation()
        self.is_counting = plan.step == "auto"  # calls and backward passes, until an optimizer steps
        self.kind = "backward" if plan.step == "backward" else "forward"  # of a step without an optimizer
        self.waiting: Stage | None = None  # the stage that begins with the next prefill
        self.num_waited = 0
        self.phases: list[str] = []  # open, outermost first; of these only the last has a range
        self.depth = 0  # of module calls on this thread
        self.in_backward = 0
        self.clock: list[tuple[int, Any]] = []
        self.open_step: Any = None
        self.opened_at = 0
        self.update: Any = None  # the ranges of parameters while an optimizer steps
        self.memory: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {"stage": "skipped", "seen": 0, "forwards": 0, "autocast": ""}
        self.facts |= {name: [] for name in ("optimizers", "steps", "captured_ns", "followed_ns", "memory", "inputs")}
        self.facts["captured_kinds"] = []
        self.facts |= {"model": "", "compiled": False, "num_parameters": 0, "parameter_dtypes": {}, "unpadded": None}
        self.facts |= {"training": False, "trained_models": 0, "loops": [], "num_backward": 0, "num_prefills": 0}
        self.facts |= {"skipped_updates": 0, "evaluations": 0}
        self.calls = {True: 0, False: 0}  # of models in this step: those that are trained, and others
        self.trained: set[int] = set()  # ids of the models that are trained
        self.has_noted: bool | None = None  # a model that is trained, or another; None until one is noted
        self.stepped: set[int] = set()  # ids of the optimizers that have stepped
        self.optimized: set[int] = set()  # ids of the parameters that optimizers have changed
        self.made_autocast = ""  # type of the last one that the script made, not of those that are off
        self.is_last = False  # of the followed steps
        self.watched: Callable[..., Any] | None = None  # our `Module.__call__`, for good once it is there
        self.uncalled: Callable[..., Any] | None = None  # the one before it
        self.is_watching = False
        self.has_ended = False  # and raised SystemExit, which a script may catch
        self.models: WeakSet[nn.Module] = WeakSet()  # what the script itself calls, where its calls end steps
        self.hooks: list[Any] = []
        self.kinds: list[tuple[str, int]] = []  # of the timed steps, where text is generated, and their tokens
        self.is_noting = False  # within the call whose inputs are noted
        self.num_updates = 0
        self.names: Counter[str] = Counter()  # of NVTX ranges, where the name of one ends a step
        self.looks_on_until = 0.0  # on the clock of time.monotonic, for loops of another kind

    # -------------------------------------------------------------------------------------------------- steps

    def end_step(self) -> None:
        """A step of the script has ended."""
        if get_worker_info() is not None:  # a spawned worker of a DataLoader, whose transforms may be modules
            self.begin(Stage.DONE)
            self.unwatch_calls()
            return
        try:
            self.advance()
        except FollowError as error:
            self.begin(Stage.DONE)
            self.facts["refused"] = str(error)
            self.write()
            raise SystemExit(1) from None

    def advance(self) -> None:
        """Advance to the next step, which may be of another stage."""
        if self.has_ended:
            self.has_ended = False
            self.say("the script caught SystemExit, by which it was to end: it goes on alone")
        self.facts["seen"] += 1
        self.num_steps += 1
        if self.facts["seen"] == 1:
            self.note_progress("skipped")
        if self.looks_on_until and time.monotonic() > self.looks_on_until:
            self.end_script()
        if self.stage is Stage.TIMED and self.waiting is None:
            self.clock.append(self.now())
            self.kinds.append((self.generation.kind, self.generation.num_tokens))
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
            self.facts["captured_kinds"].append((self.generation.kind, self.generation.num_tokens))
            if self.num_steps == self.plan.steps:
                self.enter_next(Stage.FOLLOWED)
            else:
                self.open_range()
        elif self.stage is Stage.FOLLOWED:
            self.close_range("followed_ns")
            if self.num_steps == self.plan.followed:
                self.finish()
            else:
                self.open_range()

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
                self.unwatch_calls()
                return
            self.begin(stage)
            self.synchronize()
            self.clock, self.kinds = [self.now()], []
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
        self.facts["stage"] = stage.name.lower()
        self.note_progress(self.facts["stage"])
        if stage is Stage.TIMED:
            # torch.compile would compile hooks of a model that it compiled in place, which calls no modules inside.
            is_in_place = any(getattr(model, "_compiled_call_impl", None) for model in self.models)
            if not (is_in_place and self.ends_with_forward()):
                self.unwatch_calls()  # each call of a module would be slower by a microsecond or two
            self.changes.settle()
            if not is_in_place and self.ends_with_forward():
                for model in self.models:
                    self.hooks.append(model.register_forward_pre_hook(self.before_call, with_kwargs=True))
                    self.hooks.append(model.register_forward_hook(self.after_call, always_call=True))

    def note_progress(self, what: str) -> None:
        """Note how far the script is, for `profile` to print."""
        if self.ranks.rank == self.ranks.first and self.process == os.getpid():
            self.ranks.write_progress(what)

    def now(self) -> tuple[int, Any]:
        """Return this moment on the CPU, and in the order of what was launched."""
        event = None
        if torch.cuda.is_initialized():
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        return time.perf_counter_ns(), event

    def note_times(self) -> None:
        """The steps timed: by the GPU from the end of one to the end of the next, by the host where there is no GPU."""
        self.synchronize()
        took = time.perf_counter_ns() - self.clock[0][0]
        pairs = list(zip(self.clock, self.clock[1:]))
        walls = [
            round(first[1].elapsed_time(second[1]) * 1e6) if first[1] else second[0] - first[0]
            for first, second in pairs
        ]
        hosts = [second[0] - first[0] for first, second in pairs]
        self.facts["steps"] = [
            {"wall_ns": wall, "host_ns": host, "kind": kind, "tokens": num_tokens}
            for wall, host, (kind, num_tokens) in zip(walls, hosts, self.kinds)
        ]
        self.facts["timed_ns"] = took
        self.write(is_last=False)

    def begin_capture(self) -> None:
        """Have nsys capture all ranks: the first to ask begins it, and the first to end it ends it for all."""
        self.ranks.meet("before the capture")
        if self.events is not None:
            self.events.begin()
        elif torch.cuda.is_initialized():
            torch.cuda.profiler.start()
        self.ranks.meet("in the capture")
        if self.ranks.world > 1:  # a capture numbers processes by the system's ids
            self.ranges.push(f"modules:rank {self.ranks.rank} of {self.ranks.world}")
            self.ranges.pop()

    def end_capture(self) -> None:
        self.synchronize()
        self.ranks.meet("at the end of the capture")
        if self.events is not None:
            self.facts["phases"] = self.events.list_phases(range(self.plan.steps))
            self.facts["profiled_ns"] = self.events.list_steps(range(self.plan.steps))
            self.facts["modules"] = self.events.list_modules(self.plan.steps + self.plan.followed - 1)
        elif torch.cuda.is_initialized():
            torch.cuda.profiler.stop()
        self.ranks.meet("after the capture")

    def open_range(self) -> None:
        if self.stage is Stage.FOLLOWED:
            self.ranges.forget()
            self.is_last = self.num_steps == self.plan.followed - 1
        self.calls = {True: 0, False: 0}
        self.opened_at = time.perf_counter_ns()
        if self.events is not None:
            self.events.open_step(self.num_steps + (self.plan.steps if self.stage is Stage.FOLLOWED else 0))
        elif torch.cuda.is_initialized():
            self.open_step = torch.cuda.nvtx.range_start("modules:step" if self.stage is Stage.FOLLOWED else "step")

    def close_range(self, kind: str) -> None:
        """End the range of a step, and note how long the host took for it."""
        self.facts[kind].append(time.perf_counter_ns() - self.opened_at)
        if self.events is not None:
            self.events.close_step()
        elif self.open_step is not None:
            torch.cuda.nvtx.range_end(self.open_step)
        self.facts["forwards"] = self.calls[True] or self.calls[False]
        self.facts["trained_models"] = len(self.trained)

    def finish(self) -> None:
        self.end_capture()
        self.begin(Stage.DONE)
        self.unwatch_calls()
        self.facts["memory"] = self.memory
        self.write()
        self.ranks.leave()
        if self.plan.goes_on:
            return
        if self.is_counting and self.ends_with_forward() and not self.generation.has_decoded:
            self.watch_calls()  # a loop of forward and backward may follow one of forward alone
            self.looks_on_until = time.monotonic() + LOOK_ON_S
        else:
            self.end_script()

    def end_script(self) -> None:
        self.looks_on_until = 0.0
        self.has_ended = True
        self.say(f"{self.facts['seen']} steps were followed, the script ends here")
        raise SystemExit(0)

    @property
    def num_needed(self) -> int:
        return self.plan.skip + 2 * self.plan.steps + self.plan.followed

    def give_up(self) -> None:
        """Measure nothing more: a loop of another kind has begun in the measured steps. Its steps are counted."""
        self.waiting = None
        if self.stage in (Stage.CAPTURED, Stage.FOLLOWED) and self.events is None and torch.cuda.is_initialized():
            torch.cuda.profiler.stop()
        self.begin(Stage.DONE)
        self.facts["stage"] = MIXED
        self.watch_calls()

    def say(self, text: str) -> None:
        """Print a line among those of the script, once for all ranks."""
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

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A phase, with a range while nsys captures. One inside another counts as the other."""
        is_measured = self.stage in (Stage.CAPTURED, Stage.FOLLOWED) and self.waiting is None
        if not is_measured or self.phases or self.process != os.getpid():
            yield
            return
        self.phases.append(name)
        before = self.allocated()
        try:
            if self.stage is Stage.FOLLOWED:
                with self.ranges.outermost(name, "" if name in CALLED else None):
                    yield
            else:
                is_named = self.events is None and name in (PREFILL, DECODE)  # of a range of the script, it is forward
                self.ranges.push(f"generation: {name}" if is_named else name)
                try:
                    yield
                finally:
                    self.ranges.pop()
        finally:
            self.phases.pop()
            self.note_memory(name, before)

    def allocated(self) -> int | None:
        """Return the bytes allocated before a phase of the last followed step, and reset the peak. None in other
        steps."""
        if self.stage is Stage.FOLLOWED and self.is_last and torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()
            return torch.cuda.memory_allocated()
        return None

    def note_memory(self, name: str, before: int | None) -> None:
        if before is not None:
            peaks = {
                "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
                "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
            }
            after = {"allocated_before_bytes": before, "allocated_after_bytes": torch.cuda.memory_allocated()}
            self.memory.append({"phase": name, **peaks, **after})

    # --------------------------------------------------------------------------------------- what PyTorch calls

    def watch_calls(self) -> None:
        """Have `call` see every call of a module from now on."""
        while self.hooks:
            self.hooks.pop().remove()
        self.is_watching = True
        if self.watched is not None:
            return
        called = self.uncalled = nn.Module.__call__
        watch = self.call

        def call(module: nn.Module, *args: Any, **options: Any) -> Any:
            if torch.compiler.is_compiling() or not self.is_watching:
                return called(module, *args, **options)
            return watch(called, module, args, options)

        self.watched = nn.Module.__call__ = call  # type: ignore[method-assign]

    def unwatch_calls(self) -> None:
        """Take our function off the calls of modules. Where the script put its own around it, ours only passes on."""
        self.is_watching = False
        if self.watched is not None and nn.Module.__call__ is self.watched:
            nn.Module.__call__ = self.uncalled  # type: ignore[method-assign, assignment]
            self.watched = self.uncalled = None

    def call(
        self, called: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        if self.process != os.getpid():
            return called(module, *args, **options)
        run = functools.partial(self.ranges.call, called) if self.stage is Stage.FOLLOWED else is_called_plainly(called)
        if self.depth or self.in_backward:
            if self.stage is Stage.CAPTURED and not self.facts["autocast"]:
                self.facts["autocast"] = find_autocast_dtype()  # opened inside the model, as accelerate does
            if self.is_noting:
                self.note_shift(args, options)
            return run(module, args, options)
        self.depth += 1
        is_loss = isinstance(module, nn.modules.loss._Loss)
        try:
            if not is_loss:
                self.note_generation(args, options)
                self.note_call(module, args, options)
            with self.phase("loss" if is_loss else self.name_call(module)):
                returned = run(module, args, options)
        finally:
            self.depth -= 1
            self.is_noting = False
        if is_loss:
            return returned
        if self.is_counting:
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

    def name_call(self, module: nn.Module) -> str:
        """Return the phase of a call of a model by the script."""
        if self.generation.kind:
            return self.generation.kind
        if torch.is_grad_enabled() or not self.optimized:
            return "forward"
        if not any(id(parameter) in self.optimized for parameter in module.parameters()):
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

    def note_call(self, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Note the model and its inputs in the first captured step: of the first call that is trained, or else of the
        first. A teacher, a reference model or an evaluation may be called before it."""
        parameters = list(module.parameters())
        trains = torch.is_grad_enabled() and (
            not parameters or any(parameter.requires_grad for parameter in parameters)
        )
        self.calls[trains] += 1
        if trains:
            self.trained.add(id(module))
        if self.stage is not Stage.CAPTURED or self.num_steps or self.has_noted in (True, trains):
            return
        self.has_noted = trains
        self.is_noting = True
        named = [*((str(i), value) for i, value in enumerate(args)), *options.items()]
        shapes = [(name, [list(x.shape), str(x.dtype)]) for name, value in named for x in list_tensors([value])]
        compiled = any(is_compiled(part) for part in module.modules())
        self.facts |= {
            "model": type(unwrap(module)).__name__,
            "compiled": compiled,
            "inputs": [{"name": name, "shape": shape, "dtype": dtype} for name, (shape, dtype) in shapes],
            "num_parameters": sum(parameter.numel() for parameter in parameters),
            "parameter_dtypes": dict(Counter(str(parameter.dtype) for parameter in parameters)),
            "unpadded": find_unpadded(module),
            # What accelerate opens inside the model is compiled with it, and never seen to be on.
            "autocast": find_autocast_dtype() or (self.made_autocast if compiled else ""),
            "training": trains,
        }

    def note_shift(self, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Note how many tokens are trained on, within a wrapper that takes one more, as inputs and targets in one."""
        inside, noted = find_token_shape(args, options), self.facts["inputs"]
        if inside is not None and noted and noted[0]["shape"] == [inside[0], inside[1] + 1]:
            noted[0]["shape"] = list(inside)

    def note_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Note what is trained without any module, by its optimizer."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.facts |= {
            "num_parameters": sum(parameter.numel() for parameter in parameters),
            "parameter_dtypes": dict(Counter(str(parameter.dtype) for parameter in parameters)),
            "training": True,
        }

    def check_name(self) -> None:
        """Say so if no range of the name that ends a step was opened in the first updates of an optimizer."""
        if self.plan.step not in self.names:
            others = ", ".join(f"`{name}`" for name, _ in self.names.most_common(MOST_NAMES)) or "none"
            self.say(
                f"no NVTX range `{self.plan.step}` was opened in {UPDATES_WITHOUT_RANGE} updates; opened: {others}"
            )

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
        if not self.in_backward and self.stage is not Stage.DONE:
            self.losses.note(tensors)
        roots = tensors if isinstance(tensors, tuple | list) else [tensors]
        # Labels are made before the phase begins: they take the CPU milliseconds.
        labels = self.ranges.labelling(roots) if self.stage is Stage.FOLLOWED else nullcontext()
        with labels, self.phase("backward"):
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
        if self.stage is Stage.CAPTURED:
            self.facts["num_backward"] += 1
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
        elif self.counts.num_backward >= SELDOM * self.plan.skip:
            self.kind, self.has_optimizer, self.num_steps = "backward", False, self.plan.skip - 1
            self.facts["seen"] = self.counts.num_backward - 1

    def before_update(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[Any, ...] | None:
        """Begin the update of an optimizer. A closure, in which the script computes loss and gradients, does not
        count."""
        if self.process != os.getpid():
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
            if self.stage is not Stage.FOLLOWED:
                yield
                return
            parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            held = ((p, p.grad, *list_tensors(optimizer.state[p].values())) for p in parameters if p in optimizer.state)
            with self.ranges.label_optimizer(held):
                yield

    def after_update(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """An optimizer has stepped. Of several the one that steps least often ends a step, the last of them where they
        step equally often."""
        if self.process != os.getpid():
            return
        self.close_update()
        self.num_updates += 1
        if self.num_updates == UPDATES_WITHOUT_RANGE and self.plan.step not in NAMED_STEPS:
            self.check_name()
        if id(optimizer) not in self.stepped:
            self.stepped.add(id(optimizer))
            self.optimized |= {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if self.is_counting:
            self.is_counting = False
            self.facts["loops"] = self.counts.list_loops()
            if self.stage is Stage.SKIPPED and self.has_optimizer:
                self.unwatch_calls()
        if self.plan.step not in ("auto", "optimizer"):
            return
        if self.optimizer is None:
            if not self.steps_of[id(optimizer)]:
                self.facts["optimizers"].append(type(optimizer).__name__)
            self.steps_of[id(optimizer)] += 1
            stepped = [count for count in self.steps_of.values() if count]
            # One that has never stepped may step seldom, or not at all.
            waits = len(stepped) < len(self.steps_of) and max(stepped) < SELDOM * self.plan.skip
            if waits or min(stepped) < self.plan.skip or self.steps_of[id(optimizer)] > min(stepped):
                self.facts["seen"] = max(self.facts["seen"], min(stepped))
                return
            self.optimizer = id(optimizer)
            self.num_steps = self.plan.skip - 1
            self.facts["seen"] = self.plan.skip - 1
        if self.optimizer == id(optimizer):
            if self.stage is Stage.CAPTURED and self.has_noted is None:
                self.note_optimizer(optimizer)
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
            facts = self.facts | self.changes.facts() | read_machine()
            if not self.plan.changes:
                facts["present"] = explain_presences(facts)
            self.ranks.write(facts)


def find_autocast_dtype() -> str:
    """The type that autocast computes in here; "" where it is off."""
    device = "cuda" if torch.cuda.is_initialized() else "cpu"
    return str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else ""


def unwrap(module: nn.Module) -> nn.Module:
    """The script's own model: not what compiles it, nor what has several ranks train it."""
    for holder, kind in (("_orig_mod", nn.Module), ("module", nn.parallel.DistributedDataParallel)) * 2:
        if isinstance(module, kind):
            module = getattr(module, holder, module)
    return module


def find_unpadded(model: nn.Module) -> dict[str, int] | None:
    """Find the modules with a weight matrix that is not padded: the dimension by path of the module. In BF16, matmuls
    with rows of so many numbers cannot load 16 bytes at once. Embeddings multiply nothing, so they do not count. None
    if the weights do not show it."""
    paths = ModuleRanges(print, print).paths_of(model)
    try:
        return {
            paths[id(part)]: max(odd)
            for part in model.modules()
            if not isinstance(part, nn.Embedding | nn.EmbeddingBag)
            # What a module holds itself: to ask for an attribute may compute it, or raise.
            if (odd := [size for matrix in list_matrices(part) for size in matrix.shape if size % ALIGNED])
        }
    except Exception:  # of other people's tensors: no reason for their script to end
        return None


def list_matrices(part: nn.Module) -> list[torch.Tensor]:
    held = [tensor for tensor in part._parameters.values() if isinstance(tensor, torch.Tensor)]
    return [tensor for tensor in held if not tensor.is_nested and tensor.ndim == 2]


def is_called_plainly(called: Callable[..., Any]) -> Callable[..., Any]:
    return lambda module, args, options: called(module, *args, **options)


def read_machine() -> dict[str, Any]:
    """Read what this process knows about the machine and PyTorch's settings."""
    cuda = torch.cuda.is_initialized()
    return {
        "gpu_name": torch.cuda.get_device_name() if cuda else "CPU (no GPU)",
        "gpu_memory_bytes": torch.cuda.get_device_properties().total_memory if cuda else 0,
        "cuda": torch.version.cuda or "",
        "torch": torch.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "autograd_multithreading": torch.autograd.is_multithreading_enabled(),
        "float32_matmul_precision": read_matmul_precision(),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated() if cuda else 0,
    }


def install(plan: Plan, push: Callable[..., Any] | None = None, pop: Callable[..., Any] | None = None) -> Follower:
    """Follow this process's script. `push` and `pop` open and close ranges; default: NVTX ranges if there is a GPU."""
    from torch.optim import optimizer
    from torch.utils.data import dataloader

    events = EventRanges() if plan.events else None
    if events is not None:
        push, pop = events.push, events.pop
    ranges = ModuleRanges(push or wrap_nvtx("range_push"), pop or wrap_nvtx("range_pop"))
    follower = Follower(plan, ranges, events)
    follower.changes.apply()

    def build_phase_wrapper(phase: str) -> Callable[..., Any]:
        def around(called: Callable[..., Any], *args: Any, **options: Any) -> Any:
            with follower.phase(phase):
                return called(*args, **options)

        return around

    def compiled(called: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if not follower.has_compiled and not follower.facts["seen"]:
            follower.note_progress("compiling")
        follower.has_compiled = True
        if follower.has_optimizer and follower.stage is Stage.SKIPPED:
            follower.unwatch_calls()  # a call that changes later compiles the model again
        return called(*args, **options)

    def constructed(called: Callable[..., Any], made: torch.optim.Optimizer, *args: Any, **options: Any) -> Any:
        follower.steps_of.setdefault(id(made), 0)
        if follower.stage is Stage.SKIPPED and plan.step == "auto":
            follower.has_optimizer, follower.kind = True, "forward"
            if follower.has_compiled or plan.changes:
                follower.unwatch_calls()
        return called(made, *args, **options)

    wrap(torch, "compile", compiled)
    wrap(torch.autograd, "backward", follower.backward)
    wrap(torch.autocast, "__init__", follower.make_autocast)
    wrap(optimizer.Optimizer, "__init__", constructed)
    wrap(optimizer.Optimizer, "zero_grad", build_phase_wrapper("zero_grad"))
    wrap(nn.Module, "zero_grad", build_phase_wrapper("zero_grad"))
    wrap(dataloader._BaseDataLoaderIter, "__next__", build_phase_wrapper("data"))
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        wrap(nn.utils.clip_grad, name, build_phase_wrapper("clip"))
        setattr(nn.utils, name, getattr(nn.utils.clip_grad, name))
    # Of a scaler's step nothing but the optimizer's is one: a step ends within it.
    for name in ("unscale_", "update"):
        wrap(torch.amp.GradScaler, name, build_phase_wrapper("optimizer"))
    wrap(torch.amp.GradScaler, "step", follower.scaler_step)
    optimizer.register_optimizer_step_pre_hook(follower.before_update)
    optimizer.register_optimizer_step_post_hook(follower.after_update)
    if plan.step not in NAMED_STEPS:
        end_steps_with(plan.step, follower)
    elif plan.step in ("auto", "forward"):
        follower.watch_calls()
    atexit.register(follower.write)
    return follower


def wrap_nvtx(name: str) -> Callable[..., Any]:
    """A function of torch.cuda.nvtx, which does nothing in a script that uses no GPU. Whether it does is asked late:
    to ask starts CUDA, and a process that has done so cannot fork one that uses it."""

    def call(*message: str) -> Any:
        return getattr(torch.cuda.nvtx, name)(*message) if torch.cuda.is_initialized() else None

    return call


def end_steps_with(name: str, follower: Follower) -> None:
    """A step ends when the script closes its NVTX range of that name."""
    opened: list[str] = []

    def push(called: Callable[..., Any], message: str, *args: Any) -> Any:
        opened.append(message)
        follower.names[message] += 1
        return called(message, *args)

    def pop(called: Callable[..., Any]) -> Any:
        returned = called()
        if opened and opened.pop() == name:
            follower.end_step()
        return returned

    wrap(torch.cuda.nvtx, "range_push", push)
    wrap(torch.cuda.nvtx, "range_pop", pop)


def install_plan(text: str) -> None:
    """Follow this process's script. text: a `Plan` as JSON."""
    install(Plan(**json.loads(text)))
