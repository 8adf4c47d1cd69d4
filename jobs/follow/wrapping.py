"""How functions of PyTorch are had to call something of ours. Loaded into other people's scripts, as `follow` is."""

import functools
from collections.abc import Callable
from typing import Any


def wrap(holder: Any, name: str, around: Callable[..., Any]) -> None:
    """Have `around(called, *args)` called in place of the function `name` of `holder`."""
    called = getattr(holder, name)

    @functools.wraps(called)
    def call(*args: Any, **options: Any) -> Any:
        return around(called, *args, **options)

    setattr(holder, name, call)


def replace_closure(
    args: tuple[Any, ...], options: dict[str, Any], around: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of an optimizer's step, of which `around(closure)` takes the place of its closure; None where the
    script gives none."""
    closure = options.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        return None
    replaced = functools.wraps(closure)(around(closure))
    if len(args) > 1:
        return (args[0], replaced, *args[2:]), options
    return args, {**options, "closure": replaced}
