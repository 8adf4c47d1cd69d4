"""The simulated step allocates and gives back what the model does, in the same order."""

import gc
import importlib
import weakref
from contextlib import nullcontext
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from profiler_job.jobs import memory
from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.memory import simulated_step
from profiler_job.jobs.memory.caching_allocator import CachingAllocator
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP, load_sweep
from profiler_job.jobs.worker.stepper import Stepper
from profiler_job.jobs.workloads import annotation
from profiler_job.jobs.workloads.transformer import model

SCALAR = 8
"""Bytes of a single number, which some operations make on the host and others on the device."""


class Events(TorchDispatchMode):
    """Log of tensors: the sizes of new tensors, and minus the sizes of tensors that are gone."""

    def __init__(self):
        super().__init__()
        self.events: list[int] = []
        self.live: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **kwargs or {})
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.note(tensor.untyped_storage())
        return out

    def note(self, storage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.live:
            return

        def gone(_, key=key, size=size):
            del self.live[key]
            self.events.append(-size)

        self.live[key] = weakref.ref(storage, gone)
        self.events.append(size)


class Replay(CachingAllocator):
    """An allocator that notes the same."""

    def __init__(self):
        super().__init__()
        self.events: list[int] = []
        self.asked: dict[int, int] = {}

    def allocate(self, num_bytes):
        block = super().allocate(num_bytes)
        self.asked[block.address] = num_bytes
        self.events.append(num_bytes)
        return block

    def free(self, block):
        self.events.append(-self.asked[block.address])
        super().free(block)


def sort_freed(events: list[int]) -> list:
    """Sort the tensors given back between two new ones, since their order varies."""
    found, gone = [], []
    for size in (event for event in events if abs(event) > SCALAR):
        if size < 0:
            gone.append(-size)
        else:
            found += [sorted(gone), size]
            gone = []
    return [*found, sorted(gone)]


def run_of(**fields) -> Run:
    sizes = {"d_model": 48, "d_ff": 80, "num_layers": 2, "num_heads": 4, "vocab_size": 50}
    return Run(**{"size": "tiny", "context_length": 24, "batch_size": 2, "attention": "naive"} | sizes | fields)


def measured(run: Run, num_steps: int) -> list:
    exp = torch.exp

    def exp_on_cuda(x):  # whose autocast lets `exp` compute in float32, unlike autocast on the CPU
        return exp(x.float() if torch.is_autocast_enabled("cpu") else x)

    # Importing it takes a second, so not above; it sees which functions are torch's, so not while one is replaced.
    importlib.import_module("torch._dynamo")
    before = torch.autograd.is_multithreading_enabled()
    torch.autograd.set_multithreading_enabled(False)
    try:
        with mock.patch.object(model.torch, "exp", exp_on_cuda), annotation.no_ranges(), Events() as seen:
            stepper = Stepper(run.model_dump(), torch.device("cpu"))
            seen.events.clear()
            for _ in range(num_steps):
                stepper.step()
            events = list(seen.events)
    finally:
        torch.autograd.set_multithreading_enabled(before)
    return sort_freed(events)


def predicted(run: Run, num_steps: int, **relief) -> list:
    allocator = Replay()
    stepper = simulated_step.SimulatedStepper(
        simulated_step.infer_shape(run), simulated_step.Device(allocator), simulated_step.Relief(**relief)
    )
    allocator.events.clear()
    for _ in range(num_steps):
        stepper.zero_grad()
        for _, work in stepper.phases:
            work()
    return sort_freed(list(allocator.events))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("mode", "optimizer"),
    [
        ("forward", "own"),
        ("forward_backward", "own"),
        ("train_step", "own"),
        ("train_step", "loop"),
        ("train_step", "foreach"),
        ("train_step", "fused"),
    ],
)
def test_two_steps_allocate_and_give_back_what_the_model_does_in_the_same_order(mode, precision, optimizer):
    run = run_of(mode=mode, precision=precision, optimizer=optimizer)
    assert predicted(run, 2) == measured(run, 2)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("mode", ["forward_backward", "train_step"])
