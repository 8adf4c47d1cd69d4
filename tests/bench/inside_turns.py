"""Has a script's steps followed and left alone by turns. Loaded by its path into the script, before it imports torch.

What follows a script in its unprofiled steps is put in and taken out again where the script prints that a step is over,
so that both kinds of step are of one process, and a change of the host's speed falls on both. See by_turns.
"""

import builtins
import json
import os
import random
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = "profiler_job_injected"
SETTINGS = "PROFILER_JOB_TURNS"
"""Environment variable with the `Settings` as JSON."""

WARM_UP = 15
"""Steps before the first turn."""


class Settings(NamedTuple):
    """injected: folder of what follows scripts. out: file for the steps. mark: how the line begins that the script
    prints at the end of each step. pairs: of turns, after which the script ends. steps: in a turn. is_control: whether
    the steps of both kinds are left alone, which shows the noise of the measurement. updates: of optimizers in a step,
    which then ends without a line."""

    injected: str
    out: str
    mark: str
    pairs: int
    steps: int
    is_control: bool = False
    updates: int = 0


class SteadyHooks(OrderedDict):
    """Hooks that may be taken out while they are called."""

    def values(self) -> Any:
        return list(super().values())


class Turns:
    """Which kind of step is on, and the steps so far."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.is_followed = True  # or would be, were it no control
        self.is_active = True  # whether what follows the script is in it
        self.hooks: list[list] = []  # [register, hook, handle] of an optimizer's step
        self.steps: list[dict] = []
        self.num_seen = self.num_updates = 0
        self.began_at = 0
        self.num_before = 0  # steps followed before the first turn
        self.random = random.Random(0)
        self.follower: Any = None
        self.register_bare: Any = None
        self.ender: Any = None  # of a step of updates: the last hook, so that the follower sees each update first

    def follow(self) -> None:
        """Follow the script as `profile` does, for ever in the stage in which steps are only timed."""
        package = ModuleSpec(PACKAGE, None, is_package=True)
        package.submodule_search_locations = [self.settings.injected]
        sys.modules[PACKAGE] = module_from_spec(package)
        follow = import_module(f"{PACKAGE}.install")
        optimizer = import_module("torch.optim.optimizer")
        register_bare = optimizer.register_optimizer_step_post_hook
        follow.wrap = self.switched(follow.wrap)
        for name in ("register_optimizer_step_pre_hook", "register_optimizer_step_post_hook"):
            setattr(optimizer, name, self.record_hook(getattr(optimizer, name)))
        if self.settings.updates:
            optimizer._global_optimizer_post_hooks = SteadyHooks()
            optimizer._global_optimizer_pre_hooks = SteadyHooks()
        plan = follow.Plan(out=f"{self.settings.out}.ranks", skip=WARM_UP - 5, steps=sys.maxsize)
        self.follower = follow.install(plan)
        self.register_bare = register_bare
        self.end_with_updates()

    def switched(self, wrapped: Callable) -> Callable:
        """`wrapped`, but the bare function is called in the steps that are left alone."""

        def switch(holder: Any, name: str, around: Callable) -> None:
            bare = getattr(holder, name)
            wrapped(holder, name, around)
            followed = getattr(holder, name)

            def call(*args: Any, **options: Any) -> Any:
                return followed(*args, **options) if self.is_active else bare(*args, **options)

            setattr(holder, name, call)

        return switch

    def record_hook(self, register: Callable) -> Callable:
        def keep(hook: Callable) -> Any:
            self.hooks.append([register, hook, register(hook)])
            return self.hooks[-1][2]

        return keep

    def turn(self) -> None:
        """Followed after bare, or bare after followed; which of a pair comes first is drawn."""
        turn = len(self.steps) // self.settings.steps
        self.is_followed = self.random.random() < 0.5 if turn % 2 == 0 else not self.is_followed
        self.is_active = self.is_followed and not self.settings.is_control
        for hook in self.hooks:
            hook[2].remove()
            if self.is_active:
                hook[2] = hook[0](hook[1])
        self.end_with_updates()
        follower = self.follower
        while follower.hooks:
            follower.hooks.pop().remove()
        if self.is_active:
            for model in follower.models:  # of a script without an optimizer
                follower.hooks.append(model.register_forward_pre_hook(follower.before_call, with_kwargs=True))
                follower.hooks.append(model.register_forward_hook(follower.after_call, always_call=True))

    def end_with_updates(self) -> None:
        if self.settings.updates:
            if self.ender is not None:
                self.ender.remove()
            self.ender = self.register_bare(self.end_update)

    def end_update(self, *_: Any) -> None:
        self.num_updates += 1
        if self.num_updates % self.settings.updates == 0:
            cuda = import_module("torch.cuda")
            if cuda.is_initialized():
                cuda.synchronize()
            self.end_step()

    def end_step(self) -> None:
        now = time.perf_counter_ns()
        self.num_seen += 1
        if self.num_seen <= WARM_UP:
            return
        if self.began_at:
            self.steps.append({"is_followed": self.is_followed, "ns": now - self.began_at})
        else:
            self.num_before = len(self.follower.clock.ends)
        if len(self.steps) % self.settings.steps == 0:
            if len(self.steps) == 2 * self.settings.pairs * self.settings.steps:
                self.finish()
            self.turn()
        self.began_at = time.perf_counter_ns()

    def finish(self) -> None:
        num_followed = len(self.follower.clock.ends) - self.num_before
        facts = {"stage": self.follower.stage.name, "num_followed": num_followed, "steps": self.steps}
        Path(self.settings.out).write_text(json.dumps(facts), encoding="utf-8")
        sys.stdout.flush()
        os._exit(0)  # a library may catch SystemExit, and ask its workers to end


class AfterTorch:
    """Calls `then` once torch is imported."""

    def __init__(self, then: Callable[[], None]):
        self.then = then

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = find_spec(name)
        assert spec and spec.loader
        import_torch = spec.loader.exec_module

        def import_and_call(module: Any) -> None:
            import_torch(module)
            self.then()

        spec.loader.exec_module = import_and_call  # type: ignore[method-assign]
        return spec


def install() -> None:
    settings = Settings(**json.loads(os.environ[SETTINGS]))
    turns, process, bare_print = Turns(settings), os.getpid(), builtins.print

    def print_or_end_step(*args: Any, **options: Any) -> None:
        is_mark = args and not settings.updates and str(args[0]).startswith(settings.mark)
        if is_mark and os.getpid() == process:
            turns.end_step()
        else:
            bare_print(*args, **options)

    builtins.print = print_or_end_step
    sys.meta_path.insert(0, AfterTorch(turns.follow))  # type: ignore[arg-type]


install()
