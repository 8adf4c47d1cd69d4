"""Calls of a step as they would be with changes, compared with those of steps that have the changes."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from profiler_job.jobs.contract.paired_ratio import SPREAD_OF_CPU
from profiler_job.jobs.executor.changed_calls import change_calls, find_kind
from profiler_job.jobs.executor.described_calls import Call, list_inputs, name_operator
from profiler_job.jobs.executor.predicted_steps import StepParts, make_key, strip
from profiler_job.jobs.follow.measured_parts import PartsMeasurement, split_by_marks
from profiler_job.jobs.follow.step_calls import CallRecorder

CUDNN = ("cudnn_attention",)
MS = 1e6


class Block(nn.Module):
    """A layer of a Transformer with attention that is written out, or fused."""

    def __init__(self, is_fused: bool):
        super().__init__()
        self.is_fused = is_fused
        self.norm, self.before, self.after = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        query, key, value = (each.transpose(1, 2) for each in self.before(self.norm(x)).view(2, 8, 3, 4, 4).unbind(2))
        if self.is_fused:
            y = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            scores = (query @ key.transpose(-1, -2)).masked_fill(torch.ones(8, 8).triu(1) > 0, float("-inf"))
            y = scores.softmax(-1) @ value
        return x + self.after(y.transpose(1, 2).reshape(2, 8, 16))


def record(is_fused: bool = True, is_bf16: bool = False, vocabulary: int = 20) -> dict:
    """Record a step of a small language model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(vocabulary, 16), Block(is_fused), nn.GELU(), nn.Linear(16, vocabulary))
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, vocabulary, (2, 8))
    phases = [""]
    recorder = CallRecorder(lambda: phases[-1])
    with recorder:
        with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
            loss = nn.functional.cross_entropy(model(tokens).view(-1, vocabulary).float(), tokens.view(-1))
        phases.append("backward")
        loss.backward()
        phases.append("optimizer")
        optimizer.step()
    parameters = [{"shape": list(p.shape), "stride": list(p.stride()), "dtype": "float32"} for p in model.parameters()]
    step = {"calls": recorder.calls, "numbers": recorder.numbers}
    return step | {"optimizer": {"kind": "AdamW", "parameters": parameters}}


def count(calls: list[Call], *names: str) -> Counter:
    """Count calls of operators by the types and shapes of their tensors."""
    return Counter(
        (name_operator(call), *(f"{each['dtype']}{each['shape']}" for each in list_inputs(call)))
        for call in calls
        if name_operator(call) in names and not call["is_view"]
    )


@pytest.mark.parametrize("is_fused", [True, False])
def test_types_with_autocast_are_those_of_a_step_with_autocast(is_fused):
    expected = change_calls(record(is_fused, is_bf16=True), ())
    changed = change_calls(record(is_fused), ["bf16"])
    # Autocast of the CPU leaves softmax in BF16, that of a GPU does not.
    for name in ("mm", "addmm", "bmm", "attention", "native_layer_norm", "_log_softmax", "gelu"):
        assert count(changed, name) == count(expected, name), name
    casts, known = (sum(count(calls, "_to_copy").values()) for calls in (changed, expected))
    assert abs(casts - known) <= (1 if is_fused else 3) and known > 10


def test_what_is_not_changed_stays():
    step = record()
    assert [make_key(call) for call in change_calls(step, ["tf32"]) if find_kind(call) != "matmul"] == [
        make_key(call) for call in change_calls(step, ()) if find_kind(call) != "matmul"
    ]
    assert all(call["tf32"] for call in change_calls(step, ["tf32"]) if find_kind(call) == "matmul")


def test_fused_attention_takes_the_place_of_attention_that_is_written_out():
    written = change_calls(record(is_fused=False), ["fused_attention"])
    (attention,) = [call for call in written if call["op"] == "attention"]
    shapes = {name: attention[name]["shape"] for name in ("query", "key", "value")}
    assert {*map(tuple, shapes.values())} == {(1, 8, 8, 4)} and attention["is_causal"]
    assert {tuple(attention[name]["stride"]) for name in shapes} == {(256, 32, 4, 1)}, "as fused kernels take them"
    assert not count(written, "bmm", "_softmax", "_softmax_backward_data", "masked_fill")
    fused = change_calls(record(is_fused=True), ())
    assert sum(call["op"] == "attention" for call in fused) == 1
    assert sum(count(written, "mm", "addmm").values()) == sum(count(fused, "mm", "addmm").values())


