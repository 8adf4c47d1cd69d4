"""Steps of the model on tensors that have a size and nothing else: what PyTorch would allocate and give back, and in
which order. No GPU, no torch.

`SimulatedStepper` follows `jobs/workloads/transformer/model.py`, `jobs/workloads/adamw.py` and `jobs/worker/stepper.py`
operation by operation. `Device` has the operations: what they keep for backward, and what they need in it, with one
autograd thread. As in PyTorch, a tensor lives as long as something refers to it. What libraries take inside a kernel is
left out, but for cuBLAS's workspace and the accumulators of fused attention.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from profiler_job.jobs.contract.modes import list_phases
from profiler_job.jobs.contract.precisions import BASE_PRECISION, PRECISIONS
from profiler_job.jobs.contract.ranges import (
    ATTENTION,
    BACKWARD,
    EMBEDDING,
    FFN,
    FORWARD,
    LM_HEAD,
    LOSS,
    NORM,
    OPTIMIZER,
    SOFTMAX,
    name_block,
)
from profiler_job.jobs.memory.caching_allocator import MIB, Block, CachingAllocator

if TYPE_CHECKING:
    from profiler_job.jobs.contract.axes import Run

FP32, BF16, INT64, BYTE = 4, 2, 8, 1  # bytes of an element
NUM_STEPS = 2
"""The first step has no Adam state yet; all later ones need what the second needs."""
WORKSPACE_BYTES = 32 * MIB
PASSED = -1  # in place of a number of temporaries: the output's gradient is the input's, too
ACCUMULATORS = 2  # a float32 gradient of q, counted in tensors of bf16


class Shape(NamedTuple):
    """All of a run that its memory depends on. What needs the same is written the same: `precision` is fp32 or bf16,
    `attention` naive, efficient (whose output needs no copy) or flash, `optimizer` own where none runs, `checkpointing`
    off where there is no backward pass."""

    d_model: int
    d_ff: int
    num_layers: int
    num_heads: int
    vocab_size: int
    context_length: int
    batch_size: int
    accumulation: int
    mode: str
    precision: str
    attention: str
    optimizer: str
    checkpointing: str = "off"


def infer_shape(run: "Run") -> Shape:
    shape = Shape(**{field: getattr(run, field) for field in Shape._fields if hasattr(run, field)})
    precision = "bf16" if PRECISIONS[shape.precision].autocast else BASE_PRECISION
    attention = shape.attention
    if attention != "naive":
        uncopied = attention == "efficient" or (attention == "sdpa" and precision == BASE_PRECISION)
        attention = "efficient" if uncopied else "flash"
    optimizer = shape.optimizer if shape.mode == "train_step" else "own"
    checkpointing = "off" if shape.mode == "forward" else shape.checkpointing
    return shape._replace(precision=precision, attention=attention, optimizer=optimizer, checkpointing=checkpointing)


class Relief(NamedTuple):
    """What makes a step need less memory. segment: blocks between two activations that checkpointing keeps; 0: it keeps
    all. is_loss_fused: whether the loss is computed by parts, with its gradients, so that no logits are kept.
    state_bytes: of a number of the optimizer's state. gpus: on which parameters, gradients and the state are sharded
    (see `sharded_step`)."""

    segment: int = 0
    is_loss_fused: bool = False
    state_bytes: int = FP32
    gpus: int = 1


NO_RELIEF = Relief()


class Storage:
    """A block of the allocator, given back when nothing refers to it any more."""

    __slots__ = ("allocator", "block")

    def __init__(self, allocator: CachingAllocator, block: Block):
        self.allocator, self.block = allocator, block

    def __del__(self) -> None:
        try:
            self.allocator.free(self.block)
        except (AttributeError, IndexError):  # a signal came before it had a block, or while one changed its pool
            return


UNMADE = Storage.__new__(Storage)
"""In place of a storage: the tensor is not made, or its memory is counted elsewhere."""


class Tensor:
    """`size` elements of `element` bytes in a storage. `node` is where its gradient goes, if it has one."""

    __slots__ = ("element", "node", "size", "storage")

    def __init__(self, storage: Storage, size: int, element: int):
        self.storage, self.size, self.element = storage, size, element
        self.node: Node | Leaf | None = None


class Leaf:
    """Place of the gradient of a parameter."""

    __slots__ = ("gradient",)

    def __init__(self) -> None:
        self.gradient: Tensor | None = None


class Node:
    """An operation of the backward pass: its inputs that have a gradient (node, size, element, temporaries needed), in
    the order of computation, and the storages kept until then. `wide`: whether gradients have the size of the output
    and are summed to the size of the input. `place`: the ranges that were open in forward. `again`: what computes the
    operation again, with its own nodes, from the storage that was kept."""

    __slots__ = ("again", "inputs", "place", "saved", "wide")

    def __init__(self, inputs: list[tuple[Any, ...]], saved: list[Storage], wide: bool, place: str):
        self.inputs, self.saved, self.wide, self.place = inputs, saved, wide, place
        self.again: Callable[[Storage], tuple[Tensor, Node]] | None = None


class Device:
    """PyTorch's operations. Where there are two inputs, the gradient of the second is computed first. `place`: the open
    ranges, such as `block_0/attention`; in backward, the ranges of the operation in forward."""

    def __init__(self, allocator: CachingAllocator):
        self.allocator, self.place = allocator, ""
        self.has_backward = self.autocast = False
        self.is_making = True  # whether new tensors get memory
        self.on_enter: Callable[[str], object] = str  # called with the ranges of each operation in backward
        self.nodes: list[Node] = []
        self.weight_casts: dict[Tensor, Tensor] = {}

    @contextmanager
    def at(self, name: str) -> Iterator[None]:
        above = self.place
        self.place = f"{above}/{name}" if above else name
        try:
            yield
        finally:
            self.place = above

    def new(self, size: int, element: int = FP32) -> Tensor:
        if not self.is_making:
            return Tensor(UNMADE, size, element)
        return Tensor(Storage(self.allocator, self.allocator.allocate(size * element)), size, element)

    def record(
        self, out: Tensor, inputs: list[tuple[Tensor, int]], saved: tuple[Any, ...] = (), wide: bool = False
    ) -> Tensor:
        """`out` as made from `inputs`, whose gradients need so many temporaries each."""
        if not self.has_backward:
            return out
        wanted = [(tensor.node, tensor.size, tensor.element, needs) for tensor, needs in inputs if tensor.node]
        if wanted:
            out.node = Node(wanted, [tensor.storage for tensor in saved], wide, self.place)
            self.nodes.append(out.node)
        return out

    def view(self, x: Tensor, size: int, needs: int) -> Tensor:
        return self.record(Tensor(x.storage, size, x.element), [(x, needs)])

    def copy(self, x: Tensor, needs: int = PASSED) -> Tensor:
        return self.record(self.new(x.size, x.element), [(x, needs)])

    def cast(self, x: Tensor, element: int) -> Tensor:
        return x if x.element == element else self.record(self.new(x.size, element), [(x, PASSED)])

    def map(self, x: Tensor, needs: int = 0, saves_input: bool = False, saves_output: bool = False) -> Tensor:
        """A function of each element."""
        out = self.new(x.size, x.element)
        return self.record(out, [(x, needs)], (x,) * saves_input + (out,) * saves_output)

    def exp(self, x: Tensor) -> Tensor:
        wide = self.cast(x, FP32) if self.autocast else x
        return self.map(wide, saves_output=True)

    def combine(self, x: Tensor, y: Tensor, needs: tuple[int, int], saved: tuple[Any, ...] = ()) -> Tensor:
        """A function of the elements of two tensors, the smaller one broadcast."""
        out = self.new(max(x.size, y.size), max(x.element, y.element))
        return self.record(out, [*zip((y, x), needs)], saved, wide=True)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return self.combine(x, y, (PASSED, PASSED))

    def subtract(self, x: Tensor, y: Tensor) -> Tensor:
        return self.combine(x, y, (0, PASSED))

    def multiply(self, x: Tensor, y: Tensor) -> Tensor:
        return self.combine(x, y, (0, 0), (x,) * bool(y.node) + (y,) * bool(x.node))

    def divide(self, x: Tensor, y: Tensor) -> Tensor:
        return self.combine(x, y, (3, 0), (x, y))

    def sum(self, x: Tensor, size: int) -> Tensor:
        return self.record(self.new(size, x.element), [(x, PASSED)])

    def mean(self, x: Tensor, size: int) -> Tensor:
        return self.record(self.new(size, x.element), [(x, 0)])

    def max(self, x: Tensor, size: int) -> Tensor:
        out, indices = self.new(size, x.element), self.new(size, INT64)
        return self.record(out, [(x, 1)], (indices,))

    def matmul(self, x: Tensor, y: Tensor, size: int, copies: bool = False) -> Tensor:
        """`copies` y, where its matrices are not contiguous."""
        if self.autocast:
            x, y = self.cast(x, BF16), self.cast(y, BF16)
        y = self.copy(y) if copies else y
        return self.record(self.new(size, x.element), [(y, 0), (x, 0)], (y, x))

    def linear(self, x: Tensor, weight: Tensor, size: int) -> Tensor:
        return self.matmul(x, self.cast_weight(weight), size)

    def cast_weight(self, weight: Tensor) -> Tensor:
        """Autocast keeps the cast of a weight until its context ends."""
        if not self.autocast:
            return weight
        if weight not in self.weight_casts:
            self.weight_casts[weight] = self.cast(weight, BF16)
        return self.weight_casts[weight]

    def fused_attention(self, q: Tensor, k: Tensor, v: Tensor, rows: int) -> Tensor:
        out, log_sums = self.new(q.size, q.element), self.new(rows)
        needs = ACCUMULATORS if q.element == BF16 else 0
        return self.record(out, [(v, 0), (k, 0), (q, needs)], (q, k, v, out, log_sums))

    def cross_entropy(self, logits: Tensor) -> Tensor:
        log_softmax = self.map(logits, saves_output=True)
        loss, total_weight = self.new(1), self.new(1)
        return self.record(loss, [(log_softmax, 0)], (log_softmax, total_weight))

    def fused_loss(self, hidden: Tensor, weight: Tensor, vocab_size: int) -> Tensor:
        """Cross-entropy of the output layer by parts of `hidden`, each with the logits of so many tokens that they are
        about as large as `hidden`. Their gradients are computed at once, and kept."""
        tokens = max(1, hidden.size // vocab_size)
        kept = self.new(hidden.size), self.new(weight.size)
        hidden, weight = (self.cast(x, BF16) if self.autocast else x for x in (hidden, weight))
        logits = self.new(tokens * vocab_size, hidden.element)
        wide = self.map(logits) if logits.element == FP32 else self.new(logits.size)
        del logits, wide
        gradients = [(x.node, x.size, x.element, tensor.storage) for x, tensor in zip((hidden, weight), kept)]
        loss = self.new(1)
        loss.node = Node(gradients, [], False, self.place)
        self.nodes.append(loss.node)
        return loss

    def checkpoint(self, function: Callable[[Tensor, bool], Tensor], x: Tensor) -> Tensor:
        """Return `function(x, False)`, of which only x is kept for backward; there it is `function(x, True)`, which
        ends with what is kept last."""
        if not self.has_backward:
            return function(x, False)
        self.has_backward = False
        out = function(x, False)
        self.has_backward = True
        out.node = node = Node([(x.node, x.size, x.element, PASSED)], [x.storage], False, self.place)
        autocast, size, element = self.autocast, x.size, x.element

        def again(kept: Storage) -> tuple[Tensor, Node]:
            start = Tensor(kept, size, element)
            start.node = entry = Node([], [], False, node.place)
            self.autocast = autocast
            out = function(start, True)
            self.autocast, self.is_making = False, True
            self.weight_casts.clear()
            return out, entry

        node.again = again
        self.nodes.append(node)
        return out

    def run_again(self, node: Node, arrived: dict[Any, Tensor]) -> Tensor:
        """Compute a checkpointed operation again, and its backward pass; return the gradient of what was kept."""
        assert node.again is not None
        waiting, self.nodes = self.nodes, []
        out, entry = node.again(node.saved[0])
        inner = {out.node: arrived.pop(node)}
        del out
        self.run_backward(inner)
        self.nodes = waiting
        return inner.pop(entry)

    def backward(self, loss: Tensor) -> None:
        """Run the operations backwards. Gradients of a tensor add up in a new tensor; gradients of a parameter, in its
        leaf."""
        of_loss = self.new(1)
        self.run_backward({loss.node: of_loss})
        self.place = ""

    def run_backward(self, arrived: dict[Any, Tensor]) -> None:
        """arrived: gradients by node."""
        while self.nodes:
            node = self.nodes.pop()
            self.place = node.place
            self.on_enter(node.place)
            if node.again:
                gradients = [self.run_again(node, arrived)]
            else:
                gradient = arrived.pop(node)
                gradients = [self.gradient(gradient, node.wide, *wanted[1:]) for wanted in node.inputs]
                for i, (_, size, element, _) in enumerate(node.inputs):
                    if gradients[i].size > size or gradients[i].element != element:
                        gradients[i] = self.new(size, element)
                del gradient
            node.saved.clear()
            for target, *_ in reversed(node.inputs):
                if isinstance(target, Leaf):  # the gradient of a later micro-batch is added to it and given back
                    arriving = gradients.pop()
                    target.gradient = target.gradient or arriving
                    del arriving
                elif target in arrived:
                    other = gradients.pop()
                    arrived[target] = self.new(max(other.size, arrived[target].size), other.element)
                    del other
                else:
                    arrived[target] = gradients.pop()

    def gradient(self, of_output: Tensor, wide: bool, size: int, element: int, needs: Any) -> Tensor:
        """needs: number of temporaries, PASSED, or the storage in which forward has kept the gradient."""
        if isinstance(needs, Storage):
            return Tensor(needs, size, element)
        if needs == PASSED:
            return Tensor(of_output.storage, size, of_output.element)
        size = of_output.size if wide else size
        temporaries = [self.new(size, of_output.element) for _ in range(needs)]
        gradient = self.new(size, of_output.element)
        del temporaries
        return gradient


class Layer(NamedTuple):
    attention_norm: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    cos: Tensor
    sin: Tensor
    future: Tensor
    ffn_norm: Tensor
    w1: Tensor
    w2: Tensor
    w3: Tensor


class SimulatedStepper:
    """A model with its data and optimizer, ready to run steps, as `jobs.worker.stepper.Stepper`."""

    def __init__(self, shape: Shape, device: Device, relief: Relief = NO_RELIEF):
        self.shape, self.device, self.relief = shape, device, relief
        d, f = shape.d_model, shape.d_ff
        self.sequences = shape.batch_size // shape.accumulation
        self.tokens = self.sequences * shape.context_length
        self.rows = self.tokens * shape.num_heads
        self.by_head = shape.num_heads > 1 and shape.context_length > 1  # tokens of a head are not contiguous
        self.width, self.hidden, self.vocabulary = (self.tokens * width for width in (d, f, shape.vocab_size))
        self.workspace = self.device.new(WORKSPACE_BYTES, BYTE)
        self.parameters: list[Tensor] = []
        self.leaves: list[Leaf] = []
        self.embedding = self.parameter(shape.vocab_size * d)
        self.layers = [self.layer(d, f) for _ in range(shape.num_layers)]
        self.final_norm, self.lm_head = self.parameter(d), self.parameter(shape.vocab_size * d)
        self.data = [self.device.new(self.tokens, INT64) for _ in ("tokens", "targets")]
        self.moments: list[list[Tensor]] = []
        self.logits: Tensor | None = None
        self.loss_value: Tensor | None = None

    @property
    def phases(self) -> list[tuple[str, Callable[[], None]]]:
        """Made anew, lest this hold itself: then nothing would be given back before garbage is collected."""
        optimize = self.optimize if self.shape.optimizer == "own" else self.torch_optimize
        work = {FORWARD: self.forward, LOSS: self.loss, BACKWARD: self.backward, OPTIMIZER: optimize}
        return [(phase, work[phase]) for phase in list_phases(self.shape.mode, self.shape.accumulation)]

    def parameter(self, size: int) -> Tensor:
        parameter = self.device.new(size)
        parameter.node = leaf = Leaf()
        self.parameters.append(parameter)
        self.leaves.append(leaf)
        return parameter

    def layer(self, d: int, f: int) -> Layer:
        device, context = self.device, self.shape.context_length
        attention_norm, q, k, v, o = (self.parameter(size) for size in (d, d * d, d * d, d * d, d * d))
        angle = device.new(context * (d // self.shape.num_heads // 2))
        cos, sin = device.map(angle), device.map(angle)
        del angle
        future = device.copy(device.new(context**2, BYTE))
        ffn_norm, w1, w2, w3 = (self.parameter(size) for size in (d, d * f, d * f, d * f))
        return Layer(attention_norm, q, k, v, o, cos, sin, future, ffn_norm, w1, w2, w3)

    def zero_grad(self) -> None:
        for leaf in self.leaves:
            leaf.gradient = None

    def forward(self) -> None:
        self.logits = None
        self.device.has_backward = self.shape.mode != "forward"
        self.device.autocast = bool(PRECISIONS[self.shape.precision].autocast)
        self.logits = self.model()
        self.device.autocast = False
        self.device.weight_casts.clear()

    def loss(self) -> None:
        assert self.logits is not None  # forward came before
        device = self.device
        with device.at(LOSS):
            if self.relief.is_loss_fused:
                device.autocast = bool(PRECISIONS[self.shape.precision].autocast)
                self.loss_value = device.fused_loss(self.logits, self.lm_head, self.shape.vocab_size)
                device.autocast = False
            else:
                self.loss_value = device.cross_entropy(device.cast(self.logits, FP32))
        self.logits = None

    def backward(self) -> None:
        assert self.loss_value is not None  # loss came before
        self.device.backward(self.loss_value)
        self.loss_value = None

    def optimize(self) -> None:
        """Reference AdamW."""
        device, state = self.device, self.relief.state_bytes
        for i, parameter in enumerate(self.parameters):
            if i == len(self.moments):
                self.moments.append([device.new(parameter.size, state), device.new(parameter.size, state)])
            device.new(parameter.size)

    def torch_optimize(self) -> None:
        """torch.optim.AdamW; a fused one has its numbers of steps on the device."""
        device, how = self.device, self.shape.optimizer
        if not self.moments:
            state = self.relief.state_bytes
            self.moments = [
                [*([device.new(1)] if how == "fused" else []), device.new(p.size, state), device.new(p.size, state)]
                for p in self.parameters
            ]
        if how == "foreach":
            roots = [device.new(parameter.size) for parameter in self.parameters]
            del roots
        if how == "loop":
            for parameter in self.parameters:
                root = device.map(device.new(parameter.size))
            del root

    def model(self) -> Tensor:
        device = self.device
        with device.at(EMBEDDING):
            x = device.record(device.new(self.width), [(self.embedding, 0)])
        kept_segment = self.relief.segment or int(self.shape.checkpointing == "blocks")
        segment = kept_segment or 1
        for first in range(0, len(self.layers), segment):
            numbers = range(first, min(first + segment, len(self.layers)))
            blocks = partial(self.blocks, numbers)
            x = device.checkpoint(blocks, x) if kept_segment else blocks(x)
        x = self.norm(x, self.final_norm)
        if self.relief.is_loss_fused and self.shape.mode != "forward":
            return x
        with device.at(LM_HEAD):
            return device.linear(x, self.lm_head, self.vocabulary)

    def blocks(self, numbers: range, x: Tensor, is_again: bool = False) -> Tensor:
        """Some blocks in a row. is_again: in backward, where PyTorch ends with what the last matmul keeps."""
        for i in numbers:
            with self.device.at(name_block(i)):
                x = self.block(self.layers[i], x, is_again and i == numbers[-1])
        return x

    def block(self, layer: Layer, x: Tensor, ends_early: bool = False) -> Tensor:
        x = self.device.add(x, self.attention(layer, self.norm(x, layer.attention_norm)))
        return self.device.add(x, self.feed_forward(layer, self.norm(x, layer.ffn_norm), ends_early))

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        device = self.device
        with device.at(NORM):
            mean = device.mean(device.map(x, 2, saves_input=True), self.tokens)
            mean = device.map(mean, PASSED)
            scale = device.map(mean, 2, saves_output=True)
            del mean
            quotient = device.multiply(x, scale)
            del scale
            return device.multiply(quotient, weight)

    def attention(self, layer: Layer, x: Tensor) -> Tensor:
        """Fused kernels return the gradient of v as its projection wrote v; all others come back by head. `efficient`
        alone writes its output as the output projection reads it. With one head or one token all lie alike."""
        device, kind = self.device, self.shape.attention
        naive = kind == "naive"
        by_head = 0 if self.by_head else PASSED
        weights = ((layer.q, by_head), (layer.k, by_head), (layer.v, by_head if naive else PASSED))
        with device.at(ATTENTION):
            q, k, v = (device.view(device.linear(x, weight, self.width), self.width, by) for weight, by in weights)
            q, k = self.rotate(layer, q), self.rotate(layer, k)
            heads = self.attend(q, k, v) if naive else device.fused_attention(q, k, v, self.rows)
            if not self.by_head or kind == "efficient":
                return device.linear(heads, layer.o, self.width)
            needs = 0 if naive and self.sequences > 1 else PASSED
            return device.linear(device.copy(heads, needs), layer.o, self.width)

    def rotate(self, layer: Layer, x: Tensor) -> Tensor:
        device, half = self.device, x.size // 2
        even, odd = device.view(x, half, 0), device.view(x, half, 0)
        pair = (
            device.subtract(device.multiply(even, layer.cos), device.multiply(odd, layer.sin)),
            device.add(device.multiply(even, layer.sin), device.multiply(odd, layer.cos)),
        )
        rotated = device.record(device.new(x.size), [(half, PASSED) for half in pair])
        del pair
        return device.cast(rotated, x.element)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        device = self.device
        scores = device.map(device.matmul(q, k, self.rows * self.shape.context_length))
        scores = device.map(scores)
        weights = self.softmax(scores)
        return device.matmul(weights, v, self.width, copies=self.by_head and self.sequences > 1)

    def softmax(self, x: Tensor) -> Tensor:
        device = self.device
        with device.at(SOFTMAX):
            exponential = device.exp(device.subtract(x, device.max(x, self.rows)))
            return device.divide(exponential, device.sum(exponential, self.rows))

    def feed_forward(self, layer: Layer, x: Tensor, ends_early: bool) -> Tensor:
        device = self.device
        with device.at(FFN):
            gate = device.linear(x, layer.w1, self.hidden)
            activated = device.multiply(gate, device.map(gate, saves_output=True))
            product = device.multiply(activated, device.linear(x, layer.w3, self.hidden))
            del activated
            weight = device.cast_weight(layer.w2)
            device.is_making = not ends_early
            return device.matmul(product, weight, self.width)
