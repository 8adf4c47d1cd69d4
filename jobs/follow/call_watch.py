"""See every call of a module, for as long as is wanted."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from .module_ranges import takes_hooks


class CallWatch:
    """Passes calls of modules to a function `see(called, module, args, options)`, between `begin` and `end`."""

    def __init__(self, see: Callable[..., Any]):
        self.see = see
        self.watched: Callable[..., Any] | None = None  # our `Module.__call__`, for good once it is there
        self.uncalled: Callable[..., Any] | None = None  # the one before it
        self.is_watching = False
        self.is_kept = False
        self.has_compiled_call = False  # the script compiled the call of a model

    def keep(self) -> None:
        """Leave our function on the calls of modules for good. Of a model that torch.compile has broken into several
        graphs, Dynamo checks it before each call: it would compile the model again, in a measured step."""
        self.is_kept = True
        self.install()

    def begin(self) -> None:
        self.is_watching = True
        self.install()

    def install(self) -> None:
        """Put our function on the calls of modules, once."""
        if self.watched is not None:
            return
        called = self.uncalled = nn.Module.__call__
        see = self.see

        def call(module: nn.Module, *args: Any, **options: Any) -> Any:
            if torch.compiler.is_compiling() or not self.is_watching:
                return called(module, *args, **options)
            return see(called, module, args, options)

        self.watched = nn.Module.__call__ = call  # type: ignore[method-assign]

    def see_compiled(self, compiled: Any, made: Any) -> Any:
        """Return what torch.compile made of `compiled`. If that is the call of a model, as `generate` of Transformers
        compiles it, calls of what was made are calls of the model: they pass our function inside the compiled code."""
        module = getattr(compiled, "__self__", None)
        if not isinstance(module, nn.Module) or getattr(compiled, "__func__", None) is not type(module).__call__:
            return made
        self.has_compiled_call = True

        def run(_: nn.Module, *args: Any, **options: Any) -> Any:
            return made(*args, **options)

        @functools.wraps(made)
        def call(*args: Any, **options: Any) -> Any:
            if torch.compiler.is_compiling() or not self.is_watching:
                return made(*args, **options)
            return self.see(run, module, args, options)

        return call

    def refuses_hooks(self, models: Iterable[nn.Module]) -> bool:
        """Whether a model takes no hooks as it is, or torch.compile would compile them with the call of one."""
        return self.has_compiled_call or not all(map(takes_hooks, models))

    def end(self) -> None:
        """Take our function off the calls of modules. Where it is kept, or the script put its own around it, it only
        passes on."""
        self.is_watching = False
        if not self.is_kept and self.watched is not None and nn.Module.__call__ is self.watched:
            nn.Module.__call__ = self.uncalled  # type: ignore[method-assign, assignment]
            self.watched = self.uncalled = None
