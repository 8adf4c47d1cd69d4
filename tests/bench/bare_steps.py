"""Times steps of a script that nothing else follows, notes its losses, and ends it. Loaded by its path into the script,
before its first line. See tuned_copies."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

SETTINGS = "PROFILER_JOB_BARE"
"""Environment variable with `skip`, `steps` and `out`, a file, as JSON."""


class BareSteps:
    """Counts the updates of the first optimizer that makes one: a step ends with each."""

    def __init__(self, skip: int, steps: int, out: str):
        self.skip, self.steps, self.out = skip, steps, Path(out)
        self.optimizer: Any = None
        self.seen, self.began = 0, 0
        self.losses: list[list[Any]] = [[]]
        """Of each step before those that are timed, one for each backward pass."""
        self.called = torch.autograd.backward

    def begin(self) -> None:
        torch.autograd.backward = self.backward  # type: ignore[assignment]
        register_optimizer_step_post_hook(self.end_step)

    def backward(self, tensors: Any, *args: Any, **options: Any) -> Any:
        loss = tensors[0] if isinstance(tensors, (list, tuple)) else tensors
        if loss.numel() == 1 and self.seen < self.skip:
            self.losses[-1].append(loss.detach().clone())
        return self.called(tensors, *args, **options)

    def end_step(self, optimizer: Any, *_: Any) -> None:
        self.optimizer = self.optimizer or optimizer
        if optimizer is not self.optimizer:
            return
        self.seen += 1
        self.losses.append([])
        if self.seen in (self.skip, self.skip + self.steps):
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            now = time.perf_counter_ns()
            if self.seen == self.skip:
                self.began = now
            else:
                self.end((now - self.began) / self.steps)

    def end(self, step_ns: float) -> None:
        losses = [sum(map(float, step)) for step in self.losses if step]  # of a step, however many micro-batches it has
        self.out.write_text(json.dumps({"step_ns": step_ns, "losses": losses}), encoding="utf-8")
        sys.stdout.flush()
        os._exit(0)


if SETTINGS in os.environ:
    BareSteps(**json.loads(os.environ.pop(SETTINGS))).begin()
