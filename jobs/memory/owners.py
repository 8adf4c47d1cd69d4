"""What the allocated memory of a simulated step belongs to: at its peak by owner and by module, and after each change.

Each allocation is noted with the ranges that were open (`Device.place`), and gets its owner when that is known: what
becomes a gradient, or is kept for backward, is not known before.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from profiler_job.jobs.contract.memory_owner import Owner
from profiler_job.jobs.contract.ranges import FORWARD, LOSS
from profiler_job.jobs.memory.caching_allocator import Block, CachingAllocator
from profiler_job.jobs.memory.simulated_step import (
    FP32,
    NUM_STEPS,
    Device,
    Shape,
    SimulatedStepper,
    Tensor,
)


class Piece:
    """An allocation of `asked` bytes, which got a block of `size` bytes. `born` and `died` count changes of the
    allocator; `died` is None while it is there. `place`: the ranges that were open. `saved_in`: the ranges of the first
    operation that kept it for backward."""

    __slots__ = ("asked", "born", "died", "owner", "place", "saved_in", "size")

    def __init__(self, asked: int, size: int, born: int):
        self.asked, self.size, self.born = asked, size, born
        self.died: int | None = None
        self.owner: Owner | None = None
        self.place = self.saved_in = ""


class NotingAllocator(CachingAllocator):
    """An allocator that notes its pieces, and what was allocated after each change."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[int] = []
        self.pieces: list[Piece] = []
        self.live: dict[int, Piece] = {}  # by address

    def allocate(self, num_bytes: int) -> Block:
        before = self.allocated
        block = super().allocate(num_bytes)
        piece = self.live[block.address] = Piece(num_bytes, self.allocated - before, len(self.changes))
        self.pieces.append(piece)
        self.changes.append(self.allocated)
        return block

    def free(self, block: Block) -> None:
        self.live.pop(block.address).died = len(self.changes)
        super().free(block)
        self.changes.append(self.allocated)

    def forget_past(self) -> None:
        """Keep only what is allocated now, with which the changes begin anew."""
        self.pieces = list(self.live.values())
        self.changes.clear()
        for piece in self.pieces:
            piece.born = 0


class NotingDevice(Device):
    """PyTorch's operations, which note what their tensors are for."""

    allocator: NotingAllocator

    def new(self, size: int, element: int = FP32) -> Tensor:
        tensor = super().new(size, element)
        if self.is_making:
            self.find_piece(tensor).place = self.place
        return tensor

    def record(
        self, out: Tensor, inputs: list[tuple[Tensor, int]], saved: tuple[Any, ...] = (), wide: bool = False
    ) -> Tensor:
        num_nodes = len(self.nodes)
        super().record(out, inputs, saved, wide)
        if len(self.nodes) > num_nodes:
            for piece in map(self.find_piece, saved):
                if piece.owner is None:
                    piece.owner, piece.saved_in = Owner.ACTIVATIONS, self.place
        return out

    def cast_weight(self, weight: Tensor) -> Tensor:
        cast = super().cast_weight(weight)
        if self.autocast:
            self.note_owner(Owner.CASTS, [cast])
        return cast

    def find_piece(self, tensor: Tensor) -> Piece:
        return self.allocator.live[tensor.storage.block.address]

    def note_owner(self, owner: Owner, tensors: Iterable[Tensor | None]) -> None:
        for tensor in tensors:
            if tensor is not None:
                self.find_piece(tensor).owner = owner


class PeakMemory(NamedTuple):
    """Memory of the second step, in bytes.

    phase: of the peak, the highest `allocated`. owners: what is allocated at the peak, which sums to it. activations:
    of these the activations, by the ranges of the operation that kept them for backward. grown: what is
    allocated more after the last forward pass than before the first. left: what is allocated when the step has ended,
    by owner. Both include rounding. phases: the peak of each. timeline: phase and allocated bytes after each
    allocation and release.
    """

    phase: str
    allocated: int
    owners: dict[Owner, int]
    activations: dict[str, int]
    grown: int
    left: dict[Owner, int]
    phases: dict[str, int]
    timeline: list[tuple[str, int]]


def predict_owners(shape: Shape) -> PeakMemory:
    """Predict the memory of the second step of the reference Transformer by owner. Needs neither torch nor a GPU."""
    allocator = NotingAllocator()
    device = NotingDevice(allocator)
    stepper = SimulatedStepper(shape, device)
    device.note_owner(Owner.BUFFERS, _list_rest(stepper))
    device.note_owner(Owner.WORKSPACE, [stepper.workspace])
    device.note_owner(Owner.PARAMETERS, stepper.parameters)
    timeline: list[tuple[str, int]] = []
    grown = 0
    for _ in range(NUM_STEPS):
        stepper.zero_grad()
        device.note_owner(Owner.OPTIMIZER_STATE, (moment for moments in stepper.moments for moment in moments))
        allocator.forget_past()
        timeline.clear()
        before = allocator.allocated
        for phase, work in stepper.phases:
            work()
            timeline.extend((phase, allocated) for allocated in allocator.changes[len(timeline) :])
            device.note_owner(Owner.LOGITS, [stepper.logits])
            device.note_owner(Owner.GRADIENTS, (leaf.gradient for leaf in stepper.leaves))
            if phase == FORWARD:
                grown = allocator.allocated - before
    left: Counter[Owner] = Counter()
    for piece in allocator.live.values():
        left[_find_owner(piece)] += piece.size
    return _summarize(timeline, grown, left, allocator.pieces)


def _list_rest(stepper: SimulatedStepper) -> list[Tensor]:
    """List the buffers of the model, and its tokens and targets."""
    return [*stepper.data, *(buffer for layer in stepper.layers for buffer in (layer.cos, layer.sin, layer.future))]


def _summarize(timeline: list[tuple[str, int]], grown: int, left: dict[Owner, int], pieces: list[Piece]) -> PeakMemory:
    at = max(range(len(timeline)), key=lambda change: timeline[change][1])
    there = [piece for piece in pieces if piece.born <= at and (piece.died is None or piece.died > at)]
    owners: Counter[Owner] = Counter()
    for piece in there:
        owners[_find_owner(piece)] += piece.asked
        owners[Owner.ROUNDING] += piece.size - piece.asked
    phases: dict[str, int] = {}
    for name, size in timeline:
        phases[name] = max(size, phases.get(name, 0))
    activations: Counter[str] = Counter()
    for piece in there:
        if _find_owner(piece) is Owner.ACTIVATIONS:
            activations[piece.saved_in] += piece.asked
    by_size = {owner: owners[owner] for owner in Owner if owners[owner]}
    phase, allocated = timeline[at]
    return PeakMemory(phase, allocated, by_size, dict(activations), grown, dict(left), phases, timeline)


def _find_owner(piece: Piece) -> Owner:
    if piece.owner in (None, Owner.ACTIVATIONS) and piece.place == LOSS:
        return Owner.LOGITS
    return piece.owner or Owner.TEMPORARIES
