"""Wrappers around functions of PyTorch. Loaded into other people's scripts, as `follow` is."""

import functools
from collections.abc import Callable
from typing import Any


def wrap(holder: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace the function `name` of `holder` by `around(called, ...)`, where `called` is the original."""
    called = getattr(holder, name)

    @functools.wraps(called)
    def call(*args: Any, **options: Any) -> Any:
        return around(called, *args, **options)

    setattr(holder, name, call)


def replace_closure(
    args: tuple[Any, ...], options: dict[str, Any], around: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments of an optimizer's step with `around(closure)` in place of the closure; None without a
    closure."""
    closure = options.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        return None
    replaced = functools.wraps(closure)(around(closure))
    if len(args) > 1:
        return (args[0], replaced, *args[2:]), options
    return args, {**options, "closure": replaced}


def call_plainly(called: Callable[..., Any]) -> Callable[..., Any]:
    return lambda module, args, options: called(module, *args, **options)
