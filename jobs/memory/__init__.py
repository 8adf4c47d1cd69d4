"""Device memory that a run will need, by step and phase, and where it will run out. Needs no GPU and no torch, so that
`analysis` can compare it with measurements.

A prediction, never shown as a measurement: two steps of the model are run on sizes (`jobs.memory.simulated_step`) in a
replay of PyTorch's allocator (`jobs.memory.caching_allocator`). The sizes of tensors alone do not suffice: a block may
be longer than its tensor. The prediction covers the operations of the reference Transformer as written. Compiled it
keeps less: for that, and for other models, `simulate_runs` gives the sizes of tensors. `run`: a
`jobs.contract.axes.Run`, or a row of the `runs` table, which has the same fields.
"""

from collections.abc import Iterable
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from profiler_job.jobs.contract.axes import AXES, find_default
from profiler_job.jobs.contract.garbage import pausing_collector
from profiler_job.jobs.contract.memory_owner import Owner as Owner
from profiler_job.jobs.contract.precisions import PRECISIONS
from profiler_job.jobs.memory.caching_allocator import MIB, SimulatedMemoryError
from profiler_job.jobs.memory.caching_allocator import CachingAllocator as CachingAllocator
from profiler_job.jobs.memory.failure import Failure as Failure
from profiler_job.jobs.memory.fake_steps import FakeStepError as FakeStepError
from profiler_job.jobs.memory.fake_steps import Simulation as Simulation
from profiler_job.jobs.memory.fake_steps import simulate_runs as simulate_runs
from profiler_job.jobs.memory.owners import PeakMemory as PeakMemory
from profiler_job.jobs.memory.owners import predict_owners as predict_owners
from profiler_job.jobs.memory.savings import CHANGES as CHANGES
from profiler_job.jobs.memory.savings import predict_relieved_peak as predict_relieved_peak
from profiler_job.jobs.memory.simulated_step import NUM_STEPS as NUM_STEPS
from profiler_job.jobs.memory.simulated_step import Device, SimulatedStepper
from profiler_job.jobs.memory.simulated_step import Relief as Relief
from profiler_job.jobs.memory.simulated_step import Shape as Shape
from profiler_job.jobs.memory.simulated_step import infer_shape as infer_shape
from profiler_job.jobs.workloads import REFERENCE
from profiler_job.jobs.workloads.transformer.sizes import MODEL_SIZES as MODEL_SIZES
from profiler_job.jobs.workloads.transformer.sizes import VOCAB_SIZE as VOCAB_SIZE
from profiler_job.jobs.workloads.transformer.sizes import ModelSize as ModelSize

if TYPE_CHECKING:
    from profiler_job.jobs.contract.axes import Run

GIB = 1024 * MIB
CUDA_CONTEXT_BYTES = 689 * MIB  # context and loaded kernels of one process, as seen on an H200
USABLE_GIB: dict[float, float] = {24: 22.5, 80: 79.1, 141: 139.8}
"""Memory in GiB that a GPU sold with so many GB has for its processes. Other sizes reserve a sixteenth, as 24 GB do."""

NEEDS_NOTHING = ("repeat", "fresh_process", "memory_limit_gib", "compile", "gpus", "parallel", "exchange", "workload")
"""Axes that change nothing of the operations as they are written, or that `is_predictable` asks for itself."""
_UNKNOWN = [(axis, find_default(axis)) for axis in AXES if axis not in (*Shape._fields, *NEEDS_NOTHING, "size")]


EFFORT_S = 0.3e-3
"""Seconds to predict a layer of a forward pass, on a modest machine; with a backward pass it is four times that."""
QUICK_S = 6.0


SIMULATED_BYTES = (2, 4)
"""Bytes of an element in the precisions that the simulated step knows."""


class Outcome(NamedTuple):
    """Peak of the allocator in bytes in each phase of each step, the largest it reserved, and where it ran out."""

    peaks: list[dict[str, int]]
    reserved: int
    failure: Failure | None


@lru_cache(maxsize=1024)
def predict_outcome(shape: Shape, limit_bytes: float = inf) -> Outcome:
    allocator = CachingAllocator(limit_bytes)
    peaks: list[dict[str, int]] = [{} for _ in range(NUM_STEPS)]
    step, phase = 0, "build"
    try:
        with pausing_collector():
            stepper = SimulatedStepper(shape, Device(allocator))
            for step in range(NUM_STEPS):
                stepper.zero_grad()
                for phase, work in stepper.phases:
                    allocator.reset_peak()
                    work()
                    peaks[step][phase] = max(allocator.peak, peaks[step].get(phase, 0))
    except SimulatedMemoryError:
        return Outcome(peaks, allocator.peak_reserved, Failure(step, phase))
    return Outcome(peaks, allocator.peak_reserved, None)


