"""The calls of models in a step of a script, and which of them train.

A call trains if a backward pass reaches what it returned: a teacher, a rollout or an evaluation does not. Where no
backward pass shows it (`torch.func`, losses that a model keeps), a call under gradients of a model with parameters that
require them counts.

Loaded into other people's scripts, as `follow` is. It needs torch and the other files of this folder.
"""

from collections.abc import Iterator
from dataclasses import is_dataclass
from statistics import median_low
from typing import Any

import torch
from torch import Tensor, nn

from .generation import note_shift
from .module_ranges import list_tensors
from .script_facts import describe_inputs, describe_model, find_autocast_dtype

MOST_OUTPUTS = 8
"""Tensors of a call that are watched: its loss or its logits are among the first."""


CHANNELS = (1, 3, 4)


class NotedCall:
    """A call. trains: whether it is under gradients, of a model that has some. is_reached: by a backward pass."""

    def __init__(self, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]):
        parameters = list(module.parameters())
        self.module, self.has_parameters = module, bool(parameters)
        self.trains = torch.is_grad_enabled() and (
            not parameters or any(parameter.requires_grad for parameter in parameters)
        )
        self.is_reached = False
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
        if getattr(part, "batch_first", None) is False and len(shape) == 2 and shape[0] != shape[1]:
            first = next(list_tensors([*args, *options.values()]), None)
            self.has_sequence_first |= first is not None and first.ndim == 3 and list(first.shape[:2]) == shape

    def watch(self, returned: Any) -> None:
        """Note whether a backward pass reaches what the call has returned."""

        def reach(_: Tensor) -> None:
            self.is_reached = True

        for number, tensor in enumerate(find_outputs(returned)):
            if number == MOST_OUTPUTS:
                break
            tensor.register_hook(reach)

    @property
    def batch(self) -> tuple[int, int]:
        """Return samples and, of inputs of integers, tokens; 0 if they are not known."""
        first = next((noted for noted in self.inputs if noted["shape"]), None)
        if self.num_images or first is None:
            return self.num_images, 0
        shape = first["shape"]
        is_text = "int" in first["dtype"] and len(shape) == 2
        return shape[is_text and self.has_sequence_first], shape[0] * shape[1] if is_text else 0


def count_images(values: list[Any]) -> int:
    """Count the images, each [channels, height, width], of a list, in which they may differ in size; 0 without one."""
    images = values[0] if values and isinstance(values[0], list | tuple) else []
    are_images = all(
        isinstance(image, Tensor) and image.ndim == 3 and image.is_floating_point() and image.shape[0] in CHANNELS
        for image in images
    )
    return len(images) if are_images else 0


def find_outputs(returned: Any) -> Iterator[Tensor]:
    """Yield the tensors with gradients in what a model returns: alone, in lists or in dictionaries."""
    if isinstance(returned, Tensor):
        if returned.grad_fn is not None:
            yield returned
    elif isinstance(returned, list | tuple):
        for value in returned:
            yield from find_outputs(value)
    elif isinstance(returned, dict):
        yield from find_outputs(list(returned.values()))
    elif is_dataclass(returned):
        yield from find_outputs(list(vars(returned).values()))


def choose_calls(calls: list[NotedCall]) -> list[NotedCall]:
    """Choose the calls of a step that its batch is made of. A module without parameters, such as a loss of the script,
    is a model only if there is no other."""
    for chosen in ([call for call in calls if call.is_reached], [call for call in calls if call.trains], calls):
        if chosen:
            return [call for call in chosen if call.has_parameters] or chosen
    return calls


def describe_calls(calls: list[NotedCall], made_autocast: str) -> dict[str, Any]:
    """Describe the model of the calls that a step's batch is made of. made_autocast: type of the last autocast that the
    script made."""
    first = calls[0]
    facts = describe_model(first.module, first.autocast, made_autocast)
    return facts | {"inputs": first.inputs, "training": first.trains}


def add_up_batches(calls: list[NotedCall]) -> tuple[int, int]:
    """Return tokens and samples of the calls that a step's batch is made of."""
    samples, tokens = (sum(numbers) for numbers in zip(*(call.batch for call in calls)))
    return tokens, samples


class StepCalls:
    """The calls of a step so far. trained: ids of the models that were trained in any step. batches: tokens and samples
    of the captured steps."""

    def __init__(self) -> None:
        self.calls: list[NotedCall] = []
        self.open: NotedCall | None = None
        self.trained: set[int] = set()
        self.is_described = False
        self.batches: list[tuple[int, int]] = []

    @property
    def has_noted(self) -> bool:
        return self.is_described or bool(self.calls)

    def begin(self, module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.open = NotedCall(module, args, options)
        self.calls.append(self.open)

    def note_part(self, part: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        if self.open is not None:
            self.open.note_part(part, args, options)

    def note_returned(self, returned: Any) -> None:
        if self.open is not None:
            self.open.watch(returned)

    def end(self) -> None:
        self.open = None

    def forget(self) -> None:
        self.calls.clear()

    def end_step(self, made_autocast: str, is_captured: bool, is_replayed: bool) -> dict[str, Any]:
        """Return facts about a step that has ended, and about the model with the first captured step. The batch is the
        median of the captured steps. is_replayed: whether the steps to come replay these calls from a CUDA graph."""
        chosen = choose_calls(self.calls)
        self.trained |= {id(call.module) for call in chosen if call.trains}
        facts: dict[str, Any] = {"forwards": len(chosen), "trained_models": len(self.trained)}
        if chosen and is_captured:
            self.batches.append(add_up_batches(chosen))
            tokens, sequences = median_low(self.batches)
            facts |= {"sequences": sequences, "tokens": tokens, "num_batches": len(set(self.batches))}
            if not self.is_described:
                self.is_described = True
                facts |= describe_calls(chosen, made_autocast)
        if not is_replayed:
            self.forget()
        return facts
