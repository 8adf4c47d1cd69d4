"""What all changes to a script have in common; each is a module of `changes`."""

from collections.abc import Mapping
from typing import Any

from torch import nn

HAS_IT = "the script has it already"


class AppliedChange:
    """A change to a script. reason: why it is not applied; "" once it is."""

    needs_calls = False
    """Whether `before_call` is needed."""
    reason = "no model was called"

    @staticmethod
    def explain_presence(facts: Mapping[str, Any]) -> str:
        """Return why a script with these facts, which was followed without changes, cannot be given the change; "" if
        it can."""
        return ""

    def apply(self) -> None:
        """Have PyTorch do it, as soon as it is imported."""

    def before_call(self, model: nn.Module) -> None:
        """Act before the script calls a model, for the first time or again."""

    def outcome(self) -> str:
        """Return `reason` as it is when the script ends."""
        return self.reason
