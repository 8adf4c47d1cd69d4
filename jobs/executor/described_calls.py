"""Calls of operators as a script describes them (see `jobs.follow.step_calls`): their names and tensors."""

from collections.abc import Iterator
from typing import Any

Call = dict[str, Any]


def name_operator(call: Call) -> str:
    """Return the name of a call's operator, without namespace and overload."""
    parts = call["op"].split(".")
    return str(parts[1] if len(parts) > 1 else parts[0])


def list_tensors(value: Any) -> Iterator[dict[str, Any]]:
    """List the tensors in described arguments."""
    if isinstance(value, dict):
        if "shape" in value:
            yield value
            return
        value = [*value.values()]
    if isinstance(value, list | tuple):
        for each in value:
            yield from list_tensors(each)


def list_inputs(call: Call) -> list[dict[str, Any]]:
    return [*list_tensors([each for name, each in call.items() if name not in ("outputs", "op", "phase")])]


def replace_tensors(value: Any, change: Any) -> Any:
    """Return arguments in which each tensor is what `change` makes of it."""
    if isinstance(value, dict):
        return change(value) if "shape" in value else {name: replace_tensors(x, change) for name, x in value.items()}
    return [replace_tensors(each, change) for each in value] if isinstance(value, list) else value
