"""The capture of nsys, which a script that is followed begins and ends, and the ranges of its steps.

Needs torch: it is loaded into other people's scripts.
"""

from pathlib import Path
from typing import Any

import torch


class NsysCapture:
    """Begins and ends a capture, and opens and closes the range of a step in it; nothing in a script that uses no
    GPU."""

    def __init__(self) -> None:
        self._step: Any = None

    def begin(self) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.profiler.start()

    def end(self, file: Path | None) -> None:
        """End the capture. file: not needed, since nsys writes its own."""
        if torch.cuda.is_initialized():
            torch.cuda.profiler.stop()

    def open_step(self, name: str) -> None:
        if torch.cuda.is_initialized():
            self._step = torch.cuda.nvtx.range_start(name)

    def close_step(self) -> None:
        if self._step is not None:
            torch.cuda.nvtx.range_end(self._step)
