"""GPU memory in the last followed step: peak by phase, by owner and by module, and the largest tensors that forward
keeps for backward.

The allocator's events (`torch.cuda.memory._record_memory_history`) show what is allocated when, hooks of saved tensors
what is kept for which operation. Both are of this one step, whose time is not used. The hooks return what they get,
and stay away from scripts that go on after this step, compile, or have hooks or autograd functions of their own. What
fails in here ends quietly and is named in `problems`: none of it may break the script.

Needs torch: it is loaded into other people's scripts.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import get_ident
from typing import Any

import torch
from torch import nn

from .ending_optimizer import list_parameters
from .memory_owners import BUFFERS, GRADIENTS, OPTIMIZER_STATE, PARAMETERS, Note, Saved, summarize
from .module_ranges import ModuleRanges
from .phase_memory import PhaseMemory
from .script_frames import is_own

COMPILED = "a compiled graph saves them as a whole, so their modules and operations are not known"
"""Why those of a script that compiles are not followed: what hooks do would be compiled, too."""
OWN_HISTORY = "the script records them itself"
MOST_EVENTS = 1_000_000
"""Events of the allocator in a step: more are not kept."""
SEGMENT_CALLS = {"segment_alloc": "cudaMalloc", "segment_free": "cudaFree"}
"""What the allocator calls at an event."""


def read_clock() -> int:
    """Read the clock that the allocator's events have, in microseconds."""
    return time.time_ns() // 1000


class UnavailableError(Exception):
    """The script itself uses what memory is read by; the message says how."""