def test_gradients_of_later_micro_batches_are_added_and_given_back(mode, precision):
    run = run_of(mode=mode, precision=precision, batch_size=4, accumulation=2, optimizer="fused")
    assert predicted(run, 2) == measured(run, 2)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("mode", ["forward", "train_step"])
@pytest.mark.parametrize(
    "shape",
    [
        {"batch_size": 1},
        {"num_heads": 1},
        {"num_heads": 1, "batch_size": 1},
        {"context_length": 1},
        {"num_heads": 23, "d_model": 46, "d_ff": 7, "vocab_size": 1, "num_layers": 1, "context_length": 301},
    ],
    ids=lambda shape: "-".join(f"{name}={value}" for name, value in shape.items()),
)
def test_what_lies_in_one_piece_is_not_copied(shape, mode, precision):
    run = run_of(mode=mode, precision=precision, **shape)
    assert predicted(run, 2) == measured(run, 2)


def checkpoint_segments(segment: int):
    """Return the forward pass of the model with checkpointing of so many blocks at a time."""

    def forward(self, tokens):
        x = self.embedding(tokens)
        for first in range(0, len(self.blocks), segment):
            blocks = torch.nn.Sequential(*self.blocks[first : first + segment])
            x = checkpoint(blocks, x, use_reentrant=False, preserve_rng_state=False)
        return self.lm_head(self.final_norm(x))

    return mock.patch.object(model.TransformerLM, "forward", forward)


def find_peak(events: list) -> int:
    """Largest sum of what is allocated, of events as `sort_freed` returns them."""
    live = peak = 0
    for event in events:
        live += -sum(event) if isinstance(event, list) else event
        peak = max(peak, live)
    return peak


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("segment", [1, 2, 5])
def test_checkpointed_steps_allocate_what_the_model_does_and_peak_where_it_does(precision, segment):
    run = run_of(mode="train_step", precision=precision, num_layers=5, context_length=64)
    with checkpoint_segments(segment):
        step = measured(run, 2)
    simulated = predicted(run, 2, segment=segment)
    sizes = [sorted(event for event in events if isinstance(event, int)) for events in (step, simulated)]
    assert sizes[0] == sizes[1]
    assert find_peak(simulated) == pytest.approx(find_peak(step), rel=0.001)


@pytest.mark.parametrize("segment", [0, 1, 2, 5])
def test_checkpointing_keeps_the_bytes_that_hooks_of_saved_tensors_see(segment):
    run = run_of(mode="train_step", precision="fp32", num_layers=5)
    stepper = Stepper(run.model_dump(), torch.device("cpu"))
    given = (*stepper.model.parameters(), *stepper.model.buffers(), *stepper.batch)
    fixed = {tensor.untyped_storage().data_ptr() for tensor in given}
    saved: dict[int, int] = {}
    kept = []

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in fixed and storage.nbytes() > SCALAR:
            saved[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)  # lest another storage gets its address
        return tensor

    segments = checkpoint_segments(segment) if segment else nullcontext()
    with annotation.no_ranges(), segments, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        stepper.forward()

    shape, device = simulated_step.infer_shape(run), simulated_step.Device(allocator := Replay())
    simulated = simulated_step.SimulatedStepper(shape, device, simulated_step.Relief(segment=segment))
    tensors = (*simulated.parameters, *(tensor for layer in simulated.layers for tensor in layer))
    simulated.forward()
    storages = {storage for node in device.nodes for storage in node.saved} - {tensor.storage for tensor in tensors}
    assert sum(saved.values()) == sum(allocator.asked[storage.block.address] for storage in storages)


@pytest.mark.parametrize("was_enabled", [True, False])
def test_garbage_is_collected_after_a_prediction_as_before_it(was_enabled):
    memory.predict_outcome.cache_clear()
    (gc.enable if was_enabled else gc.disable)()
    try:
        memory.predict_outcome(memory.infer_shape(load_sweep(DEFAULT_SWEEP).runs[0]), 1.0)
        assert gc.isenabled() == was_enabled
    finally:
        gc.enable()