def estimate_prediction_seconds(shapes: Iterable[Shape]) -> float:
    """About how long it takes to predict the memory of these shapes."""
    return EFFORT_S * sum(
        shape.num_layers * (1 if shape.mode == "forward" else 4) * shape.accumulation for shape in shapes
    )


def find_most_demanding(shapes: Iterable[Shape]) -> list[Shape]:
    """The shapes whose memory can be predicted in QUICK_S, those that seem to need most first."""
    demanding, left_s = [], QUICK_S
    for shape in sorted(shapes, key=estimate_bytes, reverse=True):
        left_s -= estimate_prediction_seconds([shape])
        if left_s < 0:
            break
        demanding.append(shape)
    return demanding


def estimate_bytes(shape: Shape) -> int:
    """Something to sort by that grows as the memory does: parameters, what goes with them, and activations."""
    size = ModelSize(shape.d_model, shape.d_ff, shape.num_layers, shape.num_heads)
    scores = shape.num_heads * shape.context_length if shape.attention == "naive" else 0
    kept_layers = 1 if shape.mode == "forward" else shape.num_layers
    copies = {"forward": 1, "forward_backward": 2, "train_step": 4}[shape.mode]
    activations = kept_layers * (20 * shape.d_model + 5 * shape.d_ff + 5 * scores) + 3 * shape.vocab_size
    tokens = shape.batch_size // shape.accumulation * shape.context_length
    return 4 * (copies * size.num_parameters(shape.vocab_size) + tokens * activations)


def predict_peaks(run: "Run", step: int) -> dict[str, int]:
    """Peak of PyTorch's allocator in bytes in each phase of a step (from 0)."""
    return predict_outcome(infer_shape(run)).peaks[min(step, NUM_STEPS - 1)]


def predict_peak_bytes(run: "Run") -> int:
    """Peak of PyTorch's allocator in the steps after the first, in bytes."""
    return max(predict_peaks(run, NUM_STEPS - 1).values())


def is_predictable(run: "Run") -> bool:
    """Return whether memory of a run can be predicted: a run of the reference Transformer on one GPU. The simulated
    step does not cover buffers of DDP and FSDP, nor changes by axes and precisions that it does not know."""
    if PRECISIONS[run.precision].element_bytes not in SIMULATED_BYTES:
        return False
    return is_reference(run) and run.gpus == 1 and all(getattr(run, axis, value) == value for axis, value in _UNKNOWN)


def is_reference(run: "Run") -> bool:
    """Return whether a run is of the reference Transformer."""
    return run.workload == REFERENCE


def predict_memory_bytes(run: "Run") -> int | None:
    """Device memory that the process needs at its peak, in bytes: the allocator's and the CUDA context's. None where
    the workload's memory is not predicted."""
    if not is_predictable(run):
        return None
    return CUDA_CONTEXT_BYTES + predict_peak_bytes(run)


def estimate_usable_bytes(sold_gb: float) -> float:
    """Estimate what a GPU sold with so many GB leaves to the allocator next to the CUDA context, in bytes."""
    return USABLE_GIB.get(sold_gb, sold_gb * 15 / 16) * GIB - CUDA_CONTEXT_BYTES


def find_failure(shape: Shape, limit_bytes: float) -> Failure | None:
    """Find the step and phase in which a shape needs more than `limit_bytes` of the allocator; None if it fits."""
    return predict_outcome(shape, limit_bytes).failure if predict_outcome(shape).reserved > limit_bytes else None


def compute_allocator_limit(run: "Run", sold_gb: float = 0) -> float:
    """Return the bytes that PyTorch's allocator may hold: the cap of the run, or what the CUDA context leaves on a GPU
    sold with `sold_gb` GB if that is less (0: any GPU)."""
    limits = [run.memory_limit_gib * GIB] if run.memory_limit_gib else []
    if sold_gb:
        limits.append(estimate_usable_bytes(sold_gb))
    return min(limits, default=inf)


def predict_failure(run: "Run", limit_bytes: float) -> Failure | None:
    """Step and phase in which the run needs more than `limit_bytes` of the allocator; None where it fits, or where that
    is not predicted."""
    if not is_predictable(run):
        return None
    return find_failure(infer_shape(run), limit_bytes)
