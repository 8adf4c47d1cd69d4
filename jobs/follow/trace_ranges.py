"""Ranges in a trace of torch.profiler, for scripts that are followed without nsys.

`torch.profiler` records the captured steps of this process: operators, calls of CUDA and kernels. Phases, modules and
steps are ranges of `record_function`. Python stacks and sizes of tensors stay out, since they slow the CPU most.

Needs torch and `script_ranks.py`: it is loaded into other people's scripts.
"""

import gzip
import shutil
import threading
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import profile, record_function

from .script_ranks import FollowError

OWN_PROFILER = (
    "the script runs torch.profiler in the steps that are to be captured, and there is one at a time: leave it out "
    "there, give other --skip and --steps, or take --collector nsys"
)
STARTED = "loop:"
"""Prefix of the range of a step, which ends in the middle of others."""


class TraceRanges:
    """Ranges of steps. `push(name)` opens a range and `pop()` closes it, as `range_push` of `torch.cuda.nvtx` does."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._profiler: Any = None
        self._step: Any = None

    def push(self, name: str) -> None:
        if self._profiler is not None:
            self._list_open().append(_open(name))

    def pop(self) -> None:
        if self._profiler is not None and (still_open := self._list_open()):
            still_open.pop().__exit__(None, None, None)

    def _list_open(self) -> list[Any]:
        """List the open ranges of this thread."""
        if not hasattr(self._local, "still_open"):
            self._local.still_open = []
        still_open: list[Any] = self._local.still_open
        return still_open

    def begin(self) -> None:
        """Begin the trace. Raises FollowError if the script runs torch.profiler itself, which would lose its trace."""
        if torch.autograd._profiler_enabled():
            raise FollowError(OWN_PROFILER)
        self._profiler = _make_profiler(with_gpu=torch.cuda.is_initialized())
        self._profiler.__enter__()

    def end(self, file: Path | None) -> None:
        """End the trace, and write it to `file`, gzipped, unless that is None. Raises FollowError if the script has
        begun another one meanwhile, which ended this one."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        is_whole = torch.autograd._profiler_enabled()
        profiler.__exit__(None, None, None)
        if file is None:
            return
        if not is_whole:
            raise FollowError(OWN_PROFILER)
        draft = file.with_suffix("")
        profiler.export_chrome_trace(str(draft))
        with draft.open("rb") as written, gzip.open(file, "wb", compresslevel=3) as packed:
            shutil.copyfileobj(written, packed, 1 << 20)
        draft.unlink()

    def open_step(self, name: str) -> None:
        self._step = _open(f"{STARTED}{name}")

    def close_step(self) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None


def _make_profiler(with_gpu: bool) -> Any:
    """Make the profiler below `torch.profiler.profile`, which would import PyTorch's compiler, for seconds."""
    try:
        return profile(use_kineto=True, use_device="cuda" if with_gpu else None)
    except TypeError:  # PyTorch 2.0
        return profile(use_kineto=True, use_cuda=with_gpu)


def _open(name: str) -> Any:
    opened = record_function(name)
    opened.__enter__()
    return opened
