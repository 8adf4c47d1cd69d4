"""The calls of a step whose loss is fused: of softmax and cross entropy the traffic of the logits remains."""

from collections.abc import Sequence
from math import prod
from typing import Any

from profiler_job.jobs.executor.described_calls import Call, list_inputs, list_tensors, name_operator

SOFTMAX, SOFTMAX_BACKWARD, LOSS, CAST = "_log_softmax", "_log_softmax_backward_data", "nll_loss", "_to_copy"
REPLACED = (SOFTMAX, SOFTMAX_BACKWARD, CAST, "clone", "copy_", "slice_backward")
"""Operators on logits that a fused loss does itself, as well as operators that begin with LOSS."""
STANDING = {SOFTMAX: ("amax", "amax"), SOFTMAX_BACKWARD: ("mul",)}
"""What stands for a fused loss where such a call was."""
LEAST = 0.5
"""Part of the logits that such a call works on at least: some losses leave the last token of each sequence out."""


def fuse_loss(calls: Sequence[Call]) -> list[Call]:
    """Put a fused cross entropy in the place of each that is written out. It reads the logits, as the last matmul left
    them, twice for the loss, as what torch.compile makes of one does; then it reads them and writes their gradient.
    Calls that do this alone stand for it. Steps without such a loss stay as they are."""
    losses: set[int] = set()  # what they are computed from: log-softmax, or a cast of it
    for call in reversed(calls):
        is_cast = name_operator(call) == CAST and make_one_of(call, losses)
        if is_cast or name_operator(call).startswith(LOSS):
            losses |= {tensor["value"] for tensor in list_inputs(call)[:1]}
    softmax = next((call for call in calls if name_operator(call) == SOFTMAX and make_one_of(call, losses)), None)
    if softmax is None:
        return [*calls]
    shape = softmax["args"][0]["shape"]
    made: set[int] = set()  # by calls of the step, as no parameter is
    sources: dict[int, dict[str, Any]] = {}  # of values: the logits, as the last matmul left them
    fused: list[Call] = []

    def is_of_logits(tensor: dict[str, Any]) -> bool:
        is_large = tensor["shape"][-1:] == shape[-1:] and prod(tensor["shape"]) >= LEAST * prod(shape)
        return is_large and tensor["value"] in made

    for call in calls:
        name = name_operator(call)
        given = {tensor["value"] for tensor in list_inputs(call)}
        made |= {tensor["value"] for tensor in list_tensors(call.get("outputs", []))} - given
        logits = [tensor for tensor in list_inputs(call) if is_of_logits(tensor)]
        if call["is_view"] or not logits or not (name in REPLACED or name.startswith(LOSS)):
            fused.append(call)
            continue
        fused.append(call | {"is_view": True})
        first = list_inputs(call)[1 if name == SOFTMAX_BACKWARD else 0]  # its first one is a gradient
        source = sources.get(first["value"], first)
        fused += [stand_for_loss(kind, source, call["phase"]) for kind in STANDING.get(name, ())]
        results = [tensor["value"] for tensor in list_tensors(call.get("outputs", []))]
        sources |= dict.fromkeys(results or [first["value"]], source)
    return fused


def make_one_of(call: Call, values: set[int]) -> bool:
    return any(tensor["value"] in values for tensor in list_tensors(call.get("outputs", [])))


def stand_for_loss(kind: str, logits: dict[str, Any], phase: str) -> Call:
    """Return a call that reads logits (`amax`), or that writes as much, too (`mul`)."""
    op, more = {"amax": ("aten.amax.default", [-1]), "mul": ("aten.mul.Scalar", 1.0)}[kind]
    return {
        "op": op,
        "args": [logits, more],
        "kwargs": {},
        "outputs": [],
        "phase": phase,
        "is_view": False,
        "is_loss": True,
    }
