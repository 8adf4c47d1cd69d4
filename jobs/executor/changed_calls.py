"""The calls of a step (see `jobs.follow.step_calls`) as they would be with changes: other types, attention, padded
matmuls, a fused loss, larger batches, another optimizer."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from profiler_job.jobs.contract.changes import (
    BF16,
    CUDNN_ATTENTION,
    FEWER_ACCUMULATIONS,
    FOREACH,
    FUSED_ADAMW,
    FUSED_ATTENTION,
    FUSED_LOSS,
    LARGER_BATCH,
    PADDING,
    TF32,
)
from profiler_job.jobs.contract.ranges import BACKWARD, OPTIMIZER
from profiler_job.jobs.executor.described_calls import Call, list_inputs, list_tensors, name_operator, replace_tensors
from profiler_job.jobs.executor.fused_loss import fuse_loss
from profiler_job.jobs.executor.larger_calls import enlarge_calls

MATMULS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward", "linear")
IN_FP32 = (
    *("_softmax", "_log_softmax", "native_layer_norm", "native_group_norm", "nll_loss_forward", "nll_loss2d_forward"),
    *("_softmax_backward_data", "_log_softmax_backward_data", "native_layer_norm_backward", "nll_loss_backward"),
    *("native_group_norm_backward", "mse_loss", "mse_loss_backward", "exp", "log", "pow", "rsqrt", "reciprocal"),
    *("cumsum", "cumprod", "prod", "softplus", "softplus_backward", "_fused_rms_norm", "_fused_rms_norm_backward"),
)
"""Operators that autocast runs in FP32; `sum` only in the forward pass."""
WRITTEN_OUT, SDPA_WRITTEN_OUT = "_softmax", "_safe_softmax"
"""Softmax of attention that is written out: by a script, and by `scaled_dot_product_attention` if no fused kernel takes
its arguments."""
ATTENTION, ATTENTION_BACKWARD = "attention", "attention_backward"
FUSED = "_scaled_dot_product_"
FP32_TYPE, BF16_TYPE = "float32", "bfloat16"
FEWEST, ALIGNED, MULTIPLE = 1024, 8, 64
"""As in `jobs.follow.changes.padding`."""
LARGER = (LARGER_BATCH, FEWER_ACCUMULATIONS)
CHANGED = (TF32, BF16, FUSED_ATTENTION, CUDNN_ATTENTION, PADDING, FUSED_LOSS, FUSED_ADAMW, FOREACH, *LARGER)
"""Changes whose calls are known."""
TWICE = 2
"""By how much a larger batch is larger."""


def change_calls(step: Mapping[str, Any], changes: Sequence[str]) -> list[Call]:
    """Return the calls of a step with changes, those in CHANGED. step: `calls`; `optimizer` (`kind`, `parameters`) or
    None; for larger batches `rows` of one as it is and `factor` by which micro-batches become larger."""
    calls = gather_attention(step["calls"])
    if FUSED_ATTENTION in changes:
        calls = fuse_attention(calls, WRITTEN_OUT)
    if BF16 in changes and is_fused_in_bf16(calls):
        calls = fuse_attention(calls, SDPA_WRITTEN_OUT)
    if PADDING in changes:
        calls = [pad(call) if find_kind(call) == "matmul" else call for call in calls]
    if BF16 in changes:
        calls = Autocast().change(calls)
    if FUSED_LOSS in changes:
        calls = fuse_loss(calls)
    if CUDNN_ATTENTION in changes:
        calls = [call | {"switched": CUDNN_ATTENTION} if call["op"] == ATTENTION else call for call in calls]
    if TF32 in changes:
        calls = [call | {"tf32": True} if find_kind(call) == "matmul" else call for call in calls]
    for name in {*LARGER}.intersection(changes):
        calls = enlarge_calls(calls, step["rows"], find_factor(step, name))
    forms = {FUSED_ADAMW: "fused", FOREACH: "foreach"}
    form = next((forms[name] for name in changes if name in forms), None)
    if form is not None and step["optimizer"] is not None:
        calls = [call for call in calls if call["phase"] != OPTIMIZER]
        calls.append({"op": "optimizer", "form": form, "phase": OPTIMIZER, "is_view": False} | step["optimizer"])
    return calls


def find_factor(step: Mapping[str, Any], name: str) -> int:
    """Return by how much a change makes batches larger."""
    return TWICE if name == LARGER_BATCH else int(step["factor"])


def weigh_calls(step: Mapping[str, Any], changes: Sequence[str]) -> tuple[float, float]:
    """Return which part of the calls of a step, and of those of its optimizer, the work of a step needs with changes:
    a step of a larger batch does the work of several, and accumulates as often; fewer passes do that of all."""
    passes = updates = 1.0
    for name in {*LARGER}.intersection(changes):
        passes /= find_factor(step, name)
        updates /= find_factor(step, name) if name == LARGER_BATCH else 1
    return passes, updates


def find_kind(call: Call) -> str:
    """Return what a call is: `matmul`, `attention`, `optimizer`, `loss` (what a fused one needs) or `other`."""
    if call["phase"] == OPTIMIZER:
        return "optimizer"
    if call.get("is_loss"):
        return "loss"
    name = name_operator(call)
    return "matmul" if name in MATMULS else "attention" if name == ATTENTION else "other"


# --------------------------------------------------------------------------------------------------------- attention


def gather_attention(calls: Sequence[Call]) -> list[Call]:
    """Make one part of each fused attention and its backward pass: backends differ in what they pass on."""
    gathered = []
    for call in calls:
        name = name_operator(call)
        if name.startswith(FUSED) and name.endswith("backward"):
            call = call | {"op": ATTENTION_BACKWARD, "is_view": True}
        elif name.startswith(FUSED):
            given = call["args"]
            has_mask = "efficient" in name or "cudnn" in name
            more = given[5:] if has_mask else given[3:]
            more = [*more, *[None, None][len(more) :]]
            dropout, is_causal = (call["kwargs"].get(key, more[i]) for i, key in enumerate(("dropout_p", "is_causal")))
            mask = given[3] if has_mask and len(given) > 3 else call["kwargs"].get("attn_mask")
            fixed = {"mask": mask, "dropout": dropout or 0.0, "is_causal": bool(is_causal)}
            tensors = dict(zip(("query", "key", "value"), given))
            call = {"op": ATTENTION, "outputs": call["outputs"], "phase": call["phase"], "is_view": False}
            call |= fixed | tensors
        gathered.append(call)
    return gathered


def is_fused_in_bf16(calls: Sequence[Call]) -> bool:
    """Return whether `scaled_dot_product_attention` is written out in FP32 alone, as with fewer heads of keys than of
    queries: flash attention takes these in BF16, but no mask that the script gives."""
    causal: set[int] = set()
    last: list[Any] = []
    for call in calls:
        name = name_operator(call)
        if name == SDPA_WRITTEN_OUT:
            return len(last) < 2 or last[1]["value"] in causal
        inputs = list_inputs(call)
        if name == "tril" or (name in ("where", "expand") and any(each["value"] in causal for each in inputs)):
            causal |= {each["value"] for each in list_tensors(call["outputs"])}
        if not call["is_view"]:
            last = inputs if name.startswith("add") else []
    return False


def fuse_attention(calls: Sequence[Call], softmax_name: str) -> list[Call]:
    """Put fused attention in the place of attention that is written out with this softmax: two batched matmuls and all
    between them that works on the scores, forward and backward."""
    scores = {
        tuple(softmax["args"][0]["shape"][-2:]): prod(softmax["args"][0]["shape"])
        for softmax in calls
        if name_operator(softmax) == softmax_name and len(softmax["args"][0]["shape"]) >= 3
    }

    def is_score(tensor: Mapping[str, Any]) -> bool:
        last = tuple(tensor["shape"][-2:])
        return len(last) == 2 and prod(tensor["shape"]) in (scores.get(last), scores.get(last[::-1]))

    fused: list[Call] = []
    query_key: list[Any] = []
    is_masked = is_dropped = False
    for call in calls:
        inputs, outputs = list_inputs(call), [*list_tensors(call.get("outputs", []))]
        if call["phase"] == OPTIMIZER or not any(map(is_score, inputs + outputs)):
            fused.append(call)
            continue
        fused.append(call | {"is_view": True})
        name = name_operator(call)
        is_masked |= name.startswith(("masked_fill", "where", "add")) and call["phase"] != BACKWARD
        is_dropped |= "dropout" in name or "bernoulli" in name
        if call["phase"] == BACKWARD or name not in ("bmm", "baddbmm"):
            continue
        if any(map(is_score, outputs)):
            query_key = [each for each in call["args"] if not is_score(each)]
        elif query_key:
            query, key = query_key[-2], query_key[-1]
            described = {"query": query, "key": transpose(key), "value": call["args"][1]}
            part = {name: add_batch(tensor) for name, tensor in described.items()}
            fixed = {"mask": None, "dropout": 0.1 if is_dropped else 0.0, "is_causal": is_masked}
            more = {"outputs": [], "phase": call["phase"], "is_view": False}
            fused.append({"op": ATTENTION} | part | fixed | more)
            is_masked = is_dropped = False
            query_key = []
    return fused


def transpose(tensor: Mapping[str, Any]) -> dict[str, Any]:
    shape, stride = tensor["shape"], tensor["stride"]
    return {**tensor, "shape": [*shape[:-2], *shape[:-3:-1]], "stride": [*stride[:-2], *stride[:-3:-1]]}


def add_batch(tensor: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a tensor of sequences and heads as one of a single batch, in the order in which fused kernels take it:
    of a head whose numbers are not next to each other PyTorch writes the attention out."""
    shape = [1, *tensor["shape"]]
    return {**tensor, "shape": shape, "stride": [prod(shape[i + 1 :]) for i in range(len(shape))]}


