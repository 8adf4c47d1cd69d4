"""The calls of models in a step of a script, and which of them train.

A call trains if a backward pass reaches what it returned: a teacher, a rollout or an evaluation does not. Where no
backward pass shows it (`torch.func`, losses that a model keeps), a call under gradients of a model with parameters that
require them counts.

A step may train several models. They share one batch if each backward pass reaches all of them, as where one model is
called with what another returned, and each is called with as many samples. The models of a GAN do not.

Loaded into other people's scripts, as `follow` is. It needs torch and the other files of this folder.
"""

import sys
from collections.abc import Iterator
from statistics import median_low
from typing import Any

import torch
from torch import Tensor, nn

from .generation import note_shift
from .module_ranges import list_module_parameters, list_sizes, list_tensors, read_own
from .script_facts import (
    count_flops,
    describe_inputs,
    describe_model,
    describe_parameters,
    find_autocast_dtype,
    list_fields,
)

MOST_OUTPUTS = 8
"""Tensors of a call that are watched: its loss or its logits are among the first."""
MOST_DEPTH = 5
"""Of lists and objects inside each other, in which tensors of a call are looked for."""
MOST_NAMES = 3
"""Models of a step that are named; of others there is the number."""

CHANNELS = (1, 3, 4)


class NotedCall:
    """A call. trains: whether it is under gradients, of a model that has some. passes: numbers of the backward
    passes that reach what it returned."""

    def __init__(self, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]):
        parameters = list_module_parameters(module)
        self.module, self.has_parameters = module, bool(parameters)
        self.is_checkpointed = is_checkpointed()
        self.trains = (torch.is_grad_enabled() or self.is_checkpointed) and (
            not parameters or any(parameter.requires_grad for parameter in parameters)
        )
        self.passes = set[int]()
        self.inputs = describe_inputs(args, options)
        self.autocast = find_autocast_dtype()
        self.has_sequence_first = False
        self.num_images = count_images([*args, *options.values()][:1])

    def note_part(self, part: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Note what the call shows inside: the tokens of a wrapper that takes one more, as inputs and targets in one;
        autocast that is opened in the model, as accelerate does; whether the sequence comes before the batch."""
        self.autocast = self.autocast or find_autocast_dtype()
        note_shift(self.inputs, args, options)
        shape = self.inputs[0]["shape"] if self.inputs else []
        if read_own(part, "batch_first") is False and len(shape) == 2 and shape[0] != shape[1]:
            first = next(list_tensors([*args, *options.values()]), None)
            self.has_sequence_first |= first is not None and first.ndim == 3 and list_sizes(first)[:2] == shape

    def watch(self, returned: Any) -> None:
        """Note whether a backward pass reaches what the call has returned."""

        def reach(_: Tensor) -> None:
            self.note_reached()

        for number, tensor in enumerate(find_outputs(returned)):
            if number == MOST_OUTPUTS:
                break
            tensor.register_hook(reach)

    def note_reached(self) -> None:
        self.passes.add(torch._C._current_graph_task_id())

    @property
    def is_reached(self) -> bool:
        return bool(self.passes)

    @property
    def batch(self) -> tuple[int, int]:
        """Return samples and, of inputs of integers, tokens; 0 if they are not known."""
        first = find_samples(self.inputs)
        if self.num_images or first is None:
            return self.num_images, 0
        shape = first["shape"]
        is_text = "int" in first["dtype"] and len(shape) == 2
        return shape[is_text and self.has_sequence_first], shape[0] * shape[1] if is_text else 0


def is_checkpointed() -> bool:
    """Return whether a call without gradients is in the forward of an `autograd.Function`, such as reentrant
    checkpointing: backward computes it again, with gradients."""
    frame: Any = None if torch.is_grad_enabled() else sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        context = frame.f_locals.get(code.co_varnames[0]) if code.co_name == "forward" and code.co_argcount else None
        if isinstance(context, torch.autograd.function.FunctionCtx):
            return True
        frame = frame.f_back
    return False


def find_samples(inputs: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Find the input that shows the samples: the first one with a shape, but not a number in front of others, such as
    a time."""
    shaped = [noted for noted in inputs if noted["shape"]]
    return next((noted for noted in shaped if noted["shape"] != [1]), next(iter(shaped), None))


def count_images(values: list[Any]) -> int:
    """Count the images, each [channels, height, width], of a list, in which they may differ in size, or are the first
    tensors of dictionaries; 0 without one."""
    samples = values[0] if values and isinstance(values[0], list | tuple) else []
    images = [next(list_tensors(sample.values()), None) if isinstance(sample, dict) else sample for sample in samples]
    are_images = all(
        isinstance(image, Tensor) and image.ndim == 3 and image.is_floating_point() and list_sizes(image)[0] in CHANNELS
        for image in images
    )
    return len(images) if are_images else 0


def find_outputs(returned: Any) -> Iterator[Tensor]:
    """Yield the tensors with gradients in what a model returns: alone, in lists, in dictionaries or in objects. Those
    that are inside least come first."""
    level, seen = [returned], set[int]()
    for _ in range(MOST_DEPTH):
        yield from (value for value in level if isinstance(value, Tensor) and value.grad_fn is not None)
        holders = [value for value in level if id(value) not in seen]
        seen |= set(map(id, holders))
        level = [inner for holder in holders for inner in list_values(holder)]


def list_values(value: Any) -> list[Any]:
    """List what a list, a dictionary or an object holds."""
    return list(value) if isinstance(value, list | tuple) else [inner for _, inner in list_fields(value)]


def choose_calls(calls: list[NotedCall]) -> list[NotedCall]:
    """Choose the calls of a step that its batch is made of. A module without parameters, such as a loss of the script,
    is a model only if there is no other, and so is a frozen model, such as one that computes a loss."""
    for chosen in ([call for call in calls if call.is_reached], [call for call in calls if call.trains], calls):
        if chosen:
            models = [call for call in chosen if call.has_parameters] or chosen
            return [call for call in models if call.trains] or models
    return calls


def group_calls(calls: list[NotedCall]) -> list[list[NotedCall]]:
    """Group calls by model, in the order of their first calls."""
    groups: dict[int, list[NotedCall]] = {}
    for call in calls:
        groups.setdefault(id(call.module), []).append(call)
    return list(groups.values())


def share_batch(calls: list[NotedCall]) -> bool:
    """Return whether the models of the calls share one batch."""
    reached = [{number for call in of_model for number in call.passes} for of_model in group_calls(calls)]
    samples = [add_up_batches(of_model)[1] for of_model in group_calls(calls)]
    return bool(reached and reached[0]) and all(
        passes == reached[0] and num == samples[0] > 0 for passes, num in zip(reached, samples)
    )


def describe_calls(calls: list[NotedCall], made_autocast: str, held: list[Tensor]) -> dict[str, Any]:
    """Describe the model of the calls that a step's batch is made of. Several are named together, and have the
    parameters that optimizers hold. made_autocast: type of the last autocast that the script made."""
    first = calls[0]
    of_models = [of_model[0] for of_model in group_calls(calls)]
    models = [describe_model(call.module, call.autocast, made_autocast) for call in of_models]
    facts = models[0] | {"inputs": first.inputs, "training": first.trains}
    if len(models) == 1:
        is_trained = first.trains and any(call.is_reached for call in calls)
        return facts | {"flops_per_token": count_flops(first.module, first.inputs) if is_trained else 0.0}
    names = [model["model"] for model in models[:MOST_NAMES]]
    more = [f"{len(models) - MOST_NAMES} more"] if len(models) > MOST_NAMES else []
    return facts | {
        "model": " + ".join(names + more),
        "compiled": any(model["compiled"] for model in models),
        "autocast": next(filter(None, (model["autocast"] for model in models)), ""),
        **(describe_parameters(held) if held else {}),
    }


def add_up_batches(calls: list[NotedCall]) -> tuple[int, int]:
    """Return tokens and samples of the calls of a model that a step's batch is made of."""
    samples, tokens = (sum(numbers) for numbers in zip(*(call.batch for call in calls)))
    return tokens, samples


def find_batch(calls: list[NotedCall]) -> tuple[int, int]:
    """Return tokens and samples of the calls that a step's batch is made of. If several models share it, its tokens are
    those of the first one, unless another is called with other numbers of tokens."""
    first, *others = map(add_up_batches, group_calls(calls)) if share_batch(calls) else [add_up_batches(calls)]
    is_known = all(tokens in (0, first[0]) for tokens, _ in others)
    return first[0] if is_known else 0, first[1]


class StepCalls:
    """The calls of a step so far. trained: ids of the models that were trained in any step. has_one_batch: whether all
    of them share it in each step. batches: tokens and samples of the captured steps."""

    def __init__(self) -> None:
        self.calls: list[NotedCall] = []
        self.open: NotedCall | None = None
        self.trained: set[int] = set()
        self.has_one_batch = True
        self.is_described = False
        self.batches: list[tuple[int, int]] = []

    @property
    def has_noted(self) -> bool:
        return self.is_described or bool(self.calls)

    def begin(self, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        if isinstance(module, torch.fx.GraphModule) and not list_module_parameters(module):
            return  # what torch.compile makes of a function, called with the parameters of its models
        self.open = NotedCall(module, args, options)
        self.calls.append(self.open)

    def note_part(self, part: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        if self.open is not None:
            self.open.note_part(part, args, options)
            return
        for call in self.calls:
            if call.is_checkpointed and call.module is part:
                call.note_reached()  # computed again in backward

    def note_returned(self, returned: Any) -> None:
        if self.open is not None:
            self.open.watch(returned)

    def end(self) -> None:
        self.open = None

    def forget(self) -> None:
        self.calls.clear()

    def end_step(self, made_autocast: str, is_captured: bool, is_replayed: bool, held: list[Tensor]) -> dict[str, Any]:
        """Return facts about a step that has ended, and about the model with the first captured step. The batch is the
        median of the captured steps. trained_models: how many there are; those that share one batch are one.
        is_replayed: whether the steps to come replay these calls from a CUDA graph. held: parameters of optimizers."""
        chosen = choose_calls(self.calls)
        trained = {id(call.module) for call in chosen if call.trains}
        self.has_one_batch &= self.trained in (set(), trained) and share_batch(chosen)
        self.trained |= trained
        num_trained = min(1, len(self.trained)) if self.has_one_batch else len(self.trained)
        facts: dict[str, Any] = {"forwards": len(chosen), "trained_models": num_trained}
        if chosen and is_captured:
            self.batches.append(find_batch(chosen))
            tokens, sequences = median_low(self.batches)
            facts |= {"sequences": sequences, "tokens": tokens, "num_batches": len(set(self.batches))}
            if not self.is_described:
                self.is_described = True
                facts |= describe_calls(chosen, made_autocast, held)
        if not is_replayed:
            self.forget()
        return facts
