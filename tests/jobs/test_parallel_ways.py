"""Every way to share the work computes what one process computes with the same sequences: with two processes and four
on the CPU."""

import json
from contextlib import nullcontext

import pytest
import torch
from torch import multiprocessing
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.ranges import LOSS
from profiler_job.jobs.worker import parallel, probes
from profiler_job.jobs.worker.parallel import Place
from profiler_job.jobs.worker.stepper import Stepper
from profiler_job.jobs.workloads.transformer.tensor_parallel import NUM_REDUCED

NUM_STEPS, NUM_LAYERS, BATCH = 4, 10, 4
CPU = torch.device("cpu")
SHAPE = {"d_model": 32, "d_ff": 64, "num_layers": NUM_LAYERS, "num_heads": 4, "vocab_size": 64}
AXES = {"size": "tiny", "context_length": 8, "mode": "train_step", "precision": "fp32", "attention": "sdpa"}
pytestmark = pytest.mark.long


def run_of(**changes) -> dict:
    return Run.model_validate(SHAPE | AXES | {"optimizer": "fused", "batch_size": BATCH} | changes).model_dump()


def train(stepper: Stepper) -> list[float]:
    losses = []

    def note(phase, work):
        work()
        if phase == LOSS:
            losses.append(stepper.loss_value.item())

    for _ in range(NUM_STEPS):
        stepper.step(note)
    return losses


class CountedAllReduces(TorchDispatchMode):
    """The all-reduces that divided tensors ask for while it is open."""

    number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # which asks for operations on its parts
        self.number += "_c10d_functional.all_reduce" in str(func)
        return func(*args, **(kwargs or {}))


def serve_rank(rank: int, num_ranks: int, folder: str, changes: list[dict]) -> None:
    """Train in each way, and write the losses, the all-reduces of a step, and the figures of silent steps."""
    torch.set_num_threads(1)
    found = []
    for change in changes:
        place = Place(rank, num_ranks, f"{folder}/meeting")
        stepper = Stepper(run_of(gpus=num_ranks, **change), CPU, place)
        losses = train(stepper)
        with CountedAllReduces() as counted:
            stepper.step()
        silent = probes.measure_silent_steps(stepper)
        found.append({"losses": losses, "reduced": counted.number, "silent": len(silent)})
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump(found, file)


def train_together(num_ranks: int, folder, *changes: dict) -> list[dict]:
    """Return what the ranks found, which is equal on all of them."""
    multiprocessing.spawn(serve_rank, (num_ranks, str(folder), list(changes)), num_ranks)
    first, *others = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(num_ranks)]
    assert all(other == first for other in others)
    return first


def train_alone(**changes) -> list[float]:
    return train(Stepper(run_of(**changes), CPU))


SAME = [("ddp", "default"), ("ddp", "buckets"), ("fsdp", "default"), ("fsdp", "prefetch"), ("fsdp", "keep")]
HALF = [{"parallel": way, "exchange": "half", "precision": "bf16"} for way in ("ddp", "fsdp")]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two ranks found in each way: of SAME, of HALF, and of tensor parallelism. To start them takes longer than
    to train."""
    ways = [*({"parallel": way, "exchange": exchange} for way, exchange in SAME), *HALF, {"parallel": "tp"}]
    return train_together(2, tmp_path_factory.mktemp("ranks"), *ways)


def test_ranks_with_the_same_batch_have_the_losses_of_one_process(found):
    alone = train_alone()
    for one in found[: len(SAME)]:
        assert one["losses"] == pytest.approx(alone, rel=1e-5) and one["silent"] == 1


def test_what_is_sent_in_bf16_changes_losses_by_no_more_than_its_digits(found):
    alone = train_alone(precision="bf16")
    for one in found[len(SAME) : -1]:
        assert one["losses"] == pytest.approx(alone, rel=1e-3)


def test_tensor_parallelism_has_the_losses_of_one_process_with_the_batch_of_all(found):
    check_tensor_parallelism(found[-1], 2)


@pytest.mark.nightly
def test_tensor_parallelism_of_four_ranks_has_them_too(tmp_path):
    [found] = train_together(4, tmp_path, {"parallel": "tp"})
    check_tensor_parallelism(found, 4)


def check_tensor_parallelism(found, num_ranks):
    """And as many all-reduces as there are halves of blocks, in forward and in backward."""
    assert found["losses"] == pytest.approx(train_alone(batch_size=BATCH * num_ranks), rel=1e-5)
    assert found["reduced"] == NUM_REDUCED * NUM_LAYERS and found["silent"] == 0


@pytest.mark.nightly
def test_compiled_blocks_compile_once_and_have_the_same_losses(tmp_path):
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    assert train_alone(compile="blocks") == pytest.approx(train_alone(), rel=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1, "the blocks are alike"
    torch.compiler.reset()
    [found] = train_together(2, tmp_path, {"parallel": "fsdp", "compile": "blocks"})
    assert found["losses"] == pytest.approx(train_alone(), rel=1e-5)


def test_silent_steps_change_no_parameter_and_need_room(monkeypatch):
    stepper = Stepper(run_of(parallel="none"), CPU)
    stepper.run = stepper.run | {"parallel": "ddp"}
    monkeypatch.setattr(parallel, "silence", lambda model: nullcontext())
    before = [parameter.clone() for parameter in stepper.model.parameters()]
    [row] = probes.measure_silent_steps(stepper)
    assert row["value"] > 0 and all(map(torch.equal, before, stepper.model.parameters()))
    monkeypatch.setattr(probes, "has_room", lambda size, device: False)
    assert probes.measure_silent_steps(stepper) == []
