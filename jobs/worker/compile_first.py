"""Compile without running: what is compiled for a first step, before any of it runs.

Compiling needs only the memory of the weights, and running needs a step's. So several processes of a GPU compile side
by side, and wait here (see `jobs.executor.gate`). PyTorch compiles a backward pass when it first runs, if it is not
asked to do so with the forward pass; what it makes is the same.

Not part of PyTorch's interface: where something is missing, nothing waits here, or only forward passes are compiled.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


def compile_backward_with_forward() -> None:
    """Have PyTorch compile backward passes when it compiles their forward passes, in this process from now on. All
    processes of a run do: the setting is part of the names by which PyTorch's caches know what they hold."""
    with suppress(ImportError):
        from torch._functorch import config

        if hasattr(config, "force_non_lazy_backward_lowering"):
            config.force_non_lazy_backward_lowering = True


@contextmanager
def calling_before_first_run(wait: Callable[[], None]) -> Iterator[None]:
    """Call `wait` once, before the first graph that Inductor has compiled runs while the context is open."""
    kind: Any = None
    with suppress(ImportError):
        from torch._inductor.output_code import CompiledFxGraph as kind
    if kind is None:
        yield
        return
    plain = kind.__call__

    def call(compiled: Any, *args: Any, **options: Any) -> Any:
        kind.__call__ = plain
        wait()
        return plain(compiled, *args, **options)

    kind.__call__ = call
    try:
        yield
    finally:
        kind.__call__ = plain
