"""Times the steps of a script that nothing else follows, to confirm what is written into it: there is a hook after
updates of optimizers, and `torch.autograd.backward` and the scale of a `GradScaler` are wrapped until the losses of the
first steps are noted. Steps are timed at once, or in turns with other processes if there is a `plan.gate`.

Loaded into other people's scripts, as `follow` is.
"""

import atexit
import os
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.data import get_worker_info

from .ending_optimizer import EndingOptimizer, is_in_graph
from .losses import Losses
from .plan import Plan
from .program_requests import ProgramRequests
from .script_facts import read_machine
from .script_ranks import Ranks
from .timed_steps import LEAST_STEPS, Steps, settle, time_steps, time_turn
from .wrapping import wrap


class BareSteps:
    """Counts the updates that end steps. `running` begins with the last step that is skipped."""

    def __init__(self, plan: Plan):
        self.plan, self.process = plan, os.getpid()
        self.ending, self.ranks = EndingOptimizer(plan.skip), Ranks(Path(plan.out))
        self.losses, self.num_noted = Losses(copies=True), plan.skip + plan.steps
        self.called: Any = torch.autograd.backward
        self.scale = torch.amp.GradScaler.scale
        self.num_losses = 0  # in the first num_noted steps; known as soon as these have been taken
        self.running: Steps | None = None
        self.facts: dict[str, Any] = {"seen": 0, "steps": [], "not_applied": {}}

    def begin(self) -> None:
        torch.autograd.backward = self.backward
        wrap(torch.amp.GradScaler, "scale", self.losses.scale)
        register_optimizer_step_post_hook(self.after_update)
        atexit.register(self.write)

    def backward(self, tensors: Any, *args: Any, **options: Any) -> Any:
        if self.process == os.getpid():
            self.losses.note(tensors)
        return self.called(tensors, *args, **options)

    def after_update(self, optimizer: Optimizer, *_: Any) -> None:
        """An optimizer has stepped."""
        if is_in_graph(optimizer) or self.process != os.getpid() or get_worker_info() is not None:
            return
        if not self.ending.counts(optimizer) or not self.ends_step(optimizer):
            return
        self.facts["seen"] += 1
        if self.facts["seen"] == self.num_noted:
            self.leave_losses()
        if self.running is None:
            self.ranks.join()
            self.ranks.write_progress("timed")
            self.running = self.take_turns() if self.plan.gate else self.time_once()
        try:
            next(self.running)
        except StopIteration:
            self.write()
            raise SystemExit(0) from None

    def ends_step(self, optimizer: Optimizer) -> bool:
        """Return whether the update ends a step from the last skipped one on, with which it is known what ends one."""
        use = self.ending.note_update(optimizer)
        if self.ending.chosen is None and self.ending.choose(use):
            self.facts["seen"] = self.plan.skip - 1
        return use is self.ending.chosen

    def leave_losses(self) -> None:
        """Note no more losses, and leave nothing around backward passes, unless the script has put more there."""
        self.num_losses = len(self.losses.kept) + len(self.losses.known)
        if torch.autograd.backward == self.backward:
            torch.autograd.backward = self.called
        torch.amp.GradScaler.scale = self.scale  # type: ignore[method-assign]

    def time_once(self) -> Steps:
        yield from time_steps(self.plan.steps, self.ranks.world, self.facts)

    def take_turns(self) -> Steps:
        """Warm up, then take a turn for each request. The first step of a turn does not count, since other processes
        have had the CPU's caches."""
        yield from settle()
        requests = ProgramRequests(Path(self.plan.gate))
        while (request := requests.wait()) is not None:
            steps: list[float] = []
            if request["turn_s"]:
                yield
                steps = yield from time_turn(LEAST_STEPS, request["turn_s"])
            requests.answer(self.describe() | {"steps": steps})

    def describe(self) -> dict[str, Any]:
        """Return what is known of the process, as `jobs.follow.turns` does."""
        losses, num_steps = self.list_losses()
        return {
            "losses": losses,
            "num_losses_per_step": max(len(losses) / num_steps, 1.0),
            "peak_bytes": read_machine()["peak_allocated_bytes"],
            "not_applied": {},
        }

    def list_losses(self) -> tuple[list[float | str | None], int]:
        """Wait for the losses of the first steps, and return them with the number of these steps."""
        return self.losses.values()[: self.num_losses or None], min(self.facts["seen"], self.num_noted)

    def write(self) -> None:
        """Keep what is known of steps that were timed at once, for whoever started the script."""
        if self.process != os.getpid() or self.running is None or not self.ranks.has_joined:
            return
        losses, num_steps = self.list_losses()
        self.ranks.write(self.facts | read_machine() | {"losses": losses, "seen": num_steps})
