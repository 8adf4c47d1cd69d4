"""Text that a model generates: one prefill, which reads the prompt, then a decode step for each new token.

Loaded into other people's scripts, as `follow` is.
"""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

PREFILL, DECODE = "prefill", "decode"
LONGEST_WAIT = 512
"""Decode steps after which a stage begins without a prefill."""


class Generation:
    """Calls of models: prefills, decode steps and others. `kind` is of the last call: PREFILL,
    DECODE, or "" as long as no call had one token for each sequence. `shape`: [sequences, new tokens] of that call."""

    def __init__(self) -> None:
        self.shape: tuple[int, int] | None = None
        self.kind = ""
        self.num_prefills = 0
        self.has_decoded = False

    @property
    def num_tokens(self) -> int:
        return self.shape[0] * self.shape[1] if self.shape else 0

    def note_call(self, args: Iterable[Any], options: dict[str, Any]) -> None:
        self.shape = find_token_shape(args, options)
        self.kind = ""
        if self.shape is None:
            return
        if self.shape[1] > 1:
            self.num_prefills += 1
        elif self.num_prefills:
            self.has_decoded = True
        if self.has_decoded:
            self.kind = PREFILL if self.shape[1] > 1 else DECODE


def find_token_shape(args: Iterable[Any], options: dict[str, Any]) -> tuple[int, int] | None:
    """Return [sequences, tokens] of the first matrix of integers among the inputs, masks and positions aside; None
    without one."""
    named = [value for name, value in options.items() if "mask" not in name and "position" not in name]
    for value in (*args, *named):
        if not isinstance(value, Tensor) or value.ndim != 2 or value.is_nested:
            continue
        if not (value.is_floating_point() or value.is_complex()):
            return value.shape[0], value.shape[1]
    return None


def note_shift(noted: list[dict[str, Any]], args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Correct the noted inputs of a model: they are of a wrapper that takes one token more than it trains on, as inputs
    and targets in one."""
    inside = find_token_shape(args, options)
    if inside is not None and noted and noted[0]["shape"] == [inside[0], inside[1] + 1]:
        noted[0]["shape"] = list(inside)
