"""Methods by which a script calls its model in place of the model itself: `model.forward(x)`, `agent.get_value(x)`.

PyTorch sees only the calls of modules inside such a method, each as if it were a model. A method of a module is an
entry if the script calls a part of that module in it and the part lacks some of its parameters. In an entry the script
neither calls the whole module, nor loads data, runs a backward pass or updates parameters: methods that train or
generate are none.

Loaded into other people's scripts, as `follow` is. It needs torch and the other files of this folder.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from .module_ranges import list_module_parameters
from .plan import Stage

CALLED = ("forward", "evaluation", "prefill", "decode")
"""Phases that are calls of a model."""


class Entries:
    """Entries, which are found in the skipped steps of a script that trains. In the captured steps `see(called, module,
    args, options)` receives their calls."""

    def __init__(self, see: Callable[..., Any]):
        self.see = see
        self.methods: dict[tuple[type, str], bool] = {}  # and whether parts are called under gradients in it
        self.refused: set[tuple[type, str]] = set()
        self.bare: dict[tuple[type, str], Any] = {}
        self.is_of: dict[tuple[int, int], bool] = {}  # by ids of a holder and of what was called in it
        self.is_noting, self.has_updated = True, False
        self.has_gradients = True  # the entry that is called; a decorator may switch them off inside

    def begin(self, stage: Stage) -> None:
        self.is_noting = stage is Stage.SKIPPED
        if stage is Stage.CAPTURED and self.has_updated:
            self.put()
        elif stage is Stage.DONE:
            self.take()

    def note_call(self, called: nn.Module) -> None:
        """Note the methods around an outermost call of a module."""
        for holder, name in list_methods() if self.is_noting else ():
            key = type(holder), name
            if holder is called:
                self.refused.add(key)
            elif self.is_part(holder, called):
                self.methods[key] = self.methods.get(key, False) or torch.is_grad_enabled()

    def note_phase(self, phase: str) -> None:
        """Note that the methods around a phase do more than call a model, unless it is a call or a loss."""
        if not self.is_noting or phase in (*CALLED, "loss"):
            return
        self.has_updated |= phase == "optimizer"
        self.refused |= {(type(holder), name) for holder, name in list_methods()}

    def is_part(self, holder: nn.Module, called: nn.Module) -> bool:
        """Return whether a module is a part of another one, and lacks some of its parameters."""
        key = id(holder), id(called)
        if key not in self.is_of:
            has_less = 0 < len(list_module_parameters(called)) < len(list_module_parameters(holder))
            self.is_of[key] = has_less and any(part is called for part in holder.modules())
        return self.is_of[key]

    def put(self) -> None:
        for kind, name in self.methods.keys() - self.refused - self.bare.keys():
            bare = inspect.getattr_static(kind, name)
            self.bare[kind, name] = vars(kind).get(name)
            setattr(kind, name, self.wrap(bare, self.methods[kind, name]))

    def wrap(self, bare: Callable[..., Any], has_gradients: bool) -> Callable[..., Any]:

        @functools.wraps(bare)
        def call(module: nn.Module, *args: Any, **options: Any) -> Any:
            if torch.compiler.is_compiling():
                return bare(module, *args, **options)
            self.has_gradients = has_gradients
            try:
                return self.see(bare, module, args, options)
            finally:
                self.has_gradients = True

        return call

    def take(self) -> None:
        for (kind, name), bare in self.bare.items():
            if bare is None:  # it was inherited
                delattr(kind, name)
            else:
                setattr(kind, name, bare)
        self.bare.clear()


def list_methods() -> Iterator[tuple[nn.Module, str]]:
    """Yield the methods of modules that this thread is in, innermost first, each with its module."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_argcount and code.co_varnames[0] == "self":
            holder = frame.f_locals.get("self")
            if isinstance(holder, nn.Module):
                method = inspect.getattr_static(type(holder), code.co_name, None)
                if inspect.isfunction(method) and inspect.unwrap(method).__code__ is code:
                    yield holder, code.co_name
        frame = frame.f_back