# ----------------------------------------------------------------------------------------------------------- padding


def pad(call: Call) -> Call:
    """Pad the dimensions of a matmul as the change `padding` does."""

    def change(tensor: dict[str, Any]) -> dict[str, Any]:
        shape = [size + -size % MULTIPLE if size >= FEWEST and size % ALIGNED else size for size in tensor["shape"]]
        if shape == tensor["shape"]:
            return tensor
        before = dict(zip(tensor["shape"], shape))
        stride = [before.get(step, step) for step in tensor["stride"]]
        return tensor | {"shape": shape, "stride": stride}

    return call | {"args": replace_tensors(call["args"], change)} if "args" in call else call


# ---------------------------------------------------------------------------------------------------------- autocast


class Autocast:
    """Follows the types of values through the calls of a step in FP32 as they are with autocast in BF16."""

    def __init__(self) -> None:
        self.types: dict[int, str] = {}  # of values that have another type than in FP32
        self.made: set[int] = set()  # by calls of the step
        self.casts: set[tuple[int, str]] = set()
        self.changed: list[Call] = []

    def change(self, calls: Sequence[Call]) -> list[Call]:
        for call in calls:
            if call["phase"] in (OPTIMIZER, "clip", "zero_grad"):
                self.changed.append(call)
                continue
            wanted = self.find_type(call)
            inputs = list_inputs(call)
            given = {each["value"] for each in inputs}
            floats = {each["value"]: each for each in inputs if each["dtype"] == FP32_TYPE}
            if wanted and not call["is_view"]:
                for each in floats.values():
                    self.cast(each, wanted, call["phase"])
            types = {number: wanted or self.types.get(number, FP32_TYPE) for number in floats}
            arrays = {types[number] for number, each in floats.items() if each["shape"]}
            result = wanted or (BF16_TYPE if arrays == {BF16_TYPE} else FP32_TYPE)
            if name_operator(call).endswith("_") and inputs:
                result = self.types.get(inputs[0]["value"], inputs[0]["dtype"])

            def retype(tensor: dict[str, Any], types: Mapping[int, str] = types) -> dict[str, Any]:
                return tensor | {"dtype": types.get(tensor["value"], tensor["dtype"])}

            self.changed.append({**replace_tensors(call, retype), "outputs": call.get("outputs", [])})
            explicit = (call.get("kwargs") or {}).get("dtype")
            for output in list_tensors(call.get("outputs", [])):
                if output["value"] not in given:
                    self.made.add(output["value"])
                if output["dtype"] == FP32_TYPE:
                    self.types[output["value"]] = FP32_TYPE if explicit else result
        return self.changed

    def find_type(self, call: Call) -> str:
        """Return the type that autocast has a call run in; "" if it is that of its inputs."""
        name = name_operator(call)
        if name in MATMULS or name in (ATTENTION, ATTENTION_BACKWARD):
            return BF16_TYPE
        is_sum = name == "sum" and call["phase"] != BACKWARD
        return FP32_TYPE if name in IN_FP32 or is_sum else ""

    def cast(self, tensor: dict[str, Any], wanted: str, phase: str) -> None:
        """Add the cast of a value that has another type, and of the gradient of a parameter. Autocast keeps casts of
        parameters; the backward pass finds those of the forward pass."""
        number = tensor["value"]
        now = self.types.get(number, FP32_TYPE)
        is_given = number not in self.made
        if now == wanted or ((number, wanted) in self.casts and (is_given or phase == BACKWARD)):
            return
        self.casts.add((number, wanted))
        self.changed.append(make_cast(tensor | {"dtype": now}, wanted, phase))
        if is_given and phase != BACKWARD:
            self.changed.append(make_cast(tensor | {"dtype": wanted}, now, BACKWARD))


def make_cast(tensor: dict[str, Any], wanted: str, phase: str) -> Call:
    return {
        "op": "aten._to_copy.default",
        "args": [tensor],
        "kwargs": {"dtype": {"torch": f"torch.{wanted}"}},
        "outputs": [],
        "phase": phase,
        "is_view": False,
    }