class Grouped(nn.Module):
    """Attention in which two heads share their keys, of PyTorch, and written out by it in FP32."""

    def __init__(self, has_mask: bool):
        super().__init__()
        self.before, self.mask = nn.Linear(16, 32), torch.zeros(8, 8) if has_mask else None

    def forward(self, x):
        heads = self.before(x).view(2, 8, 8, 4).transpose(1, 2)
        given = {"attn_mask": self.mask, "is_causal": self.mask is None, "enable_gqa": True}
        with sdpa_kernel(SDPBackend.MATH):
            return nn.functional.scaled_dot_product_attention(heads[:, :4], heads[:, 4:6], heads[:, 6:], **given)


@pytest.mark.parametrize("has_mask", [False, True])
def test_attention_that_pytorch_writes_out_in_fp32_alone_is_fused_in_bf16(has_mask):
    phases = [""]
    recorder = CallRecorder(lambda: phases[-1])
    with recorder:
        model = Grouped(has_mask)
        loss = model(torch.randn(2, 8, 16)).sum() + model(torch.randn(2, 8, 16)).sum()
        phases.append("backward")
        loss.backward()
    step = {"calls": recorder.calls, "optimizer": None}
    assert count(change_calls(step, ["tf32"]), "_safe_softmax").total() == 2
    fused = [call for call in change_calls(step, ["bf16"]) if call["op"] == "attention"]
    assert len(fused) == (0 if has_mask else 2), "flash attention takes no mask"
    for call in fused:
        assert call["is_causal"] and {call[name]["dtype"] for name in ("query", "key", "value")} == {"bfloat16"}


def test_padding_changes_the_matmuls_of_the_vocabulary():
    changed = change_calls(record(vocabulary=1027), ["padding"])
    sizes = {
        size for call in changed if find_kind(call) == "matmul" for each in list_inputs(call) for size in each["shape"]
    }
    assert 1088 in sizes and 1027 not in sizes


def test_attention_by_cudnn_is_another_part():
    step = record(is_fused=True)
    attention = [[call for call in change_calls(step, names) if call["op"] == "attention"] for names in ((), CUDNN)]
    assert [call.get("switched") for calls in attention for call in calls] == [None, "cudnn_attention"]
    before = torch._C._get_sdp_priority_order()
    assert all(PartsMeasurement({}).measure([strip(call) for calls in attention for call in calls]))
    assert torch._C._get_sdp_priority_order() == before


def test_a_fused_optimizer_takes_the_place_of_its_calls():
    changed = change_calls(record(), ["fused_adamw"])
    assert [call["op"] for call in changed if call["phase"] == "optimizer"] == ["optimizer"]


def test_every_part_of_a_step_can_be_measured_alone():
    step = record(is_fused=False)
    measurement = PartsMeasurement(step["numbers"])
    shares = {"step_ns": 50 * MS, "kernels": None}
    parts = StepParts(step, shares, measurement.measure)
    for changes in (["bf16", "fused_adamw"], ["fused_attention"], ["padding"]):
        predicted = parts.predict(changes)
        assert predicted.low_ns < predicted.step_ns < predicted.high_ns
    assert all(times and min(times) > 0 for times in parts.times.values())
    assert parts.predict(["compile"]) is None
    assert parts.predict([]).step_ns == pytest.approx(50 * MS)


def test_a_step_is_the_sum_of_its_parts_until_the_cpu_limits_it():
    step = record(is_fused=False)

    def measure(parts):
        return [
            (0.0, 0.0) if part["op"] == "aten._to_copy.default" else (MS / (1 + 3 * bool(part.get("tf32"))), 0.0)
            for part in parts
        ]

    kernels = {"busy": 100 * MS, "matmul": 80 * MS, "convolution": 0.0, "attention": 0.0}
    shares = {"step_ns": 100 * MS, "kernels": kernels, "issue": {"": 20 * MS, "optimizer": 5 * MS}}
    parts = StepParts(step, shares, measure)
    assert parts.predict(["tf32"]).step_ns == pytest.approx(40 * MS, rel=0.01)
    slow = StepParts(step, shares | {"issue": {"": 70 * MS}}, measure)
    limited = slow.predict(["tf32"])
    assert limited.step_ns == pytest.approx(70 * MS, rel=0.05) and limited.gpu_ns == pytest.approx(40 * MS)
    assert limited.low_ns < 70 * MS < limited.high_ns


