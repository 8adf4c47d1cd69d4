"""What all changes to a script have in common; each is a module of `changes`."""

from collections.abc import Sequence
from typing import Any

from torch import nn

HAS_IT = "the script has it already"
NO_GPU = "there is no GPU"


class AppliedChange:
    """A change to a script. reason: why it is not applied; "" once it is. is_on: whether the script has it now, as set
    before `apply`, and later by `switch`, between two steps."""

    needs_calls = False
    """Whether `before_call` is needed."""
    reason = "no model was called"
    is_on = True

    def apply(self) -> None:
        """Have PyTorch do it, as soon as it is imported, or only be ready for it if it is off."""

    def before_call(self, model: nn.Module) -> None:
        """Act before the script calls a model, for the first time or again, or once more when it is switched on."""

    def note_inputs(self, inputs: Sequence[dict[str, Any]]) -> None:
        """Note what the script calls a model with under gradients, as `describe_inputs` returns it."""

    def note_step(self, num_backwards: int) -> None:
        """Note a step that ended, and how many backward passes it had."""

    def switch(self, is_on: bool) -> None:
        """Give the script the change, or take it back, between two steps."""
        self.is_on = is_on

    def explain_obstacle(self, models: Sequence[nn.Module]) -> str:
        """Return why the change cannot be switched on, once the script has taken steps without it; "" if it can.
        models: those that the script calls."""
        return ""

    def outcome(self) -> str:
        """Return `reason` as it is when the script ends."""
        return self.reason
