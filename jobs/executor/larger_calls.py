"""The calls of a step with larger batches: each tensor that depends on the batch has more rows, and parameters stay."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from profiler_job.jobs.contract.ranges import BACKWARD, OPTIMIZER
from profiler_job.jobs.executor.described_calls import Call, list_inputs, list_tensors, name_operator, replace_tensors

Shape = tuple[int, ...]
BATCHED = ("bmm", "baddbmm")
"""Operators whose first dimension is of samples, whatever is outermost in memory."""


def enlarge_calls(calls: Sequence[Call], rows: int, factor: int) -> list[Call]:
    """Return the calls of a step whose batches have more rows. rows: of a batch as it is. factor: by how much larger
    it is. The optimizer's calls stay."""
    parameters = {
        shape for tensor in list_parameters(calls) for shape in (strip_ones(tensor), strip_ones(tensor)[::-1])
    }
    made: set[int] = set()
    depending: set[int] = set()  # on the batch

    def enlarge(tensor: dict[str, Any], is_batched: bool) -> dict[str, Any]:
        place_of_rows = 0 if is_batched else find_outer(tensor, rows)
        dimension = place_of_rows if tensor["value"] in depending else None
        if dimension is None:
            return tensor
        shape = [size * (factor if place == dimension else 1) for place, size in enumerate(tensor["shape"])]
        return tensor | {"shape": shape}

    enlarged: list[Call] = []
    for call in calls:
        if call["phase"] == OPTIMIZER:
            enlarged.append(call)
            continue
        inputs, outputs = list_inputs(call), [*list_tensors(call.get("outputs", []))]
        given = {tensor["value"] for tensor in inputs}
        new = [tensor for tensor in outputs if tensor["value"] not in given]
        roots = [tensor for tensor in inputs if tensor["value"] not in made] + ([] if depending & given else new)
        depending |= {
            tensor["value"]
            for tensor in roots
            if tensor["shape"][:1] == [rows] and strip_ones(tensor) not in parameters
        }
        if known := [tensor for tensor in inputs if tensor["value"] in depending]:
            gradients = find_gradients(call, new, known, parameters)
            depending |= {tensor["value"] for tensor in new if tensor["value"] not in gradients}
        made |= {tensor["value"] for tensor in new}
        is_batched = name_operator(call) in BATCHED
        enlarged.append(enlarge_call(call, [*inputs, *outputs], partial(enlarge, is_batched=is_batched)))
    return enlarged


def find_gradients(
    call: Call, new: Sequence[dict[str, Any]], known: Sequence[dict[str, Any]], parameters: set[Shape]
) -> set[int]:
    """Find which values that a call makes are gradients of parameters: of their shapes, of a matmul of two activations,
    or of a call that adds up over one. known: its inputs that depend on the batch. An activation can have the shape of
    a parameter, too."""
    if call["phase"] != BACKWARD:
        return set()
    if name_operator(call) in ("mm", "addmm"):
        adds_up = len({id(tensor) for tensor in known}) > 1
    else:
        shapes = {strip_ones(tensor) for tensor in known}
        adds_up = not any(len(strip_ones(tensor)) > 1 and strip_ones(tensor) in shapes for tensor in new)
    small = {tensor["value"] for tensor in new if len(strip_ones(tensor)) < 2}
    return {
        tensor["value"] for tensor in new if strip_ones(tensor) in parameters and (adds_up or tensor["value"] in small)
    }


def enlarge_call(call: Call, tensors: Sequence[dict[str, Any]], enlarge: Any) -> Call:
    """Enlarge the tensors of a call, and the shapes that stand next to them as numbers."""
    shapes = {tuple(tensor["shape"]): enlarge(tensor)["shape"] for tensor in tensors}
    changed: Call = replace_tensors(call, enlarge)
    if "args" in changed:  # not of fused attention
        changed["args"] = [
            shapes.get(tuple(each), each) if isinstance(each, list) and is_shape(each) else each
            for each in changed["args"]
        ]
    return changed


def is_shape(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(each, int) for each in value)


def list_parameters(calls: Sequence[Call]) -> list[dict[str, Any]]:
    """List what the optimizer's calls work on: tensors of the shapes of parameters."""
    return [tensor for call in calls if call["phase"] == OPTIMIZER for tensor in list_inputs(call)]


def strip_ones(tensor: Mapping[str, Any]) -> Shape:
    return tuple(size for size in tensor["shape"] if size != 1)


def find_outer(tensor: Mapping[str, Any], rows: int) -> int | None:
    """Return the dimension of an activation that has the samples: the one that is outermost in memory, if it is a
    multiple of them."""
    shape, stride = tensor["shape"], tensor["stride"]
    if not shape or 0 in shape:
        return None
    if shape[0] == rows:
        return 0
    if repeated := [place for place, size in enumerate(shape) if size == rows and stride[place] == 0]:
        return repeated[0]
    outer = max(range(len(shape)), key=lambda place: (shape[place] > 1, stride[place]))
    return outer if shape[outer] % rows == 0 else None