class StepMemory:
    """Memory of the step between `begin` and `end`; at other times each method does nothing."""

    def __init__(self, ranges: ModuleRanges):
        self.ranges = ranges
        self.is_on = self.has_history = self.has_hooks = False
        self.undo_history: Callable[[], Any] = lambda: None
        self.phases: list[dict[str, Any]] = []
        self.spans: list[tuple[str, int, int]] = []  # phases: name, begin and end on the clock
        self.notes: list[Note] = []
        self.saved: list[Saved] = []
        self.problems: list[str] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.models: list[nn.Module] = []
        self.before: list[tuple[int, int]] = []  # address and size of what was allocated before the step
        self.events: list[dict[str, Any]] = []
        self.segments: list[dict[str, Any]] | None = None  # None: not known
        self.peak = 0
        self.owners: dict[str, Any] = {}

    # ------------------------------------------------------------------------------------------- begin and end

    def begin(self, is_last: bool, reason: str, optimizers: Iterable[torch.optim.Optimizer] = ()) -> None:
        """Begin with a step, if it is the last one. reason: why saved tensors are not followed, or "". optimizers: all
        that have stepped."""
        if not is_last:
            return
        self.is_on = True
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()
            self._try("the allocator's events", self._begin_history)
        if reason:
            self.problems.append(f"saved tensors: {reason}")
        else:
            parameters = [parameter for optimizer in optimizers for parameter in list_parameters(optimizer)]
            self._try("saved tensors", lambda: self._begin_hooks(parameters))

    def end(self) -> None:
        if not self.is_on:
            return
        self.is_on = False
        self._try("saved tensors", self._end_hooks)
        self._try("owners of memory", self._note_held)
        self._note_peak()
        self._try("the allocator's events", self._end_history)
        self._try("owners of memory", self._summarize)
        for held in (self.before, self.events, self.notes, self.saved, self.optimizers, self.models):
            held.clear()

    def list_facts(self) -> dict[str, Any]:
        """Return `memory`, the peaks of the phases, `memory_owners` (see `memory_owners.summarize`), and `segments`."""
        owners = self.owners | {"problems": list(dict.fromkeys(self.problems))}
        return {"memory": self.phases, "memory_owners": owners, "segments": self.segments}

    def _try(self, what: str, work: Callable[[], None]) -> None:
        try:
            work()
        except UnavailableError as error:
            self.problems.append(f"{what}: {error}")
        except Exception as error:
            first = (str(error).strip().splitlines() or ["no reason given"])[0]
            self.problems.append(f"{what}: {type(error).__name__}: {first}")

    # ------------------------------------------------------------------------------------------ while it goes on

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if not self.is_on:
            yield
            return
        self._note_peak()
        memory, start = PhaseMemory(name), read_clock()
        try:
            yield
        finally:
            self.phases += memory.list_facts()
            self.spans.append((name, start, read_clock()))

    def note_model(self, module: nn.Module) -> None:
        """The script calls a model."""
        if self.is_on and all(module is not model for model in self.models):
            self.models.append(module)

    def note_update(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to step."""
        if self.is_on:
            self.optimizers.append(optimizer)
            self._note(GRADIENTS, (parameter.grad for parameter in list_parameters(optimizer)))

    def _note(self, owner: str, tensors: Iterable[Any]) -> None:
        now = read_clock()
        for tensor in tensors:
            with suppress(Exception):  # a subclass may have no memory
                local = getattr(tensor, "_local_tensor", tensor)
                if isinstance(local, torch.Tensor):
                    self.notes.append(Note(owner, local.untyped_storage().data_ptr(), now))

    def _note_peak(self) -> None:
        if torch.cuda.is_initialized():
            self.peak = max(self.peak, torch.cuda.max_memory_allocated())

    def _note_held(self) -> None:
        """Note what the step has left: parameters, buffers, and the state of optimizers."""
        for model in self.models:
            self._note(PARAMETERS, nn.Module.parameters(model))
            self._note(BUFFERS, nn.Module.buffers(model))
        for optimizer in self.optimizers:
            self._note(PARAMETERS, list_parameters(optimizer))
            for state in optimizer.state.values():
                self._note(OPTIMIZER_STATE, state.values() if isinstance(state, dict) else ())

    # -------------------------------------------------------------------------------------- the allocator's events

    def _begin_history(self) -> None:
        if torch._C._cuda_isHistoryEnabled():
            raise UnavailableError(OWN_HISTORY)
        holder = torch.cuda.memory
        record = holder._record_memory_history
        record("all", context="all", stacks="python", max_entries=MOST_EVENTS)
        self.has_history = True

        def step_aside(*args: Any, **options: Any) -> Any:
            if self.has_history:  # it would end with the step
                self.problems.append(f"the allocator's events: {OWN_HISTORY}")
                self._leave_history()
                self.before.clear()
            return record(*args, **options)

        holder._record_memory_history = step_aside
        self.undo_history = lambda: restore(holder, "_record_memory_history", step_aside, record)
        self.before = self._list_blocks()

    def _end_history(self) -> None:
        if self.has_history:
            try:
                self.events = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
                self.segments = list_segments(self.events)
            finally:
                self._leave_history()
                torch.cuda.memory._record_memory_history(None)

    def _leave_history(self) -> None:
        self.has_history = False
        self.undo_history()

    def _list_blocks(self) -> list[tuple[int, int]]:
        """List address and requested size in bytes of what is allocated on this device."""
        device = torch.cuda.current_device()
        return [
            (block["address"], block["requested_size"])
            for segment in torch.cuda.memory_snapshot()
            if segment["device"] == device
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        ]

    def _summarize(self) -> None:
        names = {number: re.sub(r"Backward\d*$", "", name) for number, name in self.ranges.operations.items()}
        saved = [tensor._replace(operation=names.get(tensor.number, "")) for tensor in self.saved]
        self.owners, problem = summarize(self.before, self.events, self.spans, self.notes, saved, self.peak)
        self.problems += [problem] if problem else []

    # ---------------------------------------------------------------------------------------- hooks of saved tensors

    def _begin_hooks(self, parameters: list[torch.Tensor]) -> None:
        # A function that reads an attribute of a saved parameter does not find it: with hooks it gets another tensor.
        if any(hasattr(parameter, "main_grad") for parameter in parameters):
            raise UnavailableError("the script adds gradients up itself, in main_grad")
        if name := find_function():
            raise UnavailableError(f"the script has autograd functions that are not PyTorch's ({name})")
        library = torch._C._autograd
        if library._top_saved_tensors_default_hooks(True) is not None:
            raise UnavailableError("the script has hooks of its own")
        disable = self.disable = library._saved_tensors_hooks_disable

        thread = get_ident()

        def step_aside(*args: Any, **options: Any) -> Any:
            if self.has_hooks and get_ident() == thread:  # torch.func raises where there are hooks
                self.problems.append("saved tensors: the script uses torch.func")
                self._end_hooks()
            return disable(*args, **options)

        library._push_saved_tensors_default_hooks(self.pack, unpack)
        library._saved_tensors_hooks_disable = step_aside
        self.has_hooks = True

    def _end_hooks(self) -> None:
        if self.has_hooks:
            self.has_hooks = False
            library = torch._C._autograd
            library._saved_tensors_hooks_disable = self.disable
            above = []  # hooks of the script, in which the step has ended
            while (hooks := library._top_saved_tensors_default_hooks(True)) is not None:
                library._pop_saved_tensors_default_hooks()
                if hooks[0] == self.pack:
                    break
                above.append(hooks)
            for hooks in reversed(above):
                library._push_saved_tensors_default_hooks(*hooks)

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note a tensor that is saved for backward. A result is kept without its node, which may keep it. Nobody
        notices if a script changes it in place before backward, which raises at other times."""
        if self.has_hooks and self.is_on:
            with suppress(Exception):
                self.saved.append(self._describe(tensor))
        return tensor if tensor.is_leaf and tensor.requires_grad else tensor.detach()

    def _describe(self, tensor: torch.Tensor) -> Saved:
        storage = tensor.untyped_storage()
        return Saved(
            address=storage.data_ptr(),
            time_us=read_clock(),
            num_bytes=storage.nbytes(),
            module=self.ranges.path,
            number=torch._C._autograd._get_sequence_nr() - 1,
            operation="",
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
        )


def restore(holder: Any, name: str, ours: Any, own: Any) -> None:
    """Take our function away, unless the script has replaced it since."""
    if getattr(holder, name) is ours:
        setattr(holder, name, own)


def list_segments(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """List the calls by which the allocator takes memory from the driver or returns it, in order: call, and file (whole
    path), line and function of the script, which are empty where a thread without Python calls."""
    rows = []
    for event in events:
        if event["action"] in SEGMENT_CALLS:
            own: dict[str, Any] = next((frame for frame in event.get("frames", ()) if is_own(frame["filename"])), {})
            place = {"file": own.get("filename", ""), "line": own.get("line", 0), "function": own.get("name", "")}
            rows.append({"call": SEGMENT_CALLS[event["action"]]} | place)
    return rows


def find_function() -> str:
    """Find the name of an autograd function that is not PyTorch's; "" if there is none."""
    kinds = list(torch.autograd.Function.__subclasses__())
    for kind in kinds:
        kinds += kind.__subclasses__()
        if kind.__module__.partition(".")[0] != "torch":
            return kind.__qualname__
    return ""


def unpack(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