def test_a_call_that_cannot_be_described_leaves_the_script_as_it_is():
    recorder = CallRecorder(lambda: "")
    with recorder:
        sparse = torch.eye(4).to_sparse()
        product = torch.sparse.mm(sparse, torch.ones(4, 4))
    assert torch.equal(product, torch.ones(4, 4)) and recorder.has_failed and not recorder.calls
    kernels = {"busy": 1.0, "matmul": 0.0, "convolution": 0.0, "attention": 0.0}
    step = {"calls": recorder.calls, "optimizer": None}
    assert not StepParts(step, {"step_ns": 1.0, "kernels": kernels}, list).is_measured


def test_a_new_call_costs_the_cpu_what_calls_of_the_step_do_and_one_left_out_frees_its_share():
    """A call that is launched alone took 37 us on an H200, in a process whose step had 12 us for each call: from a part
    to the step the CPU had another speed. The casts of a GPT-2 of 24 layers in BF16 were expected to cost 56% of the
    CPU's time, and cost 17%."""
    step = record(is_fused=False)
    issue = {"": 60 * MS, "data": 30 * MS, "backward": 40 * MS, "optimizer": 5 * MS}
    kernels = {"busy": 10 * MS, "matmul": 8 * MS, "convolution": 0.0, "attention": 0.0}
    shares = {"step_ns": 135 * MS, "kernels": kernels, "issue": issue}
    parts = StepParts(step, shares, lambda parts: [(MS, 0.5 * MS)] * len(parts))
    call_ns = 100 * MS / sum(call["phase"] != "optimizer" for call in step["calls"])
    num_calls, in_bf16, fused = (
        sum(call["phase"] != "optimizer" and not call["is_view"] for call in change_calls(step, changes))
        for changes in ((), ["bf16"], ["fused_attention"])
    )
    assert parts.predict(["tf32"]).cpu_ns == 135 * MS, "as many calls"
    assert parts.predict(["bf16"]).cpu_ns == pytest.approx(135 * MS + call_ns * (in_bf16 - num_calls))
    assert parts.predict(["fused_adamw"]).cpu_ns == pytest.approx(130.5 * MS)
    freed = 130 * (num_calls - fused + 1) / num_calls
    assert parts.predict(["fused_attention"]).cpu_ns == pytest.approx((135 - freed) * MS + call_ns)


def test_the_interval_holds_what_fresh_processes_differ_by_if_the_cpu_limits_the_step():
    step = record(is_fused=False)
    kernels = {"busy": 30 * MS, "matmul": 20 * MS, "convolution": 0.0, "attention": 0.0}
    shares = {"step_ns": 100 * MS, "kernels": kernels, "issue": {"": 100 * MS}}
    predicted = StepParts(step, shares, lambda parts: [(MS, MS)] * len(parts)).predict(["tf32"])
    ends = predicted.low_ns, predicted.high_ns
    assert ends == pytest.approx(((1 - SPREAD_OF_CPU) * 100 * MS, (1 + SPREAD_OF_CPU) * 100 * MS), rel=1e-3)


def test_a_trace_is_split_by_its_marks():
    spin = "at::cuda::spin_kernel(long)"
    operations = [("fill", 0, 5), (spin, 5, 6), ("a", 6, 9), ("b", 9, 10), (spin, 11, 12), ("fill", 12, 15)]
    operations += [(spin, 15, 16), ("c", 16, 18), (spin, 20, 21)]
    assert split_by_marks(operations, [1, 0], 2) == [[2.0], [4.0]]
    assert split_by_marks(operations, [1], 2) == [[], []], "a mark is missing"


def test_parts_are_measured_in_the_precision_of_the_script():
    seen = []

    class Watched(PartsMeasurement):
        def prepare(self, part):
            seen.append(torch.get_float32_matmul_precision())
            return lambda: None

    torch.set_float32_matmul_precision("medium")
    try:
        Watched({}).measure([{"op": "aten.mm.default"}, {"op": "aten.mm.default", "tf32": True}])
        assert (seen, torch.get_float32_matmul_precision()) == (["medium", "high"], "medium")
    finally:
        torch.set_float32_matmul_precision("highest")
