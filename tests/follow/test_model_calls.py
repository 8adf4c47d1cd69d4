"""Which calls of models a step's batch is made of, and what counts as the model."""

import json
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from profiler_job.jobs.follow.model_calls import (
    NotedCall,
    StepCalls,
    add_up_batches,
    choose_calls,
    describe_calls,
    find_outputs,
)
from profiler_job.jobs.follow.module_ranges import is_compiled
from profiler_job.jobs.follow.script_facts import unwrap


def test_a_wrapper_of_a_library_is_not_the_model():
    model = nn.Sequential(nn.Linear(2, 2))
    fabric = type("_FabricModule", (nn.Module,), {"__module__": "lightning.fabric.wrappers"})()
    fabric._forward_module = fabric._original_module = model
    stack = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 2)
    assert [unwrap(each) for each in (model, nn.DataParallel(model), torch.compile(model), fabric)] == [model] * 4
    assert unwrap(stack) is stack and unwrap(model[0]) is model[0]


def call(model: nn.Module, samples: int) -> tuple[NotedCall, torch.Tensor]:
    inputs = torch.ones(samples, 2)
    noted = NotedCall(model, (inputs,), {})
    returned = model(inputs)
    noted.watch({"outputs": [returned]})
    return noted, returned


def test_a_loss_without_parameters_is_no_model():
    model, loss = nn.Linear(2, 2), nn.Softmax(1)
    calls = [call(model, 3)[0], call(loss, 3)[0]]
    for noted in calls:
        noted.passes.add(0)
    assert choose_calls(calls) == calls[:1] and choose_calls(calls[1:]) == calls[1:]


def test_the_batch_is_of_calls_that_a_backward_pass_reaches():
    student, teacher = nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)
    calls = [call(teacher, 9)[0], call(student, 1)[0]]
    assert [each.trains for each in calls] == [False, True]
    assert choose_calls(calls) == calls[1:], "as long as no backward pass shows more"
    for samples in (3, 4):
        noted, loss = call(student, samples)
        loss.sum().backward()
        calls.append(noted)
    chosen = choose_calls(calls)
    assert add_up_batches(chosen) == (0, 7) and describe_calls(chosen, "", [])["model"] == "Linear"


def end_step(calls: StepCalls, *models: nn.Module, samples: tuple[int, ...], detaches: bool = False) -> dict:
    """End a captured step in which each model is called with what the one before returned."""
    loss: torch.Tensor = torch.zeros(())
    for model, num in zip(models, samples, strict=True):
        noted, returned = call(model, num)
        calls.calls.append(noted)
        if detaches:
            returned.sum().backward()
        else:
            loss = loss + returned.sum()
    if not detaches:
        loss.backward()
    held = [parameter for model in models for parameter in nn.Module.parameters(model)]
    facts = calls.end_step("", is_captured=True, is_replayed=False, held=held)
    return {name: facts.get(name) for name in ("trained_models", "sequences", "model", "num_parameters")}


def test_models_that_meet_in_one_loss_share_the_batch():
    models = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 4))
    facts = end_step(StepCalls(), *models, samples=(3, 3))
    assert facts == {
        "trained_models": 1,
        "sequences": 3,
        "model": "Linear + Sequential",
        "num_parameters": 2 * 2 + 2 + 2 * 4 + 4,
    }
    assert end_step(StepCalls(), *models, *models, samples=(3, 3, 4, 4))["sequences"] == 7, "two views of the batch"
    many = [nn.Linear(2, 2) for _ in range(5)]
    assert end_step(StepCalls(), *many, samples=(3,) * 5)["model"] == "Linear + Linear + Linear + 2 more"


def test_models_of_several_losses_or_batches_do_not_share_a_batch():
    models = nn.Linear(2, 2), nn.Linear(2, 2)
    assert end_step(StepCalls(), *models, samples=(3, 3), detaches=True)["trained_models"] == 2
    assert end_step(StepCalls(), *models, samples=(3, 4))["trained_models"] == 2
    for first, second in ((models[:1], models), (models, models[:1])):
        calls = StepCalls()
        assert end_step(calls, *first, samples=(3,) * len(first))["trained_models"] == 1
        assert end_step(calls, *second, samples=(3,) * len(second))["trained_models"] == 2, "not in each step"


