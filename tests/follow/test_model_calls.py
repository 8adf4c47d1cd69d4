"""Which calls of models a step's batch is made of, and what counts as the model."""

import torch
from torch import nn

from profiler_job.jobs.follow.model_calls import NotedCall, add_up_batches, choose_calls, describe_calls
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
        noted.is_reached = True
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
    assert add_up_batches(chosen) == (0, 7) and describe_calls(chosen, "")["model"] == "Linear"
