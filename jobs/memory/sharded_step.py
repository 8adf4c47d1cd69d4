"""Steps of the reference Transformer with parameters, gradients and optimizer state sharded over GPUs, as FSDP's
`fully_shard` of each block and of the model does. A block has its whole parameters while it computes; in backward those
of the block before it are sent by then. Embedding and output layer keep theirs from forward to the end of backward.
"""

from profiler_job.jobs.contract.ranges import BLOCK_PREFIX, name_block
from profiler_job.jobs.memory.simulated_step import (
    FP32,
    UNMADE,
    Device,
    Layer,
    Leaf,
    Relief,
    Shape,
    SimulatedStepper,
    Tensor,
)

ROOT = ""


class ShardedStepper(SimulatedStepper):
    """Of one GPU of `relief.gpus`. `parameters` are its parts; the whole ones, by place, have memory only while
    `gathered` has it. Gradients are not accumulated."""

    def __init__(self, shape: Shape, device: Device, relief: Relief):
        self.units: dict[str, list[Tensor]] = {}
        self.gathered: dict[str, list[Tensor]] = {}
        self.sent: dict[str, Tensor] = {}  # what the GPUs sent, by place, until it is copied
        self.reduced: Tensor | None = None
        self.unit = ROOT
        super().__init__(shape, device, relief)
        device.on_enter = self.enter

    def layer(self, d: int, f: int) -> Layer:
        self.unit = name_block(len(self.units) - 1)  # the embedding comes before
        layer = super().layer(d, f)
        self.unit = ROOT
        return layer

    def parameter(self, size: int) -> Tensor:
        parameter = Tensor(UNMADE, size, FP32)
        parameter.node = leaf = Leaf()
        self.units.setdefault(self.unit, []).append(parameter)
        self.leaves.append(leaf)
        self.parameters.append(self.device.new(-(-size // self.relief.gpus)))
        return parameter

    def model(self) -> Tensor:
        self.gather(ROOT)
        out = super().model()
        self.sent.clear()
        return out

    def blocks(self, numbers: range, x: Tensor, is_again: bool = False) -> Tensor:
        for i in numbers:
            self.gather(name_block(i))
            x = super().blocks(range(i, i + 1), x, is_again and i == numbers[-1])
            if not is_again:
                del self.gathered[name_block(i)]
        return x

    def backward(self) -> None:
        super().backward()
        self.leave()
        self.unit = ROOT
        self.leave()
        self.gathered.clear()
        self.reduced = None

    def send(self, unit: str) -> None:
        if unit in self.units and unit not in self.sent:
            sent = self.device.new(sum(parameter.size for parameter in self.units[unit]))
            self.sent = {unit: sent}

    def gather(self, unit: str) -> None:
        if unit not in self.gathered:
            self.send(unit)
            self.gathered[unit] = [self.device.new(parameter.size) for parameter in self.units[unit]]

    def enter(self, place: str) -> None:
        """In backward: a block is gathered, and the block before it is sent already."""
        unit = place.split("/")[0]
        if unit not in self.units or unit in (self.unit, ROOT):
            return
        self.leave()
        self.unit = unit
        self.gather(unit)
        self.send(name_block(int(unit.removeprefix(BLOCK_PREFIX)) - 1))

    def leave(self) -> None:
        """Sum the gradients of a block over all GPUs; each keeps its part."""
        leaves = [parameter.node for parameter in self.units[self.unit] if isinstance(parameter.node, Leaf)]
        if self.unit == ROOT and self.reduced is None:
            return  # backward begins
        self.reduced = self.device.new(sum(parameter.size for parameter in self.units[self.unit]))
        for leaf in leaves:
            leaf.gradient = None
        part = self.device.new(-(-self.reduced.size // self.relief.gpus))
        for leaf in leaves:
            leaf.gradient = part
        self.gathered.pop(self.unit, None)
