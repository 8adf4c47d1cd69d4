"""TF32: `torch.set_float32_matmul_precision("high")`, before the script's first line after `import torch`."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..applied_change import HAS_IT, AppliedChange
from ..matmul_precision import read_matmul_precision
from ..wrapping import wrap


class TF32(AppliedChange):
    reason = ""

    @staticmethod
    def explain_presence(facts: Mapping[str, Any]) -> str:
        return HAS_IT if facts["float32_matmul_precision"] != "highest" else ""

    def apply(self) -> None:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        wrap(torch, "set_float32_matmul_precision", self.set_by_script)

    def set_by_script(self, called: Callable[..., Any], precision: str) -> None:
        if precision != "highest":
            self.reason = HAS_IT
        called(precision)

    def outcome(self) -> str:
        return self.reason or ("the script undid it" if read_matmul_precision() == "highest" else "")


CHANGE = TF32
