"""Install the follower in a script: put it around the functions of PyTorch that a training script calls.

Loaded by its path as soon as the script imports torch (see `sitecustomize`).
"""

import atexit
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import optimizer
from torch.utils.data import dataloader
from torch.utils.data._utils import fetch

from .bare_steps import BareSteps
from .compiled_backward import is_backward_graph
from .event_ranges import EventRanges
from .follow import Follower
from .module_ranges import ModuleRanges
from .plan import NAMED_STEPS, Plan, Stage
from .scratch_files import ScratchFiles
from .trace_ranges import TraceRanges
from .turns import TurnsFollower
from .wrapping import wrap

UPDATES_WITHOUT_RANGE = 3
MOST_NAMES = 8


def install(plan: Plan, push: Callable[..., Any] | None = None, pop: Callable[..., Any] | None = None) -> Follower:
    """Follow this process's script. `push` and `pop` open and close ranges; default: NVTX ranges if there is a GPU."""
    events = EventRanges() if plan.events else None
    trace = TraceRanges() if plan.trace or plan.turns else None
    for instead in (events, trace):
        if instead is not None:
            push, pop = instead.push, instead.pop
    ranges = ModuleRanges(push or wrap_nvtx("range_push"), pop or wrap_nvtx("range_pop"))
    with_turns = plan.turns or plan.times_only
    follower = TurnsFollower(plan, ranges) if with_turns else Follower(plan, ranges, events)
    if trace is not None:
        follower.capture = trace
    if plan.turns:
        follower.watch.install()  # below what the changes put on calls, and only until steps are timed
    elif plan.changes:
        follower.watch.keep()  # below what the changes put on calls, and for good: one of them may be to compile
    follower.changes.apply()

    def build_phase_wrapper(phase: str) -> Callable[..., Any]:
        def around(called: Callable[..., Any], *args: Any, **options: Any) -> Any:
            with follower.phase(phase):
                return called(*args, **options)

        return around

    def compiled(called: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if not follower.has_compiled and not follower.facts["seen"]:
            follower.note_progress("compiling")
        if plan.turns and follower.stage is not Stage.SKIPPED:
            return called(*args, **options)  # for a variant
        follower.has_compiled = True
        if not with_turns:
            follower.functions.begin()
        follower.watch.keep()
        if follower.has_optimizer and follower.stage is Stage.SKIPPED:
            follower.watch.end()
        if args and is_backward_graph(args[0]):
            return follower.graphs.backward.compile(partial(called, **options), args[0])
        made = called(*args, **options)
        return follower.watch.see_compiled(args[0], made) if args else made

    def constructed(called: Callable[..., Any], made: torch.optim.Optimizer, *args: Any, **options: Any) -> Any:
        follower.ending.note_made(made)
        if follower.stage is Stage.SKIPPED and plan.step == "auto":
            follower.has_optimizer, follower.kind = True, "forward"
            if follower.has_compiled or plan.changes:
                follower.watch.end()
        return called(made, *args, **options)

    wrap(torch, "compile", compiled)
    if not with_turns:
        wrap(torch.cuda.CUDAGraph, "capture_begin", follower.captures.begin)
        wrap(torch.cuda.CUDAGraph, "capture_end", follower.captures.end)
        wrap(torch.cuda.CUDAGraph, "replay", follower.captures.replay)
    wrap(torch.autograd, "backward", follower.backward)
    wrap(torch.autocast, "__init__", follower.make_autocast)
    wrap(optimizer.Optimizer, "__init__", constructed)
    wrap(optimizer.Optimizer, "zero_grad", build_phase_wrapper("zero_grad"))
    wrap(nn.Module, "zero_grad", build_phase_wrapper("zero_grad"))
    wrap(dataloader._BaseDataLoaderIter, "__next__", follower.waits.batches.fetch)
    wrap(dataloader._BaseDataLoaderIter, "__next__", build_phase_wrapper("data"))
    for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        wrap(fetcher, "fetch", follower.waits.batches.workers.fetch)
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        wrap(nn.utils.clip_grad, name, build_phase_wrapper("clip"))
        setattr(nn.utils, name, getattr(nn.utils.clip_grad, name))
    # Of a scaler's step nothing but the optimizer's is one: a step ends within it.
    of_scaler = {name: build_phase_wrapper("optimizer") for name in ("unscale_", "update")}
    for name, around in {**of_scaler, "step": follower.scaler_step, "scale": follower.losses.scale}.items():
        wrap(torch.amp.GradScaler, name, around)
    optimizer.register_optimizer_step_pre_hook(follower.before_update)
    optimizer.register_optimizer_step_post_hook(follower.after_update)
    if plan.step not in NAMED_STEPS:
        end_steps_with(plan.step, follower)
    elif plan.step in ("auto", "forward"):
        follower.watch_calls()
    if isinstance(follower, TurnsFollower):
        follower.watch_places()
    atexit.register(follower.write)
    return follower


def wrap_nvtx(name: str) -> Callable[..., Any]:
    """A function of torch.cuda.nvtx, which does nothing in a script that uses no GPU. Whether it does is asked late:
    to ask starts CUDA, and a process that has done so cannot fork one that uses it."""

    def call(*message: str) -> Any:
        return getattr(torch.cuda.nvtx, name)(*message) if torch.cuda.is_initialized() else None

    return call


def end_steps_with(name: str, follower: Follower) -> None:
    """A step ends when the script closes its NVTX range of that name. If none is opened in the first updates of an
    optimizer, a message is printed."""
    opened: list[str] = []
    names: Counter[str] = Counter()

    def push(called: Callable[..., Any], message: str, *args: Any) -> Any:
        opened.append(message)
        names[message] += 1
        return called(message, *args)

    def pop(called: Callable[..., Any]) -> Any:
        returned = called()
        if opened and opened.pop() == name:
            follower.end_step()
        return returned

    def check_name(*_: Any) -> None:
        if follower.num_updates == UPDATES_WITHOUT_RANGE and name not in names:
            others = ", ".join(f"`{other}`" for other, _ in names.most_common(MOST_NAMES)) or "none"
            follower.say(f"no NVTX range `{name}` was opened in {UPDATES_WITHOUT_RANGE} updates; opened: {others}")

    wrap(torch.cuda.nvtx, "range_push", push)
    wrap(torch.cuda.nvtx, "range_pop", pop)
    optimizer.register_optimizer_step_post_hook(check_name)


def set_seed(seed: int) -> None:
    """Draw the same random numbers in each run of a script that sets no seed itself."""
    random.seed(seed)
    torch.manual_seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)


def install_plan(text: str) -> None:
    """Follow this process's script. text: a `Plan` as JSON."""
    plan = Plan(**json.loads(text))
    if plan.seed is not None:
        set_seed(plan.seed)
    if plan.scratch:
        ScratchFiles(plan.scratch, (os.path.dirname(plan.out), plan.turns, plan.gate)).begin()
    if plan.bare:
        BareSteps(plan).begin()
    else:
        install(plan)
