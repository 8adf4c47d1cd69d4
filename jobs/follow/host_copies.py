"""Which line of a script copies between the memory of the CPU and the memory of a GPU.

In followed steps each call of a tensor's `to`, `cuda` or `copy_` that does so is inside a range with the number of its
line. What the capture shows to be launched in the range are the copies of the line, with their size and the kind of
memory, whether the CPU waits for them or not (see `jobs.contract.ranges`). Nothing else is changed in the call.

Imported inside the script (see `sitecustomize`). It needs torch and the other files of this folder.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import has_torch_function

from .script_frames import HERE, find_own_frame

COPY = "modules:copy "
"""Beginning of the name of the range around a call that copies."""
COPYING = ("to", "cuda", "copy_")
CPU, GPU = "cpu", "cuda"


class CopyCalls:
    """The lines that copy between the CPU and a GPU between `begin` and `end`, each with a number. push, pop: open and
    close a range."""

    def __init__(self, push: Callable[[str], Any], pop: Callable[[], Any]):
        self.push, self.pop = push, pop
        self.numbers: dict[tuple[str, int, str], int] = {}
        self.undo: list[Callable[[], Any]] = []

    def begin(self) -> None:
        if not self.undo and torch.cuda.is_initialized():
            for name in COPYING:
                self.wrap(name)

    def wrap(self, name: str) -> None:
        own, called = vars(torch.Tensor).get(name), getattr(torch.Tensor, name)
        is_on = True

        @functools.wraps(called)
        def copy(tensor: Any, /, *args: Any, **options: Any) -> Any:
            if not is_on or torch.compiler.is_compiling():
                return called(tensor, *args, **options)
            call = call_alone if has_torch_function((tensor, *args, *options.values())) else called
            if not moves(tensor, name, args, options):
                return call(tensor, *args, **options)
            return self.call(functools.partial(call, tensor, *args, **options))

        def call_alone(*args: Any, **options: Any) -> Any:
            """Call the function without ours in its place: PyTorch looks there for what it passes to tensors and modes
            that override functions, and these compare it with PyTorch's own."""
            was_in_place = leave()
            try:
                return called(*args, **options)
            finally:
                if was_in_place and is_on and vars(torch.Tensor).get(name) is own:
                    setattr(torch.Tensor, name, copy)

        def leave() -> bool:
            if vars(torch.Tensor).get(name) is not copy:  # the script may have replaced it since
                return False
            setattr(torch.Tensor, name, own) if own else delattr(torch.Tensor, name)
            return True

        def take_back() -> None:
            nonlocal is_on
            is_on = False  # the script may keep it
            leave()

        copy.__module__, copy.__qualname__ = "torch", f"Tensor.{name}"  # by which it is pickled
        setattr(torch.Tensor, name, copy)
        self.undo.append(take_back)

    def call(self, called: Callable[[], Any]) -> Any:
        caller = sys._getframe(1).f_back  # None where a thread without Python calls, as in a backward pass
        frame = None if caller is None or caller.f_code.co_filename.startswith(HERE) else find_own_frame(caller)
        if frame is None:
            return called()
        line = frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        self.push(f"{COPY}{self.numbers.setdefault(line, len(self.numbers))}")
        try:
            return called()
        finally:
            self.pop()

    def end(self) -> None:
        while self.undo:
            self.undo.pop()()

    def list_lines(self) -> list[dict[str, Any]]:
        """List the lines by number: file (whole path), line, function, number."""
        names = ("file", "line", "function")
        return [{**dict(zip(names, line)), "number": number} for line, number in self.numbers.items()]


def moves(tensor: torch.Tensor, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Whether a call of one of COPYING is between the CPU and another device. What the script overrides is not called:
    it may note its calls, or fail."""
    try:
        with torch._C.DisableTorchFunction():
            devices = filter(None, map(find_device, (*args, *options.values())))
            target = next(devices, GPU if name == GPU else "")
            return bool(target) and (target == CPU) != (find_device(tensor) == CPU)
    except Exception:  # the call itself raises then, or does what only its tensors know
        return False


def find_device(value: Any) -> str:
    """Find the kind of device that an argument names; "" if it names none."""
    if isinstance(value, torch.Tensor):
        device: torch.device = torch.Tensor.device.__get__(value)
        return device.type
    if isinstance(value, torch.device):
        return value.type
    if isinstance(value, str):
        return value.partition(":")[0]
    return GPU if isinstance(value, int) and not isinstance(value, bool) else ""
