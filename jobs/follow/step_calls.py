"""The calls of PyTorch's operators in one step of a script, as a list that is JSON: what a step consists of, so that
each part can be measured alone (`measured_parts`) and changed (`jobs.executor.changed_calls`).

Loaded into other people's scripts, as `follow` is.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

MOST_NUMBERS = 10_000_000
"""Length up to which a tensor of integers is kept: indices must stay valid when a call is measured."""
LEFT_OUT = ("profiler.", "_c10d", "c10d.")


class CallRecorder(TorchDispatchMode):
    """Records calls while it is entered. find_phase: returns the phase of the step.

    calls: `op`, `args`, `kwargs`, `outputs`, `phase`, and `is_view`. A tensor is a record of `value` (a number; tensors
    that share memory have one), `shape`, `stride` and `dtype`. numbers: tensors of integers, by value.
    has_failed: whether a call could not be described, as one of sparse tensors; then there are no calls.
    """

    def __init__(self, find_phase: Callable[[], str]):
        super().__init__()  # type: ignore[no-untyped-call]
        self.find_phase = find_phase
        self.calls: list[dict[str, Any]] = []
        self.numbers: dict[int, Tensor] = {}
        self.values: dict[int, int] = {}
        self.num_values = 0
        self.has_failed = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.has_failed or str(func).startswith(LEFT_OUT):
            return func(*args, **kwargs)
        described: Any = None
        with self.noting_failure():
            described = self.describe(args), self.describe(kwargs)
        returned = func(*args, **kwargs)
        with self.noting_failure():
            self.note(func, described, returned)
        return returned

    @contextmanager
    def noting_failure(self) -> Iterator[None]:
        """Note that a call cannot be described: no reason for a script to end."""
        try:
            yield
        except Exception:
            self.has_failed = True
            self.calls.clear()

    def note(self, func: Any, described: Any, returned: Any) -> None:
        """Note a call: its described arguments, and what it returned."""
        if self.has_failed:
            return
        known = {tensor["value"] for tensor in list_tensors(described)}
        self.calls.append(
            {
                "op": str(func),
                "args": described[0],
                "kwargs": described[1],
                "outputs": list_tensors(self.describe(returned, known)),
                "phase": self.find_phase(),
                "is_view": bool(getattr(func, "is_view", False)),
            }
        )

    def describe(self, value: Any, known: set[int] | None = None) -> Any:
        """Describe arguments; with `known`, what a call returned: other values than these are new."""
        if isinstance(value, Tensor):
            return self.describe_tensor(value, known)
        if isinstance(value, list | tuple):
            return [self.describe(each, known) for each in value]
        if isinstance(value, dict):
            return {str(name): self.describe(each, known) for name, each in value.items()}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        return {"torch": str(value)}  # a type, a device, a layout

    def describe_tensor(self, tensor: Tensor, known: set[int] | None) -> dict[str, Any]:
        storage = tensor.untyped_storage()._cdata
        number = self.values.get(storage)
        if number is None or (known is not None and number not in known):
            number = self.values[storage] = self.num_values
            self.num_values += 1
        if not tensor.is_floating_point() and tensor.dtype != torch.bool and tensor.numel() <= MOST_NUMBERS:
            self.numbers[number] = tensor.detach()
        return {
            "value": number,
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
            "dtype": str(tensor.dtype).removeprefix("torch."),
        }


def list_tensors(value: Any) -> list[dict[str, Any]]:
    """List the tensors in described arguments."""
    if isinstance(value, dict):
        if "value" in value and "shape" in value:
            return [value]
        return [tensor for each in value.values() for tensor in list_tensors(each)]
    if isinstance(value, list | tuple):
        return [tensor for each in value for tensor in list_tensors(each)]
    return []
