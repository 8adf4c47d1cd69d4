"""Device memory that a run will need, by step and phase, and where it will run out. Plain arithmetic on the shapes: no
GPU, no torch, and nothing else of `jobs` but the names of phases, so that `analysis` may hold it against measurements.

A prediction, never shown as a measurement. It is of the operations of `jobs/model.py` as they are written: a compiled
model keeps less. `run` is a `jobs.plan.Run`, or a row of the `runs` table, which has the same fields.
"""

from math import inf
from typing import TYPE_CHECKING, NamedTuple

from jobs.ranges import BACKWARD, FORWARD, LOSS, OPTIMIZER

if TYPE_CHECKING:
    from jobs.plan import Run

FP32, BF16 = 4, 2  # bytes of an element
MIB, GIB = 2**20, 2**30
CUDA_CONTEXT_BYTES = 689 * MIB  # context and loaded kernels of one process, as seen on an H200
WORKSPACE_BYTES = 32 * MIB  # cuBLAS's workspace, which PyTorch allocates
FUSED_COPIES_OUTPUT = ("flash", "cudnn", "sdpa")
USABLE_GIB = {24: 22.5, 80: 79.1, 141: 139.8}
"""What a GPU sold with so many GB has for its processes. Of other sizes a sixteenth is set aside, as on 24 GB."""


class Failure(NamedTuple):
    """Where a run runs out of memory: step from 0, and phase."""

    step: int
    phase: str


def tensor_bytes(num_elements: int) -> int:
    """Bytes that PyTorch's caching allocator gives to a float32 tensor: segments of 10 MiB and more are whole multiples
    of 2 MiB, and a rest of up to 1 MiB is not split off."""
    size = num_elements * FP32
    segment = -(-size // (2 * MIB)) * 2 * MIB
    return segment if size >= 10 * MIB and segment - size <= MIB else size


def parameter_bytes(run: "Run") -> int:
    """One float32 copy of the parameters (weights, gradients or a moment) in bytes."""
    d, f = run.d_model, run.d_ff
    layer = 4 * tensor_bytes(d * d) + 3 * tensor_bytes(d * f) + 2 * tensor_bytes(d)
    return 2 * tensor_bytes(run.vocab_size * d) + run.num_layers * layer + tensor_bytes(d)


def peaks(run: "Run", step: int) -> dict[str, int]:
    """Peak of PyTorch's allocator in bytes in each phase of a step (from 0: the first has no Adam state yet).

    What autograd saves in a layer is counted from the model's operations, with N = B x T tokens and S = B x H x T x T
    scores: for each norm its input and quotient, 2 N D; for the five linears that read a norm their input, in float32
    shared (2 N D) and under autocast a cast for each (5 N D); 4 N D for attention's q, k, v and output; 5 N F for the
    feed-forward; 2 S for naive softmax (the exponential, always float32, and the quotient). Backward peaks at one of
    four moments: at the loss (three float32 tensors of logits), in the last layer's softmax (six of scores; its
    feed-forward is released by then) or feed-forward, or at its end, when every gradient exists.

    Bytes are as PyTorch asks for them, except those of weights. Autocast's casts of the weights, made while activations
    come and go, get blocks that are longer than they are: in a forward pass of less than a GiB that is some percent.
    """
    n, d = run.batch_size * run.context_length, run.d_model
    autocast = run.precision == "bf16"
    element = BF16 if autocast else FP32
    naive = run.attention == "naive"
    scores = run.batch_size * run.num_heads * run.context_length**2 if naive else 0
    logits = n * run.vocab_size
    weights = parameter_bytes(run)
    casts = BF16 * (run.num_parameters - run.vocab_size * d) if autocast else 0
    # The causal mask, a byte an element, and the tables of the rotary embedding, in every layer.
    buffers = run.num_layers * (run.context_length**2 + FP32 * run.context_length * d // run.num_heads)
    resident = weights + buffers + WORKSPACE_BYTES

    if run.mode == "forward":
        in_softmax = 3 * FP32 * scores + (2 * FP32 + 3 * element) * n * d
        in_feed_forward = 4 * element * n * run.d_ff + 3 * FP32 * n * d
        at_logits = element * logits + FP32 * n * d
        return {FORWARD: resident + casts + max(in_softmax, in_feed_forward, at_logits)}

    norms = 4 * n * d * FP32 + (5 * BF16 if autocast else 2 * FP32) * n * d
    copies = 1 if autocast and run.attention in FUSED_COPIES_OUTPUT else 0
    attention = (4 + copies) * n * d * element + scores * (FP32 + element)
    feed_forward = 5 * n * run.d_ff * element
    head = 2 * n * d * FP32 + n * d * element
    saved = run.num_layers * (norms + attention + feed_forward) + head + casts

    if run.mode == "train_step" and step > 0:
        resident += 2 * weights
    # While the last layer is in its softmax, what comes after it is not saved yet, or no more; nor are its own scores.
    in_last_softmax = saved - head - feed_forward - scores * (FP32 + element)
    in_softmax = in_last_softmax + 3 * FP32 * scores
    in_softmax_backward = in_last_softmax + 6 * FP32 * scores
    in_feed_forward_backward = saved + 3 * n * run.d_ff * element
    result = {
        FORWARD: resident + max(saved + logits * element, in_softmax),
        LOSS: resident + saved + logits * (FP32 + element + (FP32 if autocast else 0)),
        BACKWARD: resident + max(saved + 3 * logits * FP32, in_softmax_backward, in_feed_forward_backward, weights),
    }
    if run.mode == "train_step":
        moments = 0 if step > 0 else 2 * weights
        temporary = weights if run.optimizer == "foreach" else tensor_bytes(max(run.vocab_size, run.d_ff) * d)
        result[OPTIMIZER] = resident + moments + weights + (0 if run.optimizer == "fused" else temporary)
    return result


def predicted_peak_bytes(run: "Run") -> int:
    """Peak of PyTorch's allocator over all steps, in bytes."""
    return max(max(peaks(run, step).values()) for step in (0, 1))


def predicted_memory_bytes(run: "Run") -> int:
    """Device memory that the process needs at its peak, in bytes: the allocator's and the CUDA context's."""
    return CUDA_CONTEXT_BYTES + predicted_peak_bytes(run)


def allocator_limit_bytes(run: "Run", sold_gb: float = 0) -> float:
    """What PyTorch's allocator may hold in bytes: the run's own cap, or what the CUDA context leaves on a GPU sold with
    `sold_gb` GB if that is less (0: any GPU)."""
    limits = [run.memory_limit_gib * GIB] if run.memory_limit_gib else []
    if sold_gb:
        limits.append(USABLE_GIB.get(sold_gb, sold_gb * 15 / 16) * GIB - CUDA_CONTEXT_BYTES)
    return min(limits, default=inf)


def predicted_failure(run: "Run", limit_bytes: float) -> Failure | None:
    """Step and phase in which the run outgrows `limit_bytes` of the allocator; None where it fits."""
    for step in (0, 1):
        for phase, peak in peaks(run, step).items():
            if peak > limit_bytes:
                return Failure(step, phase)
    return None
