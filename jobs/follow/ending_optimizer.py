"""The optimizer whose update ends a step of a script: of several the one that steps least often.

A script may make optimizers for a while: for one stage of training, for each batch or for each run. One that is gone,
or that steps no more, ends no step; one like it that follows takes its place.

Loaded into other people's scripts, as `follow` is.
"""

import sys
from bisect import bisect_right
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from .loops import Loop

SELDOM = 10
"""A step does not wait for an optimizer that has not stepped while another stepped SELDOM times the skipped steps."""
LONGER = 3
"""An optimizer steps no more if it has not for LONGER times as many updates of others as ever before."""


@dataclass(eq=False)
class Use:
    """What one optimizer is used for, or several, one after the other. kind: its type, and shapes of its parameters.
    made: number of updates of the script before it. updates: numbers of its own. gap: most updates from one to the
    next."""

    optimizer: ReferenceType[Optimizer]
    kind: tuple[object, ...]
    made: int
    updates: list[int] = field(default_factory=list)
    gap: int = 0

    def count_since(self, number: int) -> int:
        return len(self.updates) - bisect_right(self.updates, number)


class EndingOptimizer:
    """Finds it among the optimizers that a script makes. skip: steps that it has to take before. chosen: the use that
    ends steps, once it is known."""

    def __init__(self, skip: int):
        self.skip, self.num_updates = skip, 0
        self.made: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()  # the number of updates before
        self.known: WeakKeyDictionary[Optimizer, Use] = WeakKeyDictionary()  # those that have stepped
        self.uses: list[Use] = []
        self.chosen: Use | None = None
        self.thread = 0
        self.is_paused = False  # what steps are optimizers of the follower's own

    def counts(self, optimizer: Optimizer) -> bool:
        """Return whether an update counts: of several threads that train at once only those of the first do, until it
        has ended."""
        if self.is_paused:
            return False
        if self.thread not in sys._current_frames():
            self.thread = get_ident()
        if self.thread != get_ident():
            self.made.pop(optimizer, None)
        return self.thread == get_ident()

    def note_made(self, optimizer: Optimizer) -> None:
        self.made.setdefault(optimizer, self.num_updates)

    def note_update(self, optimizer: Optimizer) -> Use:
        use = self.known.get(optimizer)
        if use is None:
            use = self.known[optimizer] = self.find_use(optimizer)
        self.num_updates += 1
        use.gap = max(use.gap, self.num_updates - (use.updates[-1] if use.updates else use.made))
        use.updates.append(self.num_updates)
        return use

    def find_use(self, optimizer: Optimizer) -> Use:
        """Find the use of an optimizer that steps for the first time: of one like it that is gone, or a new one."""
        shapes = (tuple(parameter.shape) for parameter in list_parameters(optimizer))
        kind = (type(optimizer), *shapes)
        for use in self.uses:
            if use.kind == kind and use.optimizer() is None:
                use.optimizer = ref(optimizer)
                return use
        self.uses.append(Use(ref(optimizer), kind, self.made.get(optimizer, self.num_updates)))
        return self.uses[-1]

    def is_over(self, use: Use) -> bool:
        """Return whether the optimizer is gone, or steps no more."""
        return use.optimizer() is None or self.num_updates - use.updates[-1] >= max(self.skip, LONGER * use.gap)

    def is_least(self, use: Use) -> bool:
        """Return whether none that is in use steps less often, or as often and later."""

        def blocks(other: Use) -> bool:
            since = max(other.made, use.made)
            return other.count_since(since) < use.count_since(since)

        return not any(blocks(other) for other in self.uses if other is not use and not self.is_over(other))

    def choose(self, use: Use) -> bool:
        """Return whether the optimizer that has just stepped is chosen."""
        num = len(use.updates)
        if num < self.skip or not self.is_least(use):
            return False
        if num < SELDOM * self.skip and any(self.may_step(optimizer, use) for optimizer in self.made):
            return False
        self.chosen = use
        return True

    def may_step(self, optimizer: Optimizer, use: Use) -> bool:
        """Return whether an optimizer has not stepped, and may do so seldom: unless it only wraps the one that steps,
        with the same parameters, as SAM does."""
        stepping = use.optimizer()
        held = set() if stepping is None else {id(parameter) for parameter in list_parameters(stepping)}
        return optimizer not in self.known and not {id(parameter) for parameter in list_parameters(optimizer)} <= held

    def list_held(self) -> list[Any]:
        """List the parameters of the optimizers that have stepped, each once."""
        held = (parameter for optimizer in list(self.known) for parameter in list_parameters(optimizer))
        return list({id(parameter): parameter for parameter in held}.values())

    def count_loop(self) -> list[Loop]:
        """Return the loop of the updates so far that would have ended steps."""
        numbers = (len(use.updates) for use in self.uses if not self.is_over(use) and self.is_least(use))
        return [Loop(kind="optimizer", num=max(numbers, default=0), before=0)]


def list_parameters(optimizer: Optimizer) -> list[Any]:
    """List the parameters of an optimizer, but for those that have no size yet."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"] if not is_lazy(parameter)]


def is_in_graph(optimizer: Optimizer) -> bool:
    """Return whether a script compiles the step of an optimizer: what is called there would break its graph. PyTorch
    breaks the graph of its own optimizers itself, so theirs can be seen."""
    return torch.compiler.is_compiling() and not type(optimizer).__module__.startswith("torch.optim")