def test_a_frozen_model_in_the_loss_is_not_trained():
    model, judge = nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)
    calls = [call(model, 3)[0], call(judge, 3)[0]]
    for noted in calls:
        noted.passes.add(0)
    assert choose_calls(calls) == calls[:1] and choose_calls(calls[1:]) == calls[1:]


@dataclass
class Batch:
    size: int
    images: torch.Tensor


class Graph:
    def __init__(self, nodes: torch.Tensor):
        self.nodes, self.above = nodes, self


def test_tensors_are_found_in_objects_of_the_script():
    model, images = nn.Linear(2, 2), torch.ones(3, 2)
    for batch in (Batch(3, images), Graph(images), {"images": images}):
        assert NotedCall(model, (batch,), {}).batch == (3, 0)
    returned = model(images)
    assert [tensor is returned for tensor in find_outputs([Graph(returned)])] == [True], "it holds itself, too"


def test_one_number_in_front_of_others_is_not_the_batch():
    time, images = torch.rand(1), torch.ones(3, 2)
    assert [NotedCall(nn.Linear(2, 2), args, {}).batch[0] for args in ((time, images), (time,))] == [3, 1]


def test_a_call_in_reentrant_checkpointing_is_reached_when_it_is_computed_again():
    model, calls = nn.Linear(2, 2), StepCalls()

    def run(inputs: torch.Tensor) -> torch.Tensor:
        if not torch.is_grad_enabled():
            calls.begin(model, (inputs,), {})
            calls.end()
        else:
            calls.note_part(model, (inputs,), {})
        return model(inputs)

    loss = checkpoint(run, torch.ones(3, 2, requires_grad=True), use_reentrant=True).sum()
    [noted] = calls.calls
    assert noted.trains and not noted.is_reached
    loss.backward()
    assert noted.is_reached
    with torch.no_grad():
        assert not NotedCall(model, (), {}).trains


def test_a_graph_of_a_compiled_function_is_not_a_model():
    calls = StepCalls()
    for graph in (torch.fx.symbolic_trace(nn.ReLU()), torch.fx.symbolic_trace(nn.Linear(2, 2))):
        calls.begin(graph, (torch.ones(3, 2),), {})
    assert [call.module for call in calls.calls] == [graph], "only a graph with parameters"


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_a_nested_tensor_has_samples_and_no_length(layout):
    texts = torch.nested.nested_tensor([torch.randint(0, 9, (num,)) for num in (3, 4)], layout=layout)
    noted = NotedCall(nn.Embedding(9, 2), (texts,), {})
    noted.note_part(nn.Embedding(9, 2), (texts,), {})
    assert noted.batch == (2, 0) and json.loads(json.dumps(noted.inputs))[0]["shape"] == [2, 0]


def test_what_is_mapped_over_samples_has_their_number():
    model, noted = nn.Linear(2, 2), list[NotedCall]()

    def compute(sample: torch.Tensor) -> torch.Tensor:
        noted.append(NotedCall(model, (sample[None],), {}))
        return model(sample[None]).sum()

    torch.func.vmap(torch.func.grad(compute))(torch.ones(6, 2))
    assert [call.batch for call in noted] == [(6, 0)]


def test_images_in_dictionaries_are_counted():
    sample = {"image": torch.ones(3, 8, 8), "height": 8}
    assert NotedCall(nn.Linear(2, 2), ([sample] * 4,), {}).batch == (4, 0)


class Odd(nn.Module):
    """A model that has no attribute which it does not expect, and groups in place of parameters."""

    def __init__(self):
        super().__init__()
        self.inner, self.later = nn.Linear(2, 2), nn.LazyLinear(2)

    def forward(self, x):
        return self.inner(x)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise KeyError(name) from None

    def parameters(self, recurse: bool = True):
        return iter([{"params": list(super().parameters())}])


def test_a_model_with_methods_of_its_own_is_described():
    facts = end_step(StepCalls(), Odd(), samples=(3,))
    assert facts == {"trained_models": 1, "sequences": 3, "model": "Odd", "num_parameters": 2 * 2 + 2}
    assert not is_compiled(Odd()) and is_compiled(torch.compile(nn.Linear(2, 2), backend="eager"))
