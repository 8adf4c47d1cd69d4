"""Checkpointing as an axis: the same gradients from fewer activations."""

import pytest
import torch

from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.memory import predict_memory_bytes
from profiler_job.jobs.sweep.plan import Sweep
from profiler_job.jobs.sweep.prediction import predict_seconds
from profiler_job.jobs.worker.stepper import Stepper
from tests.jobs.test_worker import CPU, FIELDS

CONTENT = {"name": "x", "size": ["small"], "context_length": [1024], "mode": ["train_step"], "batch_size": 16}


def step_once(**fields) -> tuple[list[torch.Tensor], int]:
    """Return the gradients of a step, and the bytes that are kept between forward and backward."""
    stepper = Stepper(FIELDS | fields, CPU)
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        stepper.forward()
        num_bytes = sum(kept.values())
        stepper.loss()
    stepper.backward()
    return [parameter.grad for parameter in stepper.model.parameters()], num_bytes


@pytest.mark.parametrize("compiled", [{}, pytest.param({"compile": "default"}, marks=pytest.mark.nightly)])
def test_the_gradients_are_the_same_and_fewer_activations_are_kept(compiled):
    expected, kept_before = step_once()
    gradients, kept = step_once(checkpointing="blocks", **compiled)
    assert compiled or kept < 0.6 * kept_before
    torch.testing.assert_close(gradients, expected)


def test_a_forward_pass_alone_is_refused():
    with pytest.raises(ValueError, match="checkpointing: mode forward keeps no activations"):
        Sweep.model_validate(CONTENT | {"mode": ["forward"], "checkpointing": ["off", "blocks"]})


def test_runs_with_and_without_take_turns_and_the_plan_knows_the_longer_step_and_its_memory():
    turns = {"turns": ["checkpointing"], "checkpointing": [False, "blocks"]}
    sweep = Sweep.model_validate(CONTENT | turns)
    off, blocks = sweep.runs
    assert isinstance(blocks, Run) and blocks.run_id == "small-ctx1024-fp32-naive-train_step-batch16-checkpoint_blocks"
    assert off.checkpointing == "off"
    assert 0 < predict_memory_bytes(blocks) < 0.25 * predict_memory_bytes(off)
    assert predict_seconds(blocks, sweep.protocol) > predict_seconds(off, sweep.protocol)
